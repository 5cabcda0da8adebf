//! `Encoder` and `CommandBuffer` over the device table. `encode` is the hot path: one indirect call, no allocation, no
//! checks.

use std::ffi::c_void;
use std::sync::Arc;

use halyard_platform_api::abi::tables::EncoderDescWire;
use halyard_platform_api::abi::{AbiLayout, ErrorOut};
use halyard_platform_api::{CommandBuffer, CommandId, Encoder, EncoderMode, OpId, Result, Tensor};

use super::device::OpenDevice;
use super::queue::OpenQueue;
use super::{ERROR_TEXT_BYTES, Handle, call, read_error, slot};

type EncodeFn = unsafe extern "C" fn(*mut c_void, u64, *const Tensor, u32, *mut ErrorOut) -> u32;

/// An encoder of a plugin.
pub(super) struct HostEncoder {
    queue: Arc<OpenQueue>,
    // Null once finished.
    handle: Handle,
    // Read from the table once.
    encode: EncodeFn,
    // Kept here, so that a call need not clear one.
    error_text: Box<[u8]>,
}

impl HostEncoder {
    pub(super) fn new(queue: Arc<OpenQueue>, mode: EncoderMode) -> Result<HostEncoder> {
        let open = &*queue.open;
        let mut desc = EncoderDescWire::zeroed();
        desc.mode = mode as u32;
        desc.for_minor(open.tables.device.minor);
        let mut handle = std::ptr::null_mut();
        // SAFETY: a live queue, a sized descriptor, valid output.
        call(&open.name, |err| unsafe {
            slot(open.tables.device.encoder_create)(queue.handle.0, &desc, &mut handle, err)
        })?;
        let encode = slot(open.tables.device.encode);
        Ok(HostEncoder {
            queue,
            handle: Handle(handle),
            encode,
            error_text: vec![0; ERROR_TEXT_BYTES].into_boxed_slice(),
        })
    }
}

impl Drop for HostEncoder {
    fn drop(&mut self) {
        if !self.handle.0.is_null() {
            // SAFETY: a live encoder, used no more.
            unsafe { slot(self.queue.open.tables.device.encoder_drop)(self.handle.0) };
        }
    }
}

impl Encoder for HostEncoder {
    fn encode(&mut self, op: OpId, operands: &[Tensor]) -> Result<()> {
        let mut err = ErrorOut::over(&mut self.error_text);
        // SAFETY: a live encoder that `&mut` makes ours alone, and tensors of the stated number.
        let code = unsafe { (self.encode)(self.handle.0, op.0, operands.as_ptr(), operands.len() as u32, &mut err) };
        if code == 0 {
            Ok(())
        } else {
            Err(read_error(&self.queue.open.name, &err, code))
        }
    }

    fn finish(mut self: Box<Self>) -> Result<Arc<dyn CommandBuffer>> {
        let encoder = std::mem::replace(&mut self.handle, Handle(std::ptr::null_mut()));
        let open = self.queue.open.clone();
        let mut handle = std::ptr::null_mut();
        let mut id = 0;
        // SAFETY: a live encoder, which the call consumes whatever it answers; valid outputs.
        call(&open.name, |err| unsafe {
            slot(open.tables.device.encoder_finish)(encoder.0, &mut handle, &mut id, err)
        })?;
        Ok(Arc::new(HostCommandBuffer {
            open,
            handle: Handle(handle),
            id: CommandId(id),
        }))
    }
}

/// A command buffer of a plugin.
struct HostCommandBuffer {
    open: Arc<OpenDevice>,
    handle: Handle,
    id: CommandId,
}

impl Drop for HostCommandBuffer {
    fn drop(&mut self) {
        // SAFETY: a live command buffer, used no more.
        unsafe { slot(self.open.tables.device.command_drop)(self.handle.0) };
    }
}

impl CommandBuffer for HostCommandBuffer {
    fn id(&self) -> CommandId {
        self.id
    }
}
