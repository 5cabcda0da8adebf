//! Runs planned steps on a device: uploads what changed, submits forward, head and sampling, and reads results back.
//!
//! Plans from counts only: nothing here waits for a token before the next step may be submitted.

use std::sync::Arc;

use halyard_scheduler::{Scheduled, SchedulerOutput};

use crate::device_model::{DeviceModel, RowTokens, SampledRange, ScoredRange, StepParts, Wanted};
use crate::error::RunnerError;
use crate::flight::{ExtraRows, Flight, PromptSpan, StepRow, Unsampled};
use crate::lora_memory::LoraMemory;
use crate::read_back::read_back;
use crate::recording::Recordings;
use crate::result::StepResult;
use crate::row::{LogitChanges, RowOutput, RowSpec, Sampler};
use crate::template::StepShape;

/// The inputs of a step.
#[derive(Clone, Copy, Debug)]
pub struct StepInput<'a> {
    /// Which rows compute what.
    pub plan: &'a SchedulerOutput,
    /// The row data of new owners, in the order of `plan.admitted`.
    pub admitted: &'a [Arc<RowSpec>],
    /// The drafted tokens of `plan.scheduled`, row after row. With drafts the plan's counts must be exact, and so must
    /// those of the next plan: no other step may be in flight when they are made.
    pub drafts: &'a [u32],
}

/// A model on a device, and its steps in flight.
pub struct Runner {
    /// Recorded decode steps, where the device has them. They go before the memory that they name.
    recordings: Option<Recordings>,
    model: DeviceModel,
    /// Adapter slots, where adapters are served.
    lora: Option<Arc<LoraMemory>>,
    rows: Vec<Row>,
    /// Entry of the result rings for the next step.
    next_entry: u32,
    /// Memory that steps use again.
    order: Vec<Scheduled>,
    spare_rows: Vec<Vec<StepRow>>,
}

