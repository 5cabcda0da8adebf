//! The ROCm platform: a [`Driver`](halyard_gpu::Driver) over the HIP runtime, hiprtc, rocBLAS and RCCL, all found at
//! run time. It builds on machines without ROCm, and where there is no device it says why.

mod driver;
mod env;
mod error;
mod facts;
mod hip;
mod policy;
mod product;

use std::sync::Arc;

use halyard_gpu::{Driver, Facts, GpuDevice, KV_DTYPES_WITH_CODES, Modules, device_info, no_such_device};
use halyard_platform_api::{Capabilities, Device, DeviceInfo, OpenOptions, Platform, Result};

use crate::driver::HipDriver;

/// The platform: every AMD GPU that the runtime shows and that is new enough.
#[derive(Default)]
pub struct RocmPlatform;

/// The facts of a device: no regions, which run on matrix units.
fn info(facts: &Facts) -> DeviceInfo {
    DeviceInfo {
        capabilities: Capabilities::RECORDING
            .with(Capabilities::CONCURRENT_QUEUES)
            .with(Capabilities::COMMUNICATOR),
        kv_dtypes: KV_DTYPES_WITH_CODES,
        ..device_info(facts)
    }
}

impl Platform for RocmPlatform {
    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let usable = facts::usable_devices()?;
        usable
            .iter()
            .map(|&ordinal| Ok(info(&facts::facts(ordinal)?)))
            .collect()
    }

    fn open_with(&self, options: &OpenOptions) -> Result<Arc<dyn Device>> {
        options.check(&env::OPTIONS)?;
        let index = options.index;
        let usable = facts::usable_devices()?;
        let Some(&ordinal) = usable.get(index as usize) else {
            let hint = "HIP_VISIBLE_DEVICES hides others";
            return Err(no_such_device(index, "the runtime", usable.len(), hint));
        };
        let driver = Arc::new(HipDriver::open(ordinal, options)?);
        let info = info(driver.facts());
        let modules = Modules::with_folder(env::cache_folder(options));
        Ok(GpuDevice::open(driver, info, modules)?)
    }
}

halyard_platform_api::export_platform! {
    name: "rocm",
    version: env!("CARGO_PKG_VERSION"),
    priority: 90,
    about: "AMD GPUs from gfx900 on, by HIP",
    cpu_features: "",
    platform: RocmPlatform,
}
