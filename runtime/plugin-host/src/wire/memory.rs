//! `Buffer` over the device table.

use std::sync::Arc;

use halyard_platform_api::abi::AbiLayout;
use halyard_platform_api::abi::tables::BufferDescWire;
use halyard_platform_api::{Buffer, BufferId, BufferKind, Error, Result, Status};

use super::device::OpenDevice;
use super::{Handle, call, check_range, slot};

/// A buffer of a plugin.
pub(super) struct HostBuffer {
    open: Arc<OpenDevice>,
    handle: Handle,
    id: BufferId,
    bytes: u64,
}

impl HostBuffer {
    pub(super) fn new(open: Arc<OpenDevice>, bytes: u64, kind: BufferKind) -> Result<HostBuffer> {
        let mut desc = BufferDescWire::zeroed();
        desc.kind = kind as u32;
        desc.bytes = bytes;
        desc.for_minor(open.tables.device.minor);
        let mut handle = std::ptr::null_mut();
        let mut id = 0;
        // SAFETY: a live device, a sized descriptor, valid outputs.
        call(&open.name, |err| unsafe {
            slot(open.tables.device.buffer_create)(open.handle.0, &desc, &mut handle, &mut id, err)
        })?;
        let buffer = HostBuffer {
            open,
            handle: Handle(handle),
            id: BufferId(id),
            bytes,
        };
        if id == 0 {
            return Err(Error::new(
                Status::Internal,
                format!("{}: numbered a buffer 0, which means none", buffer.open.name),
            ));
        }
        Ok(buffer)
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // SAFETY: a live buffer, used no more.
        unsafe { slot(self.open.tables.device.buffer_drop)(self.handle.0) };
    }
}

impl Buffer for HostBuffer {
    fn id(&self) -> BufferId {
        self.id
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let open = &*self.open;
        check_range(&open.name, "a write", offset, bytes.len(), self.bytes)?;
        // SAFETY: a live buffer and readable bytes.
        call(&open.name, |err| unsafe {
            slot(open.tables.device.buffer_write)(self.handle.0, offset, bytes.as_ptr(), bytes.len() as u64, err)
        })
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let open = &*self.open;
        check_range(&open.name, "a read", offset, out.len(), self.bytes)?;
        // SAFETY: a live buffer and writable bytes.
        call(&open.name, |err| unsafe {
            slot(open.tables.device.buffer_read)(self.handle.0, offset, out.as_mut_ptr(), out.len() as u64, err)
        })
    }
}
