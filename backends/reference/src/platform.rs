//! The plugin's root: one device, always there. It owns the options and the device's facts.

use std::sync::Arc;
use std::time::Duration;

use halyard_platform_api::{
    Capabilities, DType, DTypeSet, Device, DeviceInfo, Error, OpenOptions, Platform, Result, Status,
};

use crate::device::ReferenceDevice;
use crate::element::{FLOATS, KV_TYPES};
use crate::memory::Pool;

/// How the reference platform behaves; tests set small memories and short timeouts.
#[derive(Clone, Debug)]
pub struct ReferenceOptions {
    /// Bytes of device memory; `None`: the machine's.
    pub total_memory_bytes: Option<u64>,
    /// How long a rank waits for the others, in a rendezvous or a collective.
    pub communicator_timeout: Duration,
}

impl Default for ReferenceOptions {
    fn default() -> Self {
        ReferenceOptions {
            total_memory_bytes: None,
            communicator_timeout: Duration::from_secs(60),
        }
    }
}

/// The reference platform.
#[derive(Clone, Debug, Default)]
pub struct ReferencePlatform {
    options: ReferenceOptions,
}

impl ReferencePlatform {
    /// The platform with the machine's memory.
    pub fn new() -> Self {
        ReferencePlatform::default()
    }

    /// The platform with other options.
    pub fn with_options(options: ReferenceOptions) -> Self {
        ReferencePlatform { options }
    }

    fn info(&self, total_memory_bytes: u64) -> DeviceInfo {
        DeviceInfo {
            name: "reference".to_string(),
            detail: "plain f32 on the host, one thread".to_string(),
            total_memory_bytes,
            compute_dtypes: DTypeSet::of(&FLOATS),
            kv_dtypes: DTypeSet::of(&KV_TYPES),
            preferred_dtype: DType::F32,
            preferred_kv_dtype: DType::F32,
            capabilities: Capabilities::BATCH_INVARIANT
                .with(Capabilities::COMMUNICATOR)
                .with(Capabilities::COMPOSITES),
            async_depth: 0,
            max_buffer_bytes: total_memory_bytes,
            max_binding_bytes: total_memory_bytes,
            offset_alignment: 1,
            unified_memory: true,
            num_compute_units: 1,
            preferred_block_size: 16,
            preferred_step_tokens: 256,
            shape_buckets: Vec::new(),
        }
    }
}

impl Platform for ReferencePlatform {
    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let pool = Pool::new(self.options.total_memory_bytes);
        Ok(vec![self.info(pool.info().total_bytes)])
    }

    fn open_with(&self, options: &OpenOptions) -> Result<Arc<dyn Device>> {
        options.check(&[])?;
        let index = options.index;
        if index != 0 {
            return Err(Error::new(
                Status::NotFound,
                format!("device {index}: the reference platform has one device, 0"),
            ));
        }
        let pool = Pool::new(self.options.total_memory_bytes);
        let info = self.info(pool.info().total_bytes);
        Ok(Arc::new(ReferenceDevice::new(
            info,
            pool,
            self.options.communicator_timeout,
        )))
    }
}
