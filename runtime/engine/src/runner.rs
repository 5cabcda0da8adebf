//! Runs planned steps on a device: uploads deltas, encodes forward, head and sampling, and reads results back.
//!
//! Plans from counts only: nothing here waits for a token before the next step may be submitted.

use std::sync::Arc;

use halyard_platform_api::ops::RESULT_HEADER;
use halyard_platform_api::{Buffer, Communicator, Device, EncoderMode, Queue, Tensor};
use halyard_scheduler::{RequestId, Scheduled, SchedulerOutput, StepId};

use crate::compile::{CompiledProgram, StepShape};
use crate::error::EngineError;
use crate::lora::memory::LoraMemory;
use crate::no_token::{NoToken, Place, RowFault};
use crate::output::{Logprob, TokenLogprobs};
use crate::rank::RankGroup;
use crate::recording::Recordings;
use crate::sequence::{Sampler, Sequence, Sequences};
use crate::state::{Capacities, ResultRing, RowState, StepState, Writes};
use crate::step_ops::StepOps;

/// Longest single wait for the device; the engine then looks whether it may wait on.
const WAIT_SLICE_NS: u64 = 1_000_000_000;

/// A model on a device.
pub(crate) struct Runner {
    pub queue: Arc<dyn Queue>,
    pub forward: CompiledProgram,
    pub head: CompiledProgram,
    pub ops: StepOps,
    pub rows: RowState,
    pub step: StepState,
    pub ring: ResultRing,
    pub capacities: Capacities,
    /// Logits \[chunk, V\] f32, and room for fewer unprocessed ones.
    pub logits: Tensor,
    pub raw_logits: Tensor,
    /// The forward program's last hidden states \[T, hidden\].
    pub hidden: Tensor,
    /// Memory that tensors above live in: activations, rope tables, KV.
    pub buffers: Vec<Arc<dyn Buffer>>,
    pub writes: Writes,
    pub next_entry: u32,
    pub words: Vec<u32>,
    /// Recorded decode steps, where the device has them.
    pub recordings: Option<Recordings>,
    /// What steps with adapters need, where adapters are served.
    pub lora: Option<RunnerLora>,
    /// Memory that steps use again.
    pub order: Vec<Scheduled>,
    pub spare_rows: Vec<Vec<StepRow>>,
    /// What ranks decide together, where there are several.
    pub group: Option<Arc<RankGroup>>,
    /// This rank's end of the group, where there are several: leaving it makes the others' collectives fail.
    pub communicator: Option<Arc<dyn Communicator>>,
    /// Last: the device outlives everything on it.
    pub device: Arc<dyn Device>,
}

/// Steps with adapters.
pub(crate) struct RunnerLora {
    /// The model's layers with adapters.
    pub forward: CompiledProgram,
    /// The device's slots.
    pub memory: Arc<LoraMemory>,
    /// Slot of each device row that a request owns or owned last.
    pub row_slots: Vec<Option<u32>>,
}

/// A row of a submitted step, in submission order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepRow {
    pub id: RequestId,
    pub emits: bool,
    /// Of the tokens computed, those of the prompt.
    pub prompt_tokens: u32,
    pub logprobs: Option<u32>,
}

/// Prompt positions that a step scores: `count` positions of `id` from `position` on, at ring rows `first ..`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PromptSpan {
    id: RequestId,
    position: u32,
    pub count: u32,
    pub first: u32,
    k: u32,
}

/// A submitted step.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub step: StepId,
    number: u64,
    entry: u32,
    pub rows: Vec<StepRow>,
    spans: Vec<PromptSpan>,
    /// Where each of `rows` stands in the step; empty: in this order.
    places: Vec<u32>,
    reads_logprobs: bool,
    /// It ran from recordings.
    pub replayed: bool,
}

impl InFlight {
    /// Prompt tokens that the step computed.
    pub(crate) fn prompt_tokens(&self) -> u64 {
        self.rows.iter().map(|row| u64::from(row.prompt_tokens)).sum()
    }

    /// Where row `i` stands in the step.
    fn place(&self, i: usize) -> usize {
        self.places.get(i).map_or(i, |&place| place as usize)
    }
}

