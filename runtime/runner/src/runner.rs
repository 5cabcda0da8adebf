//! Runs planned steps on a device: uploads what changed, submits forward, head and sampling, and reads results back.
//!
//! Plans from counts only: nothing here waits for a token before the next step may be submitted.

use std::sync::Arc;

use halyard_scheduler::{RequestId, Scheduled, SchedulerOutput, StepId};

use crate::device_model::{DeviceModel, RowTokens, SampledRange, ScoredRange, StepParts, Wanted};
use crate::error::RunnerError;
use crate::lora_memory::LoraMemory;
use crate::recording::Recordings;
use crate::result::{NoToken, Place, RowFault, StepResult};
use crate::row::{RowSpec, Sampler};
use crate::template::StepShape;

/// A model on a device, and its steps in flight.
pub struct Runner {
    model: DeviceModel,
    /// Recorded decode steps, where the device has them.
    recordings: Option<Recordings>,
    /// Adapter slots, where adapters are served.
    lora: Option<Arc<LoraMemory>>,
    rows: Vec<Row>,
    /// Entry of the result rings for the next step.
    next_entry: u32,
    /// Memory that steps use again.
    order: Vec<Scheduled>,
    spare_rows: Vec<Vec<StepRow>>,
}

/// A device row as its owner left it, also after the owner ended.
#[derive(Clone, Default)]
struct Row {
    spec: Option<Arc<RowSpec>>,
    lora_slot: Option<u32>,
}

/// A row of a submitted step, in submission order.
#[derive(Clone, Copy, Debug)]
pub struct StepRow {
    /// Whose.
    pub id: RequestId,
    /// It gives a token.
    pub emits: bool,
    is_masked: bool,
    /// Of the tokens computed, those of the prompt.
    pub prompt_tokens: u32,
    /// Alternatives that the token's log-probabilities are wanted for.
    logprobs: Option<u32>,
}

/// Prompt positions that a step scores: `count` positions of `id` from `position` on, at ring rows `first ..`.
#[derive(Clone, Copy, Debug)]
struct PromptSpan {
    id: RequestId,
    position: u32,
    range: ScoredRange,
    k: u32,
}

/// A submitted step.
#[derive(Debug)]
pub struct Flight {
    step: StepId,
    number: u64,
    entry: u32,
    rows: Vec<StepRow>,
    spans: Vec<PromptSpan>,
    /// Where each of `rows` stands in the step; empty: in this order.
    places: Vec<u32>,
    reads_logprobs: bool,
    is_replayed: bool,
    /// What is left to do of a step whose rows are chosen under masks.
    unsampled: Option<Unsampled>,
}

/// The second half of a step whose first half was submitted.
#[derive(Debug)]
struct Unsampled {
    shape: StepShape,
    /// Emitting rows; the masked ones stand first in the step.
    num_masked: u32,
    num_emitting: u32,
    /// What the emitting rows without masks need.
    wanted: Wanted,
    scored: Option<ScoredRange>,
}

impl Flight {
    /// Which step of the scheduler's.
    pub fn step(&self) -> StepId {
        self.step
    }

    /// Its rows, those that give a token first.
    pub fn rows(&self) -> &[StepRow] {
        &self.rows
    }

    /// It ran from recordings.
    pub fn is_replayed(&self) -> bool {
        self.is_replayed
    }

    /// Whether it waits for [`Runner::sample`].
    pub fn is_unsampled(&self) -> bool {
        self.unsampled.is_some()
    }

    /// The requests whose tokens are chosen under masks, in the order in which [`Runner::sample`] takes them. Empty once
    /// the step is sampled.
    pub fn masked(&self) -> impl Iterator<Item = RequestId> + '_ {
        let num_masked = self.unsampled.as_ref().map_or(0, |unsampled| unsampled.num_masked);
        let masked = self
            .rows
            .iter()
            .filter(move |row| num_masked > 0 && row.emits && row.is_masked);
        masked.map(|row| row.id)
    }

    /// Whether some of its rows give a token without a mask.
    pub fn has_unmasked(&self) -> bool {
        self.rows.iter().any(|row| row.emits && !row.is_masked)
    }

    /// Prompt tokens that the step computed.
    pub fn prompt_tokens(&self) -> u64 {
        self.rows.iter().map(|row| u64::from(row.prompt_tokens)).sum()
    }

    /// Where row `i` stands in the step.
    fn place(&self, i: usize) -> usize {
        self.places.get(i).map_or(i, |&place| place as usize)
    }
}

