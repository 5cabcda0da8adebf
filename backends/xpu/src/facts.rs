//! The devices that the runtimes show: which can run the shared kernels, which cannot and why, and the facts of each.
//! Opens none.

use std::sync::{Mutex, PoisonError};

use halyard_gpu::{Facts, no_such_device};
use halyard_platform_api::{Error, Result, Status};

use crate::api::{self, Api, Handle, SUCCESS};
use crate::env;
use crate::error::{DEVICE_NOT_FOUND, PLATFORM_NOT_FOUND, check};
use crate::library::{self, REMEDY};
use crate::matrix::{self, Matrix};

/// pocl's name as a platform.
const POCL: &str = "Portable Computing Language";
/// Lanes that the kernels treat as one group; they exchange values through local memory, so any hardware width will do.
const GROUP_LANES: u32 = 32;
/// Work-items that most kernels of the catalogue put into a group.
const GROUP_ITEMS: u64 = 256;
/// Local memory that the arrays of the largest kernels (sampling) need.
const LEAST_LOCAL_BYTES: u64 = 48 << 10;
/// `CL_DEVICE_COMMAND_BUFFER_CAPABILITIES_KHR`; bit 2: a recording may be enqueued again before it has run.
const COMMAND_BUFFER_CAPABILITIES: u32 = 0x12A9;
const SIMULTANEOUS_USE: u64 = 1 << 2;
/// `CL_DEVICE_COMMAND_BUFFER_REQUIRED_QUEUE_PROPERTIES_KHR`.
const COMMAND_BUFFER_QUEUE_PROPERTIES: u32 = 0x12AA;

/// `CL_DEVICE_INTEGER_DOT_PRODUCT_CAPABILITIES_KHR`; bit 0: of four bytes in a word.
const INTEGER_DOT_PRODUCT_CAPABILITIES: u32 = 0x1073;
const INTEGER_DOT_PRODUCT_PACKED: u64 = 1;
/// `CL_DEVICE_INTEGER_DOT_PRODUCT_ACCELERATION_PROPERTIES_4x8BIT_PACKED_KHR`: six truth values, the first of signed
/// bytes.
const INTEGER_DOT_PRODUCT_ACCELERATION: u32 = 0x1075;

/// What a device says of sums of four products of signed bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dots {
    /// Whether the language has the instruction.
    pub(crate) native: bool,
    /// Whether it is faster than the plain operations.
    pub(crate) accelerated: bool,
}

/// `CL_DEVICE_SUB_GROUP_SIZES_INTEL`: sizes that kernels may require.
const SUB_GROUP_SIZES: u32 = 0x4108;
/// Subgroup sizes that kernels are written for, the better first: of Intel's GPUs the wider leaves a work-item half the
/// registers.
const SUBGROUPS: [u32; 2] = [16, 32];

/// Which allocations kernels are given addresses of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Addressing {
    /// `cl_intel_unified_shared_memory`: the device's own memory, and host memory that it reaches.
    Usm,
    /// Shared virtual memory; what the host polls and fills is of the fine-grain kind.
    Svm,
}

/// A device that can run the kernels.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) platform: Handle,
    pub(crate) device: Handle,
    pub(crate) facts: Facts,
    pub(crate) addressing: Addressing,
    /// A processor: it shares the host's memory and cores.
    pub(crate) is_cpu: bool,
    /// Host and device share one memory.
    pub(crate) unified_memory: bool,
    /// Largest single allocation, bytes.
    pub(crate) max_allocation_bytes: u64,
    /// Whether recordings can be command buffers of the runtime.
    pub(crate) command_buffers: bool,
    pub(crate) dots: Dots,
    /// The size of the subgroups in which kernels pass values; `None`: they do so through local memory.
    pub(crate) subgroup: Option<u32>,
    /// How products run on matrix units, or as if on such.
    pub(crate) matrix: Option<Matrix>,
    /// Whether kernels are compiled for a processor, where barriers are dear.
    pub(crate) for_cpu: bool,
    /// Whether division and square root can be correctly rounded.
    pub(crate) exact_division: bool,
    /// Whether the runtime keeps compiled code by itself (pocl does).
    pub(crate) keeps_code: bool,
    /// Runtime and version: what compiled code depends on besides the device.
    pub(crate) runtime: String,
}