/// What a step returned.
#[derive(Debug, Default)]
pub(crate) struct StepResult {
    /// One entry a row of the step: its token, if it emitted one, and, when asked, the token's log-probabilities.
    pub rows: Vec<(Option<u32>, Option<TokenLogprobs>)>,
    /// Prompt log-probabilities: request, position of the scored token, value.
    pub prompt: Vec<(RequestId, u32, TokenLogprobs)>,
    /// Emitting rows without a token, and prompt positions without log-probabilities.
    pub faults: Vec<RowFault>,
}

impl Drop for Runner {
    fn drop(&mut self) {
        // The queue waits for its work, which may wait for a rank that has failed: give it up first.
        if self.group.as_ref().is_some_and(|group| group.has_failed()) {
            self.communicator = None;
        }
    }
}

impl Runner {
    /// Uploads the plan's deltas and submits its step. Returns without waiting for the device.
    pub(crate) fn submit(&mut self, plan: &SchedulerOutput, sequences: &Sequences) -> Result<InFlight, EngineError> {
        let entry = self.next_entry;
        self.next_entry = (entry + 1) % self.capacities.ring_entries;
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend(plan.scheduled.iter().filter(|s| s.emits));
        let num_emitting = order.len() as u32;
        order.extend(plan.scheduled.iter().filter(|s| !s.emits));
        let mut rows = self.spare_rows.pop().unwrap_or_default();
        let (wanted, spans) = survey(&order, num_emitting, sequences, &mut rows);
        let is_decode = num_emitting == order.len() as u32 && order.iter().all(|s| s.query_len == 1);
        self.note_adapters(plan);
        let lora_slot = self.lora_slot(&order);
        let places = match lora_slot {
            Some(_) => self.group_by_adapter(&mut order, num_emitting as usize),
            None => Vec::new(),
        };
        // Before the step's own writes: making a recording runs steps of its own over the same step data.
        let bucket = match is_decode && spans.is_empty() && !wanted.logprobs {
            true => self.bucket_of(num_emitting, wanted.sampler, lora_slot)?,
            false => None,
        };
        let padding = bucket.as_ref().map_or(0, |bucket| bucket.size - num_emitting);
        self.writes.clear();
        self.write_rows(plan, sequences);
        let parts = StepParts {
            header: [
                entry,
                plan.step.0 as u32,
                (plan.step.0 >> 32) as u32,
                order.len() as u32,
            ],
            order: &order,
            num_emitting,
            padding,
        };
        write_step(&mut self.writes, &self.step, &parts);
        self.write_spans(&order, &spans, sequences);
        self.writes.submit(&*self.queue)?;
        let replay = bucket.and_then(|bucket| bucket.commands);
        let number = match &replay {
            Some(commands) => self.queue.submit(commands, &[])?,
            None => {
                let shape = StepShape {
                    tokens: plan.num_tokens + padding,
                    seqs: order.len() as u32 + padding,
                    logits: 0,
                    logits_first: 0,
                    direct: is_decode,
                };
                self.submit_once(
                    shape,
                    lora_slot.is_some(),
                    num_emitting + padding,
                    wanted,
                    &spans,
                    entry,
                )?
            }
        };
        self.order = order;
        Ok(InFlight {
            step: plan.step,
            number,
            entry,
            rows,
            spans,
            places,
            reads_logprobs: wanted.logprobs,
            replayed: replay.is_some(),
        })
    }

    /// Remembers the adapter slots of rows that get a new owner.
    fn note_adapters(&mut self, plan: &SchedulerOutput) {
        if let Some(lora) = &mut self.lora {
            for admitted in &plan.admitted {
                lora.row_slots[admitted.row.0 as usize] = admitted.lora_slot;
            }
        }
    }

    /// An adapter slot that a row of the step uses; `None`: the step has no adapters.
    fn lora_slot(&self, order: &[Scheduled]) -> Option<u32> {
        let slots = &self.lora.as_ref()?.row_slots;
        order.iter().find_map(|s| slots[s.row.0 as usize])
    }

