//! Metrics of processors, of bodies and texts or of logits: requests passed to each, refusals, failures by reason, and
//! durations of calls. Without processors nothing is measured, and `/metrics` shows none of these.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Upper bounds of the call's histogram, seconds: from a hand-over between threads to the longest sensible deadlines.
const CALL_BOUNDS: [f64; 15] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
];

type Labels = [(&'static str, String); 1];
type TwoLabels = [(&'static str, String); 2];

/// Why a processor failed a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorReason {
    /// A call did not return in time.
    Deadline,
    /// All places for calls were taken by others that do not return.
    Busy,
    /// It gave more bytes than are allowed.
    Size,
    /// It panicked.
    Panic,
    /// It answered an error, or garbage.
    Error,
}

impl ErrorReason {
    /// All reasons.
    const ALL: [ErrorReason; 5] = [
        ErrorReason::Deadline,
        ErrorReason::Busy,
        ErrorReason::Size,
        ErrorReason::Panic,
        ErrorReason::Error,
    ];

    /// Its label.
    fn word(self) -> &'static str {
        match self {
            ErrorReason::Deadline => "deadline",
            ErrorReason::Busy => "busy",
            ErrorReason::Size => "size",
            ErrorReason::Panic => "panic",
            ErrorReason::Error => "error",
        }
    }
}

/// Which of a processor's functions a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// `open`: a request.
    Request,
    /// `push` and `finish`: a piece of a choice's text.
    Text,
    /// `process`: the logits of one token.
    Token,
}

impl CallKind {
    /// Its label.
    fn word(self) -> &'static str {
        match self {
            CallKind::Request => "request",
            CallKind::Text => "text",
            CallKind::Token => "token",
        }
    }
}

/// The metrics of all processors of a kind.
pub(crate) struct ProcessorMetrics {
    /// What is called besides requests.
    others: CallKind,
    requests: Family<Labels, Counter>,
    refusals: Family<Labels, Counter>,
    errors: Family<TwoLabels, Counter>,
    calls: Family<TwoLabels, Histogram, fn() -> Histogram>,
}

impl ProcessorMetrics {
    /// Metrics of processors that are called for requests and `others`.
    pub(crate) fn new(others: CallKind) -> ProcessorMetrics {
        ProcessorMetrics {
            others,
            requests: Family::default(),
            refusals: Family::default(),
            errors: Family::default(),
            calls: Family::new_with_constructor(|| Histogram::new(CALL_BOUNDS)),
        }
    }

    /// The counts of one processor, all series at zero.
    pub(crate) fn of(&self, processor: &str) -> ProcessorCounts {
        let one = || [("processor", processor.to_owned())];
        let two = |name, value: &str| [("processor", processor.to_owned()), (name, value.to_owned())];
        ProcessorCounts {
            requests: self.requests.get_or_create_owned(&one()),
            refusals: self.refusals.get_or_create_owned(&one()),
            errors: ErrorReason::ALL.map(|reason| self.errors.get_or_create_owned(&two("reason", reason.word()))),
            calls: [CallKind::Request, self.others]
                .map(|kind| self.calls.get_or_create_owned(&two("call", kind.word()))),
        }
    }

    /// Shows them in `registry`, as `halyard:<family>_…`.
    pub(crate) fn register(&self, registry: &mut Registry, family: &str) {
        let calls = format!(
            "Time of its calls as the request waits for them, past the deadline too: request, or {}",
            match self.others {
                CallKind::Token => "one token of a sample, without the deadline",
                _ => "a piece of text",
            }
        );
        registry.register(
            format!("halyard:{family}_requests"),
            "Requests that the processor was shown",
            self.requests.clone(),
        );
        registry.register(
            format!("halyard:{family}_refusals"),
            "Requests that it refused, by their body or their answer",
            self.refusals.clone(),
        );
        registry.register(
            format!("halyard:{family}_errors"),
            "Requests that ended because it failed, by what happened",
            self.errors.clone(),
        );
        registry.register(format!("halyard:{family}_call_seconds"), calls, self.calls.clone());
    }
}

/// Counts of one processor.
pub(crate) struct ProcessorCounts {
    requests: Counter,
    refusals: Counter,
    /// In the order of [`ErrorReason::ALL`].
    errors: [Counter; ErrorReason::ALL.len()],
    /// Of requests, and of the others.
    calls: [Histogram; 2],
}

impl ProcessorCounts {
    /// A call took `time`, from asking to answer or deadline.
    pub(crate) fn called(&self, kind: CallKind, time: Duration) {
        self.calls[usize::from(kind != CallKind::Request)].observe(time.as_secs_f64());
    }

    /// It is shown a request.
    pub(crate) fn shown(&self) {
        self.requests.inc();
    }

    /// It refused a request or an answer.
    pub(crate) fn refused(&self) {
        self.refusals.inc();
    }

    /// It failed a request.
    pub(crate) fn failed(&self, reason: ErrorReason) {
        self.errors[reason as usize].inc();
    }
}
