//! `Queue` over the device table.

use std::sync::Arc;

use halyard_platform_api::abi::AbiLayout;
use halyard_platform_api::abi::tables::{QueueDescWire, QueueWaitWire, StepWriteWire};
use halyard_platform_api::{CommandId, Encoder, EncoderMode, Queue, QueueId, QueueKind, QueueWait, Result, StepWrite};

use super::device::OpenDevice;
use super::encoder::HostEncoder;
use super::{Handle, call, slot};

/// Step writes that one call takes without an allocation.
const FEW_WRITES: usize = 64;

/// A queue of a plugin, alive as long as what was encoded for it.
pub(super) struct OpenQueue {
    pub(super) open: Arc<OpenDevice>,
    pub(super) handle: Handle,
}

impl Drop for OpenQueue {
    fn drop(&mut self) {
        // SAFETY: a live queue, used no more.
        unsafe { slot(self.open.tables.device.queue_drop)(self.handle.0) };
    }
}

/// A queue of a plugin.
pub(super) struct HostQueue {
    queue: Arc<OpenQueue>,
    id: QueueId,
}

impl HostQueue {
    pub(super) fn new(open: Arc<OpenDevice>, kind: QueueKind, step_bytes: u64) -> Result<HostQueue> {
        let mut desc = QueueDescWire::zeroed();
        desc.kind = kind as u32;
        desc.step_bytes = step_bytes;
        desc.for_minor(open.tables.device.minor);
        let mut handle = std::ptr::null_mut();
        let mut id = 0;
        // SAFETY: a live device, a sized descriptor, valid outputs.
        call(&open.name, |err| unsafe {
            slot(open.tables.device.queue_create)(open.handle.0, &desc, &mut handle, &mut id, err)
        })?;
        Ok(HostQueue {
            queue: Arc::new(OpenQueue {
                open,
                handle: Handle(handle),
            }),
            id: QueueId(id),
        })
    }
}

impl Queue for HostQueue {
    fn id(&self) -> QueueId {
        self.id
    }

    fn create_encoder(&self, mode: EncoderMode) -> Result<Box<dyn Encoder>> {
        Ok(Box::new(HostEncoder::new(self.queue.clone(), mode)?))
    }

    fn submit(&self, commands: &[CommandId], waits: &[QueueWait]) -> Result<u64> {
        let open = &*self.queue.open;
        let waits: Vec<QueueWaitWire> = waits
            .iter()
            .map(|w| QueueWaitWire {
                queue: w.queue.0,
                number: w.number,
            })
            .collect();
        let mut number = 0;
        // SAFETY: a live queue, arrays of the stated lengths (`CommandId` is a transparent u64), valid output.
        call(&open.name, |err| unsafe {
            slot(open.tables.device.submit)(
                self.queue.handle.0,
                commands.as_ptr().cast(),
                commands.len() as u32,
                waits.as_ptr(),
                waits.len() as u32,
                &mut number,
                err,
            )
        })?;
        Ok(number)
    }

    fn completed(&self) -> u64 {
        // SAFETY: a live queue.
        unsafe { slot(self.queue.open.tables.device.completed)(self.queue.handle.0) }
    }

    fn wait(&self, number: u64, timeout_ns: u64) -> Result<()> {
        let open = &*self.queue.open;
        // SAFETY: a live queue.
        call(&open.name, |err| unsafe {
            slot(open.tables.device.wait)(self.queue.handle.0, number, timeout_ns, err)
        })
    }

    fn write_step(&self, writes: &[StepWrite<'_>]) -> Result<()> {
        let open = &*self.queue.open;
        let wire = |write: &StepWrite<'_>| {
            let mut wire = StepWriteWire::zeroed();
            wire.buffer = write.buffer.0;
            wire.offset = write.offset;
            wire.bytes = write.bytes.as_ptr();
            wire.len = write.bytes.len() as u64;
            wire.for_minor(open.tables.device.minor);
            wire
        };
        let (mut few, many);
        let writes = if writes.len() <= FEW_WRITES {
            few = [StepWriteWire::zeroed(); FEW_WRITES];
            few.iter_mut().zip(writes).for_each(|(to, write)| *to = wire(write));
            &few[..writes.len()]
        } else {
            many = writes.iter().map(wire).collect::<Vec<_>>();
            &many[..]
        };
        // SAFETY: a live queue and an array whose entries' bytes are borrowed for the call.
        call(&open.name, |err| unsafe {
            slot(open.tables.device.write_step)(
                self.queue.handle.0,
                writes.as_ptr(),
                writes.len() as u32,
                size_of::<StepWriteWire>() as u32,
                err,
            )
        })
    }

    fn reserve_scratch(&self, bytes: u64) -> Result<()> {
        let open = &*self.queue.open;
        // SAFETY: a live queue.
        call(&open.name, |err| unsafe {
            slot(open.tables.device.reserve_scratch)(self.queue.handle.0, bytes, err)
        })
    }
}
