//! `prepare_inputs`, `slot_mapping`, `update_rows`: the step's layout and outcome, one small launch each.

use halyard_kernels_gpu::STEP;
use halyard_platform_api::ops::{self, RESULT_HEADER, STEP_HEADER};
use halyard_platform_api::{DType, Error, Result};

use super::support::{Entries, Operands, blocks, not_zero};
use crate::encoding::{Arg, Encoding};
use crate::kernel::{Kernel, Preparation};
use crate::view::View;

/// Threads of a block of `prepare_inputs` (THREADS in the kernel file).
const LAYOUT_THREADS: u32 = 256;
const SLOT_THREADS: u32 = 128;
/// Most sequences whose starts fit into the shared memory that every device has.
const MAX_SEQS: u32 = 12_000;

/// `prepare_inputs`.
pub(super) struct PrepareInputs {
    max_seqs: u32,
    pub(super) entries: Entries,
}

impl PrepareInputs {
    pub(super) fn new(op: &ops::PrepareInputs) -> Result<PrepareInputs> {
        if op.max_seqs > MAX_SEQS {
            return Err(Error::unsupported(format!(
                "prepare_inputs of up to {} sequences: at most {MAX_SEQS}; lower the number of sequences of a step",
                op.max_seqs
            )));
        }
        Ok(PrepareInputs {
            max_seqs: op.max_seqs,
            entries: Entries::new(STEP, &[], &["prepare_inputs"]),
        })
    }
}

/// Bytes of the sequences' starts.
fn starts_bytes(seqs: u32) -> u32 {
    4 * (seqs + 1)
}

impl Kernel for PrepareInputs {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.entries.prepare_shared(cx, starts_bytes(self.max_seqs))
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let operands = Operands::new("prepare_inputs", ops::PrepareInputs::OPERANDS, operands)?;
        let (seqs, tokens) = (operands.view(0).len(), operands.view(5).len());
        if seqs > self.max_seqs {
            return Err(operands.error(0, &format!("{seqs} sequences, the bound is {}", self.max_seqs)));
        }
        let history = operands.view(2);
        let last = (history.rank.max(1) - 1) as usize;
        let row_tokens = operands.rows(2, DType::I32, history.shape[last])?;
        let num_rows = row_tokens.rows.min(operands.view(3).len());
        let ints = |index: usize, len: u32| operands.vector(index, DType::I32, Some(len)).map(Arg::Ptr);
        let state = |index: usize| operands.vector(index, DType::I32, None).map(Arg::Ptr);
        // Adapters of fewer rows than the histories would be read past their end.
        if !operands.view(4).is_none() && operands.view(4).len() < num_rows {
            return Err(operands.error(4, &format!("fewer than the {num_rows} rows")));
        }
        let args = [
            ints(0, seqs)?,
            ints(1, seqs)?,
            Arg::Ptr(row_tokens.ptr),
            Arg::U64(row_tokens.stride),
            Arg::U32(history.shape[last]),
            state(3)?,
            state(4)?,
            ints(5, tokens)?,
            ints(6, tokens)?,
            ints(7, tokens)?,
            ints(8, tokens)?,
            ints(9, seqs + 1)?,
            ints(10, seqs)?,
            ints(11, seqs)?,
            Arg::U32(seqs),
            Arg::U32(tokens),
            Arg::U32(num_rows),
        ];
        encoding.launch(
            self.entries.get(0)?,
            [blocks(tokens.max(seqs + 1), LAYOUT_THREADS), 1, 1],
            LAYOUT_THREADS,
            starts_bytes(seqs),
            &args,
        );
        Ok(())
    }
}

/// `slot_mapping`.
pub(super) struct SlotMapping {
    block_size: u32,
    pub(super) entries: Entries,
}

impl SlotMapping {
    pub(super) fn new(op: &ops::SlotMapping) -> Result<SlotMapping> {
        not_zero("slot_mapping", "block_size", op.block_size)?;
        Ok(SlotMapping {
            block_size: op.block_size,
            entries: Entries::new(STEP, &[], &["slot_mapping"]),
        })
    }
}

