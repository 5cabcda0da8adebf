//! `embedding`: token ids to rows of the table.

use crate::{DType, WeightFormat};

op! {
    /// out\[t\] = scale · dequantise(table\[ids\[t\]\]). The id −1 gives zeros; any other id outside the table is a
    /// caller's bug.
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
    operands {
        /// \[T\] i32.
        ids: Read,
        /// Packed weight of num_rows rows of `width` values.
        table: Const,
        /// \[T, width\] `out`.
        out: Write,
    }
}