    /// Puts rows of one adapter side by side, emitting ones before the others as ever, so that kernels read an adapter's matrices once for
    /// several rows. Gives each row's new place; empty: all stand where they stood.
    fn group_by_adapter(&self, order: &mut [Scheduled], num_emitting: usize) -> Vec<u32> {
        let Some(lora) = &self.lora else {
            return Vec::new();
        };
        let slot = |s: &Scheduled| lora.row_slots[s.row.0 as usize].map_or(0, |slot| slot + 1);
        let key = |i: &u32| (*i as usize >= num_emitting, slot(&order[*i as usize]));
        let mut sorted: Vec<u32> = (0..order.len() as u32).collect();
        if sorted.is_sorted_by_key(key) {
            return Vec::new();
        }
        sorted.sort_by_key(key);
        let mut places = vec![0; order.len()];
        for (place, &i) in sorted.iter().enumerate() {
            places[i as usize] = place as u32;
        }
        let grouped: Vec<Scheduled> = sorted.iter().map(|&i| order[i as usize]).collect();
        order.copy_from_slice(&grouped);
        places
    }

    /// Whether a submitted step is done, or failed.
    pub(crate) fn is_done(&self, flight: &InFlight) -> bool {
        self.queue.completed() >= flight.number
    }

    /// Whether a step that is done did not fail.
    ///
    /// # Errors
    /// Its failure, or an earlier one's.
    pub(crate) fn check_done(&self, flight: &InFlight) -> Result<(), EngineError> {
        match self.queue.completed() {
            u64::MAX => Ok(self.queue.wait(flight.number, 0)?),
            _ => Ok(()),
        }
    }

