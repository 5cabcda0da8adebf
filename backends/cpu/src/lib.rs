//! The CPU platform: SIMD kernels chosen at run time, a thread pool that sleeps when idle, packed weights, paged
//! attention.
//!
//! A command buffer runs as one parallel region: every thread walks the same list of ops and takes its share of each,
//! with a barrier between dependent phases. Submits are synchronous (asynchronous depth 0).

mod communicator;
mod device;
mod env;
mod kernel;
mod memory;
mod objects;
mod ops;
mod pool;
mod queue;
mod view;

use std::sync::Arc;

use halyard_platform_api::{Device, DeviceInfo, Error, OpenOptions, Platform, Result, Status};

pub use device::CpuDevice;

/// The platform: one device, all cores.
#[derive(Default)]
pub struct CpuPlatform {
    /// `None`: as many as the operator says.
    threads: Option<usize>,
}

impl CpuPlatform {
    /// Uses as many threads as the option `threads` or `HALYARD_CPU_THREADS` says, or as the process may run on.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses `threads` threads, the submitting one included; at least 1.
    pub fn with_threads(threads: usize) -> Self {
        CpuPlatform {
            threads: Some(threads.max(1)),
        }
    }

    fn threads(&self, options: &OpenOptions) -> Result<usize> {
        self.threads.map_or_else(|| env::threads(options), Ok)
    }
}

impl Platform for CpuPlatform {
    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let options = OpenOptions::default();
        Ok(vec![device::info(self.threads(&options)?, env::kernels(&options)?)])
    }

    fn open_with(&self, options: &OpenOptions) -> Result<Arc<dyn Device>> {
        options.check(&env::OPTIONS)?;
        let index = options.index;
        if index != 0 {
            return Err(Error::new(
                Status::NotFound,
                format!("device {index}: this platform has one device, index 0"),
            ));
        }
        Ok(CpuDevice::open(self.threads(options)?, env::kernels(options)?)?)
    }
}

halyard_platform_api::export_platform! {
    name: "cpu",
    version: env!("CARGO_PKG_VERSION"),
    priority: 10,
    about: "this machine's processor: SIMD kernels chosen at run time",
    cpu_features: "",
    platform: CpuPlatform::new(),
}