/// The state of a device row, kept after its owner has ended.
#[derive(Clone, Default)]
struct Row {
    spec: Option<Arc<RowSpec>>,
    lora_slot: Option<u32>,
    /// Its last step verified drafts: the device counts all of them as right.
    had_drafts: bool,
    /// Its last token had biases besides those of its request: they are on the device.
    had_biases: bool,
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
    /// [`Runner::sample`] ends. Returns without waiting for the device.
    ///
    /// # Errors
    /// Errors of the device; a rank that failed.
    pub fn submit(&mut self, input: StepInput<'_>) -> Result<Flight, RunnerError> {
        let StepInput { plan, admitted, drafts } = input;
        self.own_rows(plan, admitted);
        let entry = self.next_entry;
        self.next_entry = (entry + 1) % self.model.capacities().ring_entries;
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend(plan.scheduled.iter().filter(|s| s.emits));
        order.extend(plan.scheduled.iter().filter(|s| !s.emits));
        let mut rows = self.spare_rows.pop().unwrap_or_default();
        let Survey { counts, wanted, spans } = self.survey(&order, &mut rows);
        self.check_drafts(counts, drafts)?;
        let lora_slot = order.iter().find_map(|s| self.rows[s.row.0 as usize].lora_slot);
        let places = match lora_slot.is_some() || counts.masked > 0 || counts.hidden_states > 0 {
            true => self.group(&mut order, &rows),
            false => Vec::new(),
        };
        let num_sampled = counts.sampled;
        order[num_sampled as usize..].iter_mut().for_each(|s| s.emits = false);
        let is_decode = num_sampled == order.len() as u32 && order.iter().all(|s| s.query_len == 1);
        // Before the step's own writes: making a recording runs steps of its own over the same step data.
        let bucket = match &mut self.recordings {
            Some(recordings) if is_decode && spans.is_empty() && !wanted.logprobs => {
                recordings.bucket_of(&mut self.model, num_sampled, wanted.sampler, lora_slot)?
            }
            _ => None,
        };
        self.model.copy_host_blocks(plan)?;
        let padding = bucket.as_ref().map_or(0, |bucket| bucket.size - num_sampled);
        let extra = counts.extra(&spans);
        self.model.begin_writes();
        self.write_rows(plan, admitted);
        self.write_drafts(plan, drafts);
        let (low, high) = (plan.step.0 as u32, (plan.step.0 >> 32) as u32);
        self.model.write_step(&StepParts {
            header: [entry, low, high, order.len() as u32],
            order: &order,
            num_sampled,
            stride: counts.stride,
            padding,
        });
        let replay = bucket.and_then(|bucket| bucket.commands);
        let shape = StepShape {
            tokens: plan.num_tokens + padding,
            seqs: order.len() as u32 + padding,
            logits: 0,
            logits_first: 0,
            direct: is_decode,
        };
        let mut flight = Flight {
            step: plan.step,
            number: 0,
            entry,
            rows,
            spans,
            places,
            stride: counts.stride,
            drafts: drafts.to_vec(),
            reads_logprobs: wanted.logprobs,
            is_replayed: replay.is_some(),
            unsampled: (counts.masked > 0).then_some(Unsampled {
                shape,
                num_masked: counts.masked,
                num_sampled,
                wanted,
                extra,
            }),
        };
        self.write_positions(&order, &flight, extra);
        self.model.submit_writes()?;
        let adapted = lora_slot.is_some();
        let sampled = SampledRange::all(num_sampled + padding, counts.stride);
        flight.number = match (&replay, flight.is_unsampled()) {
            (Some(commands), false) => self.model.submit(commands)?,
            (Some([forward, _]), true) => self.model.submit(&[*forward])?,
            (None, false) => self.model.submit_once(|model, encoder| {
                model.encode_forward(encoder, shape, adapted)?;
                model.encode_sampling(encoder, shape, sampled, wanted, entry)?;
                model.encode_update(encoder, shape, sampled.counts())?;
                model.encode_extra(encoder, shape, extra, entry)
            })?,
            (None, true) => self
                .model
                .submit_once(|model, encoder| model.encode_forward(encoder, shape, adapted))?,
        };
        self.order = order;
        Ok(flight)
    }

    /// Submits the second half of a step with masks: head, sampler and the rows' update. No other step may have been
    /// submitted since its first half. `changes`: of each request of [`Flight::masked`]. A row without its own gives no
    /// token: its last one is computed again by the next step with the row, so that other rows need not wait.
    ///
    /// # Errors
    /// Errors of the device; a rank that failed.
    pub fn sample(&mut self, flight: &mut Flight, changes: &[Option<Arc<LogitChanges>>]) -> Result<(), RunnerError> {
        let Some(step) = flight.unsampled.take() else {
            return Ok(());
        };
        if changes.len() != step.num_masked as usize {
            return Err(RunnerError::Internal(
                "a step is sampled with more or fewer masks than it has rows for them",
            ));
        }
        // The place of each masked row, which other groupings of rows may have changed.
        let mut by_place: Vec<Option<&[u32]>> = vec![None; changes.len()];
        let masked = flight.rows.iter().enumerate().filter(|(_, row)| row.is_masked());
        self.model.begin_writes();
        for ((i, row), changes) in masked.zip(changes) {
            let Some(changes) = changes else { continue };
            by_place[flight.place(i)] = Some(&changes.mask);
            let Row { spec, had_biases, .. } = &mut self.rows[row.slot as usize];
            let has_biases = !changes.biases.is_empty();
            if let Some(spec) = spec
                && (std::mem::replace(had_biases, has_biases) || has_biases)
            {
                self.model.write_biases(row.slot, spec, &changes.biases);
            }
        }
        self.model.write_masks(by_place.into_iter(), step.shape.seqs);
        self.model.submit_writes()?;
        let (shape, entry) = (step.shape, flight.entry);
        let (masked, others) = SampledRange::masked_first(step.num_masked, step.num_sampled);
        let of_masked = Wanted {
            sampler: Sampler::Full,
            ..step.wanted
        };
        flight.number = self.model.submit_once(|model, encoder| {
            model.encode_sampling(encoder, shape, masked, of_masked, entry)?;
            model.encode_sampling(encoder, shape, others, step.wanted, entry)?;
            model.encode_update(encoder, shape, masked.counts())?;
            model.encode_extra(encoder, shape, step.extra, entry)
        })?;
        Ok(())
    }