impl Runner {
    pub(crate) fn new(model: DeviceModel, recordings: Option<Recordings>, lora: Option<Arc<LoraMemory>>) -> Runner {
        Runner {
            rows: vec![Row::default(); model.capacities().rows as usize],
            model,
            recordings,
            lora,
            next_entry: 0,
            order: Vec::new(),
            spare_rows: Vec::new(),
        }
    }

    /// Tokens of the vocabulary: logits of a row.
    pub fn vocab(&self) -> u32 {
        self.model.capacities().vocab
    }

    /// The device's adapter slots, where adapters are served.
    pub fn lora_memory(&self) -> Option<&Arc<LoraMemory>> {
        self.lora.as_ref()
    }

    /// Uploads what the plan changes and submits its step; of a step with masks the first half, which
    /// [`Runner::sample`] ends. Returns without waiting for the device. `admitted`: what the rows that get an owner must
    /// know of it, in the order of `plan.admitted`.
    ///
    /// # Errors
    /// What the device reports; a rank that failed.
    pub fn submit(&mut self, plan: &SchedulerOutput, admitted: &[Arc<RowSpec>]) -> Result<Flight, RunnerError> {
        self.own_rows(plan, admitted);
        let entry = self.next_entry;
        self.next_entry = (entry + 1) % self.model.capacities().ring_entries;
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend(plan.scheduled.iter().filter(|s| s.emits));
        let num_emitting = order.len() as u32;
        order.extend(plan.scheduled.iter().filter(|s| !s.emits));
        let mut rows = self.spare_rows.pop().unwrap_or_default();
        let (wanted, spans) = self.survey(&order, num_emitting, &mut rows);
        let is_decode = num_emitting == order.len() as u32 && order.iter().all(|s| s.query_len == 1);
        let lora_slot = order.iter().find_map(|s| self.rows[s.row.0 as usize].lora_slot);
        let num_masked = rows.iter().filter(|row| row.emits && row.is_masked).count() as u32;
        let places = match lora_slot.is_some() || num_masked > 0 {
            true => self.group(&mut order, num_emitting as usize),
            false => Vec::new(),
        };
        // Before the step's own writes: making a recording runs steps of its own over the same step data.
        let bucket = match &mut self.recordings {
            Some(recordings) if is_decode && spans.is_empty() && !wanted.logprobs => {
                recordings.bucket_of(&mut self.model, num_emitting, wanted.sampler, lora_slot)?
            }
            _ => None,
        };
        let padding = bucket.as_ref().map_or(0, |bucket| bucket.size - num_emitting);
        self.model.begin_writes();
        self.write_rows(plan, admitted);
        let (low, high) = (plan.step.0 as u32, (plan.step.0 >> 32) as u32);
        self.model.write_step(&StepParts {
            header: [entry, low, high, order.len() as u32],
            order: &order,
            num_emitting,
            padding,
        });
        self.write_spans(&order, &spans);
        self.model.submit_writes()?;
        let replay = bucket.and_then(|bucket| bucket.commands);
        let shape = StepShape {
            tokens: plan.num_tokens + padding,
            seqs: order.len() as u32 + padding,
            logits: 0,
            logits_first: 0,
            direct: is_decode,
        };
        let scored = spans.last().map(|last| ScoredRange {
            first: num_emitting,
            count: last.range.first + last.range.count - num_emitting,
        });
        let adapted = lora_slot.is_some();
        let number = match (&replay, num_masked > 0) {
            (Some(commands), false) => self.model.submit(commands)?,
            (Some([forward, _]), true) => self.model.submit(&[*forward])?,
            (None, false) => self.model.submit_once(|model, encoder| {
                model.encode_forward(encoder, shape, adapted)?;
                model.encode_sampling(
                    encoder,
                    shape,
                    SampledRange::plain(num_emitting + padding),
                    wanted,
                    entry,
                )?;
                model.encode_update(encoder, shape, false)?;
                model.encode_prompt_logprobs(encoder, shape, scored, entry)
            })?,
            (None, true) => self
                .model
                .submit_once(|model, encoder| model.encode_forward(encoder, shape, adapted))?,
        };
        let unsampled = (num_masked > 0).then_some(Unsampled {
            shape,
            num_masked,
            num_emitting,
            wanted,
            scored,
        });
        self.order = order;
        Ok(Flight {
            step: plan.step,
            number,
            entry,
            rows,
            spans,
            places,
            reads_logprobs: wanted.logprobs,
            is_replayed: replay.is_some(),
            unsampled,
        })
    }

