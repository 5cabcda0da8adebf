//! Adapter slots of the device: which adapter each holds, which requests use it, and which slot another adapter gets.
//! Knows adapters by number; loading one is the caller's work.
//!
//! A slot is given up only when no row and no step in flight uses it. A waiting request whose adapter has no slot is
//! passed over, but not for ever: after [`MAX_OVERTAKEN`] others, one slot takes no new requests until it is free. So
//! every adapter gets a slot in the end.

/// Requests that may be admitted before an older one that waits for a slot. Some, so that a slot serves a batch before
/// it gets another adapter; few, so that no request waits for long.
pub(crate) const MAX_OVERTAKEN: u32 = 32;
/// Adapters without a slot that one plan looks at: bounds the time of planning. They are asked for in the order of
/// their first requests, so those behind them are asked for when these have their slots.
pub(crate) const MAX_SKIPPED: usize = 32;

/// An adapter is to be copied into a slot: answer with [`crate::Scheduler::lora_loaded`] or
/// [`crate::Scheduler::lora_failed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoraLoad {
    /// The slot; no step reads it until the answer.
    pub slot: u32,
    /// The adapter.
    pub lora: u32,
}

/// The contents of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoraResident {
    /// The adapter.
    pub lora: u32,
    /// It was loaded; otherwise it is being loaded.
    pub is_ready: bool,
    /// Requests with a row that use it.
    pub users: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct LoraSlot {
    lora: Option<u32>,
    is_ready: bool,
    users: u32,
    /// When it was last taken, by [`LoraSlots::clock`].
    last_used: u64,
    /// During one plan: takes no new users, an older request waits for it.
    is_closed: bool,
}

/// All slots.
#[derive(Debug, Default)]
pub(crate) struct LoraSlots {
    slots: Vec<LoraSlot>,
    loads: Vec<LoraLoad>,
    clock: u64,
}

impl LoraSlots {
    pub(crate) fn new(num_slots: u32) -> LoraSlots {
        LoraSlots {
            slots: vec![LoraSlot::default(); num_slots as usize],
            ..LoraSlots::default()
        }
    }

    /// Whether adapters are placed at all.
    pub(crate) fn is_on(&self) -> bool {
        !self.slots.is_empty()
    }

    pub(crate) fn open_all(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.is_closed = false);
    }

    fn find(&self, lora: u32) -> Option<usize> {
        self.slots.iter().position(|slot| slot.lora == Some(lora))
    }

    /// Whether a slot holds the adapter, or it is being loaded.
    pub(crate) fn has(&self, lora: u32) -> bool {
        self.find(lora).is_some()
    }

    /// Slots whose adapters are loaded, with these.
    pub(crate) fn ready(&self) -> impl Iterator<Item = (u32, u32)> {
        let slots = self.slots.iter().enumerate().filter(|(_, slot)| slot.is_ready);
        slots.filter_map(|(at, slot)| Some((at as u32, slot.lora?)))
    }

    /// Whether the slot takes new users of the adapter now: this plan has neither closed it nor given it to another.
    pub(crate) fn takes(&self, slot: u32, lora: Option<u32>) -> bool {
        let slot = &self.slots[slot as usize];
        slot.lora == lora && slot.is_ready && !slot.is_closed
    }

    /// Does what can be done for an adapter that has no slot: a load starts, or, if its requests have waited their
    /// share, a slot is closed. False: no slot is free, and none will be in this plan.
    pub(crate) fn place(&mut self, lora: u32, has_waited: bool) -> bool {
        let free = |slot: &LoraSlot| slot.users == 0 && !slot.is_closed && (slot.is_ready || slot.lora.is_none());
        let open = self.slots.iter().enumerate().filter(|(_, slot)| !slot.is_closed);
        let oldest = open
            .clone()
            .filter(|(_, slot)| free(slot))
            .min_by_key(|(_, slot)| (slot.lora.is_some(), slot.last_used));
        if let Some((at, _)) = oldest {
            self.clock += 1;
            self.slots[at] = LoraSlot {
                lora: Some(lora),
                last_used: self.clock,
                ..LoraSlot::default()
            };
            self.loads.push(LoraLoad { slot: at as u32, lora });
            return true;
        }
        if has_waited && let Some((at, _)) = open.min_by_key(|(_, slot)| (slot.users, slot.last_used)) {
            self.slots[at].is_closed = true;
        }
        false
    }

    pub(crate) fn take(&mut self, slot: u32) {
        self.clock += 1;
        let slot = &mut self.slots[slot as usize];
        slot.users += 1;
        slot.last_used = self.clock;
    }

    pub(crate) fn release(&mut self, slot: u32) {
        self.slots[slot as usize].users -= 1;
    }

    /// Users by slot, to be checked against the requests.
    pub(crate) fn users(&self) -> impl Iterator<Item = (Option<u32>, bool, u32)> {
        self.slots.iter().map(|slot| (slot.lora, slot.is_ready, slot.users))
    }

    /// Moves the loads that were started since the last call to `loads`.
    pub(crate) fn take_loads(&mut self, loads: &mut Vec<LoraLoad>) {
        loads.append(&mut self.loads);
    }

    /// A load is done.
    pub(crate) fn loaded(&mut self, lora: u32) {
        if let Some(at) = self.find(lora) {
            self.slots[at].is_ready = true;
        }
    }

    /// A load failed: its slot is free.
    pub(crate) fn failed(&mut self, lora: u32) {
        if let Some(at) = self.find(lora)
            && self.slots[at].users == 0
        {
            self.slots[at] = LoraSlot::default();
        }
    }

    /// Frees the slot of an adapter that no request uses. False: it is being loaded.
    pub(crate) fn forget(&mut self, lora: u32) -> bool {
        match self.find(lora) {
            Some(at) if !self.slots[at].is_ready => false,
            Some(at) => {
                self.slots[at] = LoraSlot::default();
                true
            }
            None => true,
        }
    }

    /// Frees all slots. False: a row uses one, or a load is under way; then nothing is freed.
    pub(crate) fn forget_all(&mut self) -> bool {
        let is_free = |slot: &LoraSlot| slot.users == 0 && (slot.is_ready || slot.lora.is_none());
        let all_free = self.slots.iter().all(is_free);
        if all_free {
            self.slots.fill(LoraSlot::default());
        }
        all_free
    }

    /// The contents of the slots, in order.
    pub(crate) fn residents(&self) -> impl Iterator<Item = LoraResident> {
        self.slots.iter().filter_map(|slot| {
            Some(LoraResident {
                lora: slot.lora?,
                is_ready: slot.is_ready,
                users: slot.users,
            })
        })
    }
}
