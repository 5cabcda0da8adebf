//! The communicator table: joining a group and preparing collectives.

use std::ffi::c_void;
use std::sync::Arc;

use super::device::DeviceState;
use super::ops::put_prepared;
use super::{Handle, put, slice};
use crate::abi::tables::{CollectiveWire, CommunicatorTable, PreparedWire};
use crate::abi::types::{ErrorOut, read_struct};
use crate::communicator::{Communicator, CommunicatorId};
use crate::status::Error;

type CommunicatorHandle = Handle<Arc<dyn Communicator>>;

/// The table over any [`Communicator`]. A device without the capability answers `Unsupported`.
pub(super) static TABLE: CommunicatorTable = CommunicatorTable {
    struct_size: size_of::<CommunicatorTable>() as u32,
    minor: CommunicatorTable::VERSION.1,
    unique_id: Some(unique_id),
    create: Some(create),
    drop: Some(CommunicatorHandle::release_c),
    prepare: Some(prepare),
};

unsafe extern "C" fn unique_id(device: *mut c_void, out: *mut u8, err: *mut ErrorOut) -> u32 {
    // SAFETY: the wire promises a live device and 128 writable bytes.
    unsafe {
        Handle::<DeviceState>::with(device, err, |state| {
            put(out.cast::<[u8; 128]>(), state.device.communicator_id()?.0)
        })
    }
}

unsafe extern "C" fn create(
    device: *mut c_void,
    id: *const u8,
    rank: u32,
    size: u32,
    out: *mut *mut c_void,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live device, 128 readable bytes and valid outputs.
    unsafe {
        Handle::<DeviceState>::with(device, err, |state| {
            if rank >= size {
                return Err(Error::invalid(format!("rank {rank} of {size}")));
            }
            let id = CommunicatorId(slice(id.cast::<[u8; 128]>(), 1)?[0]);
            let communicator = state.device.create_communicator(&id, rank, size)?;
            put(out, CommunicatorHandle::into_raw(communicator))
        })
    }
}

unsafe extern "C" fn prepare(
    communicator: *mut c_void,
    spec: *const CollectiveWire,
    out: *mut PreparedWire,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live communicator, a valid spec and valid outputs.
    unsafe {
        CommunicatorHandle::with(communicator, err, |c| {
            put_prepared(c.prepare(&read_struct(spec)?.to_spec()?)?, out)
        })
    }
}
