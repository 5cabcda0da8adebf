//! `kv_write` and `attention` over paged KV (Kwon et al. 2023, arXiv 2309.06180).
//!
//! A KV cache tensor has a block of one layer in each row. What a block looks like inside is the attention backend's
//! own business, and both ops name that backend.

use crate::dtype::DType;

op! {
    /// Stores k\[t\] and v\[t\] at slot slots\[t\] = page · block_size + index in the block; −1 stores nothing. The
    /// slots of a call differ. Held is each value rounded to kv's type, but in I8 and U4, for the values x of one head
    /// of a token: I8: s·q with s = max|x| / 127 and q = x / s rounded. U4: s·q + m with q = (x − m) / s rounded,
    /// m = min x rounded down to bf16 and s = (max x − m) / 15 rounded up to bf16; of keys, x is turned before, and
    /// turned back when read (or q is turned instead): in each run of n values, n the largest power of 2 that divides
    /// head_dim, by H/√n, with (a, b) ← (a + b, a − b) for values 1 apart, then 2, 4, … n/2, then · 1/√n. All in f32,
    /// rounded to the nearest whole number, of two the even one; where s is 0, q is 0. One value that is not finite
    /// makes its head NaN.
    pub struct KvWrite = 8 "kv_write", wire KvWriteDesc = "halyard_kv_write_desc" {
        /// Heads of k and v.
        num_kv_heads: u32,
        /// Values of a head.
        head_dim: u32,
        /// Type of k and v.
        act: DType,
        /// Type held: F32, F16, BF16, F8E4M3, or I8 or U4 with scales.
        kv: DType,
        /// Tokens of a block.
        block_size: u32,
        /// Index of the attention backend in the attention interface's list.
        backend: u32,
        /// Most tokens of one call.
        max_tokens: u32,
    }
    operands {
        /// \[T, num_kv_heads, head_dim\] `act`, strided.
        k: Read,
        /// As k.
        v: Read,
        /// \[T\] i32.
        slots: Read,
        /// \[num_pages, block_bytes\] u8, with block_bytes of the attention plan; rows may lie further apart, by a
        /// multiple of offset_alignment. What is in a row is the attention backend's own.
        cache: Update,
    }
}

op! {
    /// Causal attention of a ragged batch. For token t of sequence s at position p (p = seq_lens\[s\] − query_len +
    /// index in the chunk), over the keys at positions j ≤ p, and j > p − window where window is not 0:
    /// score = cap(scale · q·kⱼ), cap(x) = softcap·tanh(x/softcap) where softcap is not 0; out = Σⱼ softmax(score)ⱼ·vⱼ.
    /// A sink adds e^sinks\[h\] to the softmax's denominator. Query head h reads KV head h / (num_heads /
    /// num_kv_heads). Entries of the block table that lie wholly outside the window are never read. out must not
    /// overlap q.
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
        /// \[T, num_heads, head_dim\] `act`, strided.
        q: Read,
        /// As that of kv_write, which has stored this step's keys and values.
        cache: Read,
        /// \[R, max_blocks\] i32: the page of each block of a row.
        block_table: Read,
        /// \[S\] i32.
        step_rows: Read,
        /// \[S+1\] i32: the first token of each sequence, and the end.
        query_start_loc: Read,
        /// \[S\] i32: keys of each sequence, this step's included.
        seq_lens: Read,
        /// \[num_heads\] f32; present where has_sinks is 1.
        sinks: Const?y,
        /// \[T, num_heads, head_dim\] `act`.
        out: Write,
    }
}
