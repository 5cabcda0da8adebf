//! Generational ids: a number given out names one object for its life and never another one. It must never hand out 0.

use std::sync::{Arc, Mutex, PoisonError};

use halyard_platform_api::{Error, Result};

/// Live objects by id. An id is `generation << 32 | index + 1`, so a stale one is told from its slot's next owner.
pub(crate) struct Handles<T> {
    what: &'static str,
    slots: Mutex<Slots<T>>,
}

struct Slots<T> {
    entries: Vec<Slot<T>>,
    free: Vec<u32>,
}

struct Slot<T> {
    generation: u32,
    value: Option<Arc<T>>,
}

impl<T> Handles<T> {
    /// An empty table; `what` names the objects in errors.
    pub(crate) fn new(what: &'static str) -> Self {
        let slots = Slots {
            entries: Vec::new(),
            free: Vec::new(),
        };
        Handles {
            what,
            slots: Mutex::new(slots),
        }
    }

    /// Adds an object and returns its id.
    pub(crate) fn insert(&self, value: Arc<T>) -> u64 {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let index = match slots.free.pop() {
            Some(index) => index,
            None => {
                slots.entries.push(Slot {
                    generation: 0,
                    value: None,
                });
                (slots.entries.len() - 1) as u32
            }
        };
        let slot = &mut slots.entries[index as usize];
        slot.value = Some(value);
        u64::from(slot.generation) << 32 | u64::from(index + 1)
    }

    /// The object of a live id.
    ///
    /// # Errors
    /// `InvalidArgument` naming an id that is not alive.
    pub(crate) fn find(&self, id: u64) -> Result<Arc<T>> {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let (generation, index) = split(id);
        index
            .and_then(|index| slots.entries.get(index))
            .filter(|slot| slot.generation == generation)
            .and_then(|slot| slot.value.clone())
            .ok_or_else(|| {
                Error::invalid(format!(
                    "{} id {id:#x} is not alive: it was never given out, or its object was dropped",
                    self.what
                ))
            })
    }

    /// Ends an id. The object lives on while others hold it: that is the deferred release.
    pub(crate) fn remove(&self, id: u64) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let (generation, index) = split(id);
        let Some(index) = index else { return };
        let removed = match slots.entries.get_mut(index) {
            Some(slot) if slot.generation == generation => {
                slot.generation = slot.generation.wrapping_add(1);
                slot.value.take()
            }
            _ => None,
        };
        if removed.is_some() {
            slots.free.push(index as u32);
        }
        // The object's own drop may take other locks: let go of this one first.
        drop(slots);
        drop(removed);
    }
}

fn split(id: u64) -> (u32, Option<usize>) {
    let low = id as u32;
    ((id >> 32) as u32, (low as usize).checked_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_id_stays_dead_after_its_slot_is_reused() {
        let handles = Handles::new("thing");
        let first = handles.insert(Arc::new(1));
        handles.remove(first);
        let second = handles.insert(Arc::new(2));
        assert_ne!(first, second);
        assert_eq!(first as u32, second as u32, "the slot is reused");
        let error = handles.find(first).unwrap_err();
        assert!(error.message.contains(&format!("{first:#x}")), "{error}");
        assert_eq!(*handles.find(second).unwrap(), 2);
        assert!(handles.find(0).is_err());
    }
}
