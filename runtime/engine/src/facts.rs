//! Timing and counters of requests and sequences, for the stat records: arrival, times between tokens, siblings. The
//! engine runs without them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::params::Request;

/// Facts of a request that its samples share.
#[derive(Debug)]
pub(crate) struct RequestFacts {
    pub id: Arc<str>,
    pub trace_parent: Arc<str>,
    pub trace_state: Arc<str>,
    pub priority: i32,
    pub num_samples: u32,
    pub max_tokens: u64,
    pub temperature: f64,
    pub top_p: f64,
    pub arrival_unix_ns: u64,
    pub num_open: AtomicU32,
    pub max_sample_tokens: AtomicU64,
}

impl RequestFacts {
    /// Of a request that arrives now.
    pub(crate) fn new(request: &Request) -> Arc<Self> {
        let params = &request.params;
        Arc::new(RequestFacts {
            id: request.id.as_str().into(),
            trace_parent: request.trace_parent.as_deref().unwrap_or_default().into(),
            trace_state: request.trace_state.as_deref().unwrap_or_default().into(),
            priority: request.priority,
            num_samples: params.n,
            max_tokens: u64::from(params.max_tokens.unwrap_or(0)),
            temperature: as_written(params.temperature),
            top_p: as_written(params.top_p),
            arrival_unix_ns: unix_ns(),
            num_open: AtomicU32::new(params.n),
            max_sample_tokens: AtomicU64::new(0),
        })
    }
}

/// The number whose shortest decimal is that of `value`: 0.7 stays 0.7, and is not 0.699999988.
fn as_written(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
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

#[cfg(test)]
mod tests {
    use super::as_written;

    #[test]
    fn a_parameter_is_told_as_it_was_written() {
        for text in ["0", "1", "2", "0.7", "0.95", "0.1", "0.00001", "0.123456"] {
            let read: f32 = text.parse().expect("a number");
            assert_eq!(as_written(read), text.parse::<f64>().expect("a number"), "{text}");
        }
    }
}