    /// Submits the second half of a step with masks: head, sampler and the rows' update. No other step may have been
    /// submitted since its first half. `masks`: of each request of [`Flight::masked`], one bit a token (v mod 32 of word
    /// v/32), set where the token may come. A row without its mask gives no token: its last one is computed again by the
    /// step that has it next, so that rows beside it need not wait.
    ///
    /// # Errors
    /// What the device reports; a rank that failed.
    pub fn sample(&mut self, flight: &mut Flight, masks: &[Option<Arc<[u32]>>]) -> Result<(), RunnerError> {
        let Some(step) = flight.unsampled.take() else {
            return Ok(());
        };
        if masks.len() != step.num_masked as usize {
            return Err(RunnerError::Internal(
                "a step is sampled with more or fewer masks than it has rows for them",
            ));
        }
        // Where each masked row stands, which other reasons to group rows may have changed.
        let mut by_place: Vec<Option<&[u32]>> = vec![None; masks.len()];
        let masked = flight
            .rows
            .iter()
            .enumerate()
            .filter(|(_, row)| row.emits && row.is_masked);
        for ((i, _), mask) in masked.zip(masks) {
            by_place[flight.place(i)] = mask.as_deref();
        }
        self.model.begin_writes();
        self.model.write_masks(by_place.into_iter(), step.shape.seqs);
        self.model.submit_writes()?;
        let (shape, entry) = (step.shape, flight.entry);
        let masked = SampledRange {
            first: 0,
            count: step.num_masked,
            is_masked: true,
        };
        let others = SampledRange {
            first: step.num_masked,
            count: step.num_emitting - step.num_masked,
            is_masked: false,
        };
        let of_masked = Wanted {
            sampler: Sampler::Full,
            ..step.wanted
        };
        flight.number = self.model.submit_once(|model, encoder| {
            model.encode_sampling(encoder, shape, masked, of_masked, entry)?;
            model.encode_sampling(encoder, shape, others, step.wanted, entry)?;
            model.encode_update(encoder, shape, true)?;
            model.encode_prompt_logprobs(encoder, shape, step.scored, entry)
        })?;
        Ok(())
    }

    /// Remembers who owns which row from this plan on.
    fn own_rows(&mut self, plan: &SchedulerOutput, admitted: &[Arc<RowSpec>]) {
        for (admitted, spec) in plan.admitted.iter().zip(admitted) {
            self.rows[admitted.row.0 as usize] = Row {
                spec: Some(Arc::clone(spec)),
                lora_slot: admitted.lora_slot,
            };
        }
    }

