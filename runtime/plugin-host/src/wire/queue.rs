//! `Queue` over the device table.

use std::sync::Arc;

use halyard_platform_api::abi::tables::{QueueWaitWire, StepWriteWire};
use halyard_platform_api::{CommandId, Queue, QueueId, QueueKind, QueueWait, Result, StepWrite};

use super::device::OpenDevice;
use super::{Handle, call, slot};

/// A queue of a plugin.
pub(super) struct HostQueue {
    open: Arc<OpenDevice>,
    handle: Handle,
    id: QueueId,
}

impl HostQueue {
    pub(super) fn new(open: Arc<OpenDevice>, kind: QueueKind) -> Result<HostQueue> {
        let mut handle = std::ptr::null_mut();
        let mut id = 0;
        // SAFETY: a live device, valid outputs.
        call(&open.name, |err| unsafe {
            slot(open.tables.device.queue_create)(open.handle.0, kind as u32, &mut handle, &mut id, err)
        })?;
        Ok(HostQueue {
            open,
            handle: Handle(handle),
            id: QueueId(id),
        })
    }
}

impl Drop for HostQueue {
    fn drop(&mut self) {
        // SAFETY: a live queue, used no more.
        unsafe { slot(self.open.tables.device.queue_drop)(self.handle.0) };
    }
}

impl Queue for HostQueue {
    fn id(&self) -> QueueId {
        self.id
    }

    fn submit(&self, commands: &[CommandId], waits: &[QueueWait]) -> Result<u64> {
        let open = &*self.open;
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
                self.handle.0,
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
        unsafe { slot(self.open.tables.device.completed)(self.handle.0) }
    }

    fn wait(&self, number: u64, timeout_ns: u64) -> Result<()> {
        let open = &*self.open;
        // SAFETY: a live queue.
        call(&open.name, |err| unsafe {
            slot(open.tables.device.wait)(self.handle.0, number, timeout_ns, err)
        })
    }

    fn write_step(&self, writes: &[StepWrite<'_>]) -> Result<()> {
        let open = &*self.open;
        let writes: Vec<StepWriteWire> = writes
            .iter()
            .map(|write| {
                let mut wire = StepWriteWire::zeroed();
                wire.buffer = write.buffer.0;
                wire.offset = write.offset;
                wire.bytes = write.bytes.as_ptr();
                wire.len = write.bytes.len() as u64;
                wire
            })
            .collect();
        // SAFETY: a live queue and an array whose entries' bytes are borrowed for the call.
        call(&open.name, |err| unsafe {
            slot(open.tables.device.write_step)(
                self.handle.0,
                writes.as_ptr(),
                writes.len() as u32,
                size_of::<StepWriteWire>() as u32,
                err,
            )
        })
    }

    fn reserve_scratch(&self, bytes: u64) -> Result<()> {
        let open = &*self.open;
        // SAFETY: a live queue.
        call(&open.name, |err| unsafe {
            slot(open.tables.device.reserve_scratch)(self.handle.0, bytes, err)
        })
    }
}
