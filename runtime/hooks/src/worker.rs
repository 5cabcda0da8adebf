//! A sink's thread: takes records in batches, calls the logger with a deadline, obeys commands. The only one that calls
//! the sink. One [`Worker::turn`] does the work that is ready and returns the time until there is more; the thread
//! sleeps so long, the tests do not.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use halyard_platform_api::hooks::{Batch, StatLogger, StatRecord};
use halyard_platform_api::{Error, Status};

use crate::hub::{Clock, HubConfig, SinkSource, Watch};
use crate::quarantine::Failure;
use crate::report::{Isolation, Reloaded};
use crate::sink::{Call, Command, Outcome, Sink};

/// When there is something to do again, unless the thread is woken before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// At once.
    Now,
    /// When records or commands come.
    Woken,
    /// At that time, or when woken.
    At(Duration),
    /// Never.
    End,
}

pub(crate) struct Worker {
    pub(crate) sink: Arc<Sink>,
    pub(crate) logger: Option<Box<dyn StatLogger>>,
    pub(crate) config: HubConfig,
    pub(crate) clock: Clock,
    pub(crate) watch: Arc<Watch>,
    pub(crate) batch: Vec<StatRecord>,
    /// Records were given since the last flush; when the next one is due.
    pub(crate) flush_at: Option<Duration>,
}

impl Worker {
    /// Runs until a stop command.
    pub(crate) fn run(mut self) {
        loop {
            match self.turn() {
                Next::Now => {}
                Next::End => return,
                Next::At(at) => {
                    if self.sink.may_sleep() {
                        std::thread::park_timeout(at.saturating_sub((self.clock)()));
                        self.linger();
                    }
                }
                Next::Woken => {
                    if self.sink.may_sleep() {
                        std::thread::park();
                        self.linger();
                    }
                }
            }
        }
    }

    /// Waits for a batch to fill, so that one wake-up serves many records. A command ends the wait.
    fn linger(&self) {
        if self.sink.queued() > 0 && self.sink.state().commands.is_empty() {
            std::thread::park_timeout(self.config.linger);
        }
    }

    /// Does what can be done now.
    pub(crate) fn turn(&mut self) -> Next {
        let command = self.sink.state().commands.pop_front();
        if let Some(until) = self.resting() {
            return match command {
                Some(command) => self.obey_resting(command),
                None => Next::At(until),
            };
        }
        if self.logger.is_none() && !matches!(command, Some(Command::Reload { .. })) && !self.make() {
            return match command {
                Some(command) => self.obey_resting(command),
                None => Next::Now,
            };
        }
        match command {
            Some(command) => {
                self.deliver(self.sink.queued());
                // The delivery may have ended the logger, or begun its rest.
                if self.logger.is_none() || self.resting_now().is_some() {
                    self.obey_resting(command)
                } else {
                    self.obey(command)
                }
            }
            None => {
                self.deliver(self.config.batch_records);
                self.flush_if_due();
                match self.flush_at {
                    _ if self.sink.queued() > 0 || self.logger.is_none() => Next::Now,
                    Some(at) => Next::At(at),
                    None => Next::Woken,
                }
            }
        }
    }

    /// Until when the sink rests. At the end of its rest it is opened again.
    fn resting(&mut self) -> Option<Duration> {
        let mut state = self.sink.state();
        let until = state.quarantine.until()?;
        if (self.clock)() < until {
            drop(state);
            self.sink.discard();
            return Some(until);
        }
        state.quarantine.try_again();
        drop(state);
        tracing::info!(sink = self.sink.name, "stat logger is tried again after its quarantine");
        self.sink.open();
        None
    }

    /// Makes a logger where there is none; the first thing that it gets is the start record. False: it failed.
    fn make(&mut self) -> bool {
        let (make, start) = {
            let state = self.sink.state();
            (state.source.make.clone(), state.start.clone())
        };
        let mut made = None;
        let outcome = self.call(Call::Create, 0, self.config.create_deadline, |_| {
            made = Some(make().map_err(|error| (Failure::Start, error.to_string()))?);
            Ok(())
        });
        if outcome != Outcome::Fine {
            // It may be a logger that was made too late.
            self.logger = made;
            self.drop_logger();
            return false;
        }
        self.logger = made;
        if let Some(start) = start {
            self.sink.accept_directly(1);
            self.batch.push(StatRecord::Start(start));
            self.give();
        }
        self.logger.is_some()
    }

    /// Delivers `left` queued records, in batches.
    fn deliver(&mut self, mut left: usize) {
        while left > 0 && self.logger.is_some() && self.resting_now().is_none() {
            let most = left.min(self.config.batch_records);
            self.sink.take(&mut self.batch, most);
            if self.batch.is_empty() {
                return;
            }
            left -= self.batch.len().min(left);
            self.give();
        }
    }

    fn resting_now(&self) -> Option<Duration> {
        self.sink.state().quarantine.until()
    }

