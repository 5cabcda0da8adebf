//! The scheduler's calls about adapters: which to load, which were loaded, and which are removed.

use crate::ids::{RequestId, Slot};
use crate::lora_slots::{LoraLoad, LoraResident, MAX_OVERTAKEN};
use crate::request::State;
use crate::scheduler::Scheduler;

impl Scheduler {
    /// Moves the loads that plans have asked for since the last call to `loads`. Ask after every plan, also after one
    /// that planned nothing.
    pub fn take_lora_loads(&mut self, loads: &mut Vec<LoraLoad>) {
        self.loras.take_loads(loads);
    }

    /// A load that was asked for is done: steps planned from now on may use the slot.
    pub fn lora_loaded(&mut self, lora: u32) {
        self.loras.loaded(lora);
    }

    /// A load that was asked for failed: its slot is free, and the requests that wait for the adapter are returned.
    /// They stay until the caller ends them.
    pub fn lora_failed(&mut self, lora: u32) -> Vec<RequestId> {
        self.loras.failed(lora);
        let waits = |slot: &Slot| self.requests[*slot].lora == Some(lora);
        let waiting = self.waiting.iter().filter(waits);
        waiting.map(|slot| self.requests[slot].id).collect()
    }

    /// Frees the slot of an adapter that no request names any more, rows of steps in flight included. False: it is in
    /// use, or being loaded.
    pub fn forget_lora(&mut self, lora: u32) -> bool {
        let mut requests = self.requests.iter();
        let is_used = requests
            .any(|(_, request)| request.lora == Some(lora) && (request.state != State::Ended || request.row.is_some()));
        !is_used && self.loras.forget(lora)
    }

    /// What the device's slots hold, in slot order.
    pub fn lora_residents(&self) -> impl Iterator<Item = LoraResident> {
        self.loras.residents()
    }

    /// Counts those that were admitted before requests that had to be passed over: `skipped` holds the number admitted
    /// when each was.
    pub(crate) fn note_overtaken(&mut self, num_admitted: u32) {
        for (slot, before) in std::mem::take(&mut self.skipped) {
            let request = &mut self.requests[slot];
            request.num_overtaken = request.num_overtaken.saturating_add(num_admitted - before);
        }
    }

    /// The adapter's slot for a waiting request: `Ok(None)` where it needs none, `Err(())` where it must wait.
    pub(crate) fn lora_slot_for(&mut self, slot: Slot) -> Result<Option<u32>, ()> {
        let request = &self.requests[slot];
        match request.lora {
            Some(lora) if self.loras.is_on() => {
                let has_waited = request.num_overtaken >= MAX_OVERTAKEN;
                self.loras.place(lora, has_waited).map(Some).ok_or(())
            }
            _ => Ok(None),
        }
    }
}
