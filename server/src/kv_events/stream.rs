//! Encoded batches on their way to subscribers, and past ones for those who ask. Its memory is bounded whoever reads.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::broadcast;

use super::config::KvEventsConfig;

/// Bytes of past batches that are kept at most, besides `buffer_steps`.
const MAX_PAST_BYTES: usize = 256 << 20;

/// A batch as it is sent.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) seq: u64,
    /// Topic, number and payload, framed.
    pub(super) bytes: Bytes,
}

/// What sessions and the encoder share.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) topic: String,
    /// To all subscribers; a slow one loses the oldest.
    pub(super) live: broadcast::Sender<Sent>,
    past: Mutex<Past>,
    pub(super) published: AtomicU64,
    pub(super) skipped: AtomicU64,
    pub(super) subscribers: AtomicU64,
}

impl Stream {
    pub(super) fn new(config: &KvEventsConfig) -> Stream {
        let has_replay = config.replay_endpoint.is_some();
        Stream {
            topic: config.topic.clone(),
            live: broadcast::channel(config.hwm).0,
            past: Mutex::new(Past {
                sent: VecDeque::new(),
                bytes: 0,
                max_steps: if has_replay { config.buffer_steps } else { 0 },
                max_bytes: MAX_PAST_BYTES,
            }),
            published: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            subscribers: AtomicU64::new(0),
        }
    }

    /// Offers a batch to whoever listens.
    pub(super) fn push(&self, sent: Sent) {
        // First what can be asked for: a subscriber that sees a gap finds it there.
        self.past
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(sent.clone());
        self.published.fetch_add(1, Ordering::Relaxed);
        // An error says that nobody listens.
        let _ = self.live.send(sent);
    }

    /// The batches that are kept, from number `start` on.
    pub(super) fn since(&self, start: u64) -> Vec<Sent> {
        let past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.sent.iter().filter(|sent| sent.seq >= start).cloned().collect()
    }
}

/// Batches for those who come late or lost some.
#[derive(Debug)]
struct Past {
    sent: VecDeque<Sent>,
    bytes: usize,
    max_steps: usize,
    max_bytes: usize,
}

impl Past {
    fn push(&mut self, sent: Sent) {
        self.bytes += sent.bytes.len();
        self.sent.push_back(sent);
        while self.sent.len() > self.max_steps || self.bytes > self.max_bytes {
            let Some(oldest) = self.sent.pop_front() else { return };
            self.bytes -= oldest.bytes.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_batches_are_bounded_by_number_and_by_bytes() {
        let sent = |seq, length| Sent {
            seq,
            bytes: Bytes::from(vec![0; length]),
        };
        let mut past = Past {
            sent: VecDeque::new(),
            bytes: 0,
            max_steps: 3,
            max_bytes: 100,
        };
        let kept = |past: &Past| past.sent.iter().map(|sent| sent.seq).collect::<Vec<_>>();
        (0..5).for_each(|seq| past.push(sent(seq, 10)));
        assert_eq!(kept(&past), [2, 3, 4]);
        past.push(sent(5, 85));
        assert_eq!(kept(&past), [4, 5]);
        past.push(sent(6, 101));
        assert_eq!((kept(&past), past.bytes), (vec![], 0));
    }
}
