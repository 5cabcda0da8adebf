//! The attention table: backends, support, plans.

use std::ffi::c_void;

use super::device::DeviceState;
use super::{Handle, put};
use crate::abi::spec::read_spec;
use crate::abi::tables::{AttentionBackendWire, AttentionPlanWire, AttentionTable, OpSpecWire};
use crate::abi::types::{ErrorOut, write_struct};
use crate::attention::AttentionBackendInfo;
use crate::ops::{Attention, LatentAttention, OpSpec};
use crate::status::{Error, Result, Status};

/// The table over any [`crate::AttentionRegistry`].
pub(super) static TABLE: AttentionTable = AttentionTable {
    struct_size: size_of::<AttentionTable>() as u32,
    minor: AttentionTable::VERSION.1,
    num_backends: Some(num_backends),
    backend_info: Some(backend_info),
    support: Some(support),
    plan: Some(plan),
};

fn backends(state: &DeviceState) -> &[AttentionBackendInfo] {
    state
        .attention_backends
        .get_or_init(|| state.device.attention().backends())
}

/// An op that the registry plans.
enum Planned {
    Full(Attention),
    Latent(LatentAttention),
}

/// # Safety
/// As [`read_spec`].
unsafe fn read_planned(spec: *const OpSpecWire) -> Result<Planned> {
    // SAFETY: as the caller promises.
    match unsafe { read_spec(spec)? } {
        OpSpec::Attention(attention) => Ok(Planned::Full(attention)),
        OpSpec::LatentAttention(attention) => Ok(Planned::Latent(attention)),
        other => Err(Error::unsupported(format!(
            "this platform plans no attention of the op `{}`",
            other.name()
        ))),
    }
}

unsafe extern "C" fn num_backends(device: *mut c_void, out: *mut u32, err: *mut ErrorOut) -> u32 {
    // SAFETY: the wire promises a live device and valid outputs.
    unsafe { Handle::<DeviceState>::with_shared(device, err, |state| put(out, backends(state).len() as u32)) }
}

unsafe extern "C" fn backend_info(
    device: *mut c_void,
    index: u32,
    out: *mut AttentionBackendWire,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live device and valid outputs.
    unsafe {
        Handle::<DeviceState>::with_shared(device, err, |state| {
            let all = backends(state);
            let info = all
                .get(index as usize)
                .ok_or_else(|| Error::new(Status::NotFound, format!("attention backend {index} of {}", all.len())))?;
            write_struct(out, &AttentionBackendWire::new(info))
        })
    }
}

unsafe extern "C" fn support(device: *mut c_void, spec: *const OpSpecWire, err: *mut ErrorOut) -> u32 {
    // SAFETY: the wire promises a live device and a valid spec.
    unsafe {
        Handle::<DeviceState>::with_shared(device, err, |state| {
            let registry = state.device.attention();
            match read_planned(spec)? {
                Planned::Full(spec) => registry.support(&spec),
                Planned::Latent(spec) => registry.support_latent(&spec),
            }
        })
    }
}

unsafe extern "C" fn plan(
    device: *mut c_void,
    spec: *const OpSpecWire,
    out: *mut AttentionPlanWire,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live device, a valid spec and valid outputs.
    unsafe {
        Handle::<DeviceState>::with_shared(device, err, |state| {
            let registry = state.device.attention();
            let plan = match read_planned(spec)? {
                Planned::Full(spec) => registry.plan(&spec),
                Planned::Latent(spec) => registry.plan_latent(&spec),
            }?;
            write_struct(out, &AttentionPlanWire::new(&plan))
        })
    }
}
