//! Ids for a backend's objects: a number names one object for its life, and never another one. It holds values only, no
//! lock and no error text.

/// Values by id. An id is a slot and the number of its owner, so that a dead one is told from its successor; ids are
/// never 0.
#[derive(Debug)]
pub struct Slots<T> {
    /// How many owners each slot has had, and the one that it has.
    entries: Vec<(u32, Option<T>)>,
    vacant: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots {
            entries: Vec::new(),
            vacant: Vec::new(),
        }
    }
}

impl<T> Slots<T> {
    /// Adds a value and returns its id.
    pub fn insert(&mut self, value: T) -> u64 {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push((0, None));
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[slot as usize];
        entry.0 = entry.0.wrapping_add(1).max(1);
        entry.1 = Some(value);
        u64::from(entry.0) << 32 | u64::from(slot)
    }

    /// Ends an id; its value, where it was alive.
    pub fn remove(&mut self, id: u64) -> Option<T> {
        let entry = self.entries.get_mut(id as u32 as usize)?;
        let value = entry.1.take_if(|_| entry.0 == (id >> 32) as u32)?;
        self.vacant.push(id as u32);
        Some(value)
    }

    /// The value of a live id.
    #[inline]
    pub fn find(&self, id: u64) -> Option<&T> {
        let entry = self.entries.get(id as u32 as usize)?;
        entry.1.as_ref().filter(|_| entry.0 == (id >> 32) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_id_stays_dead_after_its_slot_is_reused() {
        let mut slots = Slots::default();
        let first = slots.insert("first");
        assert_eq!(slots.remove(first), Some("first"));
        let second = slots.insert("second");
        assert_eq!(first as u32, second as u32, "the slot is reused");
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.find(first), None);
        assert_eq!(slots.find(second), Some(&"second"));
        assert_eq!((slots.find(0), slots.find(u64::MAX)), (None, None));
    }
}
