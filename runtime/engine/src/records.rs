//! Records for stat loggers: about a step, the state of the scheduler and the cache, the end of a sequence. Called by
//! the engine's thread; `now` is an argument.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use halyard_platform_api::hooks::{CacheRecord, FinishedRecord, IterationRecord, SchedulerRecord, StatRecord};
use halyard_runner::Flight;
use halyard_scheduler::{Counts, RequestId};

use crate::facts::{ns, unix_ns};
use crate::output::FinishReason;
use crate::sequence::Sequence;

/// Times between tokens that one step keeps apart; rows of one step nearly always share one or two.
const MAX_GAPS_SEARCHED: usize = 32;

/// Gathers what a step did, and turns it into records.
#[derive(Default)]
pub(crate) struct StepRecords {
    first_token_ns: Vec<u64>,
    gaps: Vec<(u64, u64)>,
    num_admitted: u32,
    cached_tokens: u64,
    external_tokens: u64,
    // As the last records said.
    preemptions: u64,
    block_size: u32,
    /// Of a KV block on all ranks.
    block_bytes: u64,
    scheduler: (u32, u32),
    cache: Counts,
}

impl StepRecords {
    /// Nothing yet; KV blocks hold `block_size` tokens in `block_bytes`, of all ranks together.
    pub(crate) fn new(block_size: u32, block_bytes: u64) -> StepRecords {
        StepRecords {
            block_size,
            block_bytes,
            ..StepRecords::default()
        }
    }

    /// A sequence got a row; for the first time with what it found in the prefix cache, and how much of that in host
    /// memory.
    pub(crate) fn admitted(&mut self, cached_tokens: Option<(u32, u32)>) {
        self.num_admitted += 1;
        let (cached, external) = cached_tokens.unwrap_or_default();
        self.cached_tokens += u64::from(cached);
        self.external_tokens += u64::from(external);
    }

    /// A token came `now`.
    pub(crate) fn token(&mut self, sequence: &mut Sequence, now: Instant) {
        if sequence.first_token.is_none() {
            sequence.first_token = Some(now);
            self.first_token_ns.push(ns(now.duration_since(sequence.arrival)));
        }
        let facts = &mut sequence.facts;
        if let Some(before) = facts.last_token.replace(now) {
            let gap = ns(now.duration_since(before));
            facts.max_gap_ns = facts.max_gap_ns.max(gap);
            let known = self
                .gaps
                .iter_mut()
                .take(MAX_GAPS_SEARCHED)
                .find(|(known, _)| *known == gap);
            match known {
                Some((_, count)) => *count += 1,
                None => self.gaps.push((gap, 1)),
            }
        }
    }

    /// The records of a step that ends now: what it did, how the scheduler stands, and the cache if it changed.
    pub(crate) fn step(
        &mut self,
        flight: &Flight,
        (step_index, step_ns): (u64, u64),
        (prompt_tokens, generation_tokens): (u64, u64),
        counts: &Counts,
        num_waiting: u32,
        mut send: impl FnMut(StatRecord),
    ) {
        let unix_ns = unix_ns();
        send(StatRecord::Iteration(IterationRecord {
            num_seqs: flight.rows().len() as u32,
            num_admitted: std::mem::take(&mut self.num_admitted),
            replayed: u32::from(flight.is_replayed()),
            step_index,
            unix_ns,
            step_ns,
            prompt_tokens,
            cached_tokens: std::mem::take(&mut self.cached_tokens),
            external_tokens: std::mem::take(&mut self.external_tokens),
            generation_tokens,
            first_token_ns: self.first_token_ns.drain(..).collect(),
            inter_token_ns: self.gaps.iter().map(|(gap, _)| *gap).collect(),
            inter_token_counts: self.gaps.iter().map(|(_, count)| *count).collect(),
        }));
        self.gaps.clear();
        send(self.scheduler(step_index, unix_ns, counts, num_waiting));
        if of_cache(counts) != self.cache {
            send(self.cache(unix_ns, counts));
        }
    }

    /// The records of a change while no step runs, if there was one.
    pub(crate) fn idle(
        &mut self,
        step_index: u64,
        counts: &Counts,
        num_waiting: u32,
        mut send: impl FnMut(StatRecord),
    ) {
        let changed = (counts.running as u32, num_waiting) != self.scheduler;
        if changed || counts.preemptions != self.preemptions {
            send(self.scheduler(step_index, unix_ns(), counts, num_waiting));
        }
        if of_cache(counts) != self.cache {
            send(self.cache(unix_ns(), counts));
        }
    }

    fn cache(&mut self, unix_ns: u64, counts: &Counts) -> StatRecord {
        let before = std::mem::replace(&mut self.cache, of_cache(counts));
        let store_blocks = counts.host_stored_blocks - before.host_stored_blocks;
        let load_blocks = counts.host_loaded_blocks - before.host_loaded_blocks;
        StatRecord::Cache(CacheRecord {
            used_blocks: counts.used_blocks,
            total_blocks: counts.total_blocks,
            block_size: self.block_size,
            unix_ns,
            usage: usage(counts),
            prefix_queries: counts.prefix_queries - before.prefix_queries,
            prefix_hits: counts.prefix_hits - before.prefix_hits,
            external_queries: counts.host_prefix_queries - before.host_prefix_queries,
            external_hits: counts.host_prefix_hits - before.host_prefix_hits,
            store_blocks,
            load_blocks,
            evicted_blocks: counts.host_evicted_blocks - before.host_evicted_blocks,
            store_bytes: store_blocks * self.block_bytes,
            load_bytes: load_blocks * self.block_bytes,
            external_usage: counts.host_cached_blocks as f64 / f64::from(counts.host_blocks.max(1)),
        })
    }

