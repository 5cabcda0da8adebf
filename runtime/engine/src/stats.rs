//! Counters of the engine, and its records for the hooks: collected during a step, sent together at its end.

use halyard_hooks::RecordSender;
use halyard_platform_api::hooks::StatRecord;
use serde::Serialize;

/// The engine's counters since start, and its gauges now.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StatsSnapshot {
    /// Requests that own a device row.
    pub num_running: u64,
    /// Requests that wait for one.
    pub num_waiting: u64,
    /// Share of KV pages in use, 0 to 1.
    pub kv_cache_usage: f64,
    /// Prompt tokens computed.
    pub prompt_tokens_total: u64,
    /// Tokens generated.
    pub generation_tokens_total: u64,
    /// Preemptions.
    pub preemptions_total: u64,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_cache_queries_total: u64,
    /// Of these, found on the device.
    pub prefix_cache_hits_total: u64,
    /// Prompt tokens looked up in host memory: those that were not found on the device.
    pub external_prefix_cache_queries_total: u64,
    /// Of these, found.
    pub external_prefix_cache_hits_total: u64,
    /// KV blocks copied to host memory.
    pub kv_offload_store_blocks_total: u64,
    /// KV blocks copied from host memory.
    pub kv_offload_load_blocks_total: u64,
    /// Ended sequences by reason: stop, length, abort, error.
    pub requests_finished: [u64; 4],
    /// Sequences that ended because the model's logits were NaN or infinite.
    pub nonfinite_logits_total: u64,
    /// Sequences that ended because their constraints left no token.
    pub empty_distributions_total: u64,
    /// Steps run.
    pub steps_total: u64,
    /// Of these, run from recordings.
    pub replayed_steps_total: u64,
    /// Drafted tokens that steps verified.
    pub draft_tokens_total: u64,
    /// Of these, right.
    pub accepted_tokens_total: u64,
    /// Records that stat loggers lost, of all together.
    pub dropped_records_total: u64,
}

impl StatsSnapshot {
    /// Adds another engine's; shares are added too.
    pub(crate) fn add(&mut self, other: &StatsSnapshot) {
        self.num_running += other.num_running;
        self.num_waiting += other.num_waiting;
        self.kv_cache_usage += other.kv_cache_usage;
        self.prompt_tokens_total += other.prompt_tokens_total;
        self.generation_tokens_total += other.generation_tokens_total;
        self.preemptions_total += other.preemptions_total;
        self.prefix_cache_queries_total += other.prefix_cache_queries_total;
        self.prefix_cache_hits_total += other.prefix_cache_hits_total;
        self.external_prefix_cache_queries_total += other.external_prefix_cache_queries_total;
        self.external_prefix_cache_hits_total += other.external_prefix_cache_hits_total;
        self.kv_offload_store_blocks_total += other.kv_offload_store_blocks_total;
        self.kv_offload_load_blocks_total += other.kv_offload_load_blocks_total;
        for (count, more) in self.requests_finished.iter_mut().zip(other.requests_finished) {
            *count += more;
        }
        self.nonfinite_logits_total += other.nonfinite_logits_total;
        self.empty_distributions_total += other.empty_distributions_total;
        self.steps_total += other.steps_total;
        self.replayed_steps_total += other.replayed_steps_total;
        self.draft_tokens_total += other.draft_tokens_total;
        self.accepted_tokens_total += other.accepted_tokens_total;
        self.dropped_records_total += other.dropped_records_total;
    }
}

/// The engine thread's records. Without stat loggers, none are kept.
pub(crate) struct Records {
    sender: RecordSender,
    pending: Vec<StatRecord>,
}

impl Records {
    pub(crate) fn new(sender: RecordSender) -> Records {
        Records {
            sender,
            pending: Vec::new(),
        }
    }

    /// Whether there are stat loggers.
    pub(crate) fn wanted(&self) -> bool {
        self.sender.wanted()
    }

    /// Keeps a record until the next [`Records::hand_over`].
    pub(crate) fn send(&mut self, record: StatRecord) {
        if self.wanted() {
            self.pending.push(record);
        }
    }

    /// Hands over what was kept. Never waits.
    pub(crate) fn hand_over(&mut self) {
        if !self.pending.is_empty() {
            self.sender.send_all(&mut self.pending);
        }
    }

    /// Records that sinks lost.
    pub(crate) fn dropped(&self) -> u64 {
        self.sender.dropped()
    }
}
