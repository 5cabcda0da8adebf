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
    /// row, one sequence after the other. What is past their sum in the outputs is padding.
    pub struct PrepareInputs = 18 "prepare_inputs", wire PrepareInputsDesc = "halyard_prepare_inputs_desc" {
        /// Bound: sequences of a step.
        max_seqs: u32,
        /// Bound: tokens of a step.
        max_tokens: u32,
    }
    operands {
        /// \[S\] i32: the row of each sequence; −1: padding.
        step_rows: Read,
        /// \[S\] i32: tokens of each sequence in this step; 0 for padding.
        step_query_lens: Read,
        /// \[R, L\] i32: the history. It may hold drafts behind the row's known tokens.
        row_tokens: Read,
        /// \[R\] i32: tokens whose keys and values are stored.
        row_num_computed: Read,
        /// \[R\] i32: the adapter's slot; −1: none.
        row_lora: Read?y,
        /// \[T\] i32; padding: 0.
        token_ids: Write,
        /// \[T\] i32: place in the sequence; padding: 0.
        positions: Write,
        /// \[T\] i32: the step's sequence; padding: −1.
        token_seq: Write,
        /// \[T\] i32: slot of the token's adapter; padding: −1. Present with row_lora.
        token_lora: Write?y,
        /// \[S+1\] i32: the first token of each sequence, and the end.
        query_start_loc: Write,
        /// \[S\] i32: row_num_computed + step_query_lens; 0 for padding.
        seq_lens: Write,
        /// \[S\] i32: the sequence's last token in the step; −1 for padding.
        last_token_index: Write,
    }
}

op! {
    /// slots\[t\] = block_table\[step_rows\[token_seq\[t\]\], pos / block_size\] · block_size + pos mod block_size; −1
    /// for padding.
    pub struct SlotMapping = 19 "slot_mapping", wire SlotMappingDesc = "halyard_slot_mapping_desc" {
        /// Tokens of a block.
        block_size: u32,
    }
    operands {
        /// \[T\] i32.
        positions: Read,
        /// \[T\] i32.
        token_seq: Read,
        /// \[S\] i32.
        step_rows: Read,
        /// \[R, max_blocks\] i32: the page of each block of a row.
        block_table: Read,
        /// \[T\] i32.
        slots: Write,
    }
}

op! {
    /// Writes a step's outcome into the rows and into the result ring. For sequence s of row r, q =
    /// step_query_lens\[s\], d = step_num_drafts\[s\] (0 when absent): if step_emits\[s\], n = num_sampled\[s\] (1 when
    /// absent) and row_tokens\[r, row_num_tokens\[r\] ..+ n\] = sampled\[s, ..n\], row_num_tokens\[r\] += n,
    /// row_num_computed\[r\] += q − d + n − 1 (a row that emits nothing computes its last token again); else n = 0 and
    /// row_num_computed\[r\] += q. Tokens past the history's end L are dropped from the history, not from the result. A
    /// negative id ([`super::NOT_FINITE`], [`super::NO_TOKEN`]) stands in the result as it is and in the history as 0,
    /// since a later step in flight may compute it. Ring entry step_header\[0\]: \[tag low, tag high, then per sequence
    /// n and max_sampled ids (−1 past n)\]; what stands behind the step's sequences means nothing.
    pub struct UpdateRows = 20 "update_rows", wire UpdateRowsDesc = "halyard_update_rows_desc" {
        /// Bound: sequences of a step; sizes a ring entry.
        max_seqs: u32,
        /// Bound: tokens that a row may gain in a step (k+1).
        max_sampled: u32,
    }
    operands {
        /// \[4\] i32: entry of the result ring, low and high half of the step's tag, number of sequences.
        step_header: Read,
        /// \[S\] i32.
        step_rows: Read,
        /// \[S\] i32.
        step_query_lens: Read,
        /// \[S\] i32: not 0 where the sequence gains tokens.
        step_emits: Read,
        /// \[S\] i32.
        step_num_drafts: Read?y,
        /// \[S, max_sampled\] i32.
        sampled: Read,
        /// \[S\] i32.
        num_sampled: Read?y,
        /// \[R, L\] i32.
        row_tokens: Update,
        /// \[R\] i32.
        row_num_tokens: Update,
        /// \[R\] i32.
        row_num_computed: Update,
        /// \[E, 2 + max_seqs·(1 + max_sampled)\] i32, host-visible: the result ring, of which one entry is written.
        results: Update,
    }
}
