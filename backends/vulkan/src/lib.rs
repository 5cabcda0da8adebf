//! The Vulkan platform: a [`Driver`](halyard_gpu::Driver) over the Vulkan loader, which is found at run time, with
//! shaders compiled by a compiler that is linked in. It builds on machines without Vulkan, and where there is no device
//! it says why.

mod bfloat16;
mod compile;
mod core;
mod driver;
mod env;
mod error;
mod instance;
mod memory;
mod params;
mod physical;
mod pipelines;
mod policy;
mod product;
mod recorder;
mod self_test;
mod stream;
mod wide;

#[cfg(test)]
mod attention_variants;
#[cfg(test)]
mod small_batch_variants;
#[cfg(test)]
mod variants;

use std::sync::Arc;

use ash::vk;
use halyard_gpu::{GpuDevice, Modules, device_info, no_such_device};
use halyard_platform_api::{Capabilities, DType, Device, DeviceInfo, OpenOptions, Platform, Result};

use crate::driver::VulkanDriver;
use crate::physical::{Physical, usable_devices};

/// Tokens of a step on a processor: more would only make others wait.
const CPU_STEP_TOKENS: u32 = 256;

/// The platform: every device that the Vulkan loader shows and that has what the kernels need. GPUs come first.
#[derive(Default)]
pub struct VulkanPlatform;

impl Platform for VulkanPlatform {
    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        Ok(usable_devices()?.iter().map(info).collect())
    }

    fn open_with(&self, options: &OpenOptions) -> Result<Arc<dyn Device>> {
        options.check(&env::OPTIONS)?;
        let index = options.index;
        let mut usable = usable_devices()?;
        if index as usize >= usable.len() {
            let names: Vec<&str> = usable.iter().map(|device| device.facts.name.as_str()).collect();
            let hint = format!("those that can run the kernels: {}", names.join(", "));
            return Err(no_such_device(index, "the Vulkan loader", names.len(), &hint));
        }
        let physical = usable.swap_remove(index as usize);
        let info = info(&physical);
        let driver = Arc::new(VulkanDriver::open(physical, options)?);
        let modules = Modules::with_folder(env::cache_folder(options));
        Ok(GpuDevice::open(driver, info, modules)?)
    }
}

/// The facts of a device.
fn info(physical: &Physical) -> DeviceInfo {
    let mut info = device_info(&physical.facts);
    // No regions: what is claimed runs on matrix units that shaders do not reach.
    info.capabilities = Capabilities::RECORDING.with(Capabilities::CONCURRENT_QUEUES);
    info.max_buffer_bytes = physical.max_allocation_bytes.min(info.max_buffer_bytes);
    info.max_binding_bytes = info.max_buffer_bytes;
    info.unified_memory = matches!(
        physical.kind,
        vk::PhysicalDeviceType::CPU | vk::PhysicalDeviceType::INTEGRATED_GPU
    );
    if physical.kind == vk::PhysicalDeviceType::CPU {
        // Host and device share the cores: nothing is won by planning far ahead, and f32 needs no conversions.
        info.async_depth = 1;
        info.preferred_dtype = DType::F32;
        info.preferred_kv_dtype = DType::F32;
        info.preferred_step_tokens = CPU_STEP_TOKENS;
    }
    info
}

halyard_platform_api::export_platform! {
    name: "vulkan",
    version: env!("CARGO_PKG_VERSION"),
    // Only by name: the first device may be a processor, which the cpu platform serves better.
    priority: -2,
    about: "GPUs with Vulkan 1.2, and CPUs through a software Vulkan driver",
    cpu_features: "",
    platform: VulkanPlatform,
}

#[cfg(test)]
mod tests;
