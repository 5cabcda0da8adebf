//! The device table: memory, queues, encoding.

use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

use super::encoder::{EncoderHandle, encode, encoder_create, encoder_finish};
use super::{CommandHandle, Handle, QueueHandle, no_flags, put, slice};
use crate::abi::tables::{
    BufferDescWire, DeviceInfoWire, DeviceTable, MemoryInfoWire, QueueDescWire, QueueWaitWire, StepWriteWire,
};
use crate::abi::types::{ErrorOut, read_element, read_struct, write_struct};
use crate::attention::AttentionBackendInfo;
use crate::device::{Buffer, BufferKind, CommandId, Device, QueueId, QueueKind, QueueWait, StepWrite};
use crate::status::{Error, Result};
use crate::tensor::BufferId;

/// An open device and the facts that it lends to the host.
pub(super) struct DeviceState {
    pub(super) device: Arc<dyn Device>,
    // Asked once, since the wire lends texts for the device's life.
    pub(super) attention_backends: OnceLock<Vec<AttentionBackendInfo>>,
}

impl DeviceState {
    pub(super) fn new(device: Arc<dyn Device>) -> DeviceState {
        DeviceState {
            device,
            attention_backends: OnceLock::new(),
        }
    }
}

type BufferHandle = Handle<Arc<dyn Buffer>>;

/// Step writes that one call takes without an allocation.
const FEW_WRITES: usize = 64;

/// The table over any [`Device`].
pub(super) static TABLE: DeviceTable = DeviceTable {
    struct_size: size_of::<DeviceTable>() as u32,
    minor: DeviceTable::VERSION.1,
    close: Some(Handle::<DeviceState>::release_c),
    info: Some(info),
    memory: Some(memory),
    buffer_create: Some(buffer_create),
    buffer_drop: Some(BufferHandle::release_c),
    buffer_write: Some(buffer_write),
    buffer_read: Some(buffer_read),
    queue_create: Some(queue_create),
    queue_drop: Some(QueueHandle::release_c),
    submit: Some(submit),
    completed: Some(completed),
    wait: Some(wait),
    write_step: Some(write_step),
    reserve_scratch: Some(reserve_scratch),
    encoder_create: Some(encoder_create),
    encoder_drop: Some(EncoderHandle::release_c),
    encode: Some(encode),
    encoder_finish: Some(encoder_finish),
    command_drop: Some(CommandHandle::release_c),
};

unsafe extern "C" fn info(device: *mut c_void, out: *mut DeviceInfoWire, err: *mut ErrorOut) -> u32 {
    // SAFETY: the wire promises a live device and valid outputs.
    unsafe {
        Handle::<DeviceState>::with_shared(device, err, |state| {
            write_struct(out, &DeviceInfoWire::new(state.device.info()))
        })
    }
}

unsafe extern "C" fn memory(device: *mut c_void, out: *mut MemoryInfoWire, err: *mut ErrorOut) -> u32 {
    // SAFETY: the wire promises a live device and valid outputs.
    unsafe {
        Handle::<DeviceState>::with_shared(device, err, |state| {
            write_struct(out, &MemoryInfoWire::new(&state.device.memory()?))
        })
    }
}

unsafe extern "C" fn buffer_create(
    device: *mut c_void,
    desc: *const BufferDescWire,
    handle: *mut *mut c_void,
    id: *mut u64,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live device, a valid descriptor and valid outputs.
    unsafe {
        Handle::<DeviceState>::with_shared(device, err, |state| {
            let desc = read_struct(desc)?;
            no_flags("a buffer", desc.flags)?;
            let kind = match desc.kind {
                0 => BufferKind::Device,
                1 => BufferKind::HostVisible,
                other => return Err(Error::unsupported(format!("buffer kind {other}"))),
            };
            let buffer = state.device.create_buffer(desc.bytes, kind)?;
            put(id, buffer.id().0)?;
            put(handle, BufferHandle::into_raw(buffer))
        })
    }
}

unsafe extern "C" fn buffer_write(
    buffer: *mut c_void,
    offset: u64,
    bytes: *const u8,
    len: u64,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live buffer and `len` readable bytes.
    unsafe { BufferHandle::with(buffer, err, |b| b.write(offset, slice(bytes, len)?)) }
}

