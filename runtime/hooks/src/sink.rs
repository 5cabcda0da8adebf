//! One sink: its queue, its counters, and its state between worker, supervisor and reports. Producers touch the queue
//! and atomics only; the lock is for the others.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use halyard_platform_api::hooks::{StartRecord, StatLogger, StatRecord};

use crate::hub::{HookError, SinkSource};
use crate::quarantine::{Failure, Quarantine};
use crate::report::{FailureCounts, Reloaded, SinkReport, SinkState};

/// A command to a worker, executed after it has delivered the records before it.
pub(crate) enum Command {
    /// Text for `/metrics`.
    Expose(SyncSender<Option<String>>),
    /// Another library's logger.
    Reload {
        logger: Box<dyn StatLogger>,
        source: SinkSource,
        reply: SyncSender<Result<Reloaded, HookError>>,
    },
    /// Deliver the queue, flush, end.
    Stop,
}

/// Which function of the sink runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Create,
    LogBatch,
    Flush,
    Expose,
    Drop,
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Call::Create => "create",
            Call::LogBatch => "log_batch",
            Call::Flush => "flush",
            Call::Expose => "expose",
            Call::Drop => "drop",
        }
    }
}

/// A call in progress.
struct Running {
    call: Call,
    since: Duration,
    deadline: Duration,
    records: u64,
    given_up: bool,
}

/// The outcome of a call, for the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// In time and without an error.
    Fine,
    /// Failed; the logger can go on.
    Failed,
    /// Failed; the logger must be replaced.
    Lost,
}

/// State that worker, supervisor and reports share.
pub(crate) struct State {
    pub(crate) source: SinkSource,
    pub(crate) generation: u32,
    pub(crate) commands: VecDeque<Command>,
    pub(crate) quarantine: Quarantine,
    /// Given first to a logger that is made after the start.
    pub(crate) start: Option<StartRecord>,
    running: Option<Running>,
    failures: FailureCounts,
    quarantines: u64,
    last_error: Option<String>,
    ended: bool,
}

/// Accepted, delivered and dropped, read so that accepted is at least their sum.
pub(crate) struct Counts {
    pub(crate) accepted: u64,
    pub(crate) delivered: u64,
    pub(crate) dropped: u64,
}

pub(crate) struct Sink {
    pub(crate) name: String,
    queue: ArrayQueue<StatRecord>,
    accepted: AtomicU64,
    delivered: AtomicU64,
    dropped: AtomicU64,
    /// Records are dropped at once: it rests, is stuck or has ended.
    closed: AtomicBool,
    /// The worker wants to be woken by the next record.
    asleep: AtomicBool,
    worker: OnceLock<Thread>,
    /// A logger is being made for a reload.
    pub(crate) reloading: AtomicBool,
    state: Mutex<State>,
}

impl Sink {
    pub(crate) fn new(name: String, source: SinkSource, queue_records: usize) -> Sink {
        Sink {
            name,
            queue: ArrayQueue::new(queue_records.max(1)),
            accepted: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            worker: OnceLock::new(),
            reloading: AtomicBool::new(false),
            state: Mutex::new(State {
                source,
                generation: 1,
                commands: VecDeque::new(),
                quarantine: Quarantine::default(),
                start: None,
                running: None,
                failures: FailureCounts::default(),
                quarantines: 0,
                last_error: None,
                ended: false,
            }),
        }
    }

    // Called by producers.

