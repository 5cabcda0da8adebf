//! Laying out a step and writing its outcome back: short integer work, done by one thread (slots by all).

use halyard_platform_api::ops::{self, RESULT_HEADER};

use crate::kernel::{Kernel, Worker};
use crate::view::View;

pub(crate) struct PrepareInputs;

impl Kernel for PrepareInputs {
    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        if worker.rank != 0 {
            return;
        }
        let [
            rows,
            lens,
            tokens,
            computed,
            row_lora,
            ids,
            positions,
            seq,
            token_lora,
            starts,
            seq_lens,
            last,
        ] = operands
        else {
            unreachable!("prepare_inputs has twelve operands")
        };
        // SAFETY: one thread writes all outputs; inputs are other tensors.
        unsafe {
            let (rows, lens, computed) = (rows.vector(), lens.vector(), computed.vector());
            let num_tokens = ids.len();
            let ids = ids.i32s_mut(0, 0, num_tokens);
            let positions = positions.i32s_mut(0, 0, num_tokens);
            let seq = seq.i32s_mut(0, 0, num_tokens);
            let starts = starts.i32s_mut(0, 0, rows.len() + 1);
            let seq_lens = seq_lens.i32s_mut(0, 0, rows.len());
            let last = last.i32s_mut(0, 0, rows.len());
            let mut lora =
                (!row_lora.is_none() && !token_lora.is_none()).then(|| token_lora.i32s_mut(0, 0, num_tokens));
            let mut at = 0;
            for s in 0..rows.len() {
                starts[s] = at as i32;
                (seq_lens[s], last[s]) = (0, -1);
                if rows[s] < 0 {
                    continue;
                }
                let (row, len) = (rows[s] as usize, lens[s] as usize);
                let first = computed[row] as usize;
                ids[at..at + len].copy_from_slice(tokens.i32s(row, first, len));
                for i in 0..len {
                    (positions[at + i], seq[at + i]) = ((first + i) as i32, s as i32);
                }
                if let Some(lora) = &mut lora {
                    lora[at..at + len].fill(row_lora.vector()[row]);
                }
                at += len;
                seq_lens[s] = (first + len) as i32;
                last[s] = at as i32 - 1;
            }
            starts[rows.len()] = at as i32;
            ids[at..].fill(0);
            positions[at..].fill(0);
            seq[at..].fill(-1);
            if let Some(lora) = &mut lora {
                lora[at..].fill(-1);
            }
        }
    }
}

pub(crate) struct SlotMapping {
    block_size: usize,
}

impl SlotMapping {
    pub(crate) fn new(op: &ops::SlotMapping) -> SlotMapping {
        SlotMapping {
            block_size: op.block_size as usize,
        }
    }
}

impl Kernel for SlotMapping {
    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [positions, seq, rows, table, slots] = operands else {
            unreachable!("slot_mapping has five operands")
        };
        let share = worker.share(slots.len());
        // SAFETY: tokens are shared out.
        unsafe {
            let (positions, seq, rows) = (positions.vector(), seq.vector(), rows.vector());
            for t in share {
                let slot = if seq[t] < 0 || rows[seq[t] as usize] < 0 {
                    -1
                } else {
                    let position = positions[t] as usize;
                    let page = table.i32s(rows[seq[t] as usize] as usize, position / self.block_size, 1)[0];
                    if page < 0 {
                        -1
                    } else {
                        page * self.block_size as i32 + (position % self.block_size) as i32
                    }
                };
                slots.i32s_mut(t, 0, 1)[0] = slot;
            }
        }
    }
}

pub(crate) struct UpdateRows {
    max_sampled: usize,
}

impl UpdateRows {
    pub(crate) fn new(op: &ops::UpdateRows) -> UpdateRows {
        UpdateRows {
            max_sampled: op.max_sampled as usize,
        }
    }
}

impl Kernel for UpdateRows {
    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        if worker.rank != 0 {
            return;
        }
        let [
            header,
            rows,
            lens,
            emits,
            drafts,
            sampled,
            counts,
            tokens,
            num_tokens,
            computed,
            results,
        ] = operands
        else {
            unreachable!("update_rows has eleven operands")
        };
        // SAFETY: one thread writes all outputs; inputs are other tensors.
        unsafe {
            let (header, rows, lens, emits) = (header.vector(), rows.vector(), lens.vector(), emits.vector());
            let words = 1 + self.max_sampled;
            let entry = results.i32s_mut(header[0] as usize, 0, results.shape[1]);
            let (tag, entry) = entry.split_at_mut(RESULT_HEADER as usize);
            tag.copy_from_slice(&header[1..3]);
            for (s, &row) in rows.iter().enumerate() {
                let out = &mut entry[s * words..(s + 1) * words];
                out.fill(-1);
                out[0] = 0;
                if row < 0 {
                    continue;
                }
                let row = row as usize;
                let computed = &mut computed.i32s_mut(row, 0, 1)[0];
                if emits[s] == 0 {
                    *computed += lens[s];
                    continue;
                }
                let n = if counts.is_none() {
                    1
                } else {
                    counts.vector()[s] as usize
                };
                let d = if drafts.is_none() { 0 } else { drafts.vector()[s] };
                let new = sampled.i32s(s, 0, n);
                out[0] = n as i32;
                out[1..1 + n].copy_from_slice(new);
                let known = &mut num_tokens.i32s_mut(row, 0, 1)[0];
                let num_new = tokens.shape[1].saturating_sub(*known as usize).min(n);
                // What stands in place of a token is for the host: the history holds ids only.
                let history = tokens.i32s_mut(row, *known as usize, num_new);
                history.iter_mut().zip(new).for_each(|(to, &id)| *to = id.max(0));
                *known += n as i32;
                *computed += lens[s] - d + n as i32 - 1;
            }
        }
    }
}
