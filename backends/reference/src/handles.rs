//! Ids of live objects behind a lock: a number given out names one object for its life and never another one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use halyard_platform_api::{Error, Result, Slots};

/// Live objects by id.
pub(crate) struct Handles<T> {
    /// What the objects are called in errors.
    kind: &'static str,
    slots: Mutex<Slots<Arc<T>>>,
}

impl<T> Handles<T> {
    /// An empty table of objects that errors call `kind`.
    pub(crate) fn new(kind: &'static str) -> Self {
        Handles {
            kind,
            slots: Mutex::default(),
        }
    }

    fn slots(&self) -> MutexGuard<'_, Slots<Arc<T>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an object and returns its id.
    pub(crate) fn insert(&self, value: Arc<T>) -> u64 {
        self.slots().insert(value)
    }

    /// The object of a live id.
    ///
    /// # Errors
    /// `InvalidArgument` naming an id that is not alive.
    pub(crate) fn find(&self, id: u64) -> Result<Arc<T>> {
        self.slots().find(id).cloned().ok_or_else(|| {
            Error::invalid(format!(
                "{} id {id:#x} is not alive: it was never given out, or its object was dropped",
                self.kind
            ))
        })
    }

    /// Ends an id. The object lives on while others hold it: that is the deferred release.
    pub(crate) fn remove(&self, id: u64) {
        let removed = self.slots().remove(id);
        // Its drop may take other locks; the table's was let go of above.
        drop(removed);
    }
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
