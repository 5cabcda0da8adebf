//! Facts and reports on the wire: both directions of each conversion, so that one test can hold them together.
//!
//! Values from the other side are validated here once; what this side does not know is refused or masked, and says so.

use super::Str;
use super::limits::MAX_LIST;
use super::tables::{
    AttentionBackendWire, AttentionPlanWire, CollectiveWire, DeviceInfoWire, MemoryInfoWire, PreparedWire,
};
use super::types::WireField;
use crate::attention::{AttentionBackendInfo, AttentionPlan};
use crate::communicator::{Collective, CollectiveKind};
use crate::dtype::DType;
use crate::info::{Capabilities, DTypeSet, DeviceInfo, MemoryInfo};
use crate::prepared::PreparedInfo;
use crate::status::{Error, Result};

/// Copies a list of numbers of the other side.
///
/// # Safety
/// `ptr` is null or valid for `len` numbers.
unsafe fn numbers(what: &str, ptr: *const u32, len: u32) -> Result<Vec<u32>> {
    if len == 0 {
        return Ok(Vec::new());
    }
    if len > MAX_LIST || ptr.is_null() || !ptr.is_aligned() {
        return Err(Error::invalid(format!(
            "{what}: {len} entries at {ptr:p} (at most {MAX_LIST}, aligned, not null)"
        )));
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts(ptr, len as usize) }.to_vec())
}

impl DeviceInfoWire {
    /// The wire form; texts and lists are borrowed from `info`.
    pub fn new(info: &DeviceInfo) -> DeviceInfoWire {
        let mut wire = DeviceInfoWire::zeroed();
        wire.async_depth = info.async_depth;
        wire.name = Str::new(&info.name);
        wire.detail = Str::new(&info.detail);
        wire.total_memory_bytes = info.total_memory_bytes;
        wire.compute_dtypes = info.compute_dtypes.0;
        wire.kv_dtypes = info.kv_dtypes.0;
        wire.capabilities = info.capabilities.0;
        wire.max_buffer_bytes = info.max_buffer_bytes;
        wire.max_binding_bytes = info.max_binding_bytes;
        wire.preferred_dtype = info.preferred_dtype as u32;
        wire.preferred_kv_dtype = info.preferred_kv_dtype as u32;
        wire.offset_alignment = info.offset_alignment;
        wire.unified_memory = u32::from(info.unified_memory);
        wire.num_compute_units = info.num_compute_units;
        wire.preferred_block_size = info.preferred_block_size;
        wire.preferred_step_tokens = info.preferred_step_tokens;
        wire.num_shape_buckets = info.shape_buckets.len() as u32;
        wire.shape_buckets = info.shape_buckets.as_ptr();
        wire
    }

    /// A copy of the facts, checked. Capability and dtype bits that this side does not know are dropped: it cannot ask
    /// for them.
    ///
    /// # Errors
    /// `InvalidArgument` or `Unsupported` naming the field and the value.
    ///
    /// # Safety
    /// Texts and lists are null or valid for their lengths.
    pub unsafe fn to_info(&self) -> Result<DeviceInfo> {
        let dtype = |field: &str, code: u32, set: DTypeSet| {
            let dtype = DType::from_code(code).map_err(|e| Error {
                message: format!("device info {field}: {}", e.message),
                ..e
            })?;
            if set.contains(dtype) {
                Ok(dtype)
            } else {
                Err(Error::invalid(format!(
                    "device info {field}: {dtype:?} is not among the types the device lists"
                )))
            }
        };
        if !self.offset_alignment.is_power_of_two() {
            return Err(Error::invalid(format!(
                "device info offset_alignment: {} is not a power of two",
                self.offset_alignment
            )));
        }
        let known_dtypes = |bits: u64| {
            let known: Vec<DType> = DTypeSet(bits).iter().collect();
            DTypeSet::of(&known)
        };
        let known_capabilities = Capabilities::NAMES
            .iter()
            .fold(0, |bits, (_, capability)| bits | capability.0);
        let compute_dtypes = known_dtypes(self.compute_dtypes);
        let kv_dtypes = known_dtypes(self.kv_dtypes);
        Ok(DeviceInfo {
            // SAFETY: as the caller promises.
            name: unsafe { self.name.to_text() },
            // SAFETY: as the caller promises.
            detail: unsafe { self.detail.to_text() },
            total_memory_bytes: self.total_memory_bytes,
            compute_dtypes,
            kv_dtypes,
            preferred_dtype: dtype("preferred_dtype", self.preferred_dtype, compute_dtypes)?,
            preferred_kv_dtype: dtype("preferred_kv_dtype", self.preferred_kv_dtype, kv_dtypes)?,
            capabilities: Capabilities(self.capabilities & known_capabilities),
            async_depth: self.async_depth,
            max_buffer_bytes: self.max_buffer_bytes,
            max_binding_bytes: self.max_binding_bytes,
            offset_alignment: self.offset_alignment,
            unified_memory: bool::from_wire(self.unified_memory)?,
            num_compute_units: self.num_compute_units,
            preferred_block_size: self.preferred_block_size,
            preferred_step_tokens: self.preferred_step_tokens,
            // SAFETY: as the caller promises.
            shape_buckets: unsafe { numbers("shape_buckets", self.shape_buckets, self.num_shape_buckets)? },
        })
    }
}