impl Kernel for SlotMapping {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.entries.prepare(cx)
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let operands = Operands::new("slot_mapping", ops::SlotMapping::OPERANDS, operands)?;
        let (tokens, seqs) = (operands.view(0).len(), operands.view(2).len());
        let ints = |index: usize, len: u32| operands.vector(index, DType::I32, Some(len)).map(Arg::Ptr);
        let view = operands.view(3);
        let max_blocks = view.shape[(view.rank.max(1) - 1) as usize];
        let table = operands.rows(3, DType::I32, max_blocks)?;
        let args = [
            ints(0, tokens)?,
            ints(1, tokens)?,
            ints(2, seqs)?,
            Arg::Ptr(table.ptr),
            Arg::U64(table.stride),
            ints(4, tokens)?,
            Arg::U32(tokens),
            Arg::U32(seqs),
            Arg::U32(table.rows),
            Arg::U32(max_blocks),
            Arg::U32(self.block_size),
        ];
        encoding.launch(
            self.entries.get(0)?,
            [blocks(tokens, SLOT_THREADS), 1, 1],
            SLOT_THREADS,
            0,
            &args,
        );
        Ok(())
    }
}

/// `update_rows`.
pub(super) struct UpdateRows {
    spec: ops::UpdateRows,
    pub(super) entries: Entries,
}

impl UpdateRows {
    pub(super) fn new(op: &ops::UpdateRows) -> Result<UpdateRows> {
        not_zero("update_rows", "max_sampled", op.max_sampled)?;
        Ok(UpdateRows {
            spec: op.clone(),
            entries: Entries::new(STEP, &[], &["update_rows"]),
        })
    }
}

impl Kernel for UpdateRows {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.entries.prepare(cx)
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let operands = Operands::new("update_rows", ops::UpdateRows::OPERANDS, operands)?;
        let (max_seqs, max_sampled) = (self.spec.max_seqs, self.spec.max_sampled);
        let seqs = operands.view(1).len();
        if seqs > max_seqs {
            return Err(operands.error(1, &format!("{seqs} sequences, the bound is {max_seqs}")));
        }
        let entry_words = u64::from(RESULT_HEADER) + u64::from(max_seqs) * (1 + u64::from(max_sampled));
        let entry_words = u32::try_from(entry_words)
            .map_err(|_| operands.error(10, &format!("an entry of {entry_words} words: at most {}", u32::MAX)))?;
        let history = operands.view(7);
        let last = (history.rank.max(1) - 1) as usize;
        let row_tokens = operands.rows(7, DType::I32, history.shape[last])?;
        let sampled = operands.rows(5, DType::I32, max_sampled)?;
        operands.expect_rows(5, sampled.rows, seqs)?;
        let results = operands.rows(10, DType::I32, entry_words)?;
        let num_rows = row_tokens.rows.min(operands.view(8).len()).min(operands.view(9).len());
        let ints = |index: usize, len: u32| operands.vector(index, DType::I32, Some(len)).map(Arg::Ptr);
        let state = |index: usize| operands.vector(index, DType::I32, None).map(Arg::Ptr);
        let args = [
            ints(0, STEP_HEADER)?,
            ints(1, seqs)?,
            ints(2, seqs)?,
            ints(3, seqs)?,
            ints(4, seqs)?,
            Arg::Ptr(sampled.ptr),
            Arg::U64(sampled.stride),
            ints(6, seqs)?,
            Arg::Ptr(row_tokens.ptr),
            Arg::U64(row_tokens.stride),
            Arg::U32(history.shape[last]),
            state(8)?,
            state(9)?,
            Arg::Ptr(results.ptr),
            Arg::U64(results.stride),
            Arg::U32(results.rows),
            Arg::U32(seqs),
            Arg::U32(num_rows),
            Arg::I32(max_sampled as i32),
        ];
        // A step without sequences still leaves its tag.
        let threads = seqs.clamp(1, 512).next_multiple_of(32);
        encoding.launch(self.entries.get(0)?, [1, 1, 1], threads, 0, &args);
        Ok(())
    }
}