    fn scheduler(&mut self, step_index: u64, unix_ns: u64, counts: &Counts, num_waiting: u32) -> StatRecord {
        self.scheduler = (counts.running as u32, num_waiting);
        let before = std::mem::replace(&mut self.preemptions, counts.preemptions);
        StatRecord::Scheduler(SchedulerRecord {
            num_running: counts.running as u32,
            num_waiting,
            num_preempted: (counts.preemptions - before) as u32,
            step_index,
            unix_ns,
        })
    }
}

/// What cache records tell; the rest is left at 0.
fn of_cache(counts: &Counts) -> Counts {
    Counts {
        used_blocks: counts.used_blocks,
        prefix_queries: counts.prefix_queries,
        prefix_hits: counts.prefix_hits,
        host_prefix_queries: counts.host_prefix_queries,
        host_prefix_hits: counts.host_prefix_hits,
        host_cached_blocks: counts.host_cached_blocks,
        host_stored_blocks: counts.host_stored_blocks,
        host_loaded_blocks: counts.host_loaded_blocks,
        host_evicted_blocks: counts.host_evicted_blocks,
        ..Counts::default()
    }
}

/// Share of the KV blocks in use, 0 to 1.
pub(crate) fn usage(counts: &Counts) -> f64 {
    f64::from(counts.used_blocks) / f64::from(counts.total_blocks.max(1))
}

/// The record of a sequence that ends `now`.
pub(crate) fn finished(id: RequestId, sequence: &Sequence, reason: &FinishReason, now: Instant) -> FinishedRecord {
    let facts = &sequence.facts;
    let request = &facts.request;
    let tokens = u64::from(sequence.num_output);
    let most = request
        .max_sample_tokens
        .fetch_max(tokens, Ordering::Relaxed)
        .max(tokens);
    let ends_request = request.num_open.fetch_sub(1, Ordering::Relaxed) == 1;
    let total_ns = ns(now.duration_since(sequence.arrival));
    let queue_ns = if sequence.admitted {
        sequence.queue_ns.min(total_ns)
    } else {
        total_ns
    };
    let first_token_ns = sequence
        .first_token
        .map_or(0, |at| ns(at.duration_since(sequence.arrival)));
    let decode_ns = match (sequence.first_token, facts.last_token) {
        (Some(first), Some(last)) => ns(last.duration_since(first)),
        _ => 0,
    };
    FinishedRecord {
        reason: reason_code(reason) as u32,
        sample_index: sequence.index,
        num_samples: request.num_samples,
        ends_request: u32::from(ends_request),
        num_preemptions: facts.num_preemptions,
        lora_id: sequence.lora.as_ref().map_or(0, |adapter| adapter.number),
        priority: request.priority,
        sequence: id.0,
        unix_ns: unix_ns(),
        arrival_unix_ns: request.arrival_unix_ns,
        prompt_tokens: sequence.row.prompt.len() as u64,
        cached_tokens: u64::from(sequence.num_cached),
        generation_tokens: tokens,
        max_sample_tokens: most,
        max_tokens: request.max_tokens,
        queue_ns,
        prefill_ns: first_token_ns.saturating_sub(queue_ns),
        decode_ns,
        first_token_ns,
        inter_token_ns: decode_ns / tokens.saturating_sub(1).max(1),
        max_inter_token_ns: facts.max_gap_ns,
        total_ns,
        request_id: request.id.clone(),
        lora_name: sequence
            .lora
            .as_ref()
            .map_or_else(Arc::default, |adapter| adapter.name.as_str().into()),
        trace_parent: request.trace_parent.clone(),
        trace_state: request.trace_state.clone(),
        temperature: request.temperature,
        top_p: request.top_p,
        detail: match reason {
            FinishReason::Abort(words)
            | FinishReason::Error(words)
            | FinishReason::NotFinite(words)
            | FinishReason::NoTokenAllowed(words)
            | FinishReason::StopString(words) => words.as_str().into(),
            FinishReason::Paused => "the engine was paused".into(),
            _ => Arc::default(),
        },
    }
}

/// Code of a reason, also its place in [`crate::StatsSnapshot::requests_finished`].
pub(crate) fn reason_code(reason: &FinishReason) -> usize {
    match reason {
        FinishReason::Eos | FinishReason::StopToken(_) | FinishReason::StopString(_) => 0,
        FinishReason::Length => 1,
        FinishReason::Abort(_) | FinishReason::Paused => 2,
        FinishReason::Error(_) | FinishReason::NotFinite(_) | FinishReason::NoTokenAllowed(_) => 3,
    }
}
