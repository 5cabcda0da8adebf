//! `Platform` over the platform table.

use std::sync::Arc;

use halyard_platform_api::abi::limits::MAX_DEVICES;
use halyard_platform_api::abi::tables::{DeviceInfoWire, OpenDescWire};
use halyard_platform_api::abi::{AbiLayout, Str};
use halyard_platform_api::{Device, DeviceInfo, Error, OpenOptions, Platform, Result, Status};

use super::device::HostDevice;
use super::{Handle, PlatformTables, call, named, slot};

/// State that all objects of a plugin share.
pub(super) struct Shared {
    pub(super) name: String,
    pub(super) tables: PlatformTables,
    instance: Handle,
}

/// A platform plugin. Lives as long as the process needs it; its library is never closed.
pub struct HostPlatform {
    shared: Arc<Shared>,
}

impl HostPlatform {
    pub(crate) fn new(name: String, tables: PlatformTables, instance: *mut std::ffi::c_void) -> HostPlatform {
        HostPlatform {
            shared: Arc::new(Shared {
                name,
                tables,
                instance: Handle(instance),
            }),
        }
    }

    fn device_info(&self, index: u32) -> Result<DeviceInfo> {
        let Shared { name, tables, instance } = &*self.shared;
        let mut wire = DeviceInfoWire::zeroed();
        // SAFETY: a live instance, sized outputs.
        call(name, |err| unsafe {
            slot(tables.platform.device_info)(instance.0, index, &mut wire, err)
        })?;
        // SAFETY: the plugin keeps texts and lists valid while its instance lives, which is forever.
        unsafe { wire.to_info() }.map_err(|e| named(name, e))
    }
}

impl Platform for HostPlatform {
    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let shared = &*self.shared;
        let mut num = 0;
        // SAFETY: a live instance, valid output.
        call(&shared.name, |err| unsafe {
            slot(shared.tables.platform.num_devices)(shared.instance.0, &mut num, err)
        })?;
        if num == 0 || num > MAX_DEVICES {
            return Err(Error::new(
                Status::Unavailable,
                format!(
                    "{}: reports {num} devices and no error (1 to {MAX_DEVICES})",
                    shared.name
                ),
            ));
        }
        (0..num).map(|index| self.device_info(index)).collect()
    }

    fn open_with(&self, options: &OpenOptions) -> Result<Arc<dyn Device>> {
        let (shared, index) = (&self.shared, options.index);
        let text = options.to_text();
        let folder = options.cache_dir.as_ref().map(|folder| folder.to_string_lossy());
        let mut desc = OpenDescWire::zeroed();
        desc.index = index;
        desc.options = Str::new(&text);
        desc.cache_dir = Str::new(folder.as_deref().unwrap_or_default());
        desc.for_minor(shared.tables.platform.minor);
        let mut device = std::ptr::null_mut();
        // SAFETY: a live instance, a sized descriptor whose texts are borrowed for the call, valid output.
        call(&shared.name, |err| unsafe {
            slot(shared.tables.platform.open)(shared.instance.0, &desc, &mut device, err)
        })?;
        if device.is_null() {
            return Err(Error::new(
                Status::Internal,
                format!("{}: opened device {index} as a null handle", shared.name),
            ));
        }
        Ok(Arc::new(HostDevice::new(shared.clone(), Handle(device))?))
    }
}
