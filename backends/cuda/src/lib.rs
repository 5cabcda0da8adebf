//! The CUDA platform: a [`Driver`](halyard_gpu::Driver) over libcuda, NVRTC, cuBLASLt and NCCL, all found at run time.
//! It builds on machines without CUDA, and where there is no device it says why.

mod driver;
mod env;
mod error;
mod facts;
mod libraries;
mod product;
mod tuning;

use std::sync::Arc;

use halyard_gpu::{
    Driver, Facts, GpuDevice, KV_DTYPES_WITH_CODES, Modules, PrebuiltKernels, beside_this_library, device_info,
    no_such_device,
};
use halyard_platform_api::{Device, DeviceInfo, OpenOptions, Platform, Result};

pub use crate::facts::arch;
pub use crate::libraries::compile;
pub use crate::product::takes;

use crate::driver::CudaDriver;

/// The platform: every NVIDIA GPU that the driver shows and that is new enough.
#[derive(Default)]
pub struct CudaPlatform;

/// The file of kernels that were compiled ahead, beside the library.
pub const PREBUILT_KERNELS: &str = "libhalyard_cuda.kernels";

/// The facts of a device.
pub fn info(facts: &Facts) -> DeviceInfo {
    DeviceInfo {
        kv_dtypes: KV_DTYPES_WITH_CODES,
        ..device_info(facts)
    }
}

impl Platform for CudaPlatform {
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
            let hint = "CUDA_VISIBLE_DEVICES hides others";
            return Err(no_such_device(index, "the driver", usable.len(), hint));
        };
        let driver = Arc::new(CudaDriver::open(ordinal, options)?);
        let info = info(driver.facts());
        let prebuilt = beside_this_library(PREBUILT_KERNELS).and_then(|path| PrebuiltKernels::open(&path));
        let modules = Modules::new(prebuilt, env::cache_folder(options));
        Ok(GpuDevice::open(driver, info, modules)?)
    }
}

halyard_platform_api::export_platform! {
    name: "cuda",
    version: env!("CARGO_PKG_VERSION"),
    priority: 100,
    about: "NVIDIA GPUs from compute capability 8.0 on",
    cpu_features: "",
    platform: CudaPlatform,
}
