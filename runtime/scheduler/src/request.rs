//! A request and its counters: known, pending and computed tokens. It owns its counts; it decides nothing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use crate::block_table::BlockTable;
use crate::ids::{RequestId, RowIndex, Slot, StepId};
use crate::queue::{Lane, QueueKey};

/// A request by the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRequest {
    /// A name that no live request has.
    pub id: RequestId,
    /// Token ids, `[prompt_len]`; at least 1, fewer than `max_model_len`.
    pub prompt: Arc<[u32]>,
    /// Tokens to generate at most; at least 1. `max_model_len` cuts it.
    pub max_tokens: u32,
    /// Lower goes first, under [`crate::Policy::Priority`] only.
    pub priority: i32,
    /// Arrival in nanoseconds of the clock of [`crate::Scheduler::schedule`].
    pub arrival_ns: u64,
    /// Cached blocks are shared only between requests with the same salt.
    pub cache_salt: Option<Arc<[u8]>>,
    /// The LoRA adapter: never give one number to two different adapters between resets of the prefix cache.
    pub lora: Option<u32>,
    /// The adapter's name, for events of the prefix cache; nothing else looks at it.
    pub lora_name: Option<Arc<str>>,
    /// Whether it may start from cached blocks; false where every prompt position must be computed, as for
    /// `prompt_logprobs`. Its own blocks are cached either way.
    pub cacheable: bool,
}

impl NewRequest {
    /// A request with priority 0, arrival 0, no salt, no adapter, cacheable.
    pub fn new(id: RequestId, prompt: impl Into<Arc<[u32]>>, max_tokens: u32) -> Self {
        Self {
            id,
            prompt: prompt.into(),
            max_tokens,
            priority: 0,
            arrival_ns: 0,
            cache_salt: None,
            lora: None,
            lora_name: None,
            cacheable: true,
        }
    }
}

/// Where a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// In the waiting queue. If steps are in flight it was preempted and still owns its row and blocks.
    Waiting,
    /// In the running list, owns a row and blocks.
    Running,
    /// Gone for the caller; keeps row and blocks until its last step in flight was updated.
    Ended,
}

/// A request inside the scheduler.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: RequestId,
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) generated: Vec<u32>,
    /// Prompt and generated tokens at its end: the lower of `max_tokens`' and `max_model_len`'s limit.
    pub(crate) max_len: u32,
    pub(crate) key: QueueKey,
    pub(crate) arrival_ns: u64,
    pub(crate) cache_salt: Option<Arc<[u8]>>,
    pub(crate) lora: Option<u32>,
    pub(crate) lora_name: Option<Arc<str>>,
    pub(crate) cacheable: bool,
    /// Tokens to draft in each decode step.
    pub(crate) num_drafts: u32,
    pub(crate) state: State,
    pub(crate) was_admitted: bool,
    pub(crate) row: Option<RowIndex>,
    /// The slot of its adapter, as long as it owns a row.
    pub(crate) lora_slot: Option<u32>,
    /// Where it stands, or last stood, in the waiting queue.
    pub(crate) lane: Lane,
    /// Tokens that were not cached when its prefix was last looked up while it waited; of one that may be cached as a
    /// whole 1, until it is looked up.
    pub(crate) wanted_hint: u32,
    /// It was preempted or has ended, and its row and blocks wait for steps in flight.
    pub(crate) is_draining: bool,
    /// The last step that it was planned in, and which row of the plan it is.
    pub(crate) planned: Option<(StepId, usize)>,
    /// One table a KV group.
    pub(crate) tables: Vec<BlockTable>,
    /// Tokens computed by updated steps: exact.
    pub(crate) num_computed: u32,
    /// Upper bound of computed tokens after all planned steps.
    pub(crate) num_computed_upper: u32,
    /// Most tokens that the steps in flight may still return.
    pub(crate) num_pending: u32,
    /// Steps in flight that name this request.
    pub(crate) num_in_flight: u32,
    /// Hashes of the full blocks of known tokens, one chain a distinct block size.
    pub(crate) chains: Vec<Vec<u128>>,
    /// The prefix cache's epoch at admission: blocks from before a reset are not published after it.
    pub(crate) cache_epoch: u64,
}

impl Request {
    /// Prompt and generated tokens that were read back.
    pub(crate) fn num_known(&self) -> u32 {
        (self.prompt.len() + self.generated.len()) as u32
    }

    /// Known tokens if the steps in flight return all they can.
    pub(crate) fn num_known_upper(&self) -> u32 {
        self.num_known() + self.num_pending
    }

    /// Blocks in its tables.
    pub(crate) fn num_blocks(&self) -> u32 {
        self.tables.iter().map(|table| table.blocks.len() as u32).sum()
    }

    /// Known tokens from position `start` on.
    pub(crate) fn tokens_from(&self, start: usize) -> impl Iterator<Item = u32> + '_ {
        let split = self.prompt.len();
        let (prompt, generated) = (
            &self.prompt[start.min(split)..],
            &self.generated[start.saturating_sub(split)..],
        );
        prompt.iter().chain(generated).copied()
    }
}

/// Requests by [`Slot`]. A slot is reused only after its request was removed, which waits for steps in flight.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    slots: Vec<Option<Request>>,
    vacant: Vec<Slot>,
    /// How many name each adapter.
    of_adapter: HashMap<u32, u32>,
}

impl Requests {
    pub(crate) fn insert(&mut self, request: Request) -> Slot {
        if let Some(lora) = request.lora {
            *self.of_adapter.entry(lora).or_default() += 1;
        }
        match self.vacant.pop() {
            Some(slot) => {
                self.slots[slot.0 as usize] = Some(request);
                slot
            }
            None => {
                self.slots.push(Some(request));
                Slot(self.slots.len() as u32 - 1)
            }
        }
    }

    pub(crate) fn remove(&mut self, slot: Slot) {
        let Some(request) = self.slots[slot.0 as usize].take() else {
            return;
        };
        self.vacant.push(slot);
        if let Some(lora) = request.lora
            && let Entry::Occupied(mut named) = self.of_adapter.entry(lora)
        {
            *named.get_mut() -= 1;
            if *named.get() == 0 {
                named.remove();
            }
        }
    }

    /// Whether a request names the adapter; one that has ended does until its last step in flight was updated.
    pub(crate) fn name_adapter(&self, lora: u32) -> bool {
        self.of_adapter.contains_key(&lora)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot, &Request)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(index, entry)| Some((Slot(index as u32), entry.as_ref()?)))
    }
}

impl Index<Slot> for Requests {
    type Output = Request;

    fn index(&self, slot: Slot) -> &Request {
        self.slots[slot.0 as usize]
            .as_ref()
            .expect("queues and steps name only requests that exist")
    }
}

impl IndexMut<Slot> for Requests {
    fn index_mut(&mut self, slot: Slot) -> &mut Request {
        self.slots[slot.0 as usize]
            .as_mut()
            .expect("queues and steps name only requests that exist")
    }
}
