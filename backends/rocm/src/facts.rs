//! The devices that the runtime shows, and their facts, without opening any.

use std::ffi::{CStr, c_int};

use halyard_gpu::Facts;
use halyard_platform_api::{Error, Result, Status};

use crate::hip::{attribute, hip, version_text};

/// Architectures before gfx9: no 16-bit arithmetic to speak of, and no compiler supports them any more.
const TOO_OLD: [&str; 3] = ["gfx6", "gfx7", "gfx8"];

/// Numbers of the devices that are new enough.
///
/// # Errors
/// `Unavailable` with the reason when there is none.
pub(crate) fn usable_devices() -> Result<Vec<i32>> {
    let hip = hip()?;
    let mut count = 0;
    // SAFETY: the output is live.
    hip.check("hipGetDeviceCount", unsafe { (hip.device_count)(&mut count) })?;
    let unavailable = |message: String| Err(Error::new(Status::Unavailable, message));
    if count == 0 {
        return unavailable(
            "the HIP runtime shows no GPU: check `rocminfo`, HIP_VISIBLE_DEVICES, that this user may open /dev/kfd \
             and /dev/dri/render* \
             (groups render and video), and the container's devices"
                .to_string(),
        );
    }
    let (mut usable, mut too_old) = (Vec::new(), Vec::new());
    for ordinal in 0..count {
        let arch = hip.arch(ordinal)?;
        if TOO_OLD
            .iter()
            .any(|old| arch.starts_with(old) && base(&arch).len() == 6)
        {
            too_old.push(format!("{} ({arch})", name(ordinal)?));
        } else {
            usable.push(ordinal);
        }
    }
    if usable.is_empty() {
        return unavailable(format!(
            "no GPU is new enough: found {}, and gfx900 (Vega) or newer is needed",
            too_old.join(", ")
        ));
    }
    Ok(usable)
}

/// An architecture's name without its features.
fn base(arch: &str) -> &str {
    arch.split(':').next().unwrap_or(arch)
}

fn attribute(ordinal: i32, which: c_int) -> Result<u32> {
    let hip = hip()?;
    let mut value = 0;
    // SAFETY: the output is live.
    hip.check("hipDeviceGetAttribute", unsafe {
        (hip.device_attribute)(&mut value, which, ordinal)
    })?;
    Ok(value as u32)
}

fn name(ordinal: i32) -> Result<String> {
    let hip = hip()?;
    let mut name = [0; 256];
    // SAFETY: the output has the length given; its last byte stays 0.
    unsafe {
        hip.check(
            "hipDeviceGetName",
            (hip.device_name)(name.as_mut_ptr(), name.len() as c_int - 1, ordinal),
        )?;
        Ok(CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned())
    }
}

/// Facts of a device.
pub(crate) fn facts(ordinal: i32) -> Result<Facts> {
    let hip = hip()?;
    let mut total = 0;
    // SAFETY: the output is live.
    hip.check("hipDeviceTotalMem", unsafe { (hip.device_memory)(&mut total, ordinal) })?;
    let (arch, name) = (hip.arch(ordinal)?, name(ordinal)?);
    let warp_size = attribute(ordinal, attribute::WARP_SIZE)?;
    Ok(Facts {
        // Some runtimes know no product's name.
        name: if name.is_empty() {
            format!("AMD {}", base(&arch))
        } else {
            name
        },
        detail: format!("{arch}, waves of {warp_size}, HIP {}", version_text(hip.version()?)),
        arch,
        capability: 0,
        num_sms: attribute(ordinal, attribute::MULTIPROCESSORS)?,
        warp_size,
        matrix_units: false,
        struct_params: true,
        max_shared_bytes: attribute(ordinal, attribute::SHARED_BYTES_PER_BLOCK)?,
        l2_bytes: attribute(ordinal, attribute::L2_CACHE_BYTES)?.into(),
        total_memory_bytes: total as u64,
    })
}
