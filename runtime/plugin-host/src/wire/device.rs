//! `Device` over the device table.

use std::ops::Deref;
use std::sync::Arc;

use halyard_platform_api::abi::tables::{DeviceInfoWire, MemoryInfoWire};
use halyard_platform_api::{
    AttentionBackendInfo, AttentionRegistry, Buffer, BufferKind, Communicator, CommunicatorDesc, CommunicatorId,
    Device, DeviceInfo, Error, MemoryInfo, OpRegistry, Queue, QueueKind, Result,
};

use super::memory::HostBuffer;
use super::platform::Shared;
use super::queue::HostQueue;
use super::{Handle, attention, call, communicator, named, slot};

/// An open device's handle; every object of the device holds one, and the last closes it.
pub(super) struct OpenDevice {
    shared: Arc<Shared>,
    pub(super) handle: Handle,
}

impl Deref for OpenDevice {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        // SAFETY: a live device; all its objects are gone, as each holds this.
        unsafe { slot(self.tables.device.close)(self.handle.0) };
    }
}

/// A device of a plugin.
pub(super) struct HostDevice {
    pub(super) open: Arc<OpenDevice>,
    info: DeviceInfo,
    pub(super) attention_backends: Vec<AttentionBackendInfo>,
}

impl HostDevice {
    /// Takes over an open device and asks its constant facts. On failure the device is closed.
    pub(super) fn new(shared: Arc<Shared>, handle: Handle) -> Result<HostDevice> {
        let open = Arc::new(OpenDevice { shared, handle });
        let mut wire = DeviceInfoWire::zeroed();
        // SAFETY: a live device, sized output.
        call(&open.name, |err| unsafe {
            slot(open.tables.device.info)(handle.0, &mut wire, err)
        })?;
        // SAFETY: the plugin keeps texts and lists valid while the device lives.
        let info = unsafe { wire.to_info() }.map_err(|e| named(&open.name, e))?;
        let attention_backends = attention::backends(&open)?;
        Ok(HostDevice {
            open,
            info,
            attention_backends,
        })
    }
}

impl Device for HostDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryInfo> {
        let open = &*self.open;
        let mut wire = MemoryInfoWire::zeroed();
        // SAFETY: a live device, sized output.
        call(&open.name, |err| unsafe {
            slot(open.tables.device.memory)(open.handle.0, &mut wire, err)
        })?;
        Ok(wire.to_info())
    }

    fn create_buffer(&self, bytes: u64, kind: BufferKind) -> Result<Arc<dyn Buffer>> {
        if bytes == 0 || bytes > self.info.max_buffer_bytes {
            return Err(Error::invalid(format!(
                "{}: a buffer of {bytes} bytes; this device takes 1 to {} (max_buffer_bytes), so split it",
                self.open.name, self.info.max_buffer_bytes
            )));
        }
        Ok(Arc::new(HostBuffer::new(self.open.clone(), bytes, kind)?))
    }

    fn create_queue_for(&self, kind: QueueKind, step_bytes: u64) -> Result<Arc<dyn Queue>> {
        Ok(Arc::new(HostQueue::new(self.open.clone(), kind, step_bytes)?))
    }

    fn ops(&self) -> &dyn OpRegistry {
        self
    }

    fn attention(&self) -> &dyn AttentionRegistry {
        self
    }

    fn communicator_id(&self) -> Result<CommunicatorId> {
        communicator::unique_id(&self.open)
    }

    fn create_communicator(&self, group: &CommunicatorDesc) -> Result<Arc<dyn Communicator>> {
        communicator::join(self.open.clone(), group)
    }
}
