//! The engine thread: schedule → submit → (while the device works, schedule the next) → take tokens → hand them over.
//!
//! One thread owns scheduler, runner and sequences; everything else sends it commands. It sleeps when idle.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use halyard_platform_api::hooks::{ShutdownRecord, StatRecord};
use halyard_runner::{Flight, Ranks, RowFault, RowSpec, Runner, RunnerError, StepInput, StepResult};
use halyard_scheduler::{NewRequest, RequestId, RowResult, Scheduler, SchedulerOutput, Update};

use crate::command::Command;
use crate::config::SpeculativeConfig;
use crate::drafts::Drafting;
use crate::error::EngineError;
use crate::facts::unix_ns;
use crate::lora::AdapterError;
use crate::lora::core::{self as lora, CoreLora};
use crate::masks::{FirstHalf, Masks};
use crate::no_token::{self, LogPace};
use crate::output::FinishReason;
use crate::records::{self, StepRecords};
use crate::sequence::{Sequence, SequenceEvent, Sequences};
use crate::shared::Shared;
use crate::stats::{Records, StatsSnapshot};
use crate::step_pace::{StepPace, TimedStep};

/// Longest wait of a stalled engine for a command: then it looks at its deadline.
const STALL: Duration = Duration::from_millis(100);

/// The thread's state.
pub(crate) struct Core {
    /// Dropped before the other ranks are joined: they may wait for it in a collective.
    runner: Runner,
    ranks: Option<Ranks>,
    scheduler: Scheduler,
    sequences: Sequences,
    in_flight: VecDeque<(Flight, Instant)>,
    plan: SchedulerOutput,
    /// What rows that get an owner in `plan` must know of it.
    admitted: Vec<Arc<RowSpec>>,
    updates: Vec<Update>,
    commands: Receiver<Command>,
    shared: Arc<Shared>,
    records: Records,
    step_records: StepRecords,
    stats: StatsSnapshot,
    /// The log's pace: of logits that are no numbers, and of requests that allow no token.
    paces: [LogPace; 2],
    masks: Masks,
    speculative: Option<SpeculativeConfig>,
    /// Of `plan`'s rows.
    drafts: Vec<u32>,
    /// Adapters and who loads them, where some are served.
    lora: Option<CoreLora>,
    max_in_flight: usize,
    /// The last plan had nothing to do while requests wait: for an adapter. Only a command changes that.
    is_stalled: bool,
    started: Instant,
    deadline: Option<Instant>,
    /// How long steps take.
    pace: StepPace,
    /// When the last step was collected.
    collected: Instant,
}

/// What the thread is started with.
pub(crate) struct CoreParts {
    /// This rank's, and the others.
    pub runner: Runner,
    pub ranks: Option<Ranks>,
    pub scheduler: Scheduler,
    pub lora: Option<CoreLora>,
    pub commands: Receiver<Command>,
    pub shared: Arc<Shared>,
    pub records: Records,
    pub started: Instant,
    pub pace: StepPace,
    pub speculative: Option<SpeculativeConfig>,
}

impl Core {
    pub(crate) fn new(parts: CoreParts) -> Core {
        let CoreParts {
            runner,
            ranks,
            scheduler,
            lora,
            commands,
            shared,
            records,
            started,
            pace,
            speculative,
        } = parts;
        let step_records = StepRecords::new(scheduler.config().groups[0].block_size);
        let max_in_flight = scheduler.config().max_steps_in_flight as usize;
        Core {
            runner,
            ranks,
            scheduler,
            sequences: Sequences::default(),
            in_flight: VecDeque::new(),
            plan: SchedulerOutput::default(),
            admitted: Vec::new(),
            updates: Vec::new(),
            commands,
            shared,
            records,
            step_records,
            stats: StatsSnapshot::default(),
            paces: Default::default(),
            masks: Masks::default(),
            speculative,
            drafts: Vec::new(),
            lora,
            max_in_flight,
            is_stalled: false,
            started,
            deadline: None,
            pace,
            collected: started,
        }
    }