unsafe extern "C" fn buffer_read(buffer: *mut c_void, offset: u64, out: *mut u8, len: u64, err: *mut ErrorOut) -> u32 {
    // SAFETY: the wire promises a live buffer and `len` writable, initialised bytes that nobody else touches during the
    // call.
    unsafe {
        BufferHandle::with(buffer, err, |b| {
            if len == 0 {
                return b.read(offset, &mut []);
            }
            if out.is_null() || len > isize::MAX as u64 {
                return Err(super::bad_array(out, len));
            }
            b.read(offset, std::slice::from_raw_parts_mut(out, len as usize))
        })
    }
}

unsafe extern "C" fn queue_create(
    device: *mut c_void,
    desc: *const QueueDescWire,
    handle: *mut *mut c_void,
    id: *mut u64,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live device, a valid descriptor and valid outputs.
    unsafe {
        Handle::<DeviceState>::with_shared(device, err, |state| {
            let desc = read_struct(desc)?;
            no_flags("a queue", desc.flags)?;
            let kind = match desc.kind {
                0 => QueueKind::Compute,
                1 => QueueKind::Copy,
                other => return Err(Error::unsupported(format!("queue kind {other}"))),
            };
            let queue = state.device.create_queue_for(kind, desc.step_bytes)?;
            put(id, queue.id().0)?;
            put(handle, QueueHandle::into_raw(queue))
        })
    }
}

unsafe extern "C" fn submit(
    queue: *mut c_void,
    commands: *const u64,
    num: u32,
    waits: *const QueueWaitWire,
    num_waits: u32,
    number: *mut u64,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live queue, valid arrays and outputs; `CommandId` is a transparent u64.
    unsafe {
        QueueHandle::with(queue, err, |q| {
            let commands = slice(commands.cast::<CommandId>(), u64::from(num))?;
            let waits: Vec<QueueWait> = slice(waits, u64::from(num_waits))?
                .iter()
                .map(|w| QueueWait {
                    queue: QueueId(w.queue),
                    number: w.number,
                })
                .collect();
            put(number, q.submit(commands, &waits)?)
        })
    }
}

unsafe extern "C" fn completed(queue: *mut c_void) -> u64 {
    // Also what a null, poisoned or panicking queue answers: `wait` tells the reason.
    let mut number = u64::MAX;
    // SAFETY: the wire promises a live queue.
    unsafe {
        QueueHandle::with(queue, std::ptr::null_mut(), |q| {
            number = q.completed();
            Ok(())
        })
    };
    number
}

unsafe extern "C" fn wait(queue: *mut c_void, number: u64, timeout_ns: u64, err: *mut ErrorOut) -> u32 {
    // SAFETY: the wire promises a live queue.
    unsafe { QueueHandle::with(queue, err, |q| q.wait(number, timeout_ns)) }
}

unsafe extern "C" fn write_step(
    queue: *mut c_void,
    writes: *const StepWriteWire,
    num: u32,
    stride: u32,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live queue and valid arrays.
    unsafe {
        QueueHandle::with(queue, err, |q| {
            let read = |i: usize| {
                let write = read_element(writes, i, stride)?;
                Ok(StepWrite {
                    buffer: BufferId(write.buffer),
                    offset: write.offset,
                    bytes: slice(write.bytes, write.len)?,
                })
            };
            let num = num as usize;
            let mut few = [StepWrite::EMPTY; FEW_WRITES];
            if let Some(few) = few.get_mut(..num) {
                for (i, write) in few.iter_mut().enumerate() {
                    *write = read(i)?;
                }
                return q.write_step(few);
            }
            q.write_step(&(0..num).map(read).collect::<Result<Vec<_>>>()?)
        })
    }
}

unsafe extern "C" fn reserve_scratch(queue: *mut c_void, bytes: u64, err: *mut ErrorOut) -> u32 {
    // SAFETY: the wire promises a live queue.
    unsafe { QueueHandle::with(queue, err, |q| q.reserve_scratch(bytes)) }
}
