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

/// Tokens of a new request's prefix that are looked up to find its lane. Where all of them are cached, it counts as
/// short until a plan looks up the rest.
pub(crate) const PROBED_TOKENS: u32 = 1024;

/// Where a waiting request stands: with which adapter, and among the ones of about its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lane {
    pub(crate) lora: Option<u32>,
    class: u8,
}

impl Lane {
    /// The lane of a request with `wanted` tokens to compute.
    pub(crate) fn new(lora: Option<u32>, wanted: u32) -> Self {
        let class = size_class(wanted);
        Self { lora, class }
    }
}

/// The class of a number of tokens: 0 to 15 have one each, greater ones share one with those of the same first four
/// bits, so the greatest of a class is less than an eighth above the least. A prompt is long or short with its class.
pub(crate) fn size_class(tokens: u32) -> u8 {
    match tokens.checked_ilog2() {
        Some(log @ 4..) => 16 + 8 * (log as u8 - 4) + (tokens >> (log - 3) & 7) as u8,
        _ => tokens as u8,
    }
}

/// The first request of a lane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneHead {
    pub(crate) key: QueueKey,
    pub(crate) slot: Slot,
    pub(crate) lane: Lane,
    /// The device slot of the lane's adapter.
    pub(crate) lora_slot: Option<u32>,
}

type Requests = BTreeMap<QueueKey, Slot>;

/// The waiting requests of one adapter, or of none.
#[derive(Debug, Default)]
struct Group {
    /// By class; none is empty.
    lanes: BTreeMap<u8, Requests>,
    /// Requests that were admitted while this group's first one waited for a slot.
    num_overtaken: u32,
}

impl Group {
    fn head(&self) -> Option<QueueKey> {
        let heads = self.lanes.values().filter_map(|lane| lane.first_key_value());
        heads.map(|(key, _)| *key).min()
    }
}

/// Requests without a row. What keeps a request waiting keeps all of its lane waiting: its adapter is not on the
/// device, or it is too long for this step. So a plan looks at the first one of each lane, however many wait.
#[derive(Debug, Default)]
pub(crate) struct WaitingQueue {
    /// None is empty.
    groups: BTreeMap<Option<u32>, Group>,
    /// The first request of each group that has an adapter.
    adapters: BTreeMap<QueueKey, u32>,
    len: usize,
}

