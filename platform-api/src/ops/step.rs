//! Device rows and steps: `prepare_inputs`, `slot_mapping`, `update_rows`.
//!
//! A request owns a device row from admission to its end. Row state, written by the host at admission and by
//! `update_rows` afterwards: row_tokens \[R, L\] i32 (the token history, prompt first), row_num_tokens \[R\] i32 (known
//! tokens), row_num_computed \[R\] i32 (tokens whose KV is stored), one block table \[R, max_blocks\] i32 per KV group,
//! and the sampling rows of [`super::SamplingRow`]. A step names rows and how many tokens of each to compute: prompt
//! chunks and decodes alike read their ids from the history, so the host needs no token value to plan the next step.

/// Words of the step header tensor: result ring entry, low and high half of the step's tag, number of sequences.
pub const STEP_HEADER: u32 = 4;

/// Words before the per-sequence words of a result ring entry: low and high half of the tag.
pub const RESULT_HEADER: u32 = 2;

op! {
    /// Lays out the step's tokens: sequence s computes tokens row_num_computed\[row\] .. + step_query_lens\[s\] of its
    /// row, one sequence after the other.
    ///
    /// Operands: step_rows \[S\] i32 (−1 padding); step_query_lens \[S\] i32 (0 for padding); row_tokens \[R, L\] i32;
    /// row_num_computed \[R\] i32; row_lora \[R\] i32, optional; token_ids, positions, token_seq \[T\] i32 (padding
    /// tokens past the sum: 0, 0, −1); token_lora \[T\] i32, optional, present with row_lora (−1 none and padding);
    /// query_start_loc \[S+1\] i32; seq_lens \[S\] i32 (computed + query length; 0 for padding); last_token_index \[S\]
    /// i32 (token of the step; −1 for padding).
    pub struct PrepareInputs = 18 "prepare_inputs", wire PrepareInputsDesc = "halyard_prepare_inputs_desc" {
        /// Bound: sequences of a step.
        max_seqs: u32,
        /// Bound: tokens of a step.
        max_tokens: u32,
    }
    operands {
        step_rows: Read, step_query_lens: Read, row_tokens: Read, row_num_computed: Read, row_lora: Read?y,
        token_ids: Write, positions: Write, token_seq: Write, token_lora: Write?y,
        query_start_loc: Write, seq_lens: Write, last_token_index: Write
    }
}

op! {
    /// slots\[t\] = block_table\[step_rows\[token_seq\[t\]\], pos / block_size\] · block_size + pos mod block_size; −1
    /// for padding.
    ///
    /// Operands: positions, token_seq \[T\] i32; step_rows \[S\] i32; block_table \[R, max_blocks\] i32; slots \[T\]
    /// i32.
    pub struct SlotMapping = 19 "slot_mapping", wire SlotMappingDesc = "halyard_slot_mapping_desc" {
        /// Tokens of a block.
        block_size: u32,
    }
    operands { positions: Read, token_seq: Read, step_rows: Read, block_table: Read, slots: Write }
}

op! {
    /// Writes a step's outcome into the rows and into the result ring. For sequence s of row r, q =
    /// step_query_lens\[s\], d = step_num_drafts\[s\] (0 when absent): if step_emits\[s\], n = num_sampled\[s\] (1 when
    /// absent) and row_tokens\[r, row_num_tokens\[r\] ..+ n\] = sampled\[s, ..n\], row_num_tokens\[r\] += n,
    /// row_num_computed\[r\] += q − d + n − 1 (a row that emits nothing computes its last token again); else n = 0 and
    /// row_num_computed\[r\] += q. Tokens past the history's end L are dropped from the history, not from the result. A
    /// negative id ([`super::NOT_FINITE`], [`super::NO_TOKEN`]) stands in the result as it is and in the history as 0,
    /// since a later step in flight may compute it. Ring entry step_header\[0\]: \[tag low, tag high, then per sequence
    /// n and max_sampled ids (−1 past n)\].
    ///
    /// Operands: step_header \[4\] i32 ([`STEP_HEADER`]); step_rows, step_query_lens, step_emits \[S\] i32;
    /// step_num_drafts \[S\] i32, optional; sampled \[S, max_sampled\] i32; num_sampled \[S\] i32, optional; row_tokens
    /// \[R, L\], row_num_tokens \[R\], row_num_computed \[R\] i32, updated; results \[E, 2 + max_seqs·(1 +
    /// max_sampled)\] i32, host-visible, one entry updated.
    pub struct UpdateRows = 20 "update_rows", wire UpdateRowsDesc = "halyard_update_rows_desc" {
        /// Bound: sequences of a step; sizes a ring entry.
        max_seqs: u32,
        /// Bound: tokens that a row may gain in a step (k+1).
        max_sampled: u32,
    }
    operands {
        step_header: Read, step_rows: Read, step_query_lens: Read, step_emits: Read, step_num_drafts: Read?y,
        sampled: Read, num_sampled: Read?y,
        row_tokens: Update, row_num_tokens: Update, row_num_computed: Update, results: Update
    }
}
