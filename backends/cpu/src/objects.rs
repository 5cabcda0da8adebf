//! The device's numbered objects.

use std::sync::Arc;

use halyard_platform_api::{BufferId, CommandId, Error, OpId, Result, Slots, Tensor};

use crate::kernel::Kernel;
use crate::memory::Allocation;

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