fn unavailable(message: String) -> Error {
    Error::new(Status::Unavailable, message)
}

/// Devices that can run the kernels, GPUs first.
///
/// # Errors
/// `Unavailable` with the reason for each device that cannot, when none can.
pub(crate) fn usable_devices() -> Result<Vec<Found>> {
    // Some runtimes (pocl 3.1) show no device to the second of two threads that ask for the first time at once.
    static DISCOVERY: Mutex<()> = Mutex::new(());
    let _alone = DISCOVERY.lock().unwrap_or_else(PoisonError::into_inner);
    let api = library::api()?;
    let mut usable = Vec::new();
    let mut rejected = Vec::new();
    for platform in platforms(api)? {
        for device in devices(api, platform)? {
            match usable_device(api, platform, device) {
                Ok(found) => usable.push(found),
                Err(error) => rejected.push(error.message),
            }
        }
    }
    if usable.is_empty() {
        return Err(unavailable(match rejected.is_empty() {
            true => format!("the OpenCL runtimes show no device: {REMEDY}"),
            false => format!("no OpenCL device can run the kernels: {}", rejected.join("; ")),
        }));
    }
    usable.sort_by_key(|found| found.is_cpu);
    Ok(usable)
}

fn platforms(api: &Api) -> Result<Vec<Handle>> {
    let mut count = 0;
    // SAFETY: asks for the number only.
    let code = unsafe { (api.clGetPlatformIDs)(0, std::ptr::null_mut(), &mut count) };
    if code == PLATFORM_NOT_FOUND || (code == SUCCESS && count == 0) {
        return Err(unavailable(format!(
            "OpenCL's loader library knows no runtime: {REMEDY}"
        )));
    }
    check("clGetPlatformIDs", code)?;
    let mut platforms = vec![0; count as usize];
    // SAFETY: the output has the length given.
    let code = unsafe { (api.clGetPlatformIDs)(count, platforms.as_mut_ptr(), std::ptr::null_mut()) };
    check("clGetPlatformIDs", code)?;
    Ok(platforms)
}

/// GPUs and processors of a runtime. (Its other kinds are emulators and hardware that runs no OpenCL C.)
fn devices(api: &Api, platform: Handle) -> Result<Vec<Handle>> {
    let kinds = api::DEVICE_TYPE_GPU | api::DEVICE_TYPE_CPU;
    let mut count = 0;
    // SAFETY: asks for the number only.
    let code = unsafe { (api.clGetDeviceIDs)(platform, kinds, 0, std::ptr::null_mut(), &mut count) };
    if code == DEVICE_NOT_FOUND || (code == SUCCESS && count == 0) {
        return Ok(Vec::new());
    }
    check("clGetDeviceIDs", code)?;
    let mut devices = vec![0; count as usize];
    // SAFETY: the output has the length given.
    let code = unsafe { (api.clGetDeviceIDs)(platform, kinds, count, devices.as_mut_ptr(), std::ptr::null_mut()) };
    check("clGetDeviceIDs", code)?;
    Ok(devices)
}

