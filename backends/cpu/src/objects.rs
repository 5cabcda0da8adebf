//! The device's numbered objects. An id is a slot and a generation, so that a dead one is told from its successor.

use std::sync::Arc;

use halyard_platform_api::{BufferId, CommandId, Error, OpId, Result, Tensor};

use crate::kernel::Kernel;
use crate::memory::Allocation;

/// A list of values by id; ids are never 0.
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
        self.entries
            .get(id as u32 as usize)
            .filter(|entry| entry.0 == (id >> 32) as u32)?
            .1
            .as_ref()
    }
}

/// An encoded op: which, and its operands' place in the list.
#[derive(Clone, Copy)]
pub(crate) struct Command {
    pub op: OpId,
    pub first: u32,
    pub count: u32,
}

/// Sealed commands.
#[derive(Default)]
pub(crate) struct CommandList {
    pub commands: Vec<Command>,
    pub operands: Vec<Tensor>,
}

/// Everything that ids name.
#[derive(Default)]
pub(crate) struct Objects {
    pub buffers: Slots<Arc<Allocation>>,
    pub ops: Slots<Arc<dyn Kernel>>,
    pub commands: Slots<Arc<CommandList>>,
}

impl Objects {
    pub(crate) fn buffer(&self, id: BufferId) -> Result<&Arc<Allocation>> {
        self.buffers
            .find(id.0)
            .ok_or_else(|| Error::invalid(format!("buffer {:#x} is not alive", id.0)))
    }

    pub(crate) fn op(&self, id: OpId) -> Result<&Arc<dyn Kernel>> {
        self.ops
            .find(id.0)
            .ok_or_else(|| Error::invalid(format!("op {:#x} is not alive", id.0)))
    }

    pub(crate) fn command(&self, id: CommandId) -> Result<&Arc<CommandList>> {
        self.commands
            .find(id.0)
            .ok_or_else(|| Error::invalid(format!("command buffer {:#x} is not alive", id.0)))
    }
}
