//! The communicator table: joining a group and preparing collectives.

use std::ffi::c_void;
use std::sync::Arc;

use super::device::DeviceState;
use super::ops::put_prepared;
use super::{Handle, put, slice};
use crate::abi::tables::{CollectiveWire, CommunicatorDescWire, CommunicatorTable, PreparedWire};
use crate::abi::types::{ErrorOut, read_struct};
use crate::communicator::{Communicator, CommunicatorDesc, CommunicatorId};
use crate::status::Error;

/// Input and output.
const COLLECTIVE_OPERANDS: usize = 2;

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

unsafe extern "C" fn unique_id(
    device: *mut c_void,
    out: *mut u8,
    capacity: u32,
    len: *mut u32,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live device, `capacity` writable bytes and a valid output.
    unsafe {
        Handle::<DeviceState>::with_shared(device, err, |state| {
            let id = state.device.communicator_id()?;
            let bytes = id.bytes();
            if !out.is_null() && bytes.len() <= capacity as usize {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), out, bytes.len());
            }
            put(len, bytes.len() as u32)
        })
    }
}

unsafe extern "C" fn create(
    device: *mut c_void,
    desc: *const CommunicatorDescWire,
    handle: *mut *mut c_void,
    id: *mut u64,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live device, a valid descriptor and valid outputs.
    unsafe {
        Handle::<DeviceState>::with_shared(device, err, |state| {
            let desc = read_struct(desc)?;
            let group = CommunicatorDesc {
                id: CommunicatorId::new(slice(desc.id, u64::from(desc.id_len))?)?,
                rank: desc.rank,
                size: desc.size,
                timeout_ns: desc.timeout_ns,
            };
            if group.rank >= group.size {
                return Err(Error::invalid(format!("rank {} of {}", group.rank, group.size)));
            }
            let communicator = state.device.create_communicator(&group)?;
            put(id, communicator.number())?;
            put(handle, CommunicatorHandle::into_raw(communicator))
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
            put_prepared(c.prepare(&read_struct(spec)?.to_spec()?)?, COLLECTIVE_OPERANDS, out)
        })
    }
}