    /// Asks the device whether a step that is not done may still become so.
    ///
    /// # Errors
    /// The device's failure.
    pub(crate) fn check_alive(&self, flight: &InFlight) -> Result<(), EngineError> {
        match self.queue.wait(flight.number, 0) {
            Err(error) if error.status != halyard_platform_api::Status::Timeout => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Encodes a whole step and submits it.
    fn submit_once(
        &mut self,
        shape: StepShape,
        adapted: bool,
        num_emitting: u32,
        wanted: Wanted,
        spans: &[PromptSpan],
        entry: u32,
    ) -> Result<u64, EngineError> {
        let mut encoder = self.device.create_encoder(EncoderMode::OneShot)?;
        self.encode_forward(&mut *encoder, shape, adapted)?;
        self.encode_sampling(&mut *encoder, shape, num_emitting, wanted, entry)?;
        self.encode_update(&mut *encoder, shape)?;
        self.encode_prompt_logprobs(&mut *encoder, shape, num_emitting, spans, entry)?;
        let commands = encoder.finish()?;
        Ok(self.queue.submit(&[commands.id()], &[])?)
    }

    /// Gives a collected step's memory back for later ones.
    pub(crate) fn recycle(&mut self, flight: InFlight) {
        let mut rows = flight.rows;
        rows.clear();
        self.spare_rows.push(rows);
    }

    /// Blocks until submit `number` is done.
    ///
    /// # Errors
    /// Its failure, or an earlier one's; `Timeout` once `is_overdue`, or when another rank has failed.
    pub(crate) fn wait_done(&self, number: u64, is_overdue: impl Fn() -> bool) -> Result<(), EngineError> {
        let is_overdue = || is_overdue() || self.group.as_ref().is_some_and(|group| group.has_failed());
        while self.queue.completed() < number {
            match self.queue.wait(number, WAIT_SLICE_NS) {
                Ok(()) => break,
                Err(e) if e.status == halyard_platform_api::Status::Timeout && !is_overdue() => {}
                Err(e) => return Err(e.into()),
            }
        }
        if self.queue.completed() == u64::MAX {
            self.queue.wait(number, 0)?;
        }
        Ok(())
    }

    /// Blocks until the step is done and reads its results. Gives up when `is_overdue` says so: a device that never finishes
    /// must not hold up a shutdown.
    pub(crate) fn collect(
        &mut self,
        flight: &InFlight,
        is_overdue: impl Fn() -> bool,
    ) -> Result<StepResult, EngineError> {
        self.wait_done(flight.number, is_overdue)?;
        let used = RESULT_HEADER + 2 * flight.rows.len() as u32;
        let entry = self.ring.results.rows(flight.entry, 1).columns(0, used);
        let mut words = std::mem::take(&mut self.words);
        self.ring.read(&entry, &mut words)?;
        let tag = u64::from(words[0]) | u64::from(words[1]) << 32;
        if tag != flight.step.0 {
            let message = format!(
                "result ring entry {} holds step {tag}, not {}",
                flight.entry, flight.step.0
            );
            return Err(halyard_platform_api::Error::new(halyard_platform_api::Status::Internal, message).into());
        }
        let mut result = StepResult {
            rows: Vec::with_capacity(flight.rows.len()),
            ..StepResult::default()
        };
        for (i, row) in flight.rows.iter().enumerate() {
            let at = (RESULT_HEADER as usize) + 2 * flight.place(i);
            let token = match row.emits && words[at] > 0 {
                true => NoToken::read(words[at + 1], self.capacities.vocab).map(Some),
                false => Ok(None),
            };
            let token = token.unwrap_or_else(|why| {
                result.faults.push(RowFault {
                    id: row.id,
                    why,
                    place: Place::Output,
                });
                None
            });
            result.rows.push((token, None));
        }
        self.words = words;
        self.read_logprobs(flight, &mut result)?;
        Ok(result)
    }

    fn read_logprobs(&mut self, flight: &InFlight, result: &mut StepResult) -> Result<(), EngineError> {
        let num_sampled = flight.rows.iter().filter(|row| row.emits).count() as u32;
        if flight.reads_logprobs {
            let scores = self.read_scores(flight.entry, 0, num_sampled)?;
            for (i, row) in flight.rows.iter().enumerate().take(num_sampled as usize) {
                if let (Some(k), Some(token)) = (row.logprobs, result.rows[i].0) {
                    result.rows[i].1 = Some(scores.at(flight.place(i), token, k));
                }
            }
        }
        for span in &flight.spans {
            let scores = self.read_scores(flight.entry, span.first, span.count)?;
            for i in 0..span.count {
                // The scored token stands one position after the one whose logits scored it; the caller knows its id.
                let position = span.position + i + 1;
                let scored = scores.at(i as usize, u32::MAX, span.k);
                if scored.chosen.logprob.is_nan() {
                    result.faults.push(RowFault {
                        id: span.id,
                        why: NoToken::NotFinite,
                        place: Place::Prompt(position),
                    });
                }
                result.prompt.push((span.id, position, scored));
            }
        }
        Ok(())
    }

    fn read_scores(&mut self, entry: u32, first: u32, count: u32) -> Result<Scores, EngineError> {
        let t = self.ring.logprobs[entry as usize];
        let mut scores = Scores {
            k: self.ring.k as usize,
            ..Scores::default()
        };
        for (tensor, words) in [
            (t.chosen, &mut scores.chosen),
            (t.ranks, &mut scores.ranks),
            (t.top_tokens, &mut scores.top_tokens),
            (t.top_logprobs, &mut scores.top_logprobs),
        ] {
            self.ring.read(&tensor.rows(first, count), words)?;
        }
        Ok(scores)
    }

    /// Row deltas: state of newly admitted rows, and block table entries.
    fn write_rows(&mut self, plan: &SchedulerOutput, sequences: &Sequences) {
        let writes = &mut self.writes;
        for admitted in &plan.admitted {
            let row = u64::from(admitted.row.0);
            let history = admitted.prompt.iter().chain(&admitted.generated).copied();
            writes.words(
                &self.rows.tokens,
                row * u64::from(self.capacities.max_model_len),
                history,
            );
            let known = (admitted.prompt.len() + admitted.generated.len()) as u32;
            writes.words(&self.rows.num_tokens, row, [known]);
            writes.words(&self.rows.num_computed, row, [admitted.num_computed]);
            if self.lora.is_some() {
                writes.words(&self.rows.lora, row, [admitted.lora_slot.unwrap_or(NONE)]);
            }
            if let Some(sequence) = sequences.get(&admitted.id) {
                sequence.upload(admitted.row.0, &self.rows, writes);
            }
        }
        for write in &plan.table_writes {
            let table = &self.rows.tables[write.group as usize];
            let first = u64::from(write.row.0) * u64::from(table.shape[1]) + u64::from(write.first);
            writes.words(table, first, plan.blocks(write).iter().map(|block| block.0));
        }
    }

    /// Where prompt positions are scored, and which tokens stand there.
    fn write_spans(&mut self, order: &[Scheduled], spans: &[PromptSpan], sequences: &Sequences) {
        for span in spans {
            let Some(sequence) = sequences.get(&span.id) else {
                continue;
            };
            let before = order.iter().take_while(|q| q.id != span.id);
            let at = before.map(|q| q.query_len).sum::<u32>();
            let (first, prompt) = (u64::from(span.first), &sequence.prompt);
            self.writes.words(&self.step.logits_index, first, at..at + span.count);
            let scored = &prompt[span.position as usize + 1..][..span.count as usize];
            self.writes.words(&self.step.chosen, first, scored.iter().copied());
        }
    }
}

/// A step as the device is told it.
pub(crate) struct StepParts<'a> {
    /// Ring entry, both halves of the tag, number of sequences.
    pub header: [u32; 4],
    /// Emitting sequences first.
    pub order: &'a [Scheduled],
    pub num_emitting: u32,
    /// Sequences behind the last one that write nothing: a recording's shape is larger than the step.
    pub padding: u32,
}

/// A device row of padding, the index of no position, and the slot of no adapter.
pub(crate) const NONE: u32 = u32::MAX;

/// The step itself: header, rows, query lengths, and where logits are wanted.
pub(crate) fn write_step(writes: &mut Writes, s: &StepState, parts: &StepParts<'_>) {
    let (order, padding) = (parts.order, parts.padding as usize);
    let padded = |value| std::iter::repeat_n(value, padding);
    writes.words(&s.header, 0, parts.header);
    writes.words(&s.rows, 0, order.iter().map(|q| q.row.0).chain(padded(NONE)));
    writes.words(&s.query_lens, 0, order.iter().map(|q| q.query_len).chain(padded(0)));
    writes.words(&s.emits, 0, order.iter().map(|q| u32::from(q.emits)).chain(padded(0)));
    let ends = order[..parts.num_emitting as usize].iter().scan(0, |end, q| {
        *end += q.query_len;
        Some(*end - 1)
    });
    writes.words(&s.logits_index, 0, ends.chain(padded(NONE)));
}

/// What the emitting rows of a step need together.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub sampler: Sampler,
    pub logprobs: bool,
}

