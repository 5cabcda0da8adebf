//! All sinks of a server: starting them, watching their calls, reloading one, asking for their texts, ending them.
//!
//! Each sink has one thread. One more, the supervisor, sleeps until a call's deadline passes and gives that call up; a
//! thread that never returns cannot be ended, so its sink stays as it is, named, with that one thread.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use halyard_platform_api::hooks::{StartRecord, StatLogger, StatRecord};
use halyard_platform_api::{Error, Result, Status};

use crate::report::{HookReport, Isolation, Reloaded};
use crate::sender::{RecordSender, Shared};
use crate::sink::{Command, Sink};
use crate::worker::Worker;

/// Time since the hub's start, without the time in which the process did not run.
pub(crate) type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Makes a logger.
pub type MakeLogger = Arc<dyn Fn() -> Result<Box<dyn StatLogger>> + Send + Sync>;

/// Where a sink's loggers come from.
#[derive(Clone)]
pub struct SinkSource {
    /// The plugin's version.
    pub version: String,
    /// Its library; none: linked into the program.
    pub path: Option<PathBuf>,
    /// Where it runs.
    pub isolation: Isolation,
    /// Makes a logger: at the start, and again when a panic or a missed deadline has made the last one unusable.
    pub make: MakeLogger,
}

/// A sink to start.
#[derive(Clone)]
pub struct SinkSpec {
    /// Its name, unique among the sinks.
    pub name: String,
    /// Where its loggers come from.
    pub source: SinkSource,
}

/// Bounds of the delivery.
#[derive(Clone, Copy, Debug)]
pub struct HubConfig {
    /// Records that may wait for one sink; one more is dropped. 8192: some seconds of steps.
    pub queue_records: usize,
    /// Most records of a batch.
    pub batch_records: usize,
    /// Time that a call of `log_batch`, `flush` or `expose` may take.
    pub call_deadline: Duration,
    /// Time that making a logger may take.
    pub create_deadline: Duration,
    /// Time between records and the flush that follows them.
    pub flush_interval: Duration,
    /// How long a woken worker lets records gather, so that a busy engine wakes it 20 times a second and not with every
    /// step.
    pub linger: Duration,
}

impl Default for HubConfig {
    fn default() -> Self {
        HubConfig {
            queue_records: 8192,
            batch_records: 512,
            call_deadline: Duration::from_secs(1),
            create_deadline: Duration::from_secs(10),
            flush_interval: Duration::from_secs(1),
            linger: Duration::from_millis(50),
        }
    }
}

/// Why something could not be done with a sink.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// No sink of that name.
    #[error("no stat logger `{asked}` runs; running: {running}")]
    Unknown {
        /// As asked.
        asked: String,
        /// Names of those that run.
        running: String,
    },
    /// Two sinks of one name.
    #[error("stat logger `{0}` is given twice; each name can run once")]
    Twice(String),
    /// Its thread has not come back from a call.
    #[error(
        "stat logger `{0}` is stuck in a call that has not returned; its thread cannot be ended, so it is not \
         replaced: restart the server"
    )]
    Stuck(String),
    /// An earlier reload has not ended.
    #[error("stat logger `{0}` is being reloaded; an earlier reload has not come back")]
    Reloading(String),
    /// A logger was not made in time, or the swap did not happen in time.
    #[error("stat logger `{name}`: {operation} took longer than {limit_s} s")]
    TooSlow {
        /// The sink.
        name: String,
        /// The operation that was slow.
        operation: &'static str,
        /// The limit in seconds.
        limit_s: u64,
    },
    /// The logger could not be made.
    #[error(transparent)]
    Start(Error),
    /// The system gave no thread.
    #[error("no thread for stat loggers: {0}")]
    Thread(#[from] std::io::Error),
}

