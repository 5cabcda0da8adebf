//! Encoder and command buffer: a list of (op, bound operands). Ids are resolved while encoding, so the list keeps alive
//! what it names; it must never look an id up when it runs.

use std::sync::Arc;

use halyard_platform_api::{
    CommandBuffer, CommandId, Encoder, EncoderMode, Error, OpId, QueueId, Result, SubmitMark, Tensor,
};

use crate::device::Shared;
use crate::operand::Operand;
use crate::prepared::Prepared;

/// One encoded op.
pub(crate) struct Step {
    op: Arc<Prepared>,
    operands: Vec<Operand>,
}

/// Sealed commands: replayed in order at every submit.
pub(crate) struct Commands {
    steps: Vec<Step>,
    pub(crate) mark: SubmitMark,
}

impl Commands {
    /// Runs all ops.
    ///
    /// # Errors
    /// What the ops found wrong, with the position of the op.
    pub(crate) fn run(&self) -> Result<()> {
        for (position, step) in self.steps.iter().enumerate() {
            step.op.run(&step.operands).map_err(|e| Error {
                message: format!("command {position}: {}", e.message),
                ..e
            })?;
        }
        Ok(())
    }
}

/// Collects steps.
pub(crate) struct ReferenceEncoder {
    shared: Arc<Shared>,
    mark: SubmitMark,
    steps: Vec<Step>,
}

impl ReferenceEncoder {
    pub(crate) fn new(shared: &Arc<Shared>, queue: QueueId, mode: EncoderMode) -> Self {
        ReferenceEncoder {
            shared: Arc::clone(shared),
            mark: SubmitMark::new(queue, mode),
            steps: Vec::new(),
        }
    }
}

impl Encoder for ReferenceEncoder {
    fn encode(&mut self, op: OpId, operands: &[Tensor]) -> Result<()> {
        let op = self.shared.ops.find(op.0)?;
        op.check_count(operands.len())?;
        let mut bound = Vec::with_capacity(operands.len());
        for (index, tensor) in operands.iter().enumerate() {
            let operand = if tensor.is_none() {
                op.check_absent(index)?;
                Operand::absent()
            } else {
                let memory = self.shared.buffers.find(tensor.buffer)?;
                Operand::bind(*tensor, memory).map_err(|e| Error {
                    message: format!("{}: operand {index}: {}", op.name(), e.message),
                    ..e
                })?
            };
            bound.push(operand);
        }
        self.steps.push(Step { op, operands: bound });
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Arc<dyn CommandBuffer>> {
        let commands = Arc::new(Commands {
            steps: self.steps,
            mark: self.mark,
        });
        let id = self.shared.commands.insert(commands);
        Ok(Arc::new(ReferenceCommands {
            id,
            shared: self.shared,
        }))
    }
}

/// The contract's command buffer: the id of sealed commands.
struct ReferenceCommands {
    id: u64,
    shared: Arc<Shared>,
}

impl CommandBuffer for ReferenceCommands {
    fn id(&self) -> CommandId {
        CommandId(self.id)
    }
}

impl Drop for ReferenceCommands {
    fn drop(&mut self) {
        self.shared.commands.remove(self.id);
    }
}
