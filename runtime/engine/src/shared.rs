//! State that the engine's thread and its handles share.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::sleep::SharedSleepState;
use crate::stats::StatsSnapshot;

/// State that the engine thread and its handles share.
pub(crate) struct Shared {
    pub stats: Mutex<StatsSnapshot>,
    /// The model's name, for the log.
    pub model: String,
    /// Sequences submitted and not yet admitted to a device row.
    waiting: AtomicUsize,
    /// Why the engine takes nothing more.
    stopped: Mutex<Option<String>>,
    /// The engine's thread holds requests back.
    pub paused: AtomicBool,
    /// Where the weights are.
    pub sleep: SharedSleepState,
    /// A shutdown was asked for.
    pub draining: AtomicBool,
    /// When everything must have ended, once a shutdown was asked for.
    deadline: Mutex<Option<Instant>>,
}

impl Shared {
    /// Of an engine that starts.
    pub(crate) fn new(model: String) -> Shared {
        Shared {
            stats: Mutex::default(),
            model,
            waiting: AtomicUsize::new(0),
            stopped: Mutex::new(None),
            paused: AtomicBool::new(false),
            sleep: SharedSleepState::default(),
            draining: AtomicBool::new(false),
            deadline: Mutex::new(None),
        }
    }

    /// Whether a shutdown's deadline has passed.
    pub(crate) fn is_overdue(&self) -> bool {
        let deadline = *self.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Asks for an end by `deadline`, or by an earlier one asked for before.
    pub(crate) fn end_by(&self, deadline: Instant) {
        let mut current = self.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Some(current.map_or(deadline, |earlier| earlier.min(deadline)));
    }

    /// Sequences submitted and not yet admitted to a device row.
    pub(crate) fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed) as u32
    }

    pub(crate) fn admitted(&self, count: usize) {
        self.waiting.fetch_sub(count, Ordering::Relaxed);
    }

    pub(crate) fn stop(&self, reason: &str) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.to_string());
    }

    /// Why the engine takes nothing more.
    pub(crate) fn stopped(&self) -> Option<String> {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts `count` more waiting sequences, unless there would be more than `limit`.
    pub(crate) fn reserve(&self, count: usize, limit: usize) -> Result<(), usize> {
        let grown = |now: usize| (now + count <= limit).then_some(now + count);
        self.waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown)
            .map(|_| ())
    }
}