impl HookError {
    /// That no sink is named `asked`; `names` run.
    pub fn unknown<'a>(asked: &str, names: impl Iterator<Item = &'a str>) -> HookError {
        let running: Vec<&str> = names.collect();
        HookError::Unknown {
            asked: asked.to_owned(),
            running: if running.is_empty() {
                "none".to_owned()
            } else {
                running.join(", ")
            },
        }
    }
}

/// Wakes the supervisor in time for the next deadline.
#[derive(Default)]
pub(crate) struct Watch {
    // The next deadline, and whether the hub has ended.
    next: Mutex<(Option<Duration>, bool)>,
    changed: Condvar,
}

impl Watch {
    /// A call must have returned by `at`.
    pub(crate) fn by(&self, at: Duration) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if next.0.is_none_or(|known| at < known) {
            next.0 = Some(at);
            self.changed.notify_one();
        }
    }

    fn end(&self) {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.changed.notify_one();
    }

    /// Gives up overdue calls until the hub ends.
    ///
    /// When it sleeps much longer than it asked for, no thread of this process ran (it was stopped, the machine was
    /// suspended, or others took all processors). That time is no sink's fault: it goes into `stalled_ns`, which the
    /// clock leaves out.
    fn supervise(&self, sinks: &[Arc<Sink>], clock: &Clock, stalled_ns: &AtomicU64) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        while !next.1 {
            let now = clock();
            match next.0 {
                None => next = self.changed.wait(next).unwrap_or_else(PoisonError::into_inner),
                Some(at) if now <= at => {
                    let wait = at - now + Duration::from_millis(1);
                    let waited = self.changed.wait_timeout(next, wait);
                    next = waited.unwrap_or_else(PoisonError::into_inner).0;
                    let stalled = stall(clock().saturating_sub(now), wait);
                    stalled_ns.fetch_add(stalled.as_nanos() as u64, Ordering::Relaxed);
                }
                Some(_) => {
                    next.0 = None;
                    drop(next);
                    let soonest = sinks.iter().filter_map(|sink| sink.overdue(now)).min();
                    next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
                    next.0 = [next.0, soonest].into_iter().flatten().min();
                }
            }
        }
    }
}

/// Oversleeping that a busy machine does not explain.
const GRACE: Duration = Duration::from_millis(100);

/// How long the process did not run, when a sleep of `asked` took `slept`.
fn stall(slept: Duration, asked: Duration) -> Duration {
    let over = slept.saturating_sub(asked);
    if over > GRACE { over } else { Duration::ZERO }
}

/// The running sinks. Dropping it ends them as [`Hub::shutdown`] does.
pub struct Hub {
    shared: Arc<Shared>,
    workers: Mutex<Vec<JoinHandle<()>>>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
    watch: Arc<Watch>,
    clock: Clock,
    config: HubConfig,
}

impl Hub {
    /// Makes a logger of each sink and starts its thread. Blocks for as long as making them takes.
    ///
    /// # Errors
    /// A name that is given twice, a logger that cannot be made, no thread.
    pub fn start(specs: Vec<SinkSpec>, config: HubConfig) -> std::result::Result<Arc<Hub>, HookError> {
        let started = Instant::now();
        let stalled_ns = Arc::new(AtomicU64::new(0));
        let its_stalled_ns = stalled_ns.clone();
        let stalled = move || Duration::from_nanos(its_stalled_ns.load(Ordering::Relaxed));
        let clock: Clock = Arc::new(move || started.elapsed().saturating_sub(stalled()));
        let mut loggers = Vec::with_capacity(specs.len());
        let mut sinks: Vec<Arc<Sink>> = Vec::with_capacity(specs.len());
        for spec in specs {
            if sinks.iter().any(|sink| sink.name == spec.name) {
                return Err(HookError::Twice(spec.name));
            }
            loggers.push(make_within(&spec.name, &spec.source, config.create_deadline, || {})?);
            sinks.push(Arc::new(Sink::new(spec.name, spec.source, config.queue_records)));
        }
        let hub = Hub {
            shared: Arc::new(Shared {
                sinks,
                ..Shared::default()
            }),
            workers: Mutex::default(),
            supervisor: Mutex::default(),
            watch: Arc::default(),
            clock,
            config,
        };
        for (sink, logger) in hub.shared.sinks.iter().zip(loggers) {
            hub.start_worker(sink, logger)?;
        }
        if !hub.shared.sinks.is_empty() {
            let (watch, shared, clock) = (hub.watch.clone(), hub.shared.clone(), hub.clock.clone());
            let supervise = move || watch.supervise(&shared.sinks, &clock, &stalled_ns);
            let thread = std::thread::Builder::new()
                .name("halyard-hooks".into())
                .spawn(supervise)?;
            *hub.supervisor.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        }
        Ok(Arc::new(hub))
    }