    /// Puts emitting rows with masks first, so that they are sampled together, and rows of one adapter side by side, so that
    /// kernels read an adapter's matrices once for several rows. Emitting rows stay before the others. Gives each row's
    /// new place; empty: all stand where they stood.
    fn group(&self, order: &mut [Scheduled], num_emitting: usize) -> Vec<u32> {
        let key = |i: &u32| {
            let row = &self.rows[order[*i as usize].row.0 as usize];
            let is_masked = row.spec.as_ref().is_some_and(|spec| spec.is_masked);
            let slot = row.lora_slot.map_or(0, |slot| slot + 1);
            (*i as usize >= num_emitting, !is_masked, slot)
        };
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

    /// Looks every row up once: what the step needs, which prompt positions it scores (behind the emitting rows in the
    /// ring), and what its results will be read with.
    fn survey(&self, order: &[Scheduled], num_emitting: u32, rows: &mut Vec<StepRow>) -> (Wanted, Vec<PromptSpan>) {
        let mut wanted = Wanted {
            sampler: Sampler::Greedy,
            logprobs: false,
        };
        let mut spans = Vec::new();
        let mut next = num_emitting;
        for s in order {
            let spec = self.rows[s.row.0 as usize].spec.as_deref();
            let logprobs = spec.and_then(|spec| spec.logprobs);
            rows.push(StepRow {
                id: s.id,
                emits: s.emits,
                is_masked: spec.is_some_and(|spec| spec.is_masked),
                prompt_tokens: spec.map_or(0, |spec| prompt_part(s, spec)),
                logprobs,
            });
            let Some(spec) = spec else { continue };
            if s.emits {
                wanted.sampler = wanted.sampler.max(spec.sampler());
                wanted.logprobs |= logprobs.is_some();
            }
            if let Some(span) = prompt_span(s, spec, next) {
                next += span.range.count;
                spans.push(span);
            }
        }
        (wanted, spans)
    }

    /// Writes the state of newly owned rows, and block table entries.
    fn write_rows(&mut self, plan: &SchedulerOutput, admitted: &[Arc<RowSpec>]) {
        for (admitted, spec) in plan.admitted.iter().zip(admitted) {
            let row = admitted.row.0;
            let content = RowTokens {
                tokens: admitted.prompt.iter().chain(&admitted.generated).copied(),
                known: (admitted.prompt.len() + admitted.generated.len()) as u32,
                computed: admitted.num_computed,
                lora_slot: admitted.lora_slot,
            };
            self.model.write_row(row, content);
            self.model.write_spec(row, spec);
        }
        for write in &plan.table_writes {
            let pages = plan.blocks(write).iter().map(|block| block.0);
            self.model
                .write_table(write.group as usize, write.row.0, write.first, pages);
        }
    }

    /// Writes where prompt positions are scored, and which tokens stand there.
    fn write_spans(&mut self, order: &[Scheduled], spans: &[PromptSpan]) {
        for span in spans {
            let mut at = 0;
            for s in order {
                if s.id == span.id {
                    if let Some(spec) = &self.rows[s.row.0 as usize].spec {
                        let scored = &spec.prompt[span.position as usize + 1..][..span.range.count as usize];
                        self.model.write_scored(span.range, at, scored.iter().copied());
                    }
                    break;
                }
                at += s.query_len;
            }
        }
    }

    /// Whether a submitted step (of one that is unsampled its first half) is done, or failed.
    pub fn is_done(&self, flight: &Flight) -> bool {
        self.model.is_done(flight.number)
    }

    /// Whether a step that is done did not fail.
    ///
    /// # Errors
    /// Its failure, or an earlier one's.
    pub(crate) fn check_done(&self, flight: &Flight) -> Result<(), RunnerError> {
        self.model.check_done(flight.number)
    }

    /// Asks the device whether a step that is not done may still become so.
    ///
    /// # Errors
    /// The device's failure.
    pub(crate) fn check_alive(&self, flight: &Flight) -> Result<(), RunnerError> {
        self.model.check_alive(flight.number)
    }

    /// Gives a collected step's memory back for later ones.
    pub fn recycle(&mut self, flight: Flight) {
        let mut rows = flight.rows;
        rows.clear();
        self.spare_rows.push(rows);
    }

    /// Blocks until the step is done and reads its results. Gives up when `is_overdue` says so: a device that never
    /// finishes must not hold up a shutdown.
    ///
    /// # Errors
    /// The step's failure, or an earlier one's; `Timeout` once `is_overdue`, or when another rank has failed.
    pub fn collect(&mut self, flight: &Flight, is_overdue: impl Fn() -> bool) -> Result<StepResult, RunnerError> {
        self.model.wait_done(flight.number, is_overdue)?;
        let vocab = self.model.capacities().vocab;
        let words = self
            .model
            .read_entry(flight.entry, flight.step.0, flight.rows.len() as u32)?;
        let words = words.ok_or(RunnerError::Internal("a result ring entry holds another step"))?;
        let mut result = StepResult {
            rows: Vec::with_capacity(flight.rows.len()),
            ..StepResult::default()
        };
        for (i, row) in flight.rows.iter().enumerate() {
            let at = 2 * flight.place(i);
            let token = match row.emits && words[at] > 0 {
                true => NoToken::read(words[at + 1], vocab).map(Some),
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
        self.read_logprobs(flight, &mut result)?;
        Ok(result)
    }

    fn read_logprobs(&mut self, flight: &Flight, result: &mut StepResult) -> Result<(), RunnerError> {
        if flight.reads_logprobs {
            let count = flight.rows.iter().filter(|row| row.emits).count() as u32;
            let scores = self.model.read_scores(flight.entry, ScoredRange { first: 0, count })?;
            for (i, row) in flight.rows.iter().enumerate().take(count as usize) {
                if let (Some(k), Some(token)) = (row.logprobs, result.rows[i].0) {
                    result.rows[i].1 = Some(scores.at(flight.place(i), token, k));
                }
            }
        }
        for span in &flight.spans {
            let scores = self.model.read_scores(flight.entry, span.range)?;
            for i in 0..span.range.count {
                // The scored token stands one position after the one whose logits scored it.
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
}

/// The prompt positions that a row scores in this step.
fn prompt_span(s: &Scheduled, spec: &RowSpec, first: u32) -> Option<PromptSpan> {
    let k = spec.prompt_logprobs?;
    let last_scored = spec.prompt.len() as u32 - 1;
    let end = (s.num_computed_upper + s.query_len).min(last_scored);
    let count = end.checked_sub(s.num_computed_upper).filter(|&count| count > 0)?;
    Some(PromptSpan {
        id: s.id,
        position: s.num_computed_upper,
        range: ScoredRange { first, count },
        k,
    })
}

/// How many of the tokens that a row computes are its prompt's.
fn prompt_part(s: &Scheduled, spec: &RowSpec) -> u32 {
    let prompt = spec.prompt.len() as u32;
    (s.num_computed_upper + s.query_len).min(prompt) - s.num_computed_upper.min(prompt)
}
