//! The platform table: devices and opening one.

use std::ffi::c_void;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use super::device::DeviceState;
use super::{Handle, put};
use crate::abi::tables::{DeviceInfoWire, OpenDescWire, PlatformTable};
use crate::abi::types::{ErrorOut, read_struct, write_struct};
use crate::device::Platform;
use crate::info::DeviceInfo;
use crate::open::OpenOptions;
use crate::status::{Error, Result, Status};

/// A platform and the facts that it lends to the host.
pub(super) struct PlatformState {
    platform: Arc<dyn Platform>,
    // Kept once found, since the wire lends texts for the instance's life. A failure is asked anew.
    devices: OnceLock<Vec<DeviceInfo>>,
}

impl PlatformState {
    pub(super) fn new(platform: Arc<dyn Platform>) -> PlatformState {
        PlatformState {
            platform,
            devices: OnceLock::new(),
        }
    }

    fn devices(&self) -> Result<&[DeviceInfo]> {
        if let Some(devices) = self.devices.get() {
            return Ok(devices);
        }
        let devices = self.platform.devices()?;
        if devices.is_empty() {
            return Err(Error::new(
                Status::Unavailable,
                "the platform found no device and gave no reason",
            ));
        }
        Ok(self.devices.get_or_init(|| devices))
    }
}

/// The table over any [`Platform`].
pub(super) static TABLE: PlatformTable = PlatformTable {
    struct_size: size_of::<PlatformTable>() as u32,
    minor: PlatformTable::VERSION.1,
    num_devices: Some(num_devices),
    device_info: Some(device_info),
    open: Some(open),
};

unsafe extern "C" fn num_devices(instance: *mut c_void, out: *mut u32, err: *mut ErrorOut) -> u32 {
    // SAFETY: the wire promises a live instance and valid outputs.
    unsafe { Handle::<PlatformState>::with_shared(instance, err, |state| put(out, state.devices()?.len() as u32)) }
}

unsafe extern "C" fn device_info(
    instance: *mut c_void,
    index: u32,
    out: *mut DeviceInfoWire,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live instance and valid outputs.
    unsafe {
        Handle::<PlatformState>::with_shared(instance, err, |state| {
            let devices = state.devices()?;
            let info = devices
                .get(index as usize)
                .ok_or_else(|| Error::new(Status::NotFound, format!("device {index} of {}", devices.len())))?;
            write_struct(out, &DeviceInfoWire::new(info))
        })
    }
}

unsafe extern "C" fn open(
    instance: *mut c_void,
    desc: *const OpenDescWire,
    out: *mut *mut c_void,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live instance, a valid descriptor and valid outputs.
    unsafe {
        Handle::<PlatformState>::with_shared(instance, err, |state| {
            let desc = read_struct(desc)?;
            let folder = desc.cache_dir.to_text();
            let folder = (!folder.is_empty()).then_some(Path::new(&folder));
            let options = OpenOptions::of(desc.index)
                .with_text(&desc.options.to_text())?
                .in_cache(folder);
            let device = state.platform.open_with(&options)?;
            put(out, Handle::into_raw(DeviceState::new(device)))
        })
    }
}
