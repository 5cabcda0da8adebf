//! A processor that the operator chose (of bodies and texts, or of logits), with its deadline and its counts; and what
//! becomes of a request at which it fails.

use std::sync::Arc;
use std::time::Duration;

use halyard_platform_api::io_processor::is_too_large;
use halyard_platform_api::{Error, Status};
use tokio::time::Instant;

use crate::guard::{CallFailure, Guard};
use crate::instance::Instance;
use crate::metrics::{CallKind, ErrorReason, ProcessorCounts, ProcessorMetrics};

/// What a processor processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessorKind {
    /// Bodies and texts.
    Io,
    /// Logits.
    Logits,
}

impl ProcessorKind {
    fn name(self) -> &'static str {
        match self {
            ProcessorKind::Io => "IO processor",
            ProcessorKind::Logits => "logits processor",
        }
    }

    /// Whether an error of this status refuses the request. An IO processor has a verdict for that.
    fn refuses(self, status: Status) -> bool {
        match self {
            ProcessorKind::Io => status == Status::Denied,
            ProcessorKind::Logits => matches!(status, Status::Denied | Status::InvalidArgument),
        }
    }
}

/// Why a request ends at a processor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {} `{processor}` {what}", .kind.name())]
pub struct ProcessorFailure {
    /// The kind of processor.
    pub kind: ProcessorKind,
    /// Its name.
    pub processor: String,
    /// What it did.
    pub what: Failed,
}

/// What a processor did at which a request ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    /// It refuses the request or its answer.
    #[error("refused the request: {reason}")]
    Rejected {
        /// HTTP status, 400 to 499.
        status: u16,
        /// Its reason.
        reason: String,
    },
    /// It did not answer in time, or is busy with calls that do not end.
    #[error("{0}; the request was not answered without it")]
    Call(CallFailure),
    /// It failed.
    #[error("failed: {0}; the request was not answered without it")]
    Failed(Error),
}

impl ProcessorFailure {
    /// The HTTP status that tells a client: the refusal's own; 503 for what may pass; 500 for a defect of the
    /// processor.
    pub fn http_status(&self) -> u16 {
        match &self.what {
            Failed::Rejected { status, .. } => *status,
            Failed::Call(CallFailure::Busy { .. } | CallFailure::Timeout(_)) => 503,
            Failed::Failed(error) if matches!(error.status, Status::Unavailable | Status::Timeout) => 503,
            Failed::Call(_) | Failed::Failed(_) => 500,
        }
    }

    /// A word for programs.
    pub fn code(&self) -> &'static str {
        match (self.kind, &self.what) {
            (ProcessorKind::Io, Failed::Rejected { .. }) => "io_processor_rejected",
            (ProcessorKind::Io, _) => "io_processor_failed",
            (ProcessorKind::Logits, Failed::Rejected { .. }) => "logits_processor_rejected",
            (ProcessorKind::Logits, _) => "logits_processor_failed",
        }
    }

    /// What kind of failure it is; none for a refusal.
    pub fn reason(&self) -> Option<ErrorReason> {
        match &self.what {
            Failed::Rejected { .. } => None,
            Failed::Call(failure) => Some(match failure {
                CallFailure::Timeout(_) => ErrorReason::Deadline,
                CallFailure::Busy { .. } => ErrorReason::Busy,
                CallFailure::Ended(_) => ErrorReason::Panic,
            }),
            Failed::Failed(error) if error.is_panic() => Some(ErrorReason::Panic),
            Failed::Failed(error) if is_too_large(error) => Some(ErrorReason::Size),
            Failed::Failed(_) => Some(ErrorReason::Error),
        }
    }
}

/// A processor that the operator chose.
pub(crate) struct Entry<T: ?Sized> {
    kind: ProcessorKind,
    pub(crate) instance: Instance<T>,
    pub(crate) guard: Guard,
    pub(crate) counts: ProcessorCounts,
}

impl<T: ?Sized> Entry<T> {
    /// Makes the processor. Blocks.
    ///
    /// # Errors
    /// Its name and error.
    pub(crate) fn create(
        kind: ProcessorKind,
        name: String,
        timeout: Duration,
        metrics: &ProcessorMetrics,
        make: impl Fn() -> Result<Arc<T>, Error> + Send + Sync + 'static,
    ) -> Result<Arc<Entry<T>>, (String, Error)> {
        let counts = metrics.of(&name);
        let instance = Instance::new(name.clone(), make).map_err(|error| (name, error))?;
        Ok(Arc::new(Entry {
            kind,
            instance,
            guard: Guard::new(timeout),
            counts,
        }))
    }

    /// A call into the processor, timed and counted.
    ///
    /// # Errors
    /// What it did instead.
    pub(crate) async fn call<R, F>(&self, kind: CallKind, function: F) -> Result<R, ProcessorFailure>
    where
        R: Send + 'static,
        F: FnOnce() -> Result<R, Error> + Send + 'static,
    {
        let start = Instant::now();
        let called = self.guard.call(function).await;
        self.counts.called(kind, start.elapsed());
        match called {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.note(self.failed(error))),
            Err(failure) => Err(self.note(self.failure(Failed::Call(failure)))),
        }
    }

    /// A request ends at this processor.
    pub(crate) fn failure(&self, what: Failed) -> ProcessorFailure {
        ProcessorFailure {
            kind: self.kind,
            processor: self.instance.name().to_owned(),
            what,
        }
    }

    /// It gave this error.
    pub(crate) fn failed(&self, error: Error) -> ProcessorFailure {
        self.failure(match self.kind.refuses(error.status) {
            true => Failed::Rejected {
                status: 400,
                reason: error.message,
            },
            false => Failed::Failed(error),
        })
    }

    /// Counts and logs a failure.
    pub(crate) fn note(&self, failure: ProcessorFailure) -> ProcessorFailure {
        match failure.reason() {
            Some(reason) => {
                self.counts.failed(reason);
                tracing::warn!("{failure}");
            }
            None => self.counts.refused(),
        }
        failure
    }
}
