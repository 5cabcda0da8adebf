//! The device's numbered objects.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use halyard_platform_api::{Access, BufferId, CommandId, Error, OpId, Result, Slots, Tensor};

use crate::commands::CommandList;
use crate::driver::Group;
use crate::kernel::Kernel;
use crate::memory::Allocation;
use crate::view::View;

/// A prepared op's kernel; nothing replaces it once registered.
pub(crate) type SharedKernel = Arc<dyn Kernel>;

/// A prepared op, and how it uses its operands (none: it may write all of them).
pub(crate) struct Registered {
    pub(crate) kernel: SharedKernel,
    pub(crate) access: Vec<Access>,
    /// The kernel's, counted once: encoding needs it with every call.
    pub(crate) scratch_bytes: u64,
}

/// Everything that ids name.
#[derive(Default)]
pub(crate) struct Objects {
    pub(crate) buffers: Slots<Arc<Allocation>>,
    pub(crate) ops: Slots<Registered>,
    pub(crate) commands: Slots<Arc<CommandList>>,
    /// Of the live communicators, by their numbers.
    pub(crate) groups: Slots<Arc<dyn Group>>,
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

    pub(crate) fn group(&self, number: u64) -> Result<&Arc<dyn Group>> {
        self.groups
            .find(number)
            .ok_or_else(|| Error::invalid(format!("communicator {number:#x} is not alive")))
    }

    /// The memory of `tensor`, checked to lie inside its buffer; `None` for the absent operand.
    pub(crate) fn resolve(&self, tensor: &Tensor) -> Result<(View, Option<&Arc<Allocation>>)> {
        if tensor.is_none() {
            return Ok((View::NONE, None));
        }
        tensor.check()?;
        let allocation = self.buffer(tensor.buffer_id())?;
        allocation.check(tensor.offset, tensor.span_bytes())?;
        Ok((View::new(tensor, allocation.ptr()), Some(allocation)))
    }
}

/// Reads a locked value, even if a thread panicked: it never leaves the value incomplete.
pub(crate) fn read<T>(guarded: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    guarded.read().unwrap_or_else(PoisonError::into_inner)
}

/// Writes it.
pub(crate) fn write<T>(guarded: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    guarded.write().unwrap_or_else(PoisonError::into_inner)
}
