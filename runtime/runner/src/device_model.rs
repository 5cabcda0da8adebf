//! A model on a device: its programs, its memory, and writing, submitting, awaiting and reading a step. Does not know
//! which steps are recorded or in flight.

use std::sync::Arc;

use halyard_platform_api::ops::{RESULT_HEADER, SamplingRow};
use halyard_platform_api::{
    Buffer, CommandBuffer, CommandId, Communicator, Device, Encoder, EncoderMode, Queue, Status, Tensor,
};
use halyard_scheduler::Scheduled;

use crate::compile::CompiledProgram;
use crate::error::RunnerError;
use crate::group::RankGroup;
use crate::host_tier::HostTier;
use crate::memory::{Capacities, ResultRing, RowState, StepState, Writes, floats_of};
use crate::result::{Logprob, TokenLogprobs};
use crate::row::{RowSpec, Sampler};
use crate::step_ops::StepOps;

/// Longest single wait for the device; the caller then says whether to wait on.
const WAIT_SLICE_NS: u64 = 1_000_000_000;
/// A device row of padding, the index of no position, and the slot of no adapter.
pub(crate) const NONE: u32 = u32::MAX;

/// Of a row with drafts, an entry for the position before each draft and for its last one; then none, up to `stride`.
fn per_draft(row: &Scheduled, stride: u32, entry: impl Fn(u32) -> u32) -> impl Iterator<Item = u32> {
    let num_drafts = row.num_drafts;
    (0..stride).map(move |i| if i <= num_drafts { entry(i) } else { NONE })
}

/// A model's programs, compiled.
pub(crate) struct Programs {
    pub forward: CompiledProgram,
    pub head: CompiledProgram,
    /// Hidden states that rows give, where they may: the program, and where it leaves them \[chunk, hidden\].
    pub hidden_states: Option<(CompiledProgram, Tensor)>,
    /// The layers with adapters, where adapters are served.
    pub lora_forward: Option<CompiledProgram>,
    pub ops: StepOps,
}

/// Memory that a model's steps use again and again.
pub(crate) struct ModelMemory {
    pub capacities: Capacities,
    pub rows: RowState,
    pub step: StepState,
    pub ring: ResultRing,
    /// Logits \[chunk, V\] f32, and memory for fewer rows of unprocessed ones.
    pub logits: Tensor,
    pub raw_logits: Tensor,
    /// The forward program's last hidden states \[T, hidden\].
    pub hidden: Tensor,
    /// What the tensors above and the programs' activations live in.
    pub buffers: Vec<Arc<dyn Buffer>>,
}

/// A model on a device.
pub(crate) struct DeviceModel {
    queue: Arc<dyn Queue>,
    pub(crate) programs: Programs,
    pub(crate) memory: ModelMemory,
    writes: Writes,
    words: Vec<u32>,
    /// The KV pages, a buffer for each page slot.
    pub(crate) kv_pages: Vec<Arc<dyn Buffer>>,
    /// KV blocks in host memory, where there are some.
    pub(crate) host_tier: Option<Arc<HostTier>>,
    /// What ranks decide together, where there are several.
    group: Option<Arc<RankGroup>>,
    /// This rank's end of the group, where there are several: leaving it makes the others' collectives fail.
    communicator: Option<Arc<dyn Communicator>>,
    /// Last: the device outlives everything on it.
    device: Arc<dyn Device>,
}

/// A step in the form that is written to the device.
pub(crate) struct StepParts<'a> {
    /// Ring entry, both halves of the tag, number of sequences.
    pub header: [u32; 4],
    /// Sequences that give a token first.
    pub order: &'a [Scheduled],
    pub num_sampled: u32,
    /// Positions of logits of each of these: 1, with drafts one more than the most that a sequence verifies.
    pub stride: u32,
    /// Sequences behind the last one that write nothing: a recording's shape is larger than the step.
    pub padding: u32,
}

/// The tokens of a device row.
pub(crate) struct RowTokens<I> {
    /// From position 0 on.
    pub tokens: I,
    /// How many are known.
    pub known: u32,
    /// How many have KV.
    pub computed: u32,
    pub lora_slot: Option<u32>,
}

/// Consecutive positions among those that a step's logits, or hidden states, are wanted for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScoredRange {
    pub first: u32,
    pub count: u32,
}

