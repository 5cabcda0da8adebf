//! The self-test of a recording before it is used. Two decode steps with different contents and padding run twice,
//! newly encoded and replayed, on device rows and KV pages that no request gets. The results must be equal. A recording
//! that keeps the contents of one step fails.

use std::time::Instant;

use halyard_platform_api::ops::SamplingRow;
use halyard_platform_api::{CommandId, DType};
use halyard_scheduler::{RequestId, RowIndex, Scheduled};

use crate::buckets::decode_shape;
use crate::device_model::{DeviceModel, RowTokens, SampledRange, StepParts, TokenCounts, Wanted};
use crate::error::RunnerError;
use crate::memory::floats_of;
use crate::row::Sampler;
use crate::scratch::{Decode, PATIENCE, SCRATCH_ROWS, Scratch};
use crate::template::StepShape;

/// Part of the largest value of a row of hidden states that two runs may differ by: sums in another order stay far
/// below it, a step with other contents far above.
const HIDDEN_TOLERANCE: f32 = 1.0 / 16.0;
/// What a check step left behind.
struct Outcome {
    /// Last hidden states of the step's rows.
    hidden: Vec<u8>,
    /// Per row: number of tokens and the token.
    sampled: Vec<u32>,
    /// Known and computed tokens of the scratch rows.
    lengths: Vec<u32>,
}

/// Whether a replay gives the same results as newly encoded steps; otherwise the difference.
///
/// # Errors
/// Errors of the device.
pub(crate) fn check_recording(
    model: &mut DeviceModel,
    scratch: &mut Scratch,
    (bucket, sampler): (u32, Sampler),
    commands: [CommandId; 2],
    lora_slot: Option<u32>,
) -> Result<Result<(), String>, RunnerError> {
    let contents = scratch.contents(bucket);
    let write = |model: &mut DeviceModel, scratch: &mut Scratch, rows: &[Decode]| {
        let padding = bucket - rows.len() as u32;
        write_scratch(model, scratch, rows, (1, padding), lora_slot)
    };
    let mut expected = Vec::with_capacity(contents.len());
    for rows in &contents {
        write(model, scratch, rows)?;
        let number = run_anew(model, decode_shape(bucket), lora_slot.is_some(), bucket, sampler)?;
        expected.push(outcome(model, scratch, number, rows)?);
    }
    let mut verdict = Ok(());
    for (rows, expected) in contents.iter().zip(&expected) {
        // All steps run, even after a difference: other ranks wait for their collectives.
        write(model, scratch, rows)?;
        let number = model.submit(&commands)?;
        let found = outcome(model, scratch, number, rows)?;
        verdict = verdict.and_then(|()| compare(expected, &found, rows.len(), model.memory.hidden.dtype()));
    }
    Ok(verdict)
}

/// Writes the state of the scratch rows and a step over them, of `query_len` tokens a row and `padding` rows more. The
/// first row uses the adapter slot, the second none.
pub(crate) fn write_scratch(
    model: &mut DeviceModel,
    scratch: &mut Scratch,
    decodes: &[Decode],
    (query_len, padding): (u32, u32),
    lora_slot: Option<u32>,
) -> Result<(), RunnerError> {
    scratch.steps += 1;
    let vocab = model.capacities().vocab;
    let num_groups = model.capacities().table_blocks.len();
    model.begin_writes();
    for i in 0..scratch.num_rows {
        let row = scratch.first_row + i;
        let computed = decodes.iter().find(|(at, _)| *at == i).map_or(0, |(_, n)| *n);
        // Any tokens do, as long as the rows differ.
        let tokens = (0..scratch.num_tokens).map(|at| (at * (7 + 4 * i) + 3 * i + 1) % vocab);
        let content = RowTokens {
            tokens,
            known: computed + query_len,
            computed,
            lora_slot: lora_slot.filter(|_| i == 0),
        };
        model.write_row(row, content);
        model.write_sampling(row, &sampling(i, vocab));
        for group in 0..num_groups {
            let page = scratch.first_page + scratch.num_rows * group as u32 + i;
            model.write_table(group, row, 0, std::iter::once(page));
        }
    }
    let order: Vec<Scheduled> = decodes
        .iter()
        .map(|&(row, computed)| Scheduled {
            id: RequestId(0),
            row: RowIndex(scratch.first_row + row),
            query_len,
            num_computed_upper: computed,
            emits: true,
            num_drafts: 0,
        })
        .collect();
    let tag = scratch.tag();
    let header = [
        model.capacities().ring_entries,
        tag as u32,
        (tag >> 32) as u32,
        order.len() as u32,
    ];
    model.write_step(&StepParts {
        header,
        order: &order,
        num_sampled: order.len() as u32,
        stride: 1,
        padding,
    });
    model.submit_writes()
}

/// Encodes and submits what was written; gives the submit's number.
pub(crate) fn run_anew(
    model: &mut DeviceModel,
    shape: StepShape,
    adapted: bool,
    num_rows: u32,
    sampler: Sampler,
) -> Result<u64, RunnerError> {
    let wanted = Wanted {
        sampler,
        logprobs: false,
    };
    model.submit_once(|model, encoder| {
        model.encode_forward(encoder, shape, adapted)?;
        model.encode_sampling(encoder, shape, SampledRange::all(num_rows, 1), wanted, 0)?;
        model.encode_update(encoder, shape, TokenCounts::One)
    })
}

