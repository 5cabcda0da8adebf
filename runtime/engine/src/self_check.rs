//! The check of a recording before it is used: the same two decode steps, of other contents and padding, encoded anew and replayed,
//! on device rows and KV pages that no request gets. A recording that holds on to what one step said fails it.

use std::time::{Duration, Instant};

use half::{bf16, f16};
use halyard_platform_api::ops::{RESULT_HEADER, SamplingRow};
use halyard_platform_api::{CommandId, DType, EncoderMode};
use halyard_scheduler::{RequestId, RowIndex, Scheduled};

use crate::compile::StepShape;
use crate::error::EngineError;
use crate::recording::decode_shape;
use crate::runner::{NONE, Runner, StepParts, Wanted, write_step};
use crate::sequence::Sampler;

/// Rows that no request gets.
pub(crate) const SCRATCH_ROWS: u32 = 2;
/// A device that takes longer hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Part of the largest value of a row of hidden states that two runs may differ by: sums in another order stay far below it, a step
/// with other contents far above.
const HIDDEN_TOLERANCE: f32 = 1.0 / 16.0;
/// Tags of check steps: no step of the scheduler has this bit.
const TAG: u64 = 1 << 63;

/// Where check steps run.
#[derive(Clone, Debug)]
pub(crate) struct Scratch {
    /// First of the device rows.
    pub first_row: u32,
    /// Number of rows; for checks [`SCRATCH_ROWS`].
    pub num_rows: u32,
    /// First of as many pages for each KV group.
    pub first_page: u32,
    /// Tokens of a row's history, all within one block.
    pub num_tokens: u32,
    /// Steps run so far.
    pub steps: u64,
}

/// One row of a check step: which scratch row, and how many of its tokens are computed.
pub(crate) type Decode = (u32, u32);

/// What a check step left behind.
struct Outcome {
    /// Last hidden states of the step's rows.
    hidden: Vec<u8>,
    /// Per row: number of tokens and the token.
    sampled: Vec<u32>,
    /// Known and computed tokens of the scratch rows.
    lengths: Vec<u32>,
}

impl Scratch {
    /// Tag of the step that was written last.
    pub(crate) fn tag(&self) -> u64 {
        TAG | self.steps
    }

    /// Two steps: two rows (as many as the bucket holds) near and in the middle of their history, then one row alone.
    fn contents(&self, bucket: u32) -> [Vec<Decode>; 2] {
        let (last, middle) = (self.num_tokens - 1, self.num_tokens / 2);
        let mut first = vec![(0, last), (1, middle)];
        first.truncate(bucket as usize);
        [first, vec![(1, last)]]
    }
}

impl Runner {
    /// Whether replaying does what encoding anew does; otherwise what differs.
    ///
    /// # Errors
    /// What the device reports.
    pub(crate) fn check_recording(
        &mut self,
        bucket: u32,
        sampler: Sampler,
        commands: [CommandId; 2],
        lora_slot: Option<u32>,
    ) -> Result<Result<(), String>, EngineError> {
        let Some(scratch) = self.recordings.as_ref().map(|r| r.scratch.clone()) else {
            return Ok(Ok(()));
        };
        let contents = scratch.contents(bucket);
        let mut expected = Vec::with_capacity(contents.len());
        for rows in &contents {
            self.write_check(rows, bucket, lora_slot)?;
            let number = self.run_anew(decode_shape(bucket), lora_slot.is_some(), bucket, sampler)?;
            expected.push(self.outcome(number, rows)?);
        }
        let mut verdict = Ok(());
        for (rows, expected) in contents.iter().zip(&expected) {
            // All steps run whatever is found: other ranks take part in them.
            self.write_check(rows, bucket, lora_slot)?;
            let number = self.queue.submit(&commands, &[])?;
            let found = self.outcome(number, rows)?;
            // All steps run whatever is found: other ranks wait for their collectives.
            verdict = verdict.and_then(|()| compare(expected, &found, rows.len(), self.hidden.dtype()));
        }
        Ok(verdict)
    }

    /// The scratch rows for one more step; none where nothing is recorded.
    pub(crate) fn next_scratch(&mut self) -> Option<Scratch> {
        let scratch = &mut self.recordings.as_mut()?.scratch;
        scratch.steps += 1;
        Some(scratch.clone())
    }

    /// Writes a decode step of `rows` in a bucket.
    fn write_check(&mut self, rows: &[Decode], bucket: u32, lora_slot: Option<u32>) -> Result<(), EngineError> {
        match self.next_scratch() {
            Some(scratch) => self.write_scratch(&scratch, rows, 1, bucket - rows.len() as u32, lora_slot),
            None => Ok(()),
        }
    }

