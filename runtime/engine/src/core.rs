//! The engine thread: schedule → submit → (while the device works, schedule the next) → read tokens → send them to
//! their streams.
//!
//! One thread owns scheduler, runner and sequences; everything else sends it commands. It sleeps when idle.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use halyard_runner::{Flight, RowSpec, RunnerError, StepInput};
use halyard_scheduler::{RequestId, RowResult, Scheduler, SchedulerOutput, Update};

use crate::command::Command;
use crate::config::{GuideConfig, SpeculativeConfig};
use crate::drafts::Drafting;
use crate::error::EngineError;
use crate::gather::{Gather, NEAR_STEPS};
use crate::kv_events::KvEventSink;
use crate::live::Live;
use crate::lora::core::CoreLora;
use crate::masks::{FirstHalf, Masks};
use crate::output::FinishReason;
use crate::pause::ControlError;
use crate::pauses::{Pauses, hold};
use crate::residence::Residence;
use crate::shared::Shared;
use crate::sleeping::Sleeping;
use crate::stats::Records;
use crate::step_pace::{StepPace, TimedStep};

/// Longest wait of a stalled engine for a command: then it looks at its deadline.
const STALL: Duration = Duration::from_millis(100);

/// A step was planned while there is nothing to run it: the scheduler holds requests back then.
const NOT_THERE: RunnerError = RunnerError::Internal("a step was planned while the engine sleeps");

/// The thread's state.
pub(crate) struct Core {
    model: Residence,
    live: Live,
    /// Tokens of the vocabulary.
    vocab: u32,
    in_flight: VecDeque<(Flight, Instant)>,
    plan: SchedulerOutput,
    /// For rows that get an owner in `plan`: the owner's row data.
    admitted: Vec<Arc<RowSpec>>,
    updates: Vec<Update>,
    commands: Receiver<Command>,
    speculative: Option<SpeculativeConfig>,
    /// Of `plan`'s rows.
    drafts: Vec<u32>,
    max_in_flight: usize,
    /// The last plan had nothing to do while requests wait: for an adapter. Only a command changes that.
    is_stalled: bool,
    pauses: Pauses,
    sleeping: Sleeping,
    started: Instant,
    deadline: Option<Instant>,
    /// How long steps take.
    pace: StepPace,
    /// When the last step was collected.
    collected: Instant,
    gather: Gather,
}

/// The thread's arguments.
pub(crate) struct CoreParts {
    pub model: Residence,
    pub vocab: u32,
    pub scheduler: Scheduler,
    pub lora: Option<CoreLora>,
    pub commands: Receiver<Command>,
    pub shared: Arc<Shared>,
    pub records: Records,
    pub started: Instant,
    pub pace: StepPace,
    pub speculative: Option<SpeculativeConfig>,
    pub guides: GuideConfig,
    pub kv_events: Option<Arc<dyn KvEventSink>>,
    /// Of a KV block on all ranks.
    pub block_bytes: u64,
}

impl Core {
    pub(crate) fn new(parts: CoreParts) -> Core {
        let CoreParts {
            model,
            vocab,
            scheduler,
            lora,
            commands,
            shared,
            records,
            started,
            pace,
            speculative,
            guides,
            kv_events,
            block_bytes,
        } = parts;
        let max_in_flight = scheduler.config().max_steps_in_flight as usize;
        Core {
            model,
            vocab,
            live: Live::new(scheduler, lora, guides, shared, records, kv_events, block_bytes),
            in_flight: VecDeque::new(),
            plan: SchedulerOutput::default(),
            admitted: Vec::new(),
            updates: Vec::new(),
            commands,
            speculative,
            drafts: Vec::new(),
            max_in_flight,
            is_stalled: false,
            pauses: Pauses::default(),
            sleeping: Sleeping::default(),
            started,
            deadline: None,
            pace,
            collected: started,
            gather: Gather::default(),
        }
    }

