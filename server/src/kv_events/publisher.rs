//! From the engine's thread to sockets: numbers batches, queues them, and encodes them on a task. The
//! engine's side never waits: where the queue is full the batch is lost, its number is not used again, and a metric
//! counts it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::BytesMut;
use halyard_engine::{KvEvent, KvEventSink};
use tokio::sync::mpsc;

use super::config::KvEventsConfig;
use super::payload::Payload;
use super::sessions;
use super::stream::{Sent, Stream};
use crate::error::ServerError;
use crate::zmtp::put_message;

/// The flag, for errors.
const FLAG: &str = "--kv-events-config";

/// A batch on its way to the encoder.
#[derive(Debug)]
struct Batch {
    seq: u64,
    ts: f64,
    events: Vec<KvEvent>,
}

/// Counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvEventFigures {
    /// Batches that were encoded and offered to subscribers.
    pub published: u64,
    /// Batches that were lost because the queue was full.
    pub dropped: u64,
    /// Batches that subscribers lost because they were too slow, of all together.
    pub skipped: u64,
    /// Connected subscribers.
    pub subscribers: u64,
}

impl KvEventFigures {
    /// With those of another copy of the model.
    #[must_use]
    pub fn plus(self, other: KvEventFigures) -> KvEventFigures {
        KvEventFigures {
            published: self.published + other.published,
            dropped: self.dropped + other.dropped,
            skipped: self.skipped + other.skipped,
            subscribers: self.subscribers + other.subscribers,
        }
    }
}

/// The publisher: the engine's end of it.
#[derive(Debug)]
pub struct KvEventPublisher {
    /// Held while a number is given out, so that batches are queued in their order; only the engine's thread does.
    next_seq: Mutex<u64>,
    queue: mpsc::Sender<Batch>,
    waiting: Mutex<Option<mpsc::Receiver<Batch>>>,
    dropped: AtomicU64,
    payload: Payload,
    source: KvEventsConfig,
    shared: Arc<Stream>,
}

impl KvEventPublisher {
    /// Opens the sockets. Nothing is encoded before [`KvEventPublisher::start`], and batches are queued meanwhile.
    /// `int_hashes`: blocks are named by 64 bits, vLLM's default. `rank`: of the copy of the model, whose ports are as
    /// many above those of `config`.
    ///
    /// # Errors
    /// A place that cannot be listened on.
    pub async fn open(config: &KvEventsConfig, int_hashes: bool, rank: u32) -> Result<KvEventPublisher, ServerError> {
        let wrong = |message| ServerError::Option { option: FLAG, message };
        let config = &config.of_rank(rank).map_err(wrong)?;
        let shared = Arc::new(Stream::new(config));
        let opened = sessions::open(config, &shared).await.map_err(wrong)?;
        let (queue, waiting) = mpsc::channel(config.max_queue_size);
        Ok(KvEventPublisher {
            next_seq: Mutex::new(0),
            queue,
            waiting: Mutex::new(Some(waiting)),
            dropped: AtomicU64::new(0),
            payload: Payload { int_hashes, rank },
            source: KvEventsConfig {
                publisher: Some("zmq".to_owned()),
                ..opened
            },
            shared,
        })
    }

    /// Starts to encode and send. A second call does nothing.
    pub fn start(&self) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut waiting) = waiting else { return };
        let payload = self.payload;
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            while let Some(batch) = waiting.recv().await {
                let bytes = payload.encode(batch.ts, &batch.events);
                let mut framed = BytesMut::with_capacity(bytes.len() + 32 + shared.topic.len());
                put_message(
                    &mut framed,
                    &[shared.topic.as_bytes(), &batch.seq.to_be_bytes(), &bytes],
                );
                let sent = Sent {
                    seq: batch.seq,
                    bytes: framed.freeze(),
                };
                shared.push(sent);
            }
        });
    }

    /// Which copy of the model these events are of, and where they are: the settings with the ports that are open.
    pub fn source(&self) -> (u32, &KvEventsConfig) {
        (self.payload.rank, &self.source)
    }

    /// The counters now.
    pub fn figures(&self) -> KvEventFigures {
        KvEventFigures {
            published: self.shared.published.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            skipped: self.shared.skipped.load(Ordering::Relaxed),
            subscribers: self.shared.subscribers.load(Ordering::Relaxed),
        }
    }
}

impl KvEventSink for KvEventPublisher {
    fn publish(&self, events: Vec<KvEvent>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let ts = now.map_or(0.0, |elapsed| elapsed.as_secs_f64());
        let mut next = self.next_seq.lock().unwrap_or_else(PoisonError::into_inner);
        let seq = *next;
        *next += 1;
        if self.queue.try_send(Batch { seq, ts, events }).is_ok() {
            return;
        }
        let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
        // The first one, and then ever more rarely.
        if dropped.is_power_of_two() {
            tracing::warn!(
                seq,
                dropped,
                "KV cache events are lost: the queue of {} batches is full; subscribers see a gap in the numbers",
                self.queue.max_capacity()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn publisher(json: &str) -> KvEventPublisher {
        let config = KvEventsConfig::parse(json).expect("right");
        KvEventPublisher::open(&config, true, 0).await.expect("it opens")
    }

    #[tokio::test]
    async fn a_full_queue_loses_batches_and_their_numbers_and_never_waits() {
        let json = r#"{"endpoint": "tcp://*:0", "replay_endpoint": "tcp://127.0.0.1:0", "max_queue_size": 2}"#;
        let publisher = publisher(json).await;
        let (rank, source) = publisher.source();
        assert_eq!((rank, source.publisher.as_deref()), (0, Some("zmq")));
        for place in [&source.endpoint, source.replay_endpoint.as_ref().expect("asked for")] {
            assert!(!place.ends_with(":0"), "{place} names the port that is open");
        }
        // Nothing is taken from the queue before the start.
        for _ in 0..5 {
            publisher.publish(vec![KvEvent::Cleared]);
        }
        assert_eq!(publisher.figures().dropped, 3);
        let mut live = publisher.shared.live.subscribe();
        publisher.start();
        for seq in [0, 1] {
            assert_eq!(live.recv().await.expect("sent").seq, seq);
        }
        publisher.publish(vec![KvEvent::Cleared]);
        assert_eq!(live.recv().await.expect("sent").seq, 5, "the gap shows");
        let past: Vec<u64> = publisher.shared.since(1).iter().map(|sent| sent.seq).collect();
        assert_eq!(past, [1, 5]);
        assert_eq!(publisher.figures().published, 3);
    }
}
