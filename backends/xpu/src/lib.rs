//! The XPU platform: a [`Driver`](halyard_gpu::Driver) over OpenCL, whose loader library is found at run time, for
//! Intel GPUs and for every other device whose runtime gives kernels addresses. It builds on machines without OpenCL,
//! and where there is no device it says why.

mod api;
mod compile;
mod driver;
mod env;
mod error;
mod facts;
mod library;
mod matrix;
mod memory;
mod policy;
mod recording;
mod self_test;
mod stream;

use std::sync::Arc;

use halyard_gpu::{GpuDevice, Modules, device_info};
use halyard_platform_api::{Capabilities, DType, Device, DeviceInfo, OpenOptions, Platform, Result};

use crate::driver::OpenClDriver;
use crate::facts::Found;

/// Tokens of a step on a processor: more would only make others wait.
const CPU_STEP_TOKENS: u32 = 1024;

/// The platform: every OpenCL GPU and processor that can run the kernels, GPUs first.
#[derive(Default)]
pub struct XpuPlatform;

/// The facts of a device.
fn info(found: &Found) -> DeviceInfo {
    let mut info = DeviceInfo {
        capabilities: Capabilities::RECORDING.with(Capabilities::CONCURRENT_QUEUES),
        max_buffer_bytes: found.max_allocation_bytes,
        max_binding_bytes: found.max_allocation_bytes,
        unified_memory: found.unified_memory,
        ..device_info(&found.facts)
    };
    if found.is_cpu {
        // Host and device share the cores: nothing is won by planning far ahead, and f32 needs no conversions.
        info.async_depth = 1;
        info.preferred_dtype = DType::F32;
        info.preferred_kv_dtype = DType::F32;
        info.preferred_step_tokens = CPU_STEP_TOKENS;
    }
    info
}

impl Platform for XpuPlatform {
    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        Ok(facts::usable_devices()?.iter().map(info).collect())
    }

    fn open_with(&self, options: &OpenOptions) -> Result<Arc<dyn Device>> {
        options.check(&env::OPTIONS)?;
        let index = options.index;
        let found = facts::device(index)?;
        let info = info(&found);
        let driver = Arc::new(OpenClDriver::open(found, options)?);
        let modules = Modules::with_folder(env::cache_folder(options));
        Ok(GpuDevice::open(driver, info, modules)?)
    }
}

// By name only: it has not run on an Intel GPU yet, and on a processor the platform `cpu` is the better choice.
halyard_platform_api::export_platform! {
    name: "xpu",
    version: env!("CARGO_PKG_VERSION"),
    priority: -1,
    about: "Intel GPUs, and other OpenCL devices with shared virtual memory",
    cpu_features: "",
    platform: XpuPlatform,
}

#[cfg(test)]
mod tests;