    fn start_worker(&self, sink: &Arc<Sink>, logger: Box<dyn StatLogger>) -> std::io::Result<()> {
        let worker = Worker {
            sink: sink.clone(),
            logger: Some(logger),
            config: self.config,
            clock: self.clock.clone(),
            watch: self.watch.clone(),
            batch: Vec::with_capacity(self.config.batch_records),
            flush_at: None,
        };
        // The kernel shows 15 characters.
        let name: String = format!("hook-{}", sink.name).chars().take(15).collect();
        let thread = std::thread::Builder::new().name(name).spawn(move || worker.run())?;
        sink.set_worker(thread.thread().clone());
        sink.wake();
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }

    /// The engine's end.
    pub fn sender(self: &Arc<Self>) -> RecordSender {
        RecordSender::new(self.shared.clone(), Some(self.clone()))
    }

    /// The engine has loaded: every sink gets `start`, and every logger that is made later gets it first.
    pub fn engine_started(&self, start: &StartRecord) {
        for sink in &self.shared.sinks {
            sink.state().start = Some(start.clone());
        }
        RecordSender::new(self.shared.clone(), None).send(StatRecord::Start(start.clone()));
    }

    /// How the sinks stand.
    pub fn report(&self) -> HookReport {
        let now = (self.clock)();
        HookReport {
            engine_waits: self.shared.engine_waits.load(Ordering::Relaxed),
            sinks: self.shared.sinks.iter().map(|sink| sink.report(now)).collect(),
        }
    }

    /// The texts that sinks show at `/metrics`, up to date with every record sent before the call. Sinks that rest, are
    /// stuck or do not answer within `patience` are left out. Blocks up to `patience`.
    pub fn expose(&self, patience: Duration) -> Vec<String> {
        let asked = self.shared.sinks.iter().filter(|sink| !sink.is_stuck()).map(|sink| {
            let (reply, answer) = sync_channel(1);
            sink.command(Command::Expose(reply));
            answer
        });
        let asked: Vec<_> = asked.collect();
        let end = Instant::now() + patience;
        let answers = asked.into_iter().filter_map(|answer| {
            let left = end.saturating_duration_since(Instant::now());
            answer.recv_timeout(left).ok().flatten()
        });
        answers.collect()
    }

    /// Replaces a sink's library by another: a logger of `source` is made while the old one still runs. The old one
    /// gets every record that came before and is flushed; the new one gets those after. No record is lost by it.
    /// Blocks.
    ///
    /// # Errors
    /// [`HookError`]; the old one goes on then.
    pub fn reload(&self, name: &str, source: SinkSource) -> std::result::Result<Reloaded, HookError> {
        let sink = self.shared.sinks.iter().find(|sink| sink.name == name);
        let Some(sink) = sink else {
            let names = self.shared.sinks.iter().map(|sink| sink.name.as_str());
            return Err(HookError::unknown(name, names));
        };
        if sink.is_stuck() {
            return Err(HookError::Stuck(name.to_owned()));
        }
        if sink.reloading.swap(true, Ordering::Acquire) {
            return Err(HookError::Reloading(name.to_owned()));
        }
        let its_sink = sink.clone();
        let done = move || its_sink.reloading.store(false, Ordering::Release);
        let logger = make_within(&sink.name, &source, self.config.create_deadline, done)?;
        let (reply, answer) = sync_channel(1);
        sink.command(Command::Reload { logger, source, reply });
        let limit = self.config.call_deadline * 4 + self.config.create_deadline;
        let swapped = answer.recv_timeout(limit).unwrap_or_else(|_| {
            Err(HookError::TooSlow {
                name: name.to_owned(),
                operation: "the old logger's last records",
                limit_s: limit.as_secs(),
            })
        });
        sink.reloading.store(false, Ordering::Release);
        swapped
    }

