//! The device's numbered objects. An id is a slot and a generation, so that a dead one is told from its successor.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use halyard_platform_api::{Access, BufferId, CommandId, Error, OpId, Result, Tensor};

use crate::commands::CommandList;
use crate::kernel::Kernel;
use crate::memory::Allocation;
use crate::view::View;

/// Values by id; ids are never 0.
pub(crate) struct Slots<T> {
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
    pub(crate) fn insert(&mut self, value: T) -> u64 {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push((0, None));
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[slot as usize];
        entry.0 += 1;
        entry.1 = Some(value);
        u64::from(entry.0) << 32 | u64::from(slot)
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<T> {
        let entry = self
            .entries
            .get_mut(id as u32 as usize)
            .filter(|entry| entry.0 == (id >> 32) as u32)?;
        let value = entry.1.take()?;
        self.vacant.push(id as u32);
        Some(value)
    }

    pub(crate) fn find(&self, id: u64) -> Option<&T> {
        let entry = self.entries.get(id as u32 as usize)?;
        entry.1.as_ref().filter(|_| entry.0 == (id >> 32) as u32)
    }
}

/// A prepared op's kernel; nothing replaces it once registered.
pub(crate) type SharedKernel = Arc<dyn Kernel>;

/// A prepared op, and how it uses its operands (none: it may write all of them).
pub(crate) struct Registered {
    pub(crate) kernel: SharedKernel,
    pub(crate) access: Vec<Access>,
}

/// Everything that ids name.
#[derive(Default)]
pub(crate) struct Objects {
    pub(crate) buffers: Slots<Arc<Allocation>>,
    pub(crate) ops: Slots<Registered>,
    pub(crate) commands: Slots<Arc<CommandList>>,
}

impl Objects {
    pub(crate) fn buffer(&self, id: BufferId) -> Result<&Arc<Allocation>> {
        self.buffers
            .find(id.0)
            .ok_or_else(|| Error::invalid(format!("buffer {:#x} is not alive", id.0)))
    }

    pub(crate) fn op(&self, id: OpId) -> Result<&Registered> {
        self.ops
            .find(id.0)
            .ok_or_else(|| Error::invalid(format!("op {:#x} is not alive", id.0)))
    }

    pub(crate) fn command(&self, id: CommandId) -> Result<&Arc<CommandList>> {
        self.commands
            .find(id.0)
            .ok_or_else(|| Error::invalid(format!("command buffer {:#x} is not alive", id.0)))
    }

    /// The memory of `tensor`, checked to lie inside its buffer; `None` for the absent operand.
    pub(crate) fn resolve(&self, tensor: &Tensor) -> Result<(View, Option<&Arc<Allocation>>)> {
        if tensor.is_none() {
            return Ok((View::NONE, None));
        }
        let allocation = self.buffer(tensor.buffer_id())?;
        allocation.check(tensor.offset, tensor.span_bytes())?;
        Ok((View::new(tensor, allocation.ptr()), Some(allocation)))
    }
}

/// Reads what a lock guards; a thread that panicked left it whole.
pub(crate) fn read<T>(guarded: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    guarded.read().unwrap_or_else(PoisonError::into_inner)
}

/// Writes it.
pub(crate) fn write<T>(guarded: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    guarded.write().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_used_again_does_not_answer_to_the_old_id() {
        let mut slots = Slots::default();
        let first = slots.insert(1);
        assert_eq!(slots.remove(first), Some(1));
        let second = slots.insert(2);
        assert_eq!(first as u32, second as u32, "the slot is used again");
        assert_eq!(slots.find(first), None);
        assert_eq!(slots.find(second), Some(&2));
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.find(0), None);
    }
}