/// What the rows of a step that give a token need together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub sampler: Sampler,
    pub logprobs: bool,
}

/// Positions of a step that are sampled together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampledRange {
    pub first: u32,
    pub count: u32,
    counts: TokenCounts,
    /// Each under the step's mask of the row.
    pub is_masked: bool,
}

/// How many tokens the rows of a step may give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenCounts {
    /// One each.
    One,
    /// One, or none without a mask: the step says.
    Masked,
    /// Those of all drafts and one more, at most as many as this.
    Drafted(u32),
}

impl SampledRange {
    /// All `rows` rows of a step without masks, with `stride` positions each.
    pub(crate) fn all(rows: u32, stride: u32) -> SampledRange {
        SampledRange {
            first: 0,
            count: rows * stride,
            counts: match stride {
                1 => TokenCounts::One,
                most => TokenCounts::Drafted(most),
            },
            is_masked: false,
        }
    }

    /// Of a step with masks: the `masked` rows that have one, and the others up to `all`.
    pub(crate) fn masked_first(masked: u32, all: u32) -> (SampledRange, SampledRange) {
        let range = |first, count, is_masked| SampledRange {
            first,
            count,
            counts: TokenCounts::Masked,
            is_masked,
        };
        (range(0, masked, true), range(masked, all - masked, false))
    }

    /// Of the step that it is a range of.
    pub(crate) fn counts(&self) -> TokenCounts {
        self.counts
    }
}

impl Drop for DeviceModel {
    fn drop(&mut self) {
        // The queue waits for its work, which may wait for a rank that has failed: give it up first.
        if self.group.as_ref().is_some_and(|group| group.has_failed()) {
            self.communicator = None;
        }
    }
}

