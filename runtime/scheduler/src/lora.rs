//! The scheduler's calls about adapters: which to load, which were loaded, and which are removed.

use crate::ids::RequestId;
use crate::lora_slots::{LoraLoad, LoraResident};
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
        let waiting = self.waiting.of_adapter(lora);
        waiting.into_iter().map(|slot| self.requests[slot].id).collect()
    }

    /// Frees the slot of an adapter that no request names any more, rows of steps in flight included. False: it is in
    /// use, or being loaded.
    pub fn forget_lora(&mut self, lora: u32) -> bool {
        !self.requests.name_adapter(lora) && self.loras.forget(lora)
    }

    /// Frees all slots, because the device loses what they hold: adapters are loaded again when requests want them.
    /// False: a row uses one, or a load is under way; then nothing is freed.
    pub fn forget_loras(&mut self) -> bool {
        self.loras.forget_all()
    }

    /// Whether a load that was asked for has no answer yet.
    pub fn is_loading_lora(&self) -> bool {
        self.loras.residents().any(|resident| !resident.is_ready)
    }

    /// What the device's slots hold, in slot order.
    pub fn lora_residents(&self) -> impl Iterator<Item = LoraResident> {
        self.loras.residents()
    }

    /// Counts those that were admitted before requests that had to be passed over: `skipped` holds the number admitted
    /// when each adapter was.
    pub(crate) fn note_overtaken(&mut self, num_admitted: u32) {
        for (lora, before) in self.skipped.drain(..) {
            if num_admitted > before {
                self.waiting.note_overtaken(lora, num_admitted - before);
            }
        }
    }
}