/// The device, or an error that says what it lacks.
fn usable_device(api: &Api, platform: Handle, device: Handle) -> Result<Found> {
    let name = api.device_text(device, api::DEVICE_NAME)?;
    let number = |property| api.number(device, property);
    let extensions = api.device_text(device, api::DEVICE_EXTENSIONS)?;
    let has = |extension: &str| extensions.split_whitespace().any(|known| known == extension);
    let lacks = |reason: &str| Err(unavailable(format!("{name}: {reason}")));
    if number(api::DEVICE_AVAILABLE) == 0 {
        return lacks("the runtime says that it is not available");
    }
    if number(api::DEVICE_COMPILER_AVAILABLE) == 0 {
        return lacks("its runtime has no compiler for OpenCL C");
    }
    if number(api::DEVICE_ADDRESS_BITS) != 64 || number(api::DEVICE_ENDIAN_LITTLE) == 0 {
        return lacks("64-bit little-endian addresses are needed");
    }
    if number(api::DEVICE_MAX_WORK_GROUP_SIZE) < GROUP_ITEMS {
        return lacks("work-groups of 256 items are needed");
    }
    if number(api::DEVICE_LOCAL_MEM_SIZE) < LEAST_LOCAL_BYTES {
        return lacks("48 KiB of local memory are needed");
    }
    let Some(addressing) = addressing(api, device, has("cl_intel_unified_shared_memory")) else {
        return lacks(
            "kernels are given addresses, and the host watches memory that they write: fine-grain shared virtual \
             memory or cl_intel_unified_shared_memory is needed, and it has neither",
        );
    };
    let is_cpu = number(api::DEVICE_TYPE) & api::DEVICE_TYPE_CPU != 0;
    let driver = api.device_text(device, api::DRIVER_VERSION)?;
    let version = api.device_text(device, api::DEVICE_VERSION)?;
    let platform_name = api.platform_text(platform, api::PLATFORM_NAME)?;
    let runtime = format!(
        "{platform_name} {}",
        api.platform_text(platform, api::PLATFORM_VERSION)?
    );
    // Intel's runtime on processors keeps some 60 KB of each enqueued command buffer for good (2026.2, a decode step of
    // a tiny model; pocl keeps nothing): there the host replays.
    let keeps_commands = is_cpu && platform_name.starts_with("Intel");
    let command_buffers = has("cl_khr_command_buffer")
        && !keeps_commands
        && number(COMMAND_BUFFER_CAPABILITIES) & SIMULTANEOUS_USE != 0
        && number(COMMAND_BUFFER_QUEUE_PROPERTIES) == 0;
    let for_cpu = is_cpu && !env::gpu_kernels_are_asked();
    let sizes = match has("cl_intel_required_subgroup_size") && major(&version) >= 3 {
        true => api.sizes(device, SUB_GROUP_SIZES),
        false => Vec::new(),
    };
    let subgroup = chosen_subgroup(env::subgroup(), &sizes, for_cpu);
    let matrix = Matrix::chosen(matrix::EXTENSIONS.iter().all(|one| has(one)), &sizes, env::matrix());
    let facts = Facts {
        detail: detail(&runtime, &driver, addressing, command_buffers, subgroup, matrix),
        arch: format!("{name}, {version}, driver {driver}, subgroups {subgroup:?}, {matrix:?}, processor {for_cpu}"),
        name,
        capability: 0,
        num_sms: number(api::DEVICE_MAX_COMPUTE_UNITS).clamp(1, u64::from(u32::MAX)) as u32,
        warp_size: GROUP_LANES,
        matrix_units: false,
        struct_params: false,
        max_shared_bytes: number(api::DEVICE_LOCAL_MEM_SIZE).min(u64::from(u32::MAX)) as u32,
        l2_bytes: number(api::DEVICE_GLOBAL_MEM_CACHE_SIZE),
        total_memory_bytes: number(api::DEVICE_GLOBAL_MEM_SIZE),
    };
    Ok(Found {
        platform,
        device,
        addressing,
        is_cpu,
        unified_memory: is_cpu || number(api::DEVICE_HOST_UNIFIED_MEMORY) != 0,
        max_allocation_bytes: number(api::DEVICE_MAX_MEM_ALLOC_SIZE).min(facts.total_memory_bytes),
        command_buffers,
        dots: match has("cl_khr_integer_dot_product") {
            true => dots(api, device, &version),
            false => Dots::default(),
        },
        subgroup,
        matrix,
        for_cpu,
        exact_division: number(api::DEVICE_SINGLE_FP_CONFIG) & api::FP_CORRECTLY_ROUNDED_DIVIDE_SQRT != 0,
        keeps_code: platform_name == POCL,
        runtime,
        facts,
    })
}

