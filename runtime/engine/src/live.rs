//! Live sequences: adding them, sending tokens to their readers, ending them, and counting. Knows no device: the
//! engine's thread passes in the results of steps.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use halyard_platform_api::hooks::{ShutdownRecord, StatRecord};
use halyard_runner::{Flight, RowFault, RowSpec, RunnerError, StepResult};
use halyard_scheduler::{NewRequest, RequestId, Scheduler, SchedulerOutput, Update};

use crate::config::GuideConfig;
use crate::error::EngineError;
use crate::facts::unix_ns;
use crate::kv_events::KvEventSink;
use crate::lora::AdapterError;
use crate::lora::core::{self as lora, CoreLora};
use crate::masks::Masks;
use crate::no_token::{self, LogPace};
use crate::output::FinishReason;
use crate::records::{self, StepRecords};
use crate::sequence::{Sequence, SequenceEvent, Sequences};
use crate::shared::Shared;
use crate::stats::{Records, StatsSnapshot};

/// All live sequences, and the scheduler that plans them.
pub(crate) struct Live {
    pub scheduler: Scheduler,
    pub sequences: Sequences,
    pub masks: Masks,
    pub shared: Arc<Shared>,
    pub stats: StatsSnapshot,
    /// Adapters and their loader, where adapters are served.
    pub lora: Option<CoreLora>,
    /// Sequences that came with a guide.
    num_guided: usize,
    records: Records,
    kv_events: Option<Arc<dyn KvEventSink>>,
    step_records: StepRecords,
    /// Rate limits of log lines: of non-finite logits, and of requests that allow no token.
    paces: [LogPace; 2],
}

impl Live {
    pub(crate) fn new(
        scheduler: Scheduler,
        lora: Option<CoreLora>,
        guides: GuideConfig,
        shared: Arc<Shared>,
        records: Records,
        kv_events: Option<Arc<dyn KvEventSink>>,
        block_bytes: u64,
    ) -> Live {
        Live {
            step_records: StepRecords::new(scheduler.config().groups[0].block_size, block_bytes),
            scheduler,
            sequences: Sequences::default(),
            masks: Masks::new(guides),
            shared,
            stats: StatsSnapshot::default(),
            lora,
            num_guided: 0,
            records,
            kv_events,
            paces: Default::default(),
        }
    }

    pub(crate) fn admit(&mut self, id: RequestId, mut sequence: Sequence, new: NewRequest, vocab: u32) {
        if sequence.row.prompt.len() == 1 && sequence.prompt_logprobs.take().is_some() {
            sequence.tell(SequenceEvent::Prompt(vec![None]));
        }
        if let (Some(lora), Some(adapter)) = (&mut self.lora, &sequence.lora) {
            lora.admit(adapter);
        }
        let asked = self.masks.ask_first(id, &mut sequence, vocab);
        self.num_guided += usize::from(sequence.is_guided());
        self.sequences.insert(id, sequence);
        if let Err(error) = asked {
            self.end(id, FinishReason::Error(error.to_string()));
            return;
        }
        if let Err(error) = self.scheduler.add(new) {
            self.end(id, FinishReason::Error(error.to_string()));
        }
    }

    /// Whether a sequence has a guide, or had one and is about to end.
    pub(crate) fn has_guides(&self) -> bool {
        self.num_guided > 0
    }

    /// Notes which sequences lost or got a row. Returns the rows' new owners, in the order of `plan.admitted`.
    ///
    /// # Errors
    /// A plan with a request that has ended.
    pub(crate) fn note_plan(
        &mut self,
        plan: &SchedulerOutput,
        specs: &mut Vec<Arc<RowSpec>>,
    ) -> Result<(), EngineError> {
        for id in &plan.preempted {
            if let Some(sequence) = self.sequences.get_mut(id) {
                sequence.facts.preempted();
            }
        }
        specs.clear();
        for admitted in &plan.admitted {
            self.step_records
                .admitted((!admitted.resumed).then_some((admitted.num_computed, admitted.num_from_host)));
            let Some(sequence) = self.sequences.get_mut(&admitted.id) else {
                return Err(RunnerError::Internal("the scheduler admits a request that has ended").into());
            };
            specs.push(sequence.row_spec());
            if !admitted.resumed {
                sequence.queue_ns = admitted.waited_ns;
                sequence.num_cached = admitted.num_computed;
                self.shared.admitted(1);
                sequence.admitted = true;
                lora::note_admitted(sequence);
            }
        }
        Ok(())
    }

