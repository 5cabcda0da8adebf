//! `kv_write` and `attention` over paged KV (Kwon et al. 2023, arXiv 2309.06180).
//!
//! A KV cache tensor is \[num_pages, block_bytes\] u8: one block of one layer in each page. What a block looks like
//! inside is the attention backend's own business, and both ops name that backend.

use crate::dtype::DType;

op! {
    /// Stores k\[t\] and v\[t\] at slot slots\[t\] (page · block_size + index in the block); −1 stores nothing.
    ///
    /// Operands: k, v \[T, num_kv_heads, head_dim\] `act`, strided; slots \[T\] i32; cache \[num_pages, block_bytes\]
    /// u8, updated.
    pub struct KvWrite = 8 "kv_write", wire KvWriteDesc = "halyard_kv_write_desc" {
        /// Heads of k and v.
        num_kv_heads: u32,
        /// Values of a head.
        head_dim: u32,
        /// Type of k and v.
        act: DType,
        /// Type held.
        kv: DType,
        /// Tokens of a block.
        block_size: u32,
        /// Index of the attention backend.
        backend: u32,
        /// Most tokens of one call.
        max_tokens: u32,
    }
    operands { k: Read, v: Read, slots: Read, cache: Update }
}

op! {
    /// Causal attention of a ragged batch. For token t of sequence s at position p (p = seq_lens\[s\] − query_len +
    /// index in the chunk), over the keys at positions j ≤ p, and j > p − window where window is not 0:
    /// score = cap(scale · q·kⱼ), cap(x) = softcap·tanh(x/softcap) where softcap is not 0; out = Σⱼ softmax(score)ⱼ·vⱼ.
    /// A sink adds e^sink\[h\] to the softmax's denominator.
    ///
    /// Operands: q \[T, num_heads, head_dim\] `act`, strided; cache \[num_pages, block_bytes\] u8 (kv_write came
    /// first); block_table \[R, max_blocks\] i32: page of each block of a row; step_rows \[S\] i32; query_start_loc
    /// \[S+1\] i32; seq_lens \[S\] i32: keys including this step's; sinks \[num_heads\] f32, optional; out \[T,
    /// num_heads, head_dim\] `act`. out must not overlap q.
    /// Query head h reads KV head h / (num_heads / num_kv_heads). Entries of the block table that lie wholly outside
    /// the window are never read.
    pub struct Attention = 9 "attention", wire AttentionDesc = "halyard_attention_desc" {
        /// Query heads.
        num_heads: u32,
        /// KV heads; divides num_heads.
        num_kv_heads: u32,
        /// Values of a head.
        head_dim: u32,
        /// Factor of the scores.
        scale: f32,
        /// Positions a query sees, itself included; 0: all before it.
        window: u32,
        /// Cap of the scores; 0: none.
        softcap: f32,
        /// The sinks operand is given.
        has_sinks: bool,
        /// Type of q and out.
        act: DType,
        /// Type held in the cache.
        kv: DType,
        /// Tokens of a block.
        block_size: u32,
        /// Index of the attention backend.
        backend: u32,
        /// Bound: sequences of a step.
        max_seqs: u32,
        /// Bound: tokens of a step.
        max_tokens: u32,
        /// Bound: tokens of one sequence in a step.
        max_query_len: u32,
        /// Bound: keys of one sequence.
        max_kv_len: u32,
    }
    operands {
        q: Read, cache: Read, block_table: Read, step_rows: Read, query_start_loc: Read, seq_lens: Read,
        sinks: Const?y, out: Write
    }
}
