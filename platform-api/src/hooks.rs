//! Hook plugins: no device, same loader, same rules. A stat logger receives flat [`records`] off the engine's thread.
//!
//! docs/hooks.md lists every record and field for authors of sinks.

pub mod records;
mod wire;

use std::time::Duration;

pub use records::{
    CacheRecord, FinishedRecord, IterationRecord, LoraRecord, RejectedRecord, SchedulerRecord, ShutdownRecord,
    StartRecord, StatRecord,
};
pub(crate) use wire::record_layouts;
pub use wire::{MAX_BATCH_RECORDS, RecordBatch, read_batch};

use crate::status::Result;

/// Words for [`FinishedRecord::reason`], in the order of its codes. Newer hosts may send codes beyond them; so for the
/// lists below.
pub const FINISH_REASONS: [&str; 4] = ["stop", "length", "abort", "error"];
/// Words for [`RejectedRecord::reason`].
pub const REJECTION_REASONS: [&str; 6] = [
    "queue_full",
    "shutting_down",
    "engine_dead",
    "prompt",
    "parameter",
    "adapter",
];
/// Words for [`LoraRecord::residency`].
pub const RESIDENCIES: [&str; 4] = ["unloaded", "disk", "host", "device"];
/// Words for [`ShutdownRecord::reason`].
pub const SHUTDOWN_REASONS: [&str; 2] = ["asked", "failed"];

/// What a stat logger is handed at once.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Records in the order in which they happened. Kinds that this side does not know were left out.
    pub records: &'a [StatRecord],
    /// Time that the host gives the call. A call that takes longer counts as failed and has the logger quarantined.
    pub deadline: Duration,
    /// Records of this logger that were lost since the server's start: its queue was full or it was in quarantine.
    pub num_dropped: u64,
}

/// A metric sink: something that takes a batch of records within a deadline, in this process or elsewhere. Called from
/// one thread, never the engine's. It may block until the deadline; beyond it, it is quarantined. The first record of
/// every logger is the [`StartRecord`], also when the logger is made long after the start.
pub trait StatLogger: Send {
    /// Takes a batch of records.
    ///
    /// # Errors
    /// Any; counted and shown by the host, never passed to a request. The batch counts as lost and is not given again.
    fn log_batch(&mut self, batch: &Batch<'_>) -> Result<()>;

    /// Writes out what is held back, within `deadline`. Asked for about once a second after records came, and at the
    /// end.
    ///
    /// # Errors
    /// As [`StatLogger::log_batch`].
    fn flush(&mut self, deadline: Duration) -> Result<()> {
        let _ = deadline;
        Ok(())
    }

    /// Text for `GET /metrics` in the OpenMetrics text format, without its closing `# EOF`; none: this sink has nothing
    /// to show there. Must be quick: a scrape waits for it.
    ///
    /// # Errors
    /// As [`StatLogger::log_batch`].
    fn expose(&mut self) -> Result<Option<String>> {
        Ok(None)
    }
}

/// Makes stat loggers of one plugin.
pub trait StatLoggerFactory: Send + Sync {
    /// A logger configured by `config`, a JSON object (`{}` when the operator gave none).
    ///
    /// # Errors
    /// `InvalidArgument` naming the key.
    fn create(&self, config: &str) -> Result<Box<dyn StatLogger>>;
}