    /// Runs until shut down or until the device fails.
    pub(crate) fn run(mut self) {
        let _end = EndGuard(self.live.shared.clone());
        let end = self.serve();
        let reason = match &end {
            Ok(()) => "the engine was shut down".to_string(),
            Err(error) => {
                let reason = self.failure(error);
                tracing::error!("engine failed: {reason}");
                reason
            }
        };
        self.live.shared.stop(&reason);
        // Commands that were sent before the stop was seen get an answer too.
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Submit(sequences) = command {
                self.live
                    .sequences
                    .extend(sequences.into_iter().map(|(id, sequence, _)| (id, sequence)));
            }
        }
        self.live.end_all(&reason, end.is_err());
    }

    /// The reason why the engine fails: this rank's error, with those of other ranks.
    fn failure(&self, error: &EngineError) -> String {
        let Some(ranks) = self.model.ranks() else {
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
            self.settle()?;
            let takes_more = self.fill()?;
            self.live.forget_adapters();
            self.is_stalled = self.in_flight.is_empty();
            if !self.in_flight.is_empty() && !takes_more {
                self.collect()?;
            }
        }
    }

    /// Takes the commands that were sent; blocks when there is nothing else to do. False: no handle is left, or the
    /// shutdown is complete: a pause ends it, as what is held would wait for its deadline in vain.
    fn take_commands(&mut self) -> bool {
        loop {
            if self.is_due() {
                return true;
            }
            let scheduler = &self.live.scheduler;
            let idle = self.in_flight.is_empty() && (scheduler.is_idle() || scheduler.is_held());
            if let Some(deadline) = self.deadline
                && (idle || Instant::now() >= deadline)
            {
                return false;
            }
            let command = if idle {
                self.live.forget_adapters();
                self.live.publish();
                self.live.note_idle();
                match self.commands.recv_timeout(Duration::from_secs(3600)) {
                    Ok(command) => command,
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => return false,
                }
            } else if std::mem::take(&mut self.is_stalled) {
                self.live.publish();
                match self.commands.recv_timeout(STALL) {
                    Ok(command) => command,
                    Err(_) => return true,
                }
            } else if self.in_flight.is_empty()
                && let Some(wait) = self.gather.wait(Instant::now())
            {
                match self.commands.recv_timeout(wait) {
                    Ok(command) => command,
                    Err(_) => {
                        self.gather.forget();
                        return true;
                    }
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
                self.gather.note_came(sequences.len(), Instant::now());
                for (id, sequence, new) in sequences {
                    self.live.admit(id, sequence, new, self.vocab);
                }
            }
            Command::End { ids, reason } => {
                if reason.is_none() {
                    self.gather.note_ended(ids.len(), Instant::now());
                }
                for id in ids {
                    self.live.scheduler.abort(id);
                    if let Some(reason) = &reason {
                        self.live.end(id, FinishReason::Abort(reason.clone()));
                    } else {
                        self.live.end(id, FinishReason::StopString(String::new()));
                    }
                }
            }
            Command::LoraLoaded { number, result } => self.live.adapter_loaded(number, result),
            Command::AddedAdapter(adapter) => {
                if let Some(lora) = &mut self.live.lora {
                    lora.note_added(adapter);
                }
            }
            Command::RetireAdapter(adapter) => {
                if let Some(lora) = &mut self.live.lora {
                    lora.retire(adapter);
                }
            }
            Command::Pause {
                mode,
                clear_cache,
                answer,
            } => self.pauses.begin(&mut self.live, mode, clear_cache, answer),
            Command::Resume(answer) => {
                let done = match self.model.is_asleep() {
                    true => Err(ControlError::Asleep),
                    false => {
                        self.pauses.end(&mut self.live);
                        self.sleeping.cancel();
                        Ok(())
                    }
                };
                let _ = answer.send(done);
            }
            Command::Sleep { level, mode, answer } => {
                hold(&mut self.live, mode);
                tracing::info!(?level, ?mode, "generation is paused before a sleep");
                self.sleeping.begin(level, answer);
            }
            Command::Wake { tags, answer } => {
                let (live, model) = (&mut self.live, &mut self.model);
                self.sleeping.wake(live, model, &mut self.pauses, (tags, answer));
            }
            Command::Reload { opened, answer } => self.sleeping.reload(*opened, answer),
            Command::ResetPrefixCache {
                reset_running_requests,
                answer,
            } => self.pauses.reset(reset_running_requests, answer),
            Command::Shutdown(deadline) => {
                self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
            }
        }
    }

    /// Whether something was asked that is done when no step is in flight.
    fn is_due(&self) -> bool {
        self.pauses.is_due(&self.live) || self.sleeping.is_due(&self.live)
    }

    /// Does what was asked and is due, and answers.
    fn settle(&mut self) -> Result<(), EngineError> {
        while self.is_due() && !self.in_flight.is_empty() {
            self.collect()?;
        }
        if self.pauses.is_due(&self.live) {
            self.pauses.settle(&mut self.live);
        }
        if self.sleeping.is_due(&self.live) {
            self.sleeping.settle(&mut self.live, &mut self.model);
        }
        Ok(())
    }

    /// Plans and submits steps until as many are in flight as the device takes, or one has masks. Commands that were
    /// sent meanwhile are taken before the next step. Returns whether the device takes more steps.
    fn fill(&mut self) -> Result<bool, EngineError> {
        while self.in_flight.len() < self.max_in_flight {
            self.draft()?;
            let now = Instant::now();
            let now_ns = now.duration_since(self.started).as_nanos() as u64;
            self.live.scheduler.set_max_prompt_tokens(self.pace.max_prompt_tokens());
            self.leave_out_prompts(now);
            let planned = self.live.scheduler.schedule_into(now_ns, &mut self.plan);
            if let Some(lora) = &mut self.live.lora {
                lora.start_loads(&mut self.live.scheduler);
            }
            if !planned {
                break;
            }
            self.live.note_plan(&self.plan, &mut self.admitted)?;
            self.take_drafts();
            let input = StepInput {
                plan: &self.plan,
                admitted: &self.admitted,
                drafts: &self.drafts,
            };
            let model = self.model.on_device().ok_or(NOT_THERE)?;
            if let Some(ranks) = &model.ranks {
                ranks.submit(input)?;
            }
            let flight = model.runner.submit(input)?;
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

    /// Leaves out of the next plan what waits, where others will soon wait with it. Never while the device is idle.
    fn leave_out_prompts(&mut self, now: Instant) {
        let scheduler = &mut self.live.scheduler;
        let waits = !self.in_flight.is_empty() && scheduler.has_waiting();
        let others_end = waits && scheduler.half_end_within(NEAR_STEPS);
        scheduler.set_admits(!self.gather.leave_out(now, others_end));
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
        let model = self.model.on_device().ok_or(NOT_THERE)?;
        let ranks = model.ranks.as_ref();
        let half = FirstHalf {
            flight: &flight,
            is_done: &|| model.runner.is_done(&flight),
            is_lost: &|| self.live.shared.is_overdue() || ranks.is_some_and(|ranks| ranks.group().has_failed()),
        };
        for (id, finish) in self.live.masks.wait(&half, &mut self.live.sequences) {
            self.live.scheduler.abort(id);
            self.live.end(id, finish);
        }
        let masks = Masks::of(&flight, &self.live.sequences);
        if let Some(ranks) = ranks {
            ranks.sample(&masks)?;
        }
        model.runner.sample(&mut flight, &masks)?;
        self.in_flight.push_back((flight, submitted));
        Ok(())
    }

    /// Drafts tokens for every sequence that takes some, and tells the scheduler how many. Drafts follow known tokens,
    /// so the steps in flight end first. Steps with masks have no drafts: while a sequence has a guide, nothing is
    /// drafted.
    fn draft(&mut self) -> Result<(), EngineError> {
        let Some(config) = self.speculative else {
            return Ok(());
        };
        // Those that wait draft nothing yet, however many they are.
        let drafts = |id| {
            self.live
                .sequences
                .get(&id)
                .is_some_and(|sequence| sequence.drafting.is_some())
        };
        if !self.live.scheduler.running_ids().any(drafts) {
            return Ok(());
        }
        while !self.in_flight.is_empty() {
            self.collect()?;
        }
        // One that waits may be admitted to the step that is planned next.
        let has_guides = self.live.has_guides();
        let running: Vec<RequestId> = self.live.scheduler.running_ids().collect();
        for id in running {
            let sequence = self.live.sequences.get_mut(&id);
            if let Some(drafting) = sequence.and_then(|sequence| sequence.drafting.as_mut()) {
                match has_guides {
                    true => drafting.clear(),
                    false => drafting.propose(&config),
                }
                self.live.scheduler.set_num_drafts(id, drafting.drafts().len() as u32)?;
            }
        }
        Ok(())
    }

    /// The drafts of the plan's rows, row after row.
    fn take_drafts(&mut self) {
        self.drafts.clear();
        for row in self.plan.scheduled.iter().filter(|row| row.num_drafts > 0) {
            let sequence = self.live.sequences.get(&row.id);
            let drafting = sequence.and_then(|sequence| sequence.drafting.as_ref());
            let drafts = drafting.map_or(&[][..], Drafting::drafts);
            self.drafts.extend(drafts.iter().take(row.num_drafts as usize));
        }
        self.live.stats.draft_tokens_total += self.drafts.len() as u64;
    }

    /// Waits for the oldest step and sends its tokens to their streams.
    fn collect(&mut self) -> Result<(), EngineError> {
        let Some((flight, submitted)) = self.in_flight.pop_front() else {
            return Ok(());
        };
        let model = self.model.on_device().ok_or(NOT_THERE)?;
        let mut result = model.runner.collect(&flight, || self.live.shared.is_overdue())?;
        self.note_pace(&flight, submitted);
        // Before the scheduler gets the step's results: it would put these rows' blocks into the prefix cache.
        for fault in &result.faults {
            self.live.end_without_token(fault);
        }
        let emitting = flight.rows().iter().enumerate().filter(|(_, row)| row.output.is_some());
        let results: Vec<RowResult<'_>> = emitting
            .map(|(i, row)| RowResult {
                id: row.id,
                tokens: result.tokens(i),
            })
            .collect();
        let mut updates = std::mem::take(&mut self.updates);
        let outcome = self.live.scheduler.update_into(flight.step(), &results, &mut updates);
        outcome?;
        self.live.hand_over_prompt_logprobs(&result);
        self.live.hand_over_hidden_states(&mut result);
        let before = self.live.sequences.len();
        let generated = self.live.hand_over_tokens(&flight, &result, &updates);
        self.gather
            .note_ended(before - self.live.sequences.len(), Instant::now());
        self.updates = updates;
        self.live.note_step(&flight, generated, submitted);
        if let Some(model) = self.model.on_device() {
            model.runner.recycle(flight);
        }
        Ok(())
    }

    /// Learns how long steps take. A step that was submitted after another one began when that one ended.
    fn note_pace(&mut self, flight: &Flight, submitted: Instant) {
        let began = submitted.max(std::mem::replace(&mut self.collected, Instant::now()));
        let step = TimedStep {
            prompt_tokens: flight.prompt_tokens(),
            has_decodes: flight.rows().iter().any(|row| row.prompt_tokens == 0),
            duration: self.collected.duration_since(began),
        };
        self.pace.note(step);
        self.gather.note_step(step.prompt_tokens > 0, step.duration);
    }
}

/// Reports the end of the thread when it panics.
struct EndGuard(Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop("the engine thread panicked; see the log");
        }
    }
}
