//! The engine thread's side of adapters: passes the scheduler's loads to the loader, frees adapters that were removed,
//! and keeps the counters of each.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use halyard_runner::LoraMemory;
use halyard_scheduler::{LoraLoad, Scheduler};

use super::adapter::Adapter;
use super::loader::LoraLoader;
use super::registry::Adapters;
use crate::sequence::Sequence;

/// Adapters as the engine's thread knows them.
pub(crate) struct CoreLora {
    adapters: Arc<Adapters>,
    loader: LoraLoader,
    /// Adapters that were added or that requests named, until they are forgotten.
    known: HashMap<u32, Arc<Adapter>>,
    /// Removed, but perhaps still in use.
    retired: Vec<Arc<Adapter>>,
    /// Adapter of each slot, loaded or being loaded.
    slots: Vec<Option<Arc<Adapter>>>,
    loads: Vec<LoraLoad>,
}

impl CoreLora {
    pub(crate) fn new(adapters: Arc<Adapters>, loader: LoraLoader, num_slots: u32) -> CoreLora {
        CoreLora {
            adapters,
            loader,
            known: HashMap::new(),
            retired: Vec::new(),
            slots: vec![None; num_slots as usize],
            loads: Vec::new(),
        }
    }

    /// Adapters of which something changed since the last call. Most steps change none: then none is looked at.
    pub(crate) fn changed(&self) -> impl Iterator<Item = &Arc<Adapter>> {
        let all = self.adapters.take_changes().then(|| self.known.values());
        all.into_iter().flatten().filter(|adapter| adapter.take_change())
    }

    /// An adapter has a name: stat loggers hear of it.
    pub(crate) fn note_added(&mut self, adapter: Arc<Adapter>) {
        // One that was removed before this came is forgotten, or will be.
        if !adapter.is_retired() {
            adapter.note_change();
            self.known.entry(adapter.number).or_insert(adapter);
        }
    }

    /// A request with an adapter comes.
    pub(crate) fn admit(&mut self, adapter: &Arc<Adapter>) {
        let c = &adapter.counters;
        c.requests.fetch_add(1, Ordering::Relaxed);
        c.waiting.fetch_add(1, Ordering::Relaxed);
        adapter.note_change();
        if adapter.is_on_device() {
            c.device_hits.fetch_add(1, Ordering::Relaxed);
        }
        // It was found by its name just before that was taken away.
        if adapter.is_retired() {
            self.retire(adapter.clone());
        }
        self.known.entry(adapter.number).or_insert_with(|| adapter.clone());
    }

    /// Passes on the loads that the scheduler asks for.
    pub(crate) fn start_loads(&mut self, scheduler: &mut Scheduler) {
        scheduler.take_lora_loads(&mut self.loads);
        for load in self.loads.drain(..) {
            // A request that waits for it named it.
            let Some(adapter) = self.known.get(&load.lora) else {
                continue;
            };
            let slot = &mut self.slots[load.slot as usize];
            if let Some(former) = slot.replace(adapter.clone()) {
                former.set_on_device(false);
            }
            self.loader.load(load.slot, adapter.clone());
        }
    }

    /// The device's slots go, with what they hold. No row uses one and no load is under way.
    pub(crate) fn leave_device(&mut self) {
        self.loader.set_slots(Vec::new());
        for adapter in self.slots.iter_mut().filter_map(Option::take) {
            adapter.set_on_device(false);
        }
    }

    /// The device has slots again, all of them empty.
    pub(crate) fn enter_device(&mut self, slots: Vec<Arc<LoraMemory>>) {
        self.loader.set_slots(slots);
    }

    pub(crate) fn note_loaded(&mut self, number: u32) {
        if let Some(adapter) = self.known.get(&number) {
            adapter.set_on_device(true);
        }
    }

    /// An adapter was removed.
    pub(crate) fn retire(&mut self, adapter: Arc<Adapter>) {
        if !self.retired.iter().any(|known| known.number == adapter.number) {
            self.retired.push(adapter);
        }
    }

    /// Frees slots and host memory of removed adapters that no request uses any more; calls `gone` with each.
    pub(crate) fn forget_retired(&mut self, scheduler: &mut Scheduler, mut gone: impl FnMut(&Adapter)) {
        let CoreLora {
            adapters,
            known,
            retired,
            slots,
            ..
        } = self;
        retired.retain(|adapter| {
            if !scheduler.forget_lora(adapter.number) {
                return true;
            }
            adapters.forget(adapter);
            known.remove(&adapter.number);
            adapter.set_on_device(false);
            let holds = |slot: &&mut Option<Arc<Adapter>>| slot.as_ref().is_some_and(|a| a.number == adapter.number);
            if let Some(slot) = slots.iter_mut().find(holds) {
                *slot = None;
            }
            tracing::debug!(adapter = %adapter.name, "adapter unloaded");
            gone(adapter);
            false
        });
    }
}

/// A sequence gets its first device row.
pub(crate) fn note_admitted(sequence: &Sequence) {
    if let Some(adapter) = &sequence.lora {
        adapter.counters.waiting.fetch_sub(1, Ordering::Relaxed);
        adapter.counters.running.fetch_add(1, Ordering::Relaxed);
        adapter.note_change();
    }
}

/// A sequence is gone.
pub(crate) fn note_ended(sequence: &Sequence) {
    if let Some(adapter) = &sequence.lora {
        let c = &adapter.counters;
        let gauge = if sequence.admitted { &c.running } else { &c.waiting };
        gauge.fetch_sub(1, Ordering::Relaxed);
        adapter.note_change();
    }
}