    /// Takes records, or drops them. Never blocks.
    pub(crate) fn accept(&self, records: impl Iterator<Item = StatRecord>) {
        let (mut accepted, mut dropped) = (0, 0);
        let closed = self.closed.load(Ordering::Relaxed);
        for record in records {
            accepted += 1;
            // Counted before it can be delivered, so that no report shows more delivered than accepted.
            self.accepted.fetch_add(1, Ordering::Relaxed);
            if closed || self.queue.push(record).is_err() {
                dropped += 1;
            }
        }
        if dropped > 0 {
            self.dropped.fetch_add(dropped, Ordering::Release);
        }
        if accepted > dropped {
            // Pairs with the fence in `may_sleep`: either the worker sees the records or this sees that it sleeps.
            fence(Ordering::SeqCst);
            if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
                self.wake();
            }
        }
    }

    // Called by the others.

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_worker(&self, thread: Thread) {
        let _ = self.worker.set(thread);
    }

    pub(crate) fn wake(&self) {
        if let Some(thread) = self.worker.get() {
            thread.unpark();
        }
    }

    pub(crate) fn command(&self, command: Command) {
        self.state().commands.push_back(command);
        self.wake();
    }

    /// Announces that the worker is about to sleep; false: there is work already.
    pub(crate) fn may_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.queue.is_empty() && self.state().commands.is_empty() {
            return true;
        }
        self.asleep.store(false, Ordering::Relaxed);
        false
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Moves at most `most` records into `batch`.
    pub(crate) fn take(&self, batch: &mut Vec<StatRecord>, most: usize) {
        batch.extend(std::iter::from_fn(|| self.queue.pop()).take(most));
    }

    /// Drops what is queued, and counts it.
    pub(crate) fn discard(&self) {
        let discarded = std::iter::from_fn(|| self.queue.pop()).count() as u64;
        self.dropped.fetch_add(discarded, Ordering::Release);
    }

    /// Records that did not come through the queue, such as a start record given again.
    pub(crate) fn accept_directly(&self, records: u64) {
        self.accepted.fetch_add(records, Ordering::Relaxed);
    }

    /// Takes records again.
    pub(crate) fn open(&self) {
        self.closed.store(false, Ordering::Relaxed);
    }

    /// Refuses all later records; the queue is dropped.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        state.ended = true;
        self.closed.store(true, Ordering::Relaxed);
        if let Some(running) = state.running.as_mut().filter(|running| !running.given_up) {
            running.given_up = true;
            self.dropped.fetch_add(running.records, Ordering::Release);
        }
        drop(state);
        self.discard();
    }

    /// A call begins. Returns the time by which it must have returned.
    pub(crate) fn begin(&self, call: Call, records: u64, now: Duration, deadline: Duration) -> Duration {
        self.state().running = Some(Running {
            call,
            since: now,
            deadline,
            records,
            given_up: false,
        });
        now.saturating_add(deadline)
    }

    /// A call returned. The supervisor decides whether it was too slow ([`Sink::overdue`]): it knows when no thread
    /// could run.
    pub(crate) fn finish(&self, now: Duration, result: Result<(), (Failure, String)>) -> Outcome {
        let mut state = self.state();
        let Some(running) = state.running.take() else {
            return Outcome::Lost;
        };
        if running.given_up {
            tracing::warn!(
                sink = self.name,
                "its {} returned after {:.1} s",
                running.call.name(),
                now.saturating_sub(running.since).as_secs_f64()
            );
            return Outcome::Lost;
        }
        match result {
            Ok(()) => {
                self.delivered.fetch_add(running.records, Ordering::Release);
                // Making or dropping a logger, or a text, proves nothing of what it does with records.
                if !matches!(running.call, Call::Create | Call::Drop | Call::Expose) {
                    state.quarantine.succeeded(now);
                }
                Outcome::Fine
            }
            Err((failure, words)) => {
                self.dropped.fetch_add(running.records, Ordering::Release);
                self.fail(&mut state, running.call, failure, words, now);
                if failure == Failure::Error {
                    Outcome::Failed
                } else {
                    Outcome::Lost
                }
            }
        }
    }

    /// Gives up a call whose deadline has passed. Returns when the call in progress must have returned, if there is one
    /// that is not given up.
    pub(crate) fn overdue(&self, now: Duration) -> Option<Duration> {
        let mut state = self.state();
        let running = state.running.as_mut().filter(|running| !running.given_up)?;
        let by = running.since.saturating_add(running.deadline);
        if now <= by {
            return Some(by);
        }
        running.given_up = true;
        let (call, records, (failure, words)) = (running.call, running.records, running.too_slow(now));
        self.dropped.fetch_add(records, Ordering::Release);
        self.fail(&mut state, call, failure, words, now);
        None
    }

    fn fail(&self, state: &mut State, call: Call, failure: Failure, words: String, now: Duration) {
        let counter = match failure {
            Failure::Error => &mut state.failures.error,
            Failure::Panic => &mut state.failures.panic,
            Failure::Crash => &mut state.failures.crash,
            Failure::Timeout => &mut state.failures.timeout,
            Failure::Start => &mut state.failures.start,
        };
        *counter += 1;
        let words = format!("{}: {words}", call.name());
        match state.quarantine.failed(failure, now) {
            None => tracing::warn!(sink = self.name, "stat logger failed: {words}"),
            Some(rest) => {
                self.closed.store(true, Ordering::Relaxed);
                state.quarantines += 1;
                tracing::error!(
                    sink = self.name,
                    "stat logger put into quarantine for {} s: {words}",
                    rest.as_secs()
                );
                self.discard();
            }
        }
        state.last_error = Some(words);
    }

    /// Whether a call has been given up and not returned, or it has ended.
    pub(crate) fn is_stuck(&self) -> bool {
        self.state().running.as_ref().is_some_and(|running| running.given_up)
    }

    pub(crate) fn counts(&self) -> Counts {
        let (delivered, dropped) = (
            self.delivered.load(Ordering::Acquire),
            self.dropped.load(Ordering::Acquire),
        );
        Counts {
            accepted: self.accepted.load(Ordering::Relaxed),
            delivered,
            dropped,
        }
    }

    pub(crate) fn report(&self, now: Duration) -> SinkReport {
        let state = self.state();
        let stuck = state.running.as_ref().is_some_and(|running| running.given_up);
        let until = state.quarantine.until();
        let counts = self.counts();
        SinkReport {
            name: self.name.clone(),
            version: state.source.version.clone(),
            path: state.source.path.clone(),
            isolation: state.source.isolation,
            generation: state.generation,
            state: match (state.ended, stuck, until) {
                (true, _, _) => SinkState::Ended,
                (_, true, _) => SinkState::Stuck,
                (_, _, Some(_)) => SinkState::Quarantined,
                _ => SinkState::Active,
            },
            retry_in_s: until
                .filter(|_| !stuck)
                .map(|until| until.saturating_sub(now).as_secs_f64()),
            accepted: counts.accepted,
            delivered: counts.delivered,
            dropped: counts.dropped,
            pending: counts.accepted - counts.delivered - counts.dropped,
            failures: state.failures,
            quarantines: state.quarantines,
            last_error: state.last_error.clone(),
        }
    }
}

impl Running {
    fn too_slow(&self, now: Duration) -> (Failure, String) {
        let words = format!(
            "took {:.1} s or more; the deadline is {:.1} s",
            now.saturating_sub(self.since).as_secs_f64(),
            self.deadline.as_secs_f64()
        );
        (Failure::Timeout, words)
    }
}
