//! Timing and counters of requests and sequences, for the stat records: arrival, times between tokens, siblings. The
//! engine runs without them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Facts of a request that its samples share.
#[derive(Debug)]
pub(crate) struct RequestFacts {
    pub id: Arc<str>,
    pub trace_parent: Arc<str>,
    pub priority: i32,
    pub num_samples: u32,
    pub max_tokens: u64,
    pub arrival_unix_ns: u64,
    pub num_open: AtomicU32,
    pub max_sample_tokens: AtomicU64,
}

impl RequestFacts {
    /// Of a request that arrives now.
    pub(crate) fn new(
        id: &str,
        trace_parent: Option<&str>,
        priority: i32,
        n: u32,
        max_tokens: Option<u32>,
    ) -> Arc<Self> {
        Arc::new(RequestFacts {
            id: id.into(),
            trace_parent: trace_parent.unwrap_or_default().into(),
            priority,
            num_samples: n,
            max_tokens: u64::from(max_tokens.unwrap_or(0)),
            arrival_unix_ns: unix_ns(),
            num_open: AtomicU32::new(n),
            max_sample_tokens: AtomicU64::new(0),
        })
    }
}

/// Facts of a sequence.
#[derive(Clone, Debug)]
pub(crate) struct SequenceFacts {
    pub request: Arc<RequestFacts>,
    pub last_token: Option<Instant>,
    pub max_gap_ns: u64,
    pub num_preemptions: u32,
}

impl SequenceFacts {
    /// Of a sequence that has just arrived.
    pub(crate) fn new(request: Arc<RequestFacts>) -> SequenceFacts {
        SequenceFacts {
            request,
            last_token: None,
            max_gap_ns: 0,
            num_preemptions: 0,
        }
    }

    /// The caller's name of the request.
    pub(crate) fn request_id(&self) -> &str {
        &self.request.id
    }

    /// It lost its row.
    pub(crate) fn preempted(&mut self) {
        self.num_preemptions += 1;
    }
}

/// Nanoseconds since the Unix epoch.
pub(crate) fn unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, ns)
}

/// Whole nanoseconds, as far as they fit.
pub(crate) fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
