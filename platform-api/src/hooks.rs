//! Hook plugins: no device, same loader, same rules. A stat logger receives flat records off the engine's thread.

use crate::abi::abi_struct;
use crate::status::Result;

abi_struct! {
    /// What one engine step did and how the engine stands after it.
    pub struct StepRecord = "halyard_step_record" {
        /// Requests that own a device row.
        pub num_running: u32,
        /// Requests that wait for one.
        pub num_waiting: u32,
        /// Requests preempted in this step.
        pub num_preempted: u32,
        /// Steps since start.
        pub step_index: u64,
        /// Wall clock at the end of the step, nanoseconds since the Unix epoch.
        pub unix_ns: u64,
        /// Duration of the step in nanoseconds, from planning to results.
        pub step_ns: u64,
        /// Prompt tokens computed in this step.
        pub prompt_tokens: u64,
        /// Tokens generated in this step.
        pub generation_tokens: u64,
        /// Share of the KV pages in use, 0 to 1.
        pub kv_cache_usage: f64,
        /// Prompt tokens looked up in the prefix cache in this step.
        pub prefix_cache_queries: u64,
        /// Of these, found.
        pub prefix_cache_hits: u64,
        /// Records lost before this one because the queue to the loggers was full.
        pub dropped_records: u64,
    }
}

abi_struct! {
    /// A request's end.
    pub struct FinishedRecord = "halyard_finished_record" {
        /// 0 stop, 1 length, 2 abort, 3 error.
        pub reason: u32,
        /// The engine's request number.
        pub request: u64,
        /// Wall clock at the end, nanoseconds since the Unix epoch.
        pub unix_ns: u64,
        /// Prompt tokens.
        pub prompt_tokens: u64,
        /// Of these, taken from the prefix cache.
        pub cached_tokens: u64,
        /// Tokens generated.
        pub generation_tokens: u64,
        /// Arrival to admission, nanoseconds.
        pub queue_ns: u64,
        /// Arrival to first token, nanoseconds; 0 when none came.
        pub first_token_ns: u64,
        /// Arrival to end, nanoseconds.
        pub total_ns: u64,
    }
}

/// A record for a stat logger.
#[derive(Clone, Copy, Debug)]
pub enum StatRecord {
    /// After a step.
    Step(StepRecord),
    /// A request ended.
    Finished(FinishedRecord),
}

/// A metric sink. Called from one thread, never the engine's; may block, at the risk of being quarantined.
pub trait StatLogger: Send {
    /// Takes a batch of records.
    ///
    /// # Errors
    /// Any; counted and shown by the host, never passed to a request.
    fn record(&mut self, records: &[StatRecord]) -> Result<()>;

    /// Writes out what is held back.
    ///
    /// # Errors
    /// As [`StatLogger::record`].
    fn flush(&mut self) -> Result<()>;
}

/// Makes stat loggers of one plugin.
pub trait StatLoggerFactory: Send + Sync {
    /// A logger configured by `config`, a JSON object (`{}` when the operator gave none).
    ///
    /// # Errors
    /// `InvalidArgument` naming the key.
    fn create(&self, config: &str) -> Result<Box<dyn StatLogger>>;
}