/// Of a device's version, `OpenCL <major>.<minor> …`; 0 for none.
fn major(version: &str) -> u32 {
    let number = version.strip_prefix("OpenCL ").and_then(|rest| rest.split('.').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The subgroup size to require among those that the device offers: the one asked for, else the best for a GPU. (A
/// processor's subgroups are loops over vectors: its kernels do not gain.)
fn chosen_subgroup(asked: Option<u32>, offered: &[u64], for_cpu: bool) -> Option<u32> {
    let fits = |size: &u32| offered.contains(&u64::from(*size));
    match asked {
        Some(size) => Some(size).filter(|size| SUBGROUPS.contains(size) && fits(size)),
        None if for_cpu => None,
        None => SUBGROUPS.into_iter().find(fits),
    }
}

/// From version 3 on the language has the functions.
fn dots(api: &Api, device: Handle, version: &str) -> Dots {
    let packed = api.number(device, INTEGER_DOT_PRODUCT_CAPABILITIES) & INTEGER_DOT_PRODUCT_PACKED != 0;
    let native = packed && major(version) >= 3;
    Dots {
        native,
        accelerated: native && api.truths::<6>(device, INTEGER_DOT_PRODUCT_ACCELERATION)[0],
    }
}

/// How kernels can be given addresses; `None`: in no way that this platform speaks.
fn addressing(api: &Api, device: Handle, usm: bool) -> Option<Addressing> {
    let can = |property, bit| api.number(device, property) & bit != 0;
    if usm
        && can(api::DEVICE_HOST_MEM_CAPABILITIES_INTEL, api::USM_ACCESS)
        && can(api::DEVICE_DEVICE_MEM_CAPABILITIES_INTEL, api::USM_ACCESS)
    {
        return Some(Addressing::Usm);
    }
    can(api::DEVICE_SVM_CAPABILITIES, api::SVM_FINE_GRAIN_BUFFER).then_some(Addressing::Svm)
}

/// For bug reports.
fn detail(
    runtime: &str,
    driver: &str,
    addressing: Addressing,
    command_buffers: bool,
    subgroup: Option<u32>,
    matrix: Option<Matrix>,
) -> String {
    let memory = match addressing {
        Addressing::Usm => "unified shared memory",
        Addressing::Svm => "shared virtual memory",
    };
    let recordings = match command_buffers {
        true => "command buffers",
        false => "recordings by the host",
    };
    let subgroups = subgroup.map_or_else(String::new, |size| format!(", subgroups of {size}"));
    let matrix = matrix.map_or_else(String::new, |matrix| format!(", {}", matrix.describe()));
    format!("{runtime}, driver {driver}, {memory}, {recordings}{subgroups}{matrix}")
}

/// The device behind `index`.
///
/// # Errors
/// `NotFound` with what there is.
pub(crate) fn device(index: u32) -> Result<Found> {
    let usable = usable_devices()?;
    let count = usable.len();
    usable.into_iter().nth(index as usize).ok_or_else(|| {
        let hint = "OCL_ICD_VENDORS and OCL_ICD_FILENAMES choose runtimes";
        no_such_device(index, "the OpenCL loader", count, hint)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subgroups_are_what_is_asked_or_the_best_of_a_gpu() {
        let all = [4, 8, 16, 32, 64];
        assert_eq!(chosen_subgroup(None, &all, false), Some(16));
        assert_eq!(chosen_subgroup(None, &[8, 32], false), Some(32));
        assert_eq!(chosen_subgroup(None, &[8], false), None);
        assert_eq!(chosen_subgroup(None, &all, true), None);
        assert_eq!(chosen_subgroup(Some(32), &all, true), Some(32));
        for refused in [0, 8, 64] {
            assert_eq!(chosen_subgroup(Some(refused), &all, false), None, "{refused}");
        }
        assert_eq!(chosen_subgroup(Some(32), &[16], false), None);
    }

    #[test]
    fn versions_are_read() {
        assert_eq!(major("OpenCL 3.1 (Build 0)"), 3);
        assert_eq!(major("OpenCL 1.2 pocl"), 1);
        assert_eq!(major("something"), 0);
    }
}
