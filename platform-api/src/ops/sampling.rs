//! Sampling: `logits_process`, `argmax`, `sample`, `top_logprobs`. Logits are f32 \[S, V\], one row per sequence of the
//! step.
//!
//! A row without a distribution has no token. `argmax` and `sample` then give one of two negative values:
//! [`NOT_FINITE`] or [`NO_TOKEN`]. `update_rows` reports it and keeps it out of the history, so no later op meets it as
//! a token id.

use crate::abi::abi_fixed_struct;

/// In place of a token: a logit of the row is NaN or +∞.
pub const NOT_FINITE: i32 = -2;

/// In place of a token: every logit of the row is −∞.
pub const NO_TOKEN: i32 = -3;

abi_fixed_struct! {
    /// A row's sampling parameters, 128 bytes, little-endian; the operand row_sampling \[R, 128\] u8 holds one per
    /// device row. Reserved words mean nothing to an op whose descriptor does not say that they do.
    pub struct SamplingRow = "halyard_sampling_row" {
        /// Key of the random stream.
        pub seed: u64,
        /// Tokens of the prompt: output token number i = history index − prompt_len.
        pub prompt_len: u32,
        /// 0: greedy; else 0.01 to 100.
        pub temperature: f32,
        /// Keep the k most likely; 0: all.
        pub top_k: u32,
        /// Keep the smallest set of tokens whose probability reaches this; 1: all.
        pub top_p: f32,
        /// Drop tokens less likely than this times the most likely; 0: none.
        pub min_p: f32,
        /// Divides positive and multiplies negative logits of tokens in the history (prompt and output); 1: none.
        pub repetition_penalty: f32,
        /// Subtracted from tokens in the output; 0: none.
        pub presence_penalty: f32,
        /// Subtracted per occurrence in the output; 0: none.
        pub frequency_penalty: f32,
        /// Stop tokens are impossible until the output has this many.
        pub min_tokens: u32,
        /// Used entries of the row's bias_tokens and bias_values.
        pub num_bias: u32,
        /// Used entries of the row's stop_tokens.
        pub num_stop: u32,
        /// Used sequences of the row's bad_words.
        pub num_bad_words: u32,
        /// 1: the row's allowed_mask applies.
        pub use_mask: u32,
        /// Zero.
        pub reserved: [u32; 17],
    }
}

const _: () = assert!(size_of::<SamplingRow>() == 128);

impl SamplingRow {
    /// Draws from the distribution as it is: temperature 1, nothing filtered, penalised or masked.
    pub const PLAIN: SamplingRow = SamplingRow {
        seed: 0,
        prompt_len: 0,
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        min_tokens: 0,
        num_bias: 0,
        num_stop: 0,
        num_bad_words: 0,
        use_mask: 0,
        reserved: [0; 17],
    };