impl MemoryInfoWire {
    /// The wire form.
    pub fn new(info: &MemoryInfo) -> MemoryInfoWire {
        let mut wire = MemoryInfoWire::zeroed();
        wire.total_bytes = info.total_bytes;
        wire.free_bytes = info.free_bytes;
        wire.used_bytes = info.used_bytes;
        wire
    }

    /// The facts.
    pub fn to_info(&self) -> MemoryInfo {
        MemoryInfo {
            total_bytes: self.total_bytes,
            free_bytes: self.free_bytes,
            used_bytes: self.used_bytes,
        }
    }
}

impl PreparedWire {
    /// What the prepared op needs.
    ///
    /// # Errors
    /// `InvalidArgument` for a flag other than 0 or 1.
    pub fn to_info(&self) -> Result<PreparedInfo> {
        Ok(PreparedInfo {
            scratch_bytes: self.scratch_bytes,
            recordable: bool::from_wire(self.recordable)?,
        })
    }
}

impl AttentionBackendWire {
    /// The wire form; name and list are borrowed from `info`.
    pub fn new(info: &AttentionBackendInfo) -> AttentionBackendWire {
        let mut wire = AttentionBackendWire::zeroed();
        wire.priority = info.priority;
        wire.name = Str::new(&info.name);
        wire.block_sizes = info.block_sizes.as_ptr();
        wire.num_block_sizes = info.block_sizes.len() as u32;
        wire
    }

    /// A copy of the facts.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty name or an absurd list.
    ///
    /// # Safety
    /// Name and list are null or valid for their lengths.
    pub unsafe fn to_info(&self) -> Result<AttentionBackendInfo> {
        // SAFETY: as the caller promises.
        let name = unsafe { self.name.to_text() };
        if name.is_empty() {
            return Err(Error::invalid("an attention backend has no name"));
        }
        Ok(AttentionBackendInfo {
            name,
            priority: self.priority,
            // SAFETY: as the caller promises.
            block_sizes: unsafe { numbers("block_sizes", self.block_sizes, self.num_block_sizes)? },
        })
    }
}

impl AttentionPlanWire {
    /// The wire form.
    pub fn new(plan: &AttentionPlan) -> AttentionPlanWire {
        let mut wire = AttentionPlanWire::zeroed();
        wire.record_decode = u32::from(plan.record_decode);
        wire.block_bytes = plan.block_bytes;
        wire.scratch_bytes = plan.scratch_bytes;
        wire.record_mixed_tokens = plan.record_mixed_tokens;
        wire
    }

    /// The plan.
    ///
    /// # Errors
    /// `InvalidArgument` for a flag other than 0 or 1, or blocks of no bytes.
    pub fn to_plan(&self) -> Result<AttentionPlan> {
        if self.block_bytes == 0 {
            return Err(Error::invalid("an attention plan has blocks of 0 bytes"));
        }
        Ok(AttentionPlan {
            block_bytes: self.block_bytes,
            scratch_bytes: self.scratch_bytes,
            record_decode: bool::from_wire(self.record_decode)?,
            record_mixed_tokens: self.record_mixed_tokens,
        })
    }
}

impl CollectiveWire {
    /// The wire form.
    pub fn new(spec: &Collective) -> CollectiveWire {
        let mut wire = CollectiveWire::zeroed();
        wire.kind = spec.kind as u32;
        wire.dtype = spec.dtype as u32;
        wire.peer = spec.peer;
        wire
    }

    /// The collective.
    ///
    /// # Errors
    /// `Unsupported` for a kind or dtype that this side does not know.
    pub fn to_spec(&self) -> Result<Collective> {
        Ok(Collective {
            kind: CollectiveKind::from_code(self.kind)?,
            dtype: DType::from_code(self.dtype)?,
            peer: self.peer,
        })
    }
}
