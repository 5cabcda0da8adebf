//! The device's numbered objects.

use std::sync::Arc;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use halyard_platform_api::{
    BufferId, CommandId, EncoderMode, Error, OpId, QueueId, QueueWait, Result, Slots, SubmitMark, Tensor,
};

use crate::kernel::Kernel;
use crate::memory::Allocation;
use crate::view::View;

/// Allocations that a list looks back on before it holds one again: neighbours name the same ones.
const LOOK_BACK: usize = 8;

/// Encoded commands, which keep alive what they name.
pub(crate) struct CommandList {
    /// Each op, and how many of `operands` are its own.
    commands: Vec<(Arc<dyn Kernel>, usize)>,
    operands: Vec<View>,
    allocations: Vec<Arc<Allocation>>,
    pub(crate) mark: SubmitMark,
}

impl CommandList {
    pub(crate) fn new(queue: QueueId, mode: EncoderMode) -> CommandList {
        CommandList {
            commands: Vec::new(),
            operands: Vec::new(),
            allocations: Vec::new(),
            mark: SubmitMark::new(queue, mode),
        }
    }

    /// Appends an op; one that is refused leaves the list as it was.
    pub(crate) fn push(&mut self, op: OpId, operands: &[Tensor], objects: &Objects) -> Result<()> {
        let kernel = objects.op(op)?;
        let before = self.operands.len();
        for operand in operands {
            match View::resolve(operand, objects) {
                Ok((view, allocation)) => {
                    self.operands.push(view);
                    self.allocations
                        .extend(allocation.filter(|new| !self.holds(new)).cloned());
                }
                Err(error) => {
                    self.operands.truncate(before);
                    return Err(error);
                }
            }
        }
        self.commands.push((kernel.clone(), operands.len()));
        Ok(())
    }

    fn holds(&self, allocation: &Arc<Allocation>) -> bool {
        let mut newest = self.allocations.iter().rev().take(LOOK_BACK);
        newest.any(|held| Arc::ptr_eq(held, allocation))
    }

    /// The ops in order, each with its operands.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (&dyn Kernel, &[View])> {
        let mut rest = &self.operands[..];
        self.commands.iter().map(move |(kernel, count)| {
            let (operands, others) = rest.split_at(*count);
            rest = others;
            (&**kernel, operands)
        })
    }
}

/// Everything that ids name.
#[derive(Default)]
pub(crate) struct Objects {
    pub buffers: Slots<Arc<Allocation>>,
    pub ops: Slots<Arc<dyn Kernel>>,
    pub commands: Slots<Arc<CommandList>>,
    pub queues: Slots<Arc<Progress>>,
}

/// How far a queue is, for others that wait for it.
#[derive(Default)]
pub(crate) struct Progress {
    /// The last submit, whose work is done.
    pub completed: AtomicU64,
    /// Why the queue runs nothing more.
    pub failure: OnceLock<Error>,
}

impl Progress {
    /// Whether submit `number` was made, and so is done.
    ///
    /// # Errors
    /// The queue's failure; `InvalidArgument` for a number that was not given out.
    pub(crate) fn check(&self, number: u64) -> Result<()> {
        if let Some(error) = self.failure.get() {
            return Err(error.clone());
        }
        let last = self.completed.load(Ordering::Acquire);
        match number <= last {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "submit {number} was never made; the last is {last}: submit first"
            ))),
        }
    }
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

    pub(crate) fn check_wait(&self, wait: &QueueWait) -> Result<()> {
        let Some(progress) = self.queues.find(wait.queue.0) else {
            return Err(Error::invalid(format!("queue {:#x} is not alive", wait.queue.0)));
        };
        progress.check(wait.number)
    }

    pub(crate) fn command(&self, id: CommandId) -> Result<&Arc<CommandList>> {
        self.commands
            .find(id.0)
            .ok_or_else(|| Error::invalid(format!("command buffer {:#x} is not alive", id.0)))
    }
}
