//! Latent attention (DeepSeek-AI 2024, arXiv 2405.04434): `head_linear`, `latent_write` and `latent_attention`.
//!
//! A token leaves one row in the cache, which all heads share: its latent, and a key that was turned by its position.
//! Queries come multiplied by the matrices that would make keys of latents (`head_linear`), and results are latents
//! that `head_linear` makes values of. What a row of the cache looks like inside is the attention backend's own
//! business, as for `kv_write` and `attention`.

use crate::{DType, WeightFormat};

op! {
    /// out\[t, h, n\] = Σₖ x\[t, h, k\]·dequantise(weight)\[h · out_features + n, k\]: each head by a matrix of its
    /// own. out must not overlap x.
    pub struct HeadLinear = 37 "head_linear", wire HeadLinearDesc = "halyard_head_linear_desc" {
        /// Heads.
        num_heads: u32,
        /// K: values of a head of x.
        in_features: u32,
        /// N: values of a head of out.
        out_features: u32,
        /// Format of the weight.
        weight: WeightFormat,
        /// Type of x and out.
        dtype: DType,
        /// Most tokens of one call.
        max_tokens: u32,
    }
    operands {
        /// \[T, num_heads, in_features\] `dtype`, strided.
        x: Read,
        /// Packed weight of num_heads · out_features rows of in_features values, head by head.
        weight: Const,
        /// \[T, num_heads, out_features\] `dtype`, strided.
        out: Write,
    }
}

op! {
    /// Stores latent\[t\] and key\[t\] at slot slots\[t\] = page · block_size + index in the block; −1 stores nothing.
    /// The slots of a call differ.
    pub struct LatentWrite = 38 "latent_write", wire LatentWriteDesc = "halyard_latent_write_desc" {
        /// Values of a latent.
        latent_dim: u32,
        /// Values of a key.
        rope_dim: u32,
        /// Type of latent and key.
        act: DType,
        /// Type held.
        kv: DType,
        /// Tokens of a block.
        block_size: u32,
        /// Index of the attention backend in the attention interface's list.
        backend: u32,
        /// Most tokens of one call.
        max_tokens: u32,
    }
    operands {
        /// \[T, latent_dim\] `act`, strided.
        latent: Read,
        /// \[T, rope_dim\] `act`, strided.
        key: Read,
        /// \[T\] i32.
        slots: Read,
        /// \[num_pages, block_bytes\] u8, with block_bytes of the attention plan; rows may lie further apart, by a
        /// multiple of offset_alignment. What is in a row is the attention backend's own.
        cache: Update,
    }
}

op! {
    /// Causal attention of a ragged batch over latents. For token t of sequence s at position p (p = seq_lens\[s\] −
    /// query_len + index in the chunk), over the positions j ≤ p: score = scale · (q_latent\[t, h\]·latentⱼ +
    /// q_rope\[t, h\]·keyⱼ); out\[t, h\] = Σⱼ softmax(score)ⱼ·latentⱼ. out must not overlap q_latent or q_rope.
    pub struct LatentAttention = 39 "latent_attention", wire LatentAttentionDesc = "halyard_latent_attention_desc" {
        /// Query heads.
        num_heads: u32,
        /// Values of a latent.
        latent_dim: u32,
        /// Values of a key that was turned.
        rope_dim: u32,
        /// Factor of the scores.
        scale: f32,
        /// Type of q_latent, q_rope and out.
        act: DType,
        /// Type held in the cache.
        kv: DType,
        /// Tokens of a block.
        block_size: u32,
        /// Index of the attention backend in the attention interface's list.
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
        /// \[T, num_heads, latent_dim\] `act`, strided.
        q_latent: Read,
        /// \[T, num_heads, rope_dim\] `act`, strided.
        q_rope: Read,
        /// As that of latent_write, which has stored this step's latents and keys.
        cache: Read,
        /// \[R, max_blocks\] i32: the page of each block of a row.
        block_table: Read,
        /// \[S\] i32.
        step_rows: Read,
        /// \[S+1\] i32: the first token of each sequence, and the end.
        query_start_loc: Read,
        /// \[S\] i32: keys of each sequence, this step's included.
        seq_lens: Read,
        /// \[T, num_heads, latent_dim\] `act`.
        out: Write,
    }
}