    pub(crate) fn hand_over_prompt_logprobs(&mut self, result: &StepResult) {
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
                sequence.tell(SequenceEvent::Prompt(complete));
            }
        }
    }

    /// Sends every hidden state to its reader and ends the sequence.
    pub(crate) fn hand_over_hidden_states(&mut self, result: &mut StepResult) {
        for (id, values) in result.hidden_states.drain(..) {
            let Some(sequence) = self.sequences.get(&id) else {
                continue;
            };
            sequence.tell(SequenceEvent::HiddenState {
                values,
                num_cached_tokens: sequence.num_cached,
            });
            self.scheduler.finish(id);
            self.end(id, FinishReason::Length);
        }
    }

    /// Sends every new token to its reader and ends the sequences that are done. Returns the number of tokens.
    pub(crate) fn hand_over_tokens(&mut self, flight: &Flight, result: &StepResult, updates: &[Update]) -> u64 {
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
                sequence.tell_token(token, result.logprobs(i, j), finish.as_ref());
                if let Some(finish) = finish {
                    self.scheduler.finish(row.id);
                    self.end(row.id, finish);
                    break;
                }
                self.masks.ask(row.id, sequence, &[token]);
            }
        }
        generated
    }

    /// Ends a sequence that has no next token. Other rows go on.
    pub(crate) fn end_without_token(&mut self, fault: &RowFault) {
        let Some(sequence) = self.sequences.get(&fault.id) else {
            // It has ended while the step ran, or at another position of this one.
            return;
        };
        let finish = no_token::finish(fault, sequence.num_output, &sequence.params, sequence.guide.as_ref());
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
    pub(crate) fn adapter_loaded(&mut self, number: u32, result: Result<(), AdapterError>) {
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

    /// Frees what retired adapters hold, once no request uses them.
    pub(crate) fn forget_adapters(&mut self) {
        if let Some(lora) = &mut self.lora {
            let records = &mut self.records;
            lora.forget_retired(&mut self.scheduler, |adapter| {
                if records.wanted() {
                    records.send(StatRecord::Lora(adapter.last_record(unix_ns())));
                }
            });
        }
    }

    /// Removes a sequence. Its reader gets the reason, unless the last token already carried it.
    pub(crate) fn end(&mut self, id: RequestId, reason: FinishReason) {
        let Some(sequence) = self.sequences.remove(&id) else {
            return;
        };
        self.num_guided -= usize::from(sequence.is_guided());
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
            sequence.tell(SequenceEvent::Finished(reason));
        }
    }

    pub(crate) fn note_step(&mut self, flight: &Flight, generated: u64, submitted: Instant) {
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

    /// Sends records of changes without a step, such as an abort.
    pub(crate) fn note_idle(&mut self) {
        if self.records.wanted() {
            let (counts, waiting) = (self.scheduler.counts(), self.shared.waiting());
            let send = |record| self.records.send(record);
            self.step_records.idle(self.stats.steps_total, &counts, waiting, send);
            self.records.hand_over();
        }
    }

    /// Makes the counters visible to other threads, and hands over what changed in the prefix cache.
    pub(crate) fn publish(&mut self) {
        if let Some(sink) = &self.kv_events {
            let events = self.scheduler.take_kv_events();
            if !events.is_empty() {
                sink.publish(events);
            }
        }
        let counts = self.scheduler.counts();
        let s = &mut self.stats;
        s.num_running = counts.running as u64;
        s.num_waiting = counts.waiting as u64;
        s.kv_cache_usage = records::usage(&counts);
        s.preemptions_total = counts.preemptions;
        s.prefix_cache_queries_total = counts.prefix_queries;
        s.prefix_cache_hits_total = counts.prefix_hits;
        s.external_prefix_cache_queries_total = counts.host_prefix_queries;
        s.external_prefix_cache_hits_total = counts.host_prefix_hits;
        s.kv_offload_store_blocks_total = counts.host_stored_blocks;
        s.kv_offload_load_blocks_total = counts.host_loaded_blocks;
        s.dropped_records_total = self.records.dropped();
        self.shared
            .stats
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone_from(s);
        self.record_adapters();
    }

    /// A record of each adapter of which something changed.
    pub(crate) fn record_adapters(&mut self) {
        let Some(lora) = &self.lora else { return };
        if self.records.wanted() {
            for adapter in lora.changed() {
                self.records.send(StatRecord::Lora(adapter.record(unix_ns())));
            }
        }
    }

    /// Ends every sequence, because the engine was shut down or has failed.
    pub(crate) fn end_all(&mut self, reason: &str, has_failed: bool) {
        let ids: Vec<RequestId> = self.sequences.keys().copied().collect();
        for id in ids {
            let finish = match has_failed {
                true => FinishReason::Error(reason.to_string()),
                false => FinishReason::Abort(reason.to_string()),
            };
            self.end(id, finish);
        }
        self.publish();
        self.note_idle();
        self.records.send(StatRecord::Shutdown(ShutdownRecord {
            reason: u32::from(has_failed),
            unix_ns: unix_ns(),
            steps_total: self.stats.steps_total,
            detail: reason.into(),
        }));
        self.records.hand_over();
    }
}