    /// The row as device memory holds it, little endian.
    pub fn to_bytes(&self) -> [u8; 128] {
        let words = [
            self.prompt_len,
            self.temperature.to_bits(),
            self.top_k,
            self.top_p.to_bits(),
            self.min_p.to_bits(),
            self.repetition_penalty.to_bits(),
            self.presence_penalty.to_bits(),
            self.frequency_penalty.to_bits(),
            self.min_tokens,
            self.num_bias,
            self.num_stop,
            self.num_bad_words,
            self.use_mask,
        ];
        let mut bytes = [0; 128];
        let (seed, rest) = bytes.split_at_mut(8);
        seed.copy_from_slice(&self.seed.to_le_bytes());
        for (to, word) in rest.chunks_exact_mut(4).zip(words.iter().chain(&self.reserved)) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

op! {
    /// Changes logits in place, in this order: allowed_mask and grammar_mask (a cleared bit: −∞), stop tokens while the
    /// output is shorter than min_tokens (−∞), bias (added), bad words (−∞ for the last token of a sequence whose
    /// earlier tokens end the history), repetition, frequency and presence penalties. (The order of vLLM's sampler.) A
    /// row −1 is left alone. What sets −∞ leaves a NaN or +∞ as it is, so that the sampler sees it. The output begins
    /// at prompt_len of the history.
    pub struct LogitsProcess = 25 "logits_process", wire LogitsProcessDesc = "halyard_logits_process_desc" {
        /// V: logits of a row.
        vocab: u32,
        /// Bound: sequences of a step.
        max_seqs: u32,
    }
    operands {
        /// \[S, V\] f32.
        logits: Update,
        /// \[S\] i32.
        step_rows: Read,
        /// \[R, 128\] u8: sampling rows.
        row_sampling: Read,
        /// \[R, L\] i32: the history.
        row_tokens: Read,
        /// \[R\] i32: tokens of the history.
        row_num_tokens: Read,
        /// \[R, ⌈V/32⌉\] i32: bit v mod 32 of word v/32 is token v. Rows with use_mask 1 have one.
        allowed_mask: Read?y,
        /// \[R, B\] i32.
        bias_tokens: Read?y,
        /// \[R, B\] f32; present with bias_tokens.
        bias_values: Read?y,
        /// \[R, N\] i32.
        stop_tokens: Read?y,
        /// \[R, W\] i32: of each sequence its length, then its ids.
        bad_words: Read?y,
        /// \[S, ⌈V/32⌉\] i32: as allowed_mask, by sequence of the step.
        grammar_mask: Read?y,
    }
}

op! {
    /// out\[s\] = the index of the largest logit (ties: the lowest index); [`NOT_FINITE`] where a logit of the row is
    /// NaN or +∞, [`NO_TOKEN`] where all are −∞.
    pub struct Argmax = 26 "argmax", wire ArgmaxDesc = "halyard_argmax_desc" {
        /// V: logits of a row.
        vocab: u32,
        /// Bound: sequences of a step.
        max_seqs: u32,
    }
    operands {
        /// \[S, V\] f32.
        logits: Read,
        /// \[S\] i32.
        out: Write,
    }
}

op! {
    /// Draws a token per row: probabilities softmax(logits / temperature), filtered by min_p, then top_k (ties of the
    /// k-th value stay), then top_p of what is left (descending by probability, then ascending by index; the token that
    /// reaches top_p stays), then the first index v with Σ_{i≤v} p ≥ u·Σ p, summed in index order. u = (x + ½)/2³² with
    /// x the first word of Philox4x32-10, counter (output index, 0, 0, 0), key = seed; output index = row_num_tokens −
    /// prompt_len: a draw depends on the request and its length only. Temperature 0 is `argmax`. For a row −1, out is
    /// −1. A row whose logits, as they are given, hold a NaN or +∞ gives [`NOT_FINITE`], one of −∞ alone [`NO_TOKEN`].
    ///
    /// Each e^x may be rounded to f32. Sums of them are taken in f64 or in integers, never in f32: over a vocabulary an
    /// f32 sum is off by more than the least likely tokens weigh, and it depends on its order.
    pub struct Sample = 27 "sample", wire SampleDesc = "halyard_sample_desc" {
        /// V: logits of a row.
        vocab: u32,
        /// Bound: sequences of a step.
        max_seqs: u32,
    }
    operands {
        /// \[S, V\] f32.
        logits: Read,
        /// \[S\] i32.
        step_rows: Read,
        /// \[R, 128\] u8: sampling rows.
        row_sampling: Read,
        /// \[R\] i32: tokens of the history.
        row_num_tokens: Read,
        /// \[S\] i32.
        out: Write,
    }
}

op! {
    /// Log-probabilities (logits − logsumexp): of the chosen token, its rank (1 = most likely; tokens with a greater
    /// logit count), and of the k most likely (descending, ties by index). A negative chosen gives 0 and rank 0. A row
    /// that holds a NaN or +∞, or −∞ alone, has no log-probabilities: all of its are NaN, rank and top_tokens 0,
    /// whatever is chosen.
    pub struct TopLogprobs = 28 "top_logprobs", wire TopLogprobsDesc = "halyard_top_logprobs_desc" {
        /// V: logits of a row.
        vocab: u32,
        /// Alternatives.
        k: u32,
        /// Bound: rows of one call.
        max_rows: u32,
    }
    operands {
        /// \[N, V\] f32.
        logits: Read,
        /// \[N\] i32.
        chosen: Read,
        /// \[N\] f32.
        chosen_logprobs: Write,
        /// \[N\] i32.
        chosen_ranks: Write,
        /// \[N, k\] i32; absent where k is 0.
        top_tokens: Write?y,
        /// \[N, k\] f32; absent where k is 0.
        top_logprobs: Write?y,
    }
}
