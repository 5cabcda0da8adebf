//! Counters of the engine, and their way to stat loggers: a bounded queue to a thread of its own, with a drop counter.
//! The engine never waits for a logger.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use halyard_platform_api::hooks::{Batch, StatLogger, StatRecord};
use serde::Serialize;

/// Records that may wait for the loggers.
const QUEUE_RECORDS: usize = 4096;
/// Records handed over at once.
const BATCH_RECORDS: usize = 256;
/// Failures in a row after which a logger is left alone.
const MAX_FAILURES: u32 = 5;
/// How long an ending engine waits for the loggers.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// How often held-back output is flushed when nothing happens.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// The engine's counters since start, and its gauges now.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StatsSnapshot {
    /// Requests that own a device row.
    pub num_running: u64,
    /// Requests that wait for one.
    pub num_waiting: u64,
    /// Share of KV pages in use, 0 to 1.
    pub kv_cache_usage: f64,
    /// Prompt tokens computed.
    pub prompt_tokens_total: u64,
    /// Tokens generated.
    pub generation_tokens_total: u64,
    /// Preemptions.
    pub preemptions_total: u64,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_cache_queries_total: u64,
    /// Of these, found.
    pub prefix_cache_hits_total: u64,
    /// Ended sequences by reason: stop, length, abort, error.
    pub requests_finished: [u64; 4],
    /// Steps run.
    pub steps_total: u64,
    /// Of these, run from recordings.
    pub replayed_steps_total: u64,
    /// Records that the loggers' queue had no room for.
    pub dropped_records_total: u64,
}

/// The engine's end of the queue.
pub(crate) struct Records {
    sender: Option<SyncSender<StatRecord>>,
    /// The thread, and what hangs up when it ends.
    thread: Option<(JoinHandle<()>, Receiver<()>)>,
    pub dropped: u64,
}

impl Records {
    /// Starts the delivering thread; without loggers there is none and nothing is queued.
    pub(crate) fn start(loggers: Vec<Box<dyn StatLogger>>) -> std::io::Result<Records> {
        if loggers.is_empty() {
            return Ok(Records {
                sender: None,
                thread: None,
                dropped: 0,
            });
        }
        let (sender, receiver) = sync_channel(QUEUE_RECORDS);
        let (running, ended) = sync_channel::<()>(1);
        let deliver = move || {
            let _running = running;
            deliver(&receiver, loggers);
        };
        let thread = std::thread::Builder::new()
            .name("halyard-stats".into())
            .spawn(deliver)?;
        Ok(Records {
            sender: Some(sender),
            thread: Some((thread, ended)),
            dropped: 0,
        })
    }

    /// Whether anybody listens.
    pub(crate) fn wanted(&self) -> bool {
        self.sender.is_some()
    }

    /// Queues a record, or counts it as dropped.
    pub(crate) fn send(&mut self, record: StatRecord) {
        if let Some(sender) = &self.sender
            && let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = sender.try_send(record)
        {
            self.dropped += 1;
        }
    }
}

impl Drop for Records {
    /// Waits a little for what is queued to be delivered; a sink that hangs is left behind with its thread.
    fn drop(&mut self) {
        self.sender = None;
        let Some((thread, ended)) = self.thread.take() else {
            return;
        };
        if matches!(ended.recv_timeout(END_PATIENCE), Err(RecvTimeoutError::Timeout)) {
            tracing::error!(
                "a stat logger did not end within {} s and was left behind",
                END_PATIENCE.as_secs()
            );
        } else if thread.join().is_err() {
            tracing::error!("the stat logger thread panicked");
        }
    }
}

struct Sink {
    logger: Box<dyn StatLogger>,
    failures: u32,
}

impl Sink {
    fn note(&mut self, result: halyard_platform_api::Result<()>) {
        match result {
            Ok(()) => self.failures = 0,
            Err(error) => {
                self.failures += 1;
                tracing::warn!(failures = self.failures, "stat logger: {error}");
                if self.failures == MAX_FAILURES {
                    tracing::error!("stat logger left alone after {MAX_FAILURES} failures in a row");
                }
            }
        }
    }
}

fn deliver(receiver: &Receiver<StatRecord>, loggers: Vec<Box<dyn StatLogger>>) {
    let mut sinks: Vec<Sink> = loggers.into_iter().map(|logger| Sink { logger, failures: 0 }).collect();
    let mut batch = Vec::with_capacity(BATCH_RECORDS);
    loop {
        let ended = match receiver.recv_timeout(FLUSH_INTERVAL) {
            Ok(record) => {
                batch.push(record);
                while batch.len() < BATCH_RECORDS
                    && let Ok(record) = receiver.try_recv()
                {
                    batch.push(record);
                }
                false
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        for sink in sinks.iter_mut().filter(|sink| sink.failures < MAX_FAILURES) {
            let result = if batch.is_empty() {
                sink.logger.flush(END_PATIENCE)
            } else {
                sink.logger.log_batch(&Batch {
                    records: &batch,
                    deadline: END_PATIENCE,
                    num_dropped: 0,
                })
            };
            sink.note(result);
            if ended {
                let flushed = sink.logger.flush(END_PATIENCE);
                sink.note(flushed);
            }
        }
        batch.clear();
        if ended {
            return;
        }
    }
}
