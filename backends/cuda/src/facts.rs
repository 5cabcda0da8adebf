//! The devices that the driver shows, and their facts, without opening any.

use std::ffi::CStr;

use cudarc::driver::sys::{self as cuda, CUdevice_attribute as Attribute};
use halyard_gpu::Facts;
use halyard_platform_api::{Error, Result, Status};

use crate::error::check;
use crate::libraries;

/// Oldest compute capability: bf16 matrix units and asynchronous copies.
const OLDEST: u32 = 80;

/// Numbers of the devices that are new enough.
///
/// # Errors
/// `Unavailable` with the reason when there is none.
pub(crate) fn usable_devices() -> Result<Vec<i32>> {
    libraries::driver()?;
    let mut count = 0;
    // SAFETY: the driver is up; the output is live.
    check("cuDeviceGetCount", unsafe { cuda::cuDeviceGetCount(&mut count) })?;
    if count == 0 {
        return Err(Error::new(
            Status::Unavailable,
            "the NVIDIA driver shows no GPU: check `nvidia-smi`, CUDA_VISIBLE_DEVICES and the container's GPU setting",
        ));
    }
    let mut usable = Vec::new();
    let mut too_old = Vec::new();
    for ordinal in 0..count {
        let capability = capability(ordinal)?;
        if capability >= OLDEST {
            usable.push(ordinal);
        } else {
            too_old.push(format!("{} ({}.{})", name(ordinal)?, capability / 10, capability % 10));
        }
    }
    if usable.is_empty() {
        return Err(Error::new(
            Status::Unavailable,
            format!(
                "no GPU is new enough: found {}, and compute capability 8.0 (Ampere) or newer is needed",
                too_old.join(", ")
            ),
        ));
    }
    Ok(usable)
}

fn attribute(ordinal: i32, which: Attribute) -> Result<u32> {
    let mut value = 0;
    // SAFETY: the driver is up; the output is live.
    check("cuDeviceGetAttribute", unsafe {
        cuda::cuDeviceGetAttribute(&mut value, which, ordinal)
    })?;
    Ok(value as u32)
}

fn capability(ordinal: i32) -> Result<u32> {
    let major = attribute(ordinal, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(ordinal, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(major * 10 + minor)
}

fn name(ordinal: i32) -> Result<String> {
    let mut name = [0; 128];
    // SAFETY: the driver is up; the output has the length given, and the driver ends the name in 0.
    unsafe {
        check(
            "cuDeviceGetName",
            cuda::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32 - 1, ordinal),
        )?;
        Ok(CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned())
    }
}

/// What the compiler is asked for, for a compute capability (as major · 10 + minor).
pub fn arch(capability: u32) -> String {
    // From Hopper on the instructions of just this generation need the suffix.
    let suffix = if capability >= 90 { "a" } else { "" };
    format!("sm_{capability}{suffix}")
}

/// Facts of a device.
pub(crate) fn facts(ordinal: i32) -> Result<Facts> {
    let capability = capability(ordinal)?;
    let mut total = 0;
    // SAFETY: the driver is up; the output is live.
    check("cuDeviceTotalMem_v2", unsafe {
        cuda::cuDeviceTotalMem_v2(&mut total, ordinal)
    })?;
    Ok(Facts {
        name: name(ordinal)?,
        detail: detail(capability),
        arch: arch(capability),
        capability,
        num_sms: attribute(ordinal, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        warp_size: attribute(ordinal, Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?,
        matrix_units: capability >= OLDEST,
        struct_params: true,
        max_shared_bytes: attribute(
            ordinal,
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?,
        l2_bytes: attribute(ordinal, Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
        total_memory_bytes: total as u64,
    })
}

/// The versions for bug reports.
fn detail(capability: u32) -> String {
    format!(
        "compute capability {}.{}, driver for CUDA {}",
        capability / 10,
        capability % 10,
        libraries::driver_version()
    )
}
