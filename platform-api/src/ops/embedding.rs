//! `embedding`: token ids to rows of the table.

use crate::dtype::{DType, WeightFormat};

op! {
    /// out\[t\] = scale · dequantise(table\[ids\[t\]\]).
    ///
    /// Operands: ids \[T\] i32; table: the packed weight \[num_rows, width\]; out \[T, width\]. An id outside the table
    /// is a caller's bug; −1 gives zeros.
    pub struct Embedding = 1 "embedding", wire EmbeddingDesc = "halyard_embedding_desc" {
        /// Rows of the table (vocabulary).
        num_rows: u32,
        /// Values of a row.
        width: u32,
        /// Format of the table.
        weight: WeightFormat,
        /// Type of the output.
        out: DType,
        /// Factor (Gemma: √width rounded to the checkpoint's type; else 1).
        scale: f32,
        /// Most tokens of one call.
        max_tokens: u32,
    }
    operands { ids: Read, table: Const, out: Write }
}
