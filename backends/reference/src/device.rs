//! The device: it owns the tables of live objects and hands out buffers, queues, encoders and prepared ops.

use std::sync::Arc;
use std::time::Duration;

use halyard_platform_api::ops::Collective;
use halyard_platform_api::{
    AttentionRegistry, Buffer, BufferKind, ClaimReport, Communicator, CommunicatorDesc, CommunicatorId, Device,
    DeviceInfo, MemoryInfo, OpRegistry, OpSpec, OpSupport, PreparedOp, Program, Queue, QueueKind, Result,
};

use crate::attention_registry::ReferenceAttention;
use crate::communicator::{self, Group, Member, PreparedCollective, ReferenceCommunicator};
use crate::composite;
use crate::encoder::Commands;
use crate::handles::Handles;
use crate::memory::{Allocation, Pool, ReferenceBuffer};
use crate::prepared::{Prepared, ReferenceOp, Work};
use crate::queue::{QueueState, ReferenceQueue};
use crate::support;

/// State that all objects of one device share.
pub(crate) struct Shared {
    pub(crate) pool: Arc<Pool>,
    pub(crate) buffers: Handles<Allocation>,
    pub(crate) ops: Handles<Prepared>,
    pub(crate) commands: Handles<Commands>,
    pub(crate) queues: Handles<QueueState>,
    /// What the live communicators are members of.
    pub(crate) members: Handles<Member>,
}

/// The open reference device.
pub(crate) struct ReferenceDevice {
    info: DeviceInfo,
    shared: Arc<Shared>,
    attention: ReferenceAttention,
    communicator_timeout: Duration,
}

impl ReferenceDevice {
    pub(crate) fn new(info: DeviceInfo, pool: Arc<Pool>, communicator_timeout: Duration) -> Self {
        let shared = Arc::new(Shared {
            pool,
            buffers: Handles::new("buffer"),
            ops: Handles::new("op"),
            commands: Handles::new("command buffer"),
            queues: Handles::new("queue"),
            members: Handles::new("communicator"),
        });
        ReferenceDevice {
            info,
            shared,
            attention: ReferenceAttention,
            communicator_timeout,
        }
    }
}

impl Device for ReferenceDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryInfo> {
        Ok(self.shared.pool.info())
    }

    fn create_buffer(&self, bytes: u64, _kind: BufferKind) -> Result<Arc<dyn Buffer>> {
        // All memory is the host's: every buffer is host-visible.
        Ok(Arc::new(ReferenceBuffer::create(&self.shared, bytes)?))
    }

    fn create_queue_for(&self, _kind: QueueKind, _step_bytes: u64) -> Result<Arc<dyn Queue>> {
        // A copy queue that also computes is a copy queue.
        Ok(Arc::new(ReferenceQueue::create(&self.shared)))
    }

    fn ops(&self) -> &dyn OpRegistry {
        self
    }

    fn attention(&self) -> &dyn AttentionRegistry {
        &self.attention
    }

    fn communicator_id(&self) -> Result<CommunicatorId> {
        communicator::fresh_id()
    }

    fn create_communicator(&self, group: &CommunicatorDesc) -> Result<Arc<dyn Communicator>> {
        let joined = Group::join(group, self.communicator_timeout)?;
        Ok(Arc::new(ReferenceCommunicator::new(&self.shared, joined, group.rank)))
    }
}

impl ReferenceDevice {
    /// A collective of one of the device's communicators.
    fn collective(&self, op: &Collective) -> Result<PreparedCollective> {
        let member = self.shared.members.find(op.communicator)?;
        member.collective(op.of_communicator())
    }
}

impl OpRegistry for ReferenceDevice {
    fn support(&self, spec: &OpSpec) -> Result<OpSupport> {
        match spec {
            OpSpec::Collective(op) => drop(self.collective(op)?),
            _ => support::check(spec)?,
        }
        Ok(OpSupport {
            cost: 1.0,
            implementation: format!("reference::{}", spec.name()),
        })
    }

    fn prepare(&self, spec: &OpSpec) -> Result<Arc<dyn PreparedOp>> {
        let work = match spec {
            OpSpec::Collective(op) => Work::Collective(self.collective(op)?),
            _ => {
                support::check(spec)?;
                Work::Op(spec.clone())
            }
        };
        Ok(ReferenceOp::create(&self.shared, work))
    }

    fn claim(&self, program: &Program) -> Result<ClaimReport> {
        composite::claim(program)
    }

    fn prepare_program(&self, program: &Program) -> Result<Arc<dyn PreparedOp>> {
        composite::check(program)?;
        Ok(ReferenceOp::create(&self.shared, Work::Program(program.clone())))
    }
}
