//! The order of requests: the waiting queue and the key that sorts it and the running list. Knows no blocks.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::config::Policy;
use crate::ids::Slot;

/// Place of a request in the policy's order; lower goes first. It stays the same for a request's whole life, so a
/// preempted one returns in front of everything that came after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueKey {
    priority: i32,
    arrival_ns: u64,
    /// Order of adding; makes keys unique.
    pub(crate) seq: u64,
}

impl QueueKey {
    pub(crate) fn new(policy: Policy, priority: i32, arrival_ns: u64, seq: u64) -> Self {
        match policy {
            Policy::Fcfs => Self {
                priority: 0,
                arrival_ns: 0,
                seq,
            },
            Policy::Priority => Self {
                priority,
                arrival_ns,
                seq,
            },
        }
    }
}

/// Requests without a row, in the policy's order.
#[derive(Debug, Default)]
pub(crate) struct WaitingQueue {
    by_key: BTreeMap<QueueKey, Slot>,
}

impl WaitingQueue {
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(crate) fn insert(&mut self, key: QueueKey, slot: Slot) {
        self.by_key.insert(key, slot);
    }

    pub(crate) fn remove(&mut self, key: QueueKey) {
        self.by_key.remove(&key);
    }

    /// The next request to admit; it stays in the queue.
    pub(crate) fn head(&self) -> Option<Slot> {
        self.by_key.first_key_value().map(|(_, slot)| *slot)
    }

    /// The request behind `key`; the first one for `None`.
    pub(crate) fn after(&self, key: Option<QueueKey>) -> Option<Slot> {
        let Some(key) = key else { return self.head() };
        let mut behind = self.by_key.range((Bound::Excluded(key), Bound::Unbounded));
        behind.next().map(|(_, slot)| *slot)
    }

    /// All requests in the policy's order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Slot> {
        self.by_key.values().copied()
    }

    pub(crate) fn contains(&self, key: QueueKey) -> bool {
        self.by_key.contains_key(&key)
    }
}
