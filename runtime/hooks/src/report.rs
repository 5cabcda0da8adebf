//! The state of all sinks, for `/metrics`, the admin route and `halyard plugins list`.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The state of a sink, the better ones first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SinkState {
    /// It takes records.
    Active,
    /// It failed and rests; its records are dropped.
    Quarantined,
    /// A call has not returned by its deadline: its thread is given up until it does. Its records are dropped.
    Stuck,
    /// The server is ending.
    Ended,
}

/// Where a sink runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// On a thread of this process.
    Thread,
    /// In a child process.
    Process,
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isolation::Thread => "thread",
            Isolation::Process => "process",
        })
    }
}

/// Failed calls by what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureCounts {
    /// Answered an error.
    pub error: u64,
    /// Panicked.
    pub panic: u64,
    /// Its process died. Only where it runs in one of its own.
    #[serde(default)]
    pub crash: u64,
    /// Took longer than the deadline.
    pub timeout: u64,
    /// No logger could be made.
    pub start: u64,
}

/// How one sink stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SinkReport {
    /// Its name.
    pub name: String,
    /// The plugin's version.
    pub version: String,
    /// Its library; none: linked into the program.
    pub path: Option<PathBuf>,
    /// Where it runs.
    pub isolation: Isolation,
    /// How often its library was loaded: 1, and one more with each reload.
    pub generation: u32,
    /// Its present state.
    pub state: SinkState,
    /// Seconds until it is tried again.
    pub retry_in_s: Option<f64>,
    /// Records for it, since the start.
    pub accepted: u64,
    /// Of these, taken by it within the deadline.
    pub delivered: u64,
    /// Of these, lost: its queue was full, it rested, or it failed on them.
    pub dropped: u64,
    /// Of these, on their way.
    pub pending: u64,
    /// Failed calls.
    pub failures: FailureCounts,
    /// Times that it was put into quarantine.
    pub quarantines: u64,
    /// The last failure's words.
    pub last_error: Option<String>,
}

/// How all sinks stand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HookReport {
    /// Hand-overs in which the engine's thread went to sleep. Nothing in the way to the sinks can block, so it stays 0.
    pub engine_waits: u64,
    /// The sinks in order.
    pub sinks: Vec<SinkReport>,
}

impl FailureCounts {
    fn add(&mut self, other: FailureCounts) {
        self.error += other.error;
        self.panic += other.panic;
        self.crash += other.crash;
        self.timeout += other.timeout;
        self.start += other.start;
    }
}

impl SinkReport {
    /// Adds what the same sink did for another engine. Its state is the worst of both.
    fn add(&mut self, other: SinkReport) {
        self.state = self.state.max(other.state);
        self.retry_in_s = match (self.retry_in_s, other.retry_in_s) {
            (Some(one), Some(two)) => Some(one.max(two)),
            (one, two) => one.or(two),
        };
        self.accepted += other.accepted;
        self.delivered += other.delivered;
        self.dropped += other.dropped;
        self.pending += other.pending;
        self.failures.add(other.failures);
        self.quarantines += other.quarantines;
        self.last_error = self.last_error.take().or(other.last_error);
    }
}

impl HookReport {
    /// Adds the report of another engine's hub, which has the same sinks.
    pub fn add(&mut self, other: HookReport) {
        self.engine_waits += other.engine_waits;
        for sink in other.sinks {
            match self.sinks.iter_mut().find(|own| own.name == sink.name) {
                Some(own) => own.add(sink),
                None => self.sinks.push(sink),
            }
        }
    }
}

/// The result of a reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// The sink.
    pub name: String,
    /// Its generation now.
    pub generation: u32,
    /// Version before.
    pub old_version: String,
    /// Version now.
    pub new_version: String,
    /// Records that the sink had been delivered when the new library took over.
    pub delivered_before: u64,
}
