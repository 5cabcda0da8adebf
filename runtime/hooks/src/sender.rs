//! The engine's end: handing records to every sink's queue. Nothing here locks, blocks, allocates or calls a sink.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use halyard_platform_api::hooks::StatRecord;
use nix::sys::resource::{UsageWho, getrusage};

use crate::hub::Hub;
use crate::sink::Sink;

/// State that senders and the hub share.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) sinks: Vec<Arc<Sink>>,
    pub(crate) engine_waits: AtomicU64,
}

/// Hands records over. Cheap to clone, for any thread. The sinks run for as long as there is a sender.
#[derive(Clone, Default)]
pub struct RecordSender {
    shared: Arc<Shared>,
    _hub: Option<Arc<Hub>>,
}

impl RecordSender {
    pub(crate) fn new(shared: Arc<Shared>, hub: Option<Arc<Hub>>) -> RecordSender {
        RecordSender { shared, _hub: hub }
    }

    /// Whether there are sinks.
    pub fn wanted(&self) -> bool {
        !self.shared.sinks.is_empty()
    }

    /// Hands over `records` and leaves the list empty. A sink whose queue is full, or that rests, loses them; the
    /// caller never waits.
    pub fn send_all(&self, records: &mut Vec<StatRecord>) {
        let Some((last, others)) = self.shared.sinks.split_last() else {
            records.clear();
            return;
        };
        if records.is_empty() {
            return;
        }
        let before = sleeps();
        for sink in others {
            sink.accept(records.iter().cloned());
        }
        last.accept(records.drain(..));
        if sleeps() != before {
            self.shared.engine_waits.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// As [`RecordSender::send_all`], of one record.
    pub fn send(&self, record: StatRecord) {
        if self.wanted() {
            self.send_all(&mut vec![record]);
        }
    }

    /// Records of all sinks that were lost.
    pub fn dropped(&self) -> u64 {
        self.shared.sinks.iter().map(|sink| sink.counts().dropped).sum()
    }
}

/// How often this thread has given up its processor by itself: the kernel's own count of times that it waited for
/// something. Being preempted, or stopped from outside, does not count.
fn sleeps() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.voluntary_context_switches())
}