    /// Runs until shut down or until the device fails.
    pub(crate) fn run(mut self) {
        // Locals go before `self`, whose runner waits for work that other ranks may never do once this thread is gone.
        let _end = EndGuard(self.shared.clone());
        let _others = self.ranks.as_ref().map(Ranks::panic_guard);
        let end = self.serve();
        let reason = match &end {
            Ok(()) => "the engine was shut down".to_string(),
            Err(error) => {
                let reason = self.failure(error);
                tracing::error!("engine failed: {reason}");
                reason
            }
        };
        self.shared.stop(&reason);
        // What was sent before the stop was seen gets an answer too.
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Submit(sequences) = command {
                self.sequences
                    .extend(sequences.into_iter().map(|(id, sequence, _)| (id, sequence)));
            }
        }
        let ids: Vec<RequestId> = self.sequences.keys().copied().collect();
        for id in ids {
            let finish = if end.is_ok() {
                FinishReason::Abort(reason.clone())
            } else {
                FinishReason::Error(reason.clone())
            };
            self.end(id, finish);
        }
        self.publish();
        self.note_idle();
        self.records.send(StatRecord::Shutdown(ShutdownRecord {
            reason: u32::from(end.is_err()),
            unix_ns: unix_ns(),
            steps_total: self.stats.steps_total,
            detail: reason.as_str().into(),
        }));
        self.records.hand_over();
    }

    /// Why the engine fails: this rank's error, with what other ranks say.
    fn failure(&self, error: &EngineError) -> String {
        let Some(ranks) = &self.ranks else {
            return error.to_string();
        };
        match error {
            EngineError::Runner(error) => ranks.group().fail(0, error),
            error => ranks.group().note(0, &error.to_string()),
        }
        ranks.group().failure().unwrap_or_else(|| error.to_string())
    }

    fn serve(&mut self) -> Result<(), EngineError> {
        loop {
            if !self.take_commands() {
                return Ok(());
            }
            let has_room = self.fill()?;
            self.forget_adapters();
            self.is_stalled = self.in_flight.is_empty();
            if !self.in_flight.is_empty() && !has_room {
                self.collect()?;
            }
        }
    }

    /// Takes what was sent; blocks when there is nothing else to do. False: nobody is left, or the shutdown is complete.
    fn take_commands(&mut self) -> bool {
        loop {
            let idle = self.in_flight.is_empty() && self.scheduler.is_idle();
            if let Some(deadline) = self.deadline
                && (idle || Instant::now() >= deadline)
            {
                return false;
            }
            let command = if idle {
                self.forget_adapters();
                self.publish();
                self.note_idle();
                match self.commands.recv_timeout(Duration::from_secs(3600)) {
                    Ok(command) => command,
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => return false,
                }
            } else if std::mem::take(&mut self.is_stalled) {
                self.publish();
                match self.commands.recv_timeout(STALL) {
                    Ok(command) => command,
                    Err(_) => return true,
                }
            } else {
                match self.commands.try_recv() {
                    Ok(command) => command,
                    Err(TryRecvError::Empty) => return true,
                    // The last handle is gone, but readers may still be waiting for their tokens.
                    Err(TryRecvError::Disconnected) => return true,
                }
            };
            self.take(command);
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Submit(sequences) => {
                for (id, sequence, new) in sequences {
                    self.admit(id, sequence, new);
                }
            }
            Command::End { ids, reason } => {
                for id in ids {
                    self.scheduler.abort(id);
                    if let Some(reason) = &reason {
                        self.end(id, FinishReason::Abort(reason.clone()));
                    } else {
                        self.end(id, FinishReason::StopString(String::new()));
                    }
                }
            }
            Command::LoraLoaded { number, result } => self.adapter_loaded(number, result),
            Command::AddedAdapter(adapter) => {
                if let Some(lora) = &mut self.lora {
                    lora.note_added(adapter);
                }
            }
            Command::RetireAdapter(adapter) => {
                if let Some(lora) = &mut self.lora {
                    lora.retire(adapter);
                }
            }
            Command::Shutdown(deadline) => {
                self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
            }
        }
    }

    fn admit(&mut self, id: RequestId, mut sequence: Sequence, new: NewRequest) {
        if sequence.row.prompt.len() == 1 && sequence.prompt_logprobs.take().is_some() {
            let _ = sequence
                .events
                .send((sequence.index, SequenceEvent::Prompt(vec![None])));
        }
        if let (Some(lora), Some(adapter)) = (&mut self.lora, &sequence.lora) {
            lora.admit(adapter);
        }
        let asked = self.masks.ask_first(id, &mut sequence, self.runner.vocab());
        self.sequences.insert(id, sequence);
        if let Err(error) = asked {
            self.end(id, FinishReason::Error(error.to_string()));
            return;
        }
        if let Err(error) = self.scheduler.add(new) {
            self.end(id, FinishReason::Error(error.to_string()));
        }
    }

    /// Plans and submits steps until the device has its depth of them, or one has masks: what was sent meanwhile is taken
    /// before the next. Says whether the device has room for more.
    fn fill(&mut self) -> Result<bool, EngineError> {
        while self.in_flight.len() < self.max_in_flight {
            self.draft()?;
            let now = Instant::now();
            let now_ns = now.duration_since(self.started).as_nanos() as u64;
            self.scheduler.set_max_prompt_tokens(self.pace.max_prompt_tokens());
            let planned = self.scheduler.schedule_into(now_ns, &mut self.plan);
            if let Some(lora) = &mut self.lora {
                lora.start_loads(&mut self.scheduler);
            }
            if !planned {
                break;
            }
            for id in &self.plan.preempted {
                if let Some(sequence) = self.sequences.get_mut(id) {
                    sequence.facts.preempted();
                }
            }
            self.admitted.clear();
            for admitted in &self.plan.admitted {
                self.step_records
                    .admitted((!admitted.resumed).then_some(admitted.num_computed));
                let Some(sequence) = self.sequences.get_mut(&admitted.id) else {
                    return Err(RunnerError::Internal("the scheduler admits a request that has ended").into());
                };
                self.admitted.push(sequence.row_spec());
                if !admitted.resumed {
                    sequence.queue_ns = admitted.waited_ns;
                    sequence.num_cached = admitted.num_computed;
                    self.shared.admitted(1);
                    sequence.admitted = true;
                    lora::note_admitted(sequence);
                }
            }
            self.take_drafts();
            let input = StepInput {
                plan: &self.plan,
                admitted: &self.admitted,
                drafts: &self.drafts,
            };
            if let Some(ranks) = &self.ranks {
                ranks.submit(input)?;
            }
            let flight = self.runner.submit(input)?;
            let is_unsampled = flight.is_unsampled();
            self.in_flight.push_back((flight, now));
            if is_unsampled {
                self.sample()?;
                return Ok(self.in_flight.len() < self.max_in_flight);
            }
            if !self.drafts.is_empty() {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// Submits the second half of the step that was submitted last, with the masks that are there.
    fn sample(&mut self) -> Result<(), EngineError> {
        // A mask needs the tokens of all steps before.
        while self.in_flight.len() > 1 {
            self.collect()?;
        }
        let Some((mut flight, submitted)) = self.in_flight.pop_back() else {
            return Ok(());
        };
        let half = FirstHalf {
            flight: &flight,
            is_done: &|| self.runner.is_done(&flight),
            is_lost: &|| {
                self.shared.is_overdue() || self.ranks.as_ref().is_some_and(|ranks| ranks.group().has_failed())
            },
        };
        for (id, reason) in self.masks.wait(&half, &mut self.sequences) {
            self.scheduler.abort(id);
            self.end(id, FinishReason::Error(reason));
        }
        let masks = Masks::of(&flight, &self.sequences);
        if let Some(ranks) = &self.ranks {
            ranks.sample(&masks)?;
        }
        self.runner.sample(&mut flight, &masks)?;
        self.in_flight.push_back((flight, submitted));
        Ok(())
    }

    /// Drafts tokens for every sequence that takes some, and tells the scheduler how many. Drafts stand behind known tokens,
    /// so the steps in flight end first. Steps with masks have no drafts: while a sequence has a guide, nothing is drafted.
    fn draft(&mut self) -> Result<(), EngineError> {
        let Some(config) = self.speculative else {
            return Ok(());
        };
        if !self.sequences.values().any(|sequence| sequence.drafting.is_some()) {
            return Ok(());
        }
        while !self.in_flight.is_empty() {
            self.collect()?;
        }
        let has_guides = self.sequences.values().any(|sequence| sequence.guide.is_some());
        for (&id, sequence) in &mut self.sequences {
            if let Some(drafting) = &mut sequence.drafting {
                match has_guides {
                    true => drafting.clear(),
                    false => drafting.propose(&config),
                }
                self.scheduler.set_num_drafts(id, drafting.drafts().len() as u32)?;
            }
        }
        Ok(())
    }

    /// The drafts of the plan's rows, one row's behind those of the row before.
    fn take_drafts(&mut self) {
        self.drafts.clear();
        for row in self.plan.scheduled.iter().filter(|row| row.num_drafts > 0) {
            let sequence = self.sequences.get(&row.id);
            let drafting = sequence.and_then(|sequence| sequence.drafting.as_ref());
            let drafts = drafting.map_or(&[][..], Drafting::drafts);
            self.drafts.extend(drafts.iter().take(row.num_drafts as usize));
        }
        self.stats.draft_tokens_total += self.drafts.len() as u64;
    }

    /// Waits for the oldest step and hands its tokens over.
    fn collect(&mut self) -> Result<(), EngineError> {
        let Some((flight, submitted)) = self.in_flight.pop_front() else {
            return Ok(());
        };
        let mut result = self.runner.collect(&flight, || self.shared.is_overdue())?;
        self.note_pace(&flight, submitted);
        // Before the scheduler hears of the step: it would make what these rows computed findable.
        for fault in &result.faults {
            self.end_without_token(fault);
        }
        let emitting = flight.rows().iter().enumerate().filter(|(_, row)| row.output.is_some());
        let results: Vec<RowResult<'_>> = emitting
            .map(|(i, row)| RowResult {
                id: row.id,
                tokens: result.tokens(i),
            })
            .collect();
        let mut updates = std::mem::take(&mut self.updates);
        let outcome = self.scheduler.update_into(flight.step(), &results, &mut updates);
        outcome?;
        self.hand_over_prompt_logprobs(&result);
        self.hand_over_hidden_states(&mut result);
        let generated = self.hand_over_tokens(&flight, &result, &updates);
        self.updates = updates;
        self.note_step(&flight, generated, submitted);
        self.runner.recycle(flight);
        Ok(())
    }

    fn hand_over_prompt_logprobs(&mut self, result: &StepResult) {
        for (id, position, scored) in &result.prompt {
            let Some(sequence) = self.sequences.get_mut(id) else {
                continue;
            };
            let last = sequence.row.prompt.len() - 1;
            let Some(collected) = &mut sequence.prompt_logprobs else {
                continue;
            };
            let at = *position as usize;
            let mut scored = scored.clone();
            scored.chosen.token = sequence.row.prompt[at];
            collected[at] = Some(scored);
            if at == last {
                let complete = sequence.prompt_logprobs.take().unwrap_or_default();
                let _ = sequence.events.send((sequence.index, SequenceEvent::Prompt(complete)));
            }
        }
    }

    /// Sends every hidden state to its reader and ends the sequence.
    fn hand_over_hidden_states(&mut self, result: &mut StepResult) {
        for (id, values) in result.hidden_states.drain(..) {
            let Some(sequence) = self.sequences.get(&id) else {
                continue;
            };
            let event = SequenceEvent::HiddenState {
                values,
                num_cached_tokens: sequence.num_cached,
            };
            let _ = sequence.events.send((sequence.index, event));
            self.scheduler.finish(id);
            self.end(id, FinishReason::Length);
        }
    }

    /// Sends every new token to its reader and ends the sequences that are done. Returns the number of tokens.
    fn hand_over_tokens(&mut self, flight: &Flight, result: &StepResult, updates: &[Update]) -> u64 {
        let mut generated = 0;
        let now = Instant::now();
        let mut updates = updates.iter().peekable();
        for (i, row) in flight.rows().iter().enumerate() {
            let update = updates.next_if(|update| update.id == row.id);
            let (Some(sequence), Some(update)) = (self.sequences.get_mut(&row.id), update) else {
                continue;
            };
            let tokens = result.tokens(i);
            self.stats.accepted_tokens_total += tokens.len().saturating_sub(1) as u64;
            for (j, &token) in tokens.iter().enumerate() {
                generated += 1;
                let mut finish = sequence.stop_reason(token);
                sequence.num_output += 1;
                self.step_records.token(sequence, now);
                let is_last = j + 1 == tokens.len();
                if finish.is_none() && is_last && update.finished.is_some() {
                    finish = Some(FinishReason::Length);
                }
                if let Some(drafting) = &mut sequence.drafting {
                    drafting.push(token);
                }
                let event = SequenceEvent::Token {
                    id: token,
                    logprobs: result.logprobs(i, j).cloned(),
                    num_cached_tokens: sequence.num_cached,
                    finish: finish.clone(),
                };
                let _ = sequence.events.send((sequence.index, event));
                if let Some(finish) = finish {
                    self.scheduler.finish(row.id);
                    self.end(row.id, finish);
                    break;
                }
                self.masks.ask(row.id, sequence, vec![token]);
            }
        }
        generated
    }

    /// Ends a sequence that has no next token. Rows beside it go on.
    fn end_without_token(&mut self, fault: &RowFault) {
        let Some(sequence) = self.sequences.get(&fault.id) else {
            // It has ended while the step ran, or at another position of this one.
            return;
        };
        let finish = no_token::finish(fault, sequence.num_output, &sequence.params, sequence.guide.is_some());
        let request = sequence.facts.request_id();
        let model = &self.shared.model;
        let now = Instant::now();
        match &finish {
            FinishReason::NoTokenAllowed(reason) => {
                self.stats.empty_distributions_total += 1;
                self.scheduler.finish(fault.id);
                if let Some(left_out) = self.paces[1].pass(now) {
                    tracing::warn!(%model, request, left_out, "{reason}");
                }
            }
            FinishReason::NotFinite(reason) => {
                self.stats.nonfinite_logits_total += 1;
                self.scheduler.discard(fault.id);
                if let Some(left_out) = self.paces[0].pass(now) {
                    tracing::error!(%model, request, left_out, "{reason}");
                }
            }
            _ => {}
        }
        self.end(fault.id, finish);
    }

    /// An adapter is in its slot, or is not: then those that wait for it end.
    fn adapter_loaded(&mut self, number: u32, result: Result<(), AdapterError>) {
        let Some(lora) = &mut self.lora else { return };
        match result {
            Ok(()) => {
                lora.note_loaded(number);
                self.scheduler.lora_loaded(number);
            }
            Err(error) => {
                tracing::warn!("{error}");
                for id in self.scheduler.lora_failed(number) {
                    self.scheduler.abort(id);
                    // Not the engine's failure: other requests go on.
                    self.end(id, FinishReason::Abort(error.to_string()));
                }
            }
        }
    }

    /// Frees what retired adapters hold, once nobody uses them.
    fn forget_adapters(&mut self) {
        if let Some(lora) = &mut self.lora {
            let records = &mut self.records;
            lora.forget_retired(&mut self.scheduler, |adapter| {
                if records.wanted() {
                    records.send(StatRecord::Lora(adapter.last_record(unix_ns())));
                }
            });
        }
    }

    /// Forgets a sequence; its reader is told unless the last token already said it.
    fn end(&mut self, id: RequestId, reason: FinishReason) {
        let Some(sequence) = self.sequences.remove(&id) else {
            return;
        };
        lora::note_ended(&sequence);
        if !sequence.admitted {
            self.shared.admitted(1);
        }
        let kind = records::reason_code(&reason);
        self.stats.requests_finished[kind] += 1;
        if self.records.wanted() {
            let record = records::finished(id, &sequence, &reason, Instant::now());
            self.records.send(StatRecord::Finished(record));
        }
        if kind >= 2 {
            let _ = sequence.events.send((sequence.index, SequenceEvent::Finished(reason)));
        }
    }

    fn note_step(&mut self, flight: &Flight, generated: u64, submitted: Instant) {
        let prompt = flight.prompt_tokens();
        self.stats.steps_total += 1;
        self.stats.replayed_steps_total += u64::from(flight.is_replayed());
        self.stats.prompt_tokens_total += prompt;
        self.stats.generation_tokens_total += generated;
        self.publish();
        if self.records.wanted() {
            let step = (self.stats.steps_total, submitted.elapsed().as_nanos() as u64);
            let (counts, waiting) = (self.scheduler.counts(), self.shared.waiting());
            let send = |record| self.records.send(record);
            self.step_records
                .step(flight, step, (prompt, generated), &counts, waiting, send);
            self.records.hand_over();
        }
    }

    /// Learns how long steps take. A step that was submitted behind another one began when that one ended.
    fn note_pace(&mut self, flight: &Flight, submitted: Instant) {
        let began = submitted.max(std::mem::replace(&mut self.collected, Instant::now()));
        self.pace.note(TimedStep {
            prompt_tokens: flight.prompt_tokens(),
            has_decodes: flight.rows().iter().any(|row| row.prompt_tokens == 0),
            duration: self.collected.duration_since(began),
        });
    }

    /// Sends what changed without a step, such as an abort.
    fn note_idle(&mut self) {
        if self.records.wanted() {
            let (counts, waiting) = (self.scheduler.counts(), self.shared.waiting());
            let send = |record| self.records.send(record);
            self.step_records.idle(self.stats.steps_total, &counts, waiting, send);
            self.records.hand_over();
        }
    }

    /// Makes the counters visible to other threads.
    fn publish(&mut self) {
        let counts = self.scheduler.counts();
        let s = &mut self.stats;
        s.num_running = counts.running as u64;
        s.num_waiting = counts.waiting as u64;
        s.kv_cache_usage = records::usage(&counts);
        s.preemptions_total = counts.preemptions;
        s.prefix_cache_queries_total = counts.prefix_queries;
        s.prefix_cache_hits_total = counts.prefix_hits;
        s.dropped_records_total = self.records.dropped();
        self.shared
            .stats
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone_from(s);
        self.record_adapters();
    }

    /// A record of each adapter of which something changed.
    fn record_adapters(&mut self) {
        let Some(lora) = &self.lora else { return };
        if self.records.wanted() {
            for adapter in lora.changed() {
                self.records.send(StatRecord::Lora(adapter.record(unix_ns())));
            }
        }
    }
}

/// Says that the thread is gone when it ends by a panic.
struct EndGuard(Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop("the engine thread panicked; see the log");
        }
    }
}