impl WaitingQueue {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, key: QueueKey, slot: Slot, lane: Lane) {
        let group = self.groups.entry(lane.lora).or_default();
        let head = group.head();
        group.lanes.entry(lane.class).or_default().insert(key, slot);
        self.len += 1;
        self.note_head(lane.lora, head);
    }

    pub(crate) fn remove(&mut self, key: QueueKey, lane: Lane) {
        let Some(group) = self.groups.get_mut(&lane.lora) else {
            return;
        };
        let head = group.head();
        let Some(requests) = group.lanes.get_mut(&lane.class) else {
            return;
        };
        self.len -= usize::from(requests.remove(&key).is_some());
        if requests.is_empty() {
            group.lanes.remove(&lane.class);
        }
        if group.lanes.is_empty() {
            self.groups.remove(&lane.lora);
        }
        self.note_head(lane.lora, head);
    }

    /// Keeps the order of the adapters' first requests; `before` was this one's.
    fn note_head(&mut self, lora: Option<u32>, before: Option<QueueKey>) {
        let Some(lora) = lora else { return };
        let head = self.groups.get(&Some(lora)).and_then(Group::head);
        if head == before {
            return;
        }
        if let Some(before) = before {
            self.adapters.remove(&before);
        }
        if let Some(head) = head {
            self.adapters.insert(head, lora);
        }
    }

    /// The first request of a lane; it stays in the queue.
    pub(crate) fn head(&self, lane: Lane, lora_slot: Option<u32>) -> Option<LaneHead> {
        let requests = self.groups.get(&lane.lora)?.lanes.get(&lane.class)?;
        let (&key, &slot) = requests.first_key_value()?;
        Some(LaneHead {
            key,
            slot,
            lane,
            lora_slot,
        })
    }

    /// Adds the first request of each lane of one adapter, which is in `lora_slot`, or of none. Lanes of a class that
    /// `takes` refuses are left out. False: one was.
    pub(crate) fn add_heads(
        &self,
        (lora, lora_slot): (Option<u32>, Option<u32>),
        takes: impl Fn(u8) -> bool,
        heads: &mut Vec<LaneHead>,
    ) -> bool {
        let lanes = self.groups.get(&lora).into_iter().flat_map(|group| &group.lanes);
        let mut takes_all = true;
        for (&class, requests) in lanes {
            match (takes(class), requests.first_key_value()) {
                (true, Some((&key, &slot))) => heads.push(LaneHead {
                    key,
                    slot,
                    lane: Lane { lora, class },
                    lora_slot,
                }),
                _ => takes_all = false,
            }
        }
        takes_all
    }

    /// The adapter whose first request is the next one behind `key` (from the start for `None`), with that one's key.
    pub(crate) fn adapter_after(&self, key: Option<QueueKey>) -> Option<(QueueKey, u32)> {
        let start = key.map_or(Bound::Unbounded, Bound::Excluded);
        let (&key, &lora) = self.adapters.range((start, Bound::Unbounded)).next()?;
        Some((key, lora))
    }

    /// How many were admitted while the adapter's requests waited for a slot.
    pub(crate) fn num_overtaken(&self, lora: u32) -> u32 {
        self.groups.get(&Some(lora)).map_or(0, |group| group.num_overtaken)
    }

    /// So many more were admitted.
    pub(crate) fn note_overtaken(&mut self, lora: u32, more: u32) {
        if let Some(group) = self.groups.get_mut(&Some(lora)) {
            group.num_overtaken = group.num_overtaken.saturating_add(more);
        }
    }

    /// The adapter's requests had their slot: what they wait for next counts anew.
    pub(crate) fn reset_overtaken(&mut self, lora: u32) {
        if let Some(group) = self.groups.get_mut(&Some(lora)) {
            group.num_overtaken = 0;
        }
    }

    /// The requests that wait for an adapter, in the policy's order.
    pub(crate) fn of_adapter(&self, lora: u32) -> Vec<Slot> {
        let lanes = self
            .groups
            .get(&Some(lora))
            .into_iter()
            .flat_map(|group| group.lanes.values());
        let all: BTreeMap<QueueKey, Slot> = lanes.flatten().map(|(key, slot)| (*key, *slot)).collect();
        all.into_values().collect()
    }

    pub(crate) fn contains(&self, key: QueueKey, lane: Lane) -> bool {
        let group = self.groups.get(&lane.lora);
        group
            .and_then(|group| group.lanes.get(&lane.class))
            .is_some_and(|lane| lane.contains_key(&key))
    }

    /// Whether the number of requests and the order of adapters agree with the lanes.
    pub(crate) fn is_sound(&self) -> bool {
        let requests = self
            .groups
            .values()
            .flat_map(|group| group.lanes.values())
            .map(BTreeMap::len);
        let heads = self
            .groups
            .iter()
            .filter_map(|(lora, group)| Some((group.head()?, (*lora)?)));
        let heads: BTreeMap<QueueKey, u32> = heads.collect();
        requests.sum::<usize>() == self.len && heads == self.adapters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_spans_less_than_an_eighth() {
        let mut least = 0u32;
        for tokens in 1..100_000u32 {
            match size_class(tokens) - size_class(tokens - 1) {
                0 => assert!(tokens - least < least.div_ceil(8), "{least} and {tokens} share a class"),
                1 => least = tokens,
                more => panic!("{more} classes between {} and {tokens}", tokens - 1),
            }
        }
        assert!(size_class(u32::MAX) > size_class(1 << 31));
    }
}