    /// Writes the scratch rows' state and a step over them. The first row uses the adapter slot, the second none.
    pub(crate) fn write_scratch(
        &mut self,
        scratch: &Scratch,
        decodes: &[Decode],
        query_len: u32,
        padding: u32,
        lora_slot: Option<u32>,
    ) -> Result<(), EngineError> {
        let (writes, r, vocab) = (&mut self.writes, &self.rows, self.capacities.vocab);
        writes.clear();
        for i in 0..scratch.num_rows {
            let row = scratch.first_row + i;
            let computed = decodes.iter().find(|(at, _)| *at == i).map_or(0, |(_, n)| *n);
            // Any tokens do, as long as the rows differ.
            let tokens = (0..scratch.num_tokens).map(|at| (at * (7 + 4 * i) + 3 * i + 1) % vocab);
            writes.words(&r.tokens, u64::from(row) * u64::from(r.tokens.strides[0]), tokens);
            writes.words(&r.num_tokens, u64::from(row), [computed + query_len]);
            writes.words(&r.num_computed, u64::from(row), [computed]);
            if self.lora.is_some() {
                let slot = lora_slot.filter(|_| i == 0).unwrap_or(NONE);
                writes.words(&r.lora, u64::from(row), [slot]);
            }
            let at = u64::from(row) * size_of::<SamplingRow>() as u64;
            writes.bytes(&r.sampling, at, &sampling(i, vocab).to_bytes());
            for (group, table) in r.tables.iter().enumerate() {
                let page = scratch.first_page + scratch.num_rows * group as u32 + i;
                writes.words(table, u64::from(row) * u64::from(table.strides[0]), [page]);
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
        let parts = StepParts {
            header: [
                self.capacities.ring_entries,
                tag as u32,
                (tag >> 32) as u32,
                order.len() as u32,
            ],
            order: &order,
            num_emitting: order.len() as u32,
            padding,
        };
        write_step(writes, &self.step, &parts);
        Ok(self.writes.submit(&*self.queue)?)
    }

    /// Encodes and submits what was written; gives the submit's number.
    pub(crate) fn run_anew(
        &mut self,
        shape: StepShape,
        adapted: bool,
        num_emitting: u32,
        sampler: Sampler,
    ) -> Result<u64, EngineError> {
        let mut encoder = self.device.create_encoder(EncoderMode::OneShot)?;
        self.encode_forward(&mut *encoder, shape, adapted)?;
        let wanted = Wanted {
            sampler,
            logprobs: false,
        };
        self.encode_sampling(&mut *encoder, shape, num_emitting, wanted, 0)?;
        self.encode_update(&mut *encoder, shape)?;
        let commands = encoder.finish()?;
        Ok(self.queue.submit(&[commands.id()], &[])?)
    }

    /// Waits for a check step and reads what it left behind.
    fn outcome(&mut self, number: u64, rows: &[Decode]) -> Result<Outcome, EngineError> {
        let start = Instant::now();
        self.wait_done(number, || start.elapsed() > PATIENCE)?;
        let used = RESULT_HEADER + 2 * rows.len() as u32;
        let entry = self.ring.results.rows(self.capacities.ring_entries, 1).columns(0, used);
        let mut words = Vec::new();
        self.ring.read(&entry, &mut words)?;
        let hidden = self.hidden.rows(0, rows.len() as u32);
        let mut bytes = vec![0; hidden.span_bytes() as usize];
        if let Some(buffer) = self.buffers.iter().find(|b| b.id() == hidden.buffer_id()) {
            buffer.read(hidden.offset, &mut bytes)?;
        }
        let Some(scratch) = self.recordings.as_ref().map(|r| &r.scratch) else {
            return Err(EngineError::Thread("a check without recordings".to_string()));
        };
        let tag = scratch.tag();
        let mut sampled = words.split_off(RESULT_HEADER as usize);
        if u64::from(words[0]) | u64::from(words[1]) << 32 != tag {
            // Another step's entry: whatever stands there is not this step's.
            sampled.fill(u32::MAX);
        }
        let mut lengths = self.rows.read(&self.rows.num_tokens, scratch.first_row, SCRATCH_ROWS)?;
        lengths.extend(
            self.rows
                .read(&self.rows.num_computed, scratch.first_row, SCRATCH_ROWS)?,
        );
        Ok(Outcome {
            hidden: bytes,
            sampled,
            lengths,
        })
    }
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
        let distance = distance(&floats(dtype, &e), &floats(dtype, &f));
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

fn floats(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        DType::F16 => bytes
            .chunks_exact(2)
            .map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32())
            .collect(),
        DType::BF16 => bytes
            .chunks_exact(2)
            .map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32())
            .collect(),
        _ => bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect(),
    }
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