impl DeviceModel {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        queue: Arc<dyn Queue>,
        communicator: Option<Arc<dyn Communicator>>,
        programs: Programs,
        memory: ModelMemory,
    ) -> DeviceModel {
        DeviceModel {
            queue,
            programs,
            memory,
            writes: Writes::default(),
            words: Vec::new(),
            kv_pages: Vec::new(),
            host_tier: None,
            group: None,
            communicator,
            device,
        }
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub(crate) fn capacities(&self) -> &Capacities {
        &self.memory.capacities
    }

    /// The ranks that this one votes with.
    pub(crate) fn group(&self) -> Option<&RankGroup> {
        self.group.as_deref()
    }

    pub(crate) fn join(&mut self, group: Option<Arc<RankGroup>>) {
        self.group = group;
    }

    /// Forgets what was written and not submitted.
    pub(crate) fn begin_writes(&mut self) {
        self.writes.clear();
    }

    /// Writes a row's tokens and, where adapters are served, its slot.
    pub(crate) fn write_row(&mut self, row: u32, content: RowTokens<impl Iterator<Item = u32>>) {
        let (writes, rows) = (&mut self.writes, &self.memory.rows);
        let first = u64::from(row) * u64::from(rows.tokens.strides[0]);
        let row = u64::from(row);
        writes.words(&rows.tokens, first, content.tokens);
        writes.words(&rows.num_tokens, row, [content.known]);
        writes.words(&rows.num_computed, row, [content.computed]);
        if self.programs.lora_forward.is_some() {
            writes.words(&rows.lora, row, [content.lora_slot.unwrap_or(NONE)]);
        }
    }

    /// Writes a row's lengths, and drafts (`content.tokens`) behind its known tokens.
    pub(crate) fn write_drafts(&mut self, row: u32, content: RowTokens<impl Iterator<Item = u32>>) {
        let (writes, rows) = (&mut self.writes, &self.memory.rows);
        let first = u64::from(row) * u64::from(rows.tokens.strides[0]) + u64::from(content.known);
        let row = u64::from(row);
        writes.words(&rows.tokens, first, content.tokens);
        writes.words(&rows.num_tokens, row, [content.known]);
        writes.words(&rows.num_computed, row, [content.computed]);
    }

    /// Writes how a row's tokens are chosen.
    pub(crate) fn write_sampling(&mut self, row: u32, sampling: &SamplingRow) {
        let at = u64::from(row) * size_of::<SamplingRow>() as u64;
        self.writes.bytes(&self.memory.rows.sampling, at, &sampling.to_bytes());
    }

    /// The same with the lists that change or forbid logits.
    pub(crate) fn write_spec(&mut self, row: u32, spec: &RowSpec) {
        self.write_sampling(row, &spec.sampling_row());
        if spec.sampler != Sampler::Full {
            return;
        }
        self.write_bias_lists(row, &spec.constraints.logit_bias);
        let (writes, rows, lists) = (&mut self.writes, &self.memory.rows, &*spec.constraints);
        let at = |tensor: &Tensor| u64::from(row) * u64::from(tensor.strides[0]);
        writes.words(&rows.stop_tokens, at(&rows.stop_tokens), lists.stops.iter().copied());
        let words = lists
            .bad_words
            .iter()
            .flat_map(|w| std::iter::once(w.len() as u32).chain(w.iter().copied()));
        writes.words(&rows.bad_words, at(&rows.bad_words), words);
        if let Some(allowed) = &lists.allowed {
            let mut mask = vec![0u32; rows.allowed_mask.shape[1] as usize];
            for &id in allowed {
                mask[id as usize / 32] |= 1 << (id % 32);
            }
            writes.words(&rows.allowed_mask, at(&rows.allowed_mask), mask);
        }
    }

    fn write_bias_lists(&mut self, row: u32, biases: &[(u32, f32)]) {
        let (writes, rows) = (&mut self.writes, &self.memory.rows);
        let at = |tensor: &Tensor| u64::from(row) * u64::from(tensor.strides[0]);
        let (ids, values): (Vec<u32>, Vec<u32>) = biases.iter().map(|(id, bias)| (*id, bias.to_bits())).unzip();
        writes.words(&rows.bias_tokens, at(&rows.bias_tokens), ids);
        writes.words(&rows.bias_values, at(&rows.bias_values), values);
    }

    /// Writes a row's biases for its next token: those of its request and of the step.
    pub(crate) fn write_biases(&mut self, row: u32, spec: &RowSpec, of_step: &[(u32, f32)]) {
        let all = spec.with_biases(of_step);
        self.write_sampling(
            row,
            &SamplingRow {
                num_bias: all.len() as u32,
                ..spec.sampling_row()
            },
        );
        self.write_bias_lists(row, &all);
    }

    /// Writes entries of a row's block table in one KV group, from entry `first` on.
    pub(crate) fn write_table(&mut self, group: usize, row: u32, first: u32, pages: impl Iterator<Item = u32>) {
        let table = &self.memory.rows.tables[group];
        let at = u64::from(row) * u64::from(table.strides[0]) + u64::from(first);
        self.writes.words(table, at, pages);
    }

    /// Writes the first words of a tensor.
    pub(crate) fn write_words(&mut self, tensor: &Tensor, words: impl Iterator<Item = u32>) {
        self.writes.words(tensor, 0, words);
    }

    /// Writes the step itself: header, rows, query lengths, and where logits are wanted.
    pub(crate) fn write_step(&mut self, parts: &StepParts<'_>) {
        let (writes, s) = (&mut self.writes, &self.memory.step);
        let (order, padding) = (parts.order, parts.padding as usize);
        let padded = |value| std::iter::repeat_n(value, padding);
        writes.words(&s.header, 0, parts.header);
        writes.words(&s.rows, 0, order.iter().map(|q| q.row.0).chain(padded(NONE)));
        writes.words(&s.query_lens, 0, order.iter().map(|q| q.query_len).chain(padded(0)));
        writes.words(&s.emits, 0, order.iter().map(|q| u32::from(q.emits)).chain(padded(0)));
        let sampled = &order[..parts.num_sampled as usize];
        let last = sampled.iter().scan(0, |end, q| {
            *end += q.query_len;
            Some(*end - 1)
        });
        if parts.stride == 1 {
            writes.words(&s.logits_index, 0, last.chain(padded(NONE)));
            return;
        }
        let stride = parts.stride;
        let positions = last.zip(sampled);
        let positions = positions.flat_map(|(last, q)| per_draft(q, stride, move |i| last - q.num_drafts + i));
        writes.words(&s.logits_index, 0, positions);
        let rows = sampled.iter().flat_map(|q| per_draft(q, stride, |_| q.row.0));
        writes.words(&s.logits_rows, 0, rows);
        writes.words(&s.num_drafts, 0, order.iter().map(|q| q.num_drafts));
        writes.words(&s.num_sampled, 0, order.iter().map(|q| q.num_drafts + 1));
    }

    /// Writes positions of the step that something is wanted for, at `first ..` among these.
    pub(crate) fn write_wanted(&mut self, first: u32, positions: impl Iterator<Item = u32>) {
        self.writes
            .words(&self.memory.step.logits_index, u64::from(first), positions);
    }

    /// Writes which of the step's tokens are scored, from token `at` on, and the tokens that follow them.
    pub(crate) fn write_scored(&mut self, range: ScoredRange, at: u32, chosen: impl Iterator<Item = u32>) {
        self.write_wanted(range.first, at..at + range.count);
        self.writes
            .words(&self.memory.step.chosen, u64::from(range.first), chosen);
    }

    /// Writes the masks of a step's first rows, and how many of all rows' tokens count: none of a row without its mask.
    pub(crate) fn write_masks<'m>(&mut self, masks: impl Iterator<Item = Option<&'m [u32]>>, num_rows: u32) {
        let (writes, s) = (&mut self.writes, &self.memory.step);
        let mut counts = vec![1; num_rows as usize];
        for (i, mask) in masks.enumerate() {
            match mask {
                Some(mask) => writes.words(&s.masks, i as u64 * u64::from(s.masks.strides[0]), mask.iter().copied()),
                None => counts[i] = 0,
            }
        }
        writes.words(&s.num_sampled, 0, counts);
    }

    /// Hands everything that was written to the device; it takes effect before the next submit.
    pub(crate) fn submit_writes(&mut self) -> Result<(), RunnerError> {
        Ok(self.writes.submit(&*self.queue)?)
    }

    /// Encodes once what `encode` says and submits it; gives the submit's number.
    pub(crate) fn submit_once(
        &mut self,
        encode: impl FnOnce(&mut Self, &mut dyn Encoder) -> Result<(), RunnerError>,
    ) -> Result<u64, RunnerError> {
        let mut encoder = self.queue.create_encoder(EncoderMode::OneShot)?;
        encode(self, &mut *encoder)?;
        let commands = encoder.finish()?;
        self.submit(&[commands.id()])
    }

    /// Encodes what `encode` says to be submitted many times.
    pub(crate) fn record(
        &mut self,
        encode: impl FnOnce(&mut Self, &mut dyn Encoder) -> Result<(), RunnerError>,
    ) -> Result<Arc<dyn CommandBuffer>, RunnerError> {
        let mut encoder = self.queue.create_encoder(EncoderMode::Reusable)?;
        encode(self, &mut *encoder)?;
        Ok(encoder.finish()?)
    }

    /// Submits commands in this order; gives the submit's number.
    pub(crate) fn submit(&self, commands: &[CommandId]) -> Result<u64, RunnerError> {
        Ok(self.queue.submit(commands, &[])?)
    }

    /// Whether a submit is done, or failed.
    pub(crate) fn is_done(&self, number: u64) -> bool {
        self.queue.completed() >= number
    }

    /// Whether a submit that is done did not fail.
    ///
    /// # Errors
    /// Its failure, or an earlier one's.
    pub(crate) fn check_done(&self, number: u64) -> Result<(), RunnerError> {
        match self.queue.completed() {
            u64::MAX => Ok(self.queue.wait(number, 0)?),
            _ => Ok(()),
        }
    }

    /// Asks the device whether a submit that is not done may still become so.
    ///
    /// # Errors
    /// The device's failure.
    pub(crate) fn check_alive(&self, number: u64) -> Result<(), RunnerError> {
        match self.queue.wait(number, 0) {
            Err(error) if error.status != Status::Timeout => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Blocks until submit `number` is done.
    ///
    /// # Errors
    /// Its failure, or an earlier one's; `Timeout` once `is_overdue`, or when another rank has failed.
    pub(crate) fn wait_done(&self, number: u64, is_overdue: impl Fn() -> bool) -> Result<(), RunnerError> {
        let is_overdue = || is_overdue() || self.group.as_ref().is_some_and(|group| group.has_failed());
        while self.queue.completed() < number {
            match self.queue.wait(number, WAIT_SLICE_NS) {
                Ok(()) => break,
                Err(e) if e.status == Status::Timeout && !is_overdue() => {}
                Err(e) => return Err(e.into()),
            }
        }
        if self.queue.completed() == u64::MAX {
            self.queue.wait(number, 0)?;
        }
        Ok(())
    }

    /// Reads the first `num_rows` rows of a ring entry: for each the number of its tokens and as many words as it may
    /// have tokens. `None`: the entry is another step's than `tag`'s.
    pub(crate) fn read_entry(&mut self, entry: u32, tag: u64, num_rows: u32) -> Result<Option<&[u32]>, RunnerError> {
        let used = RESULT_HEADER + self.memory.capacities.result_words() * num_rows;
        let ring = &mut self.memory.ring;
        let results = ring.results.rows(entry, 1).columns(0, used);
        ring.read(&results, &mut self.words)?;
        let found = u64::from(self.words[0]) | u64::from(self.words[1]) << 32;
        Ok((found == tag).then_some(&self.words[RESULT_HEADER as usize..]))
    }

    /// Reads log-probabilities of a ring entry.
    pub(crate) fn read_scores(&mut self, entry: u32, range: ScoredRange) -> Result<Scores, RunnerError> {
        let ring = &mut self.memory.ring;
        let t = ring.logprobs[entry as usize];
        let mut scores = Scores {
            k: ring.k as usize,
            ..Scores::default()
        };
        for (tensor, words) in [
            (t.chosen, &mut scores.chosen),
            (t.ranks, &mut scores.ranks),
            (t.top_tokens, &mut scores.top_tokens),
            (t.top_logprobs, &mut scores.top_logprobs),
        ] {
            ring.read(&tensor.rows(range.first, range.count), words)?;
        }
        Ok(scores)
    }

    /// Reads the `i`-th hidden state of a ring entry.
    pub(crate) fn read_hidden_state(&mut self, entry: u32, i: u32) -> Result<Vec<f32>, RunnerError> {
        let ring = &mut self.memory.ring;
        let states = ring.hidden_states.get(entry as usize).copied();
        let states = states.ok_or(RunnerError::Internal(
            "rows give hidden states, which were not asked for at start",
        ))?;
        Ok(floats_of(states.dtype(), ring.read_bytes(&states.rows(i, 1))?))
    }

    /// Reads the first `num_rows` rows of the last layer's states. Blocks; no unfinished step may write them.
    pub(crate) fn read_hidden(&self, num_rows: u32) -> Result<Vec<u8>, RunnerError> {
        let hidden = self.memory.hidden.rows(0, num_rows);
        let mut bytes = vec![0; hidden.span_bytes() as usize];
        let owner = self.memory.buffers.iter().find(|b| b.id() == hidden.buffer_id());
        owner
            .ok_or(RunnerError::Internal("the hidden states have no buffer"))?
            .read(hidden.offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads known and then computed tokens of `count` rows. Blocks; no unfinished step may write them.
    pub(crate) fn read_lengths(&self, first_row: u32, count: u32) -> Result<Vec<u32>, RunnerError> {
        let rows = &self.memory.rows;
        let mut lengths = rows.read(&rows.num_tokens, first_row, count)?;
        lengths.extend(rows.read(&rows.num_computed, first_row, count)?);
        Ok(lengths)
    }
}

/// Log-probabilities of consecutive positions.
#[derive(Default)]
pub(crate) struct Scores {
    k: usize,
    chosen: Vec<u32>,
    ranks: Vec<u32>,
    top_tokens: Vec<u32>,
    top_logprobs: Vec<u32>,
}

impl Scores {
    /// Of the `i`-th position, where `token` stands, with `k` alternatives.
    pub(crate) fn at(&self, i: usize, token: u32, k: u32) -> TokenLogprobs {
        let range = i * self.k..i * self.k + (k as usize).min(self.k);
        let top = self.top_tokens[range.clone()].iter().zip(&self.top_logprobs[range]);
        TokenLogprobs {
            chosen: Logprob {
                token,
                logprob: f32::from_bits(self.chosen[i]),
            },
            rank: self.ranks[i],
            top: top
                .map(|(&token, &bits)| Logprob {
                    token,
                    logprob: f32::from_bits(bits),
                })
                .collect(),
        }
    }
}