/// Looks every row's sequence up once: what the step needs, which prompt positions it scores (behind the emitting rows in the ring),
/// and what its results will be read with.
fn survey(
    order: &[Scheduled],
    num_emitting: u32,
    sequences: &Sequences,
    rows: &mut Vec<StepRow>,
) -> (Wanted, Vec<PromptSpan>) {
    let mut wanted = Wanted {
        sampler: Sampler::Greedy,
        logprobs: false,
    };
    let mut spans = Vec::new();
    let mut next = num_emitting;
    for s in order {
        let sequence = sequences.get(&s.id);
        let logprobs = sequence.and_then(|q| q.params.logprobs);
        rows.push(StepRow {
            id: s.id,
            emits: s.emits,
            prompt_tokens: prompt_part(s, sequence),
            logprobs,
        });
        let Some(sequence) = sequence else {
            continue;
        };
        if s.emits {
            wanted.sampler = wanted.sampler.max(sequence.sampler);
            wanted.logprobs |= logprobs.is_some();
        }
        if let Some(span) = prompt_span(s, sequence, next) {
            next += span.count;
            spans.push(span);
        }
    }
    (wanted, spans)
}

/// The prompt positions that a row scores in this step.
fn prompt_span(s: &Scheduled, sequence: &Sequence, first: u32) -> Option<PromptSpan> {
    sequence.prompt_logprobs.as_ref()?;
    let k = sequence.params.prompt_logprobs?;
    let last_scored = sequence.prompt.len() as u32 - 1;
    let end = (s.num_computed_upper + s.query_len).min(last_scored);
    let count = end.checked_sub(s.num_computed_upper).filter(|&count| count > 0)?;
    Some(PromptSpan {
        id: s.id,
        position: s.num_computed_upper,
        count,
        first,
        k,
    })
}

/// How many of the tokens that a row computes are its prompt's.
fn prompt_part(s: &Scheduled, sequence: Option<&Sequence>) -> u32 {
    let prompt = sequence.map_or(0, |q| q.prompt.len() as u32);
    (s.num_computed_upper + s.query_len).min(prompt) - s.num_computed_upper.min(prompt)
}

#[derive(Default)]
struct Scores {
    k: usize,
    chosen: Vec<u32>,
    ranks: Vec<u32>,
    top_tokens: Vec<u32>,
    top_logprobs: Vec<u32>,
}

impl Scores {
    fn at(&self, i: usize, token: u32, k: u32) -> TokenLogprobs {
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