/// Waits for a check step and reads what it left behind.
fn outcome(model: &mut DeviceModel, scratch: &Scratch, number: u64, rows: &[Decode]) -> Result<Outcome, RunnerError> {
    let start = Instant::now();
    model.wait_done(number, || start.elapsed() > PATIENCE)?;
    let num_rows = rows.len() as u32;
    let (entry, width) = (
        model.capacities().ring_entries,
        model.capacities().result_words() as usize,
    );
    // In another step's entry nothing is this step's.
    let sampled = model.read_entry(entry, scratch.tag(), num_rows)?;
    let sampled = match sampled {
        Some(words) => words.chunks_exact(width).flat_map(|row| [row[0], row[1]]).collect(),
        None => vec![u32::MAX; 2 * rows.len()],
    };
    Ok(Outcome {
        hidden: model.read_hidden(num_rows)?,
        sampled,
        lengths: model.read_lengths(scratch.first_row, SCRATCH_ROWS)?,
    })
}

/// Parameters that use every part of the samplers.
fn sampling(row: u32, vocab: u32) -> SamplingRow {
    SamplingRow {
        seed: 0x5EED + u64::from(row),
        prompt_len: 1,
        temperature: 0.8,
        top_k: 50.min(vocab),
        top_p: 0.95,
        min_p: 0.01,
        repetition_penalty: 1.1,
        presence_penalty: 0.5,
        frequency_penalty: 0.1,
        ..SamplingRow::PLAIN
    }
}

/// What differs between two runs of the same step.
fn compare(expected: &Outcome, found: &Outcome, num_rows: usize, dtype: DType) -> Result<(), String> {
    if expected.lengths != found.lengths {
        return Err(format!(
            "rows have lengths {:?} after it, {:?} when encoded anew",
            found.lengths, expected.lengths
        ));
    }
    let row_bytes = expected.hidden.len() / num_rows;
    for row in 0..num_rows {
        let bytes = |outcome: &'_ Outcome| outcome.hidden[row * row_bytes..(row + 1) * row_bytes].to_vec();
        let (e, f) = (bytes(expected), bytes(found));
        let distance = distance(&floats_of(dtype, &e), &floats_of(dtype, &f));
        if distance > HIDDEN_TOLERANCE {
            return Err(format!(
                "hidden states of row {row} differ by {distance:.3} of their largest value"
            ));
        }
        let sampled = |outcome: &Outcome| (outcome.sampled[2 * row], outcome.sampled[2 * row + 1]);
        let (e_sampled, f_sampled) = (sampled(expected), sampled(found));
        // From hidden states that differ in their last bits another token may follow.
        if e_sampled.0 != f_sampled.0 || (e == f && e_sampled.1 != f_sampled.1) {
            return Err(format!(
                "row {row} gave token {} ({} of them), {} ({}) when encoded anew",
                f_sampled.1 as i32, f_sampled.0 as i32, e_sampled.1 as i32, e_sampled.0 as i32
            ));
        }
    }
    Ok(())
}

/// The largest difference as a part of the largest value; infinite where only one side is a number.
fn distance(expected: &[f32], found: &[f32]) -> f32 {
    let (mut largest, mut difference) = (f32::MIN_POSITIVE, 0f32);
    for (e, f) in expected.iter().zip(found) {
        if e.to_bits() == f.to_bits() || (e.is_nan() && f.is_nan()) {
            continue;
        }
        let d = (e - f).abs();
        if d.is_nan() {
            return f32::INFINITY;
        }
        difference = difference.max(d);
    }
    for e in expected.iter().filter(|e| e.is_finite()) {
        largest = largest.max(e.abs());
    }
    difference / largest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(hidden: [f32; 4], sampled: [u32; 4]) -> Outcome {
        Outcome {
            hidden: hidden.iter().flat_map(|v| v.to_le_bytes()).collect(),
            sampled: sampled.to_vec(),
            lengths: vec![3, 4, 2, 3],
        }
    }

    #[test]
    fn last_bits_may_differ_and_contents_may_not() {
        let expected = outcome([1.0, -2.0, 3.0, 4.0], [1, 7, 1, 8]);
        let check = |found: &Outcome| compare(&expected, found, 2, DType::F32);
        assert_eq!(check(&outcome([1.0, -2.0, 3.0, 4.0], [1, 7, 1, 8])), Ok(()));
        assert_eq!(check(&outcome([1.001, -2.0, 3.0, 4.0], [1, 9, 1, 8])), Ok(()));
        let other = check(&outcome([-2.0, 1.0, 3.0, 4.0], [1, 7, 1, 8])).expect_err("other hidden states");
        assert!(other.contains("row 0 differ by 1.5"), "{other}");
        let other = check(&outcome([1.0, -2.0, 3.0, 4.0], [1, 7, 1, 9])).expect_err("another token");
        assert!(other.contains("row 1 gave token 9"), "{other}");
        assert!(check(&outcome([1.0, f32::NAN, 3.0, 4.0], [1, 7, 1, 8])).is_err());
        let mut lengths = outcome([1.0, -2.0, 3.0, 4.0], [1, 7, 1, 8]);
        lengths.lengths[0] = 9;
        assert!(check(&lengths).expect_err("lengths").contains("[9, 4, 2, 3]"));
    }
}
