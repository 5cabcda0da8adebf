//! `rope`: rotary position embedding (Su et al. 2021, arXiv 2104.09864) from a table, so that every frequency scaling
//! is the table's business.

use crate::abi::wire_enum;
use crate::dtype::DType;

wire_enum! {
    /// Which elements form a pair.
    pub enum RopeStyle {
        /// (i, i + rotary_dim/2): Hugging Face.
        Neox = 0,
        /// (2i, 2i + 1): the paper, and llama-architecture GGUF files.
        Interleaved = 1,
    }
}

op! {
    /// For pair i of each head: (a, b) ← (a·cos − b·sin, b·cos + a·sin), cos = table\[pos, i\], sin = table\[pos,
    /// rotary_dim/2 + i\], pos = positions\[t\]. Elements of a head past rotary_dim stay.
    pub struct Rope = 7 "rope", wire RopeDesc = "halyard_rope_desc" {
        /// Values of a head.
        head_dim: u32,
        /// Values of a head that turn; even.
        rotary_dim: u32,
        /// Pairing.
        style: RopeStyle,
        /// Type of x.
        dtype: DType,
    }
    operands {
        /// \[T\] i32.
        positions: Read,
        /// \[max_positions, rotary_dim\] f32: a position's cosines, then its sines.
        table: Const,
        /// \[T, heads, head_dim\] `dtype`, strided.
        x: Update,
    }
}