    /// Delivers each sink's queued records, flushes and ends it. Sinks that have not ended within `patience` are
    /// abandoned with their threads, and their pending records count as dropped. Call it when the engine has ended.
    /// Blocks up to `patience`.
    pub fn shutdown(&self, patience: Duration) {
        let workers = std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
        if workers.is_empty() {
            return;
        }
        for sink in &self.shared.sinks {
            sink.command(Command::Stop);
        }
        let end = Instant::now() + patience;
        for (worker, sink) in workers.into_iter().zip(&self.shared.sinks) {
            // There is no join with a deadline; a few looks a second are enough at the end.
            while !worker.is_finished() && !sink.is_stuck() && Instant::now() < end {
                std::thread::park_timeout(Duration::from_millis(5));
            }
            if worker.is_finished() {
                let _ = worker.join();
            } else {
                tracing::error!(sink = sink.name, "stat logger did not end and was left behind");
            }
            sink.end();
        }
        self.watch.end();
        let supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(supervisor) = supervisor {
            let _ = supervisor.join();
        }
    }
}

const PENDING: u8 = 0;
const MADE: u8 = 1;
const GIVEN_UP: u8 = 2;

/// Makes a logger on a thread of its own. `failed` runs when there will be none: at once after an error, and when a
/// maker that was too slow has come back at last; one that never does keeps its thread.
fn make_within(
    name: &str,
    source: &SinkSource,
    limit: Duration,
    failed: impl Fn() + Clone + Send + 'static,
) -> std::result::Result<Box<dyn StatLogger>, HookError> {
    let (made, answer) = sync_channel(1);
    let state = Arc::new(AtomicU8::new(PENDING));
    let (make, its_state, too_late) = (source.make.clone(), state.clone(), failed.clone());
    let work = move || {
        let logger = make();
        // The answer is there before the state says so.
        let _ = made.try_send(logger);
        if its_state.swap(MADE, Ordering::AcqRel) == GIVEN_UP {
            too_late();
        }
    };
    std::thread::Builder::new().name("hook-create".into()).spawn(work)?;
    let mut answered = answer.recv_timeout(limit);
    if answered.is_err() && state.swap(GIVEN_UP, Ordering::AcqRel) == MADE {
        answered = answer.recv_timeout(Duration::ZERO);
    }
    match answered {
        Ok(made) => made.map_err(|error| {
            failed();
            HookError::Start(error)
        }),
        // A maker that panicked has hung up: it will not come back.
        Err(RecvTimeoutError::Disconnected) => {
            failed();
            Err(HookError::Start(Error::new(
                Status::Internal,
                format!("{name}: panicked while it was made"),
            )))
        }
        Err(RecvTimeoutError::Timeout) => Err(HookError::TooSlow {
            name: name.to_owned(),
            operation: "making a logger",
            limit_s: limit.as_secs(),
        }),
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.shutdown(Duration::from_secs(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_nobody_ran_is_told_from_a_little_oversleeping() {
        let ms = Duration::from_millis;
        assert_eq!(stall(ms(1050), ms(1000)), Duration::ZERO);
        assert_eq!(stall(ms(500), ms(1000)), Duration::ZERO, "woken early");
        assert_eq!(stall(ms(41_000), ms(1000)), ms(40_000));
    }
}