    /// Gives the batch to the logger.
    fn give(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        let deadline = self.config.call_deadline;
        let num_dropped = self.sink.counts().dropped;
        let outcome = self.ask(Call::LogBatch, batch.len() as u64, |logger| {
            logger.log_batch(&Batch {
                records: &batch,
                deadline,
                num_dropped,
            })
        });
        self.batch = batch;
        self.batch.clear();
        self.settle(outcome);
        if outcome == Outcome::Fine && self.flush_at.is_none() {
            self.flush_at = Some((self.clock)() + self.config.flush_interval);
        }
    }

    fn flush_if_due(&mut self) {
        if self.flush_at.is_some_and(|at| (self.clock)() >= at) {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.flush_at = None;
        if self.logger.is_none() {
            return;
        }
        let deadline = self.config.call_deadline;
        let outcome = self.ask(Call::Flush, 0, |logger| logger.flush(deadline));
        self.settle(outcome);
    }

    fn settle(&mut self, outcome: Outcome) {
        if outcome == Outcome::Lost {
            self.drop_logger();
        }
    }

    /// Drops the logger with a deadline, because its destructor may hang too.
    fn drop_logger(&mut self) {
        self.flush_at = None;
        if let Some(logger) = self.logger.take() {
            self.call(Call::Drop, 0, self.config.call_deadline, |_| {
                drop(logger);
                Ok(())
            });
        }
    }

    fn obey(&mut self, command: Command) -> Next {
        match command {
            Command::Expose(reply) => {
                let text = self.expose();
                let _ = reply.try_send(text);
                Next::Now
            }
            Command::Reload { logger, source, reply } => {
                let _ = reply.try_send(Ok(self.swap(logger, source)));
                Next::Now
            }
            Command::Stop => self.stop(),
        }
    }

    /// Commands to a sink that rests, or has no logger.
    fn obey_resting(&mut self, command: Command) -> Next {
        match command {
            Command::Expose(reply) => {
                let _ = reply.try_send(None);
                Next::Now
            }
            other => self.obey(other),
        }
    }

    fn expose(&mut self) -> Option<String> {
        let mut text = None;
        let outcome = self.ask(Call::Expose, 0, |logger| {
            text = logger.expose()?;
            Ok(())
        });
        self.settle(outcome);
        text.filter(|_| outcome == Outcome::Fine)
    }

    /// The old logger has all records so far; the new one gets the rest.
    fn swap(&mut self, logger: Box<dyn StatLogger>, source: SinkSource) -> Reloaded {
        self.flush();
        self.drop_logger();
        let (start, reloaded) = {
            let mut state = self.sink.state();
            let old = std::mem::replace(&mut state.source, source);
            state.generation += 1;
            state.quarantine.pardon();
            let reloaded = Reloaded {
                name: self.sink.name.clone(),
                generation: state.generation,
                old_version: old.version,
                new_version: state.source.version.clone(),
                delivered_before: self.sink.counts().delivered,
            };
            (state.start.clone(), reloaded)
        };
        self.logger = Some(logger);
        self.sink.open();
        if let Some(start) = start {
            self.sink.accept_directly(1);
            self.batch.push(StatRecord::Start(start));
            self.give();
        }
        tracing::info!(
            sink = self.sink.name,
            generation = reloaded.generation,
            version = reloaded.new_version,
            "stat logger reloaded"
        );
        reloaded
    }

    fn stop(&mut self) -> Next {
        self.deliver(usize::MAX);
        self.flush();
        self.drop_logger();
        self.sink.end();
        Next::End
    }

    /// Calls the logger with a deadline; returns the kind of a failure.
    fn ask(
        &mut self,
        call: Call,
        records: u64,
        function: impl FnOnce(&mut dyn StatLogger) -> halyard_platform_api::Result<()>,
    ) -> Outcome {
        let isolation = self.sink.state().source.isolation;
        self.call(call, records, self.config.call_deadline, |logger| {
            let Some(logger) = logger else {
                return Err((Failure::Start, "there is no logger".to_string()));
            };
            function(logger).map_err(|error| (kind_of(&error, isolation), error.to_string()))
        })
    }

    /// Runs a function of the sink with a deadline.
    fn call(
        &mut self,
        call: Call,
        records: u64,
        deadline: Duration,
        function: impl FnOnce(Option<&mut dyn StatLogger>) -> Result<(), (Failure, String)>,
    ) -> Outcome {
        let by = self.sink.begin(call, records, (self.clock)(), deadline);
        self.watch.by(by);
        let logger = self.logger.as_deref_mut().map(|logger| logger as &mut dyn StatLogger);
        // Libraries catch their panics themselves; this is for loggers of the program.
        let result = catch_unwind(AssertUnwindSafe(|| function(logger))).unwrap_or_else(|panic| {
            std::mem::forget(panic);
            Err((Failure::Panic, "panicked".to_string()))
        });
        self.sink.finish((self.clock)(), result)
    }
}

/// The kind of failure of a logger's error.
fn kind_of(error: &Error, isolation: Isolation) -> Failure {
    match (error.status, isolation) {
        // A panic in a hook's process is reported as a handle's first panic; this status says that the process is gone.
        (Status::Poisoned, Isolation::Process) => Failure::Crash,
        _ if error.is_panic() => Failure::Panic,
        // A sink that watches its own time, such as one in a process of its own, whose process it then ends.
        (Status::Timeout, _) => Failure::Timeout,
        _ => Failure::Error,
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