    /// Records which sequence owns which row from this plan on.
    fn own_rows(&mut self, plan: &SchedulerOutput, admitted: &[Arc<RowSpec>]) {
        for (admitted, spec) in plan.admitted.iter().zip(admitted) {
            self.rows[admitted.row.0 as usize] = Row {
                spec: Some(Arc::clone(spec)),
                lora_slot: admitted.lora_slot,
                had_drafts: false,
                had_biases: false,
            };
        }
    }

    /// Puts rows that give a token first, of these the ones with masks, so that they are sampled together; then rows of
    /// one adapter next to each other, so that kernels read an adapter's matrices once for several rows. Returns each
    /// row's new place; empty: no row moved.
    fn group(&self, order: &mut [Scheduled], rows: &[StepRow]) -> Vec<u32> {
        let key = |i: &u32| {
            let (row, scheduled) = (&rows[*i as usize], &order[*i as usize]);
            let slot = self.rows[scheduled.row.0 as usize].lora_slot.map_or(0, |slot| slot + 1);
            (!row.gives_token(), !row.is_masked(), slot)
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

    /// Looks each row up once: the kind of its result, its part of the step, and the prompt positions that it scores.
    fn survey(&self, order: &[Scheduled], rows: &mut Vec<StepRow>) -> Survey {
        let mut survey = Survey::default();
        for s in order {
            let spec = self.rows[s.row.0 as usize].spec.as_deref();
            let row = StepRow {
                id: s.id,
                output: spec.filter(|_| s.emits).map(|spec| spec.output),
                prompt_tokens: spec.map_or(0, |spec| prompt_part(s, spec)),
                logprobs: spec.and_then(|spec| spec.logprobs),
                num_drafts: s.num_drafts,
                slot: s.row.0,
            };
            rows.push(row);
            let Some(spec) = spec else { continue };
            let counts = &mut survey.counts;
            if row.gives_token() {
                counts.sampled += 1;
                counts.masked += u32::from(row.is_masked());
                counts.stride = counts.stride.max(s.num_drafts + 1);
                survey.wanted.sampler = survey.wanted.sampler.max(spec.sampler());
                survey.wanted.logprobs |= row.logprobs.is_some();
            }
            counts.hidden_states += u32::from(row.output.is_some_and(RowOutput::is_hidden_state));
            survey.spans.extend(prompt_span(s, spec, rows.len() - 1));
        }
        let mut next = survey.counts.sampled * survey.counts.stride;
        for span in &mut survey.spans {
            span.range.first = next;
            next += span.range.count;
        }
        survey
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

    /// Whether the step's drafts fit it and the device's memory.
    fn check_drafts(&self, counts: Counts, drafts: &[u32]) -> Result<(), RunnerError> {
        let limit = self.model.capacities().max_sampled;
        let is_known = |&id: &u32| id < self.vocab();
        if counts.stride > limit || (counts.stride == 1) != drafts.is_empty() || !drafts.iter().all(is_known) {
            return Err(RunnerError::Internal(
                "a step has other drafts than its plan, too many, or some outside the vocabulary",
            ));
        }
        match counts.stride > 1 && counts.masked > 0 {
            true => Err(RunnerError::Internal("a step has both drafts and masks")),
            false => Ok(()),
        }
    }

    /// Writes drafts after the known tokens of their rows, and corrects the device's counts of the drafts before.
    fn write_drafts(&mut self, plan: &SchedulerOutput, drafts: &[u32]) {
        if self.model.capacities().max_sampled == 1 {
            return;
        }
        let mut drafts = drafts.iter().copied();
        for s in &plan.scheduled {
            let row = &mut self.rows[s.row.0 as usize];
            if std::mem::replace(&mut row.had_drafts, s.num_drafts > 0) || s.num_drafts > 0 {
                let content = RowTokens {
                    tokens: drafts.by_ref().take(s.num_drafts as usize),
                    known: s.num_computed_upper + s.query_len - s.num_drafts,
                    computed: s.num_computed_upper,
                    lora_slot: None,
                };
                self.model.write_drafts(s.row.0, content);
            }
        }
    }

    /// Writes the positions of scored prompt tokens, with their tokens, and of wanted hidden states.
    fn write_positions(&mut self, order: &[Scheduled], flight: &Flight, extra: ExtraRows) {
        if extra.is_nothing() {
            return;
        }
        // The token after each row's last one, by place.
        let mut end = 0;
        let ends: Vec<u32> = order
            .iter()
            .map(|s| {
                end += s.query_len;
                end
            })
            .collect();
        for span in &flight.spans {
            let place = flight.place(span.row);
            let scheduled = &order[place];
            let Some(spec) = &self.rows[scheduled.row.0 as usize].spec else {
                continue;
            };
            let scored = &spec.prompt[span.position as usize + 1..][..span.range.count as usize];
            let at = ends[place] - scheduled.query_len;
            self.model.write_scored(span.range, at, scored.iter().copied());
        }
        if let Some(range) = extra.hidden_states {
            let rows = flight.rows.iter().enumerate();
            let hidden = rows.filter(|(_, row)| row.output.is_some_and(RowOutput::is_hidden_state));
            let last = hidden.map(|(i, _)| ends[flight.place(i)] - 1);
            self.model.write_wanted(range.first, last);
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
        read_back(&mut self.model, flight)
    }
}

/// The numbers of rows of a step, by their kind of result.
#[derive(Clone, Copy, Debug)]
struct Counts {
    /// A token.
    sampled: u32,
    /// A token under a mask.
    masked: u32,
    /// A hidden state.
    hidden_states: u32,
    /// Positions of logits of each row with a token.
    stride: u32,
}

/// The needs of all rows of a step.
struct Survey {
    counts: Counts,
    wanted: Wanted,
    spans: Vec<PromptSpan>,
}

impl Default for Survey {
    fn default() -> Self {
        Survey {
            counts: Counts {
                sampled: 0,
                masked: 0,
                hidden_states: 0,
                stride: 1,
            },
            wanted: Wanted {
                sampler: Sampler::Greedy,
                logprobs: false,
            },
            spans: Vec::new(),
        }
    }
}

impl Counts {
    /// The rows after the logits of rows with a token.
    fn extra(self, spans: &[PromptSpan]) -> ExtraRows {
        let first = self.sampled * self.stride;
        let end = spans.last().map_or(first, |last| last.range.first + last.range.count);
        let range = |first, count| (count > 0).then_some(ScoredRange { first, count });
        ExtraRows {
            scored: range(first, end - first),
            hidden_states: range(end, self.hidden_states),
        }
    }
}

/// The prompt positions that a row scores in this step.
fn prompt_span(s: &Scheduled, spec: &RowSpec, row: usize) -> Option<PromptSpan> {
    let k = spec.prompt_logprobs?;
    let last_scored = spec.prompt.len() as u32 - 1;
    let end = (s.num_computed_upper + s.query_len).min(last_scored);
    let count = end.checked_sub(s.num_computed_upper).filter(|&count| count > 0)?;
    Some(PromptSpan {
        row,
        position: s.num_computed_upper,
        range: ScoredRange { first: 0, count },
        k,
    })
}

/// How many of the tokens that a row computes are its prompt's.
fn prompt_part(s: &Scheduled, spec: &RowSpec) -> u32 {
    let prompt = spec.prompt.len() as u32;
    (s.num_computed_upper + s.query_len).min(prompt) - s.num_computed_upper.min(prompt)
}
