//! The driver's codes as errors: the call, its answer, and the remedy. An error that leaves the context dead says that
//! the device is lost.

use std::ffi::CStr;

use cudarc::driver::sys::{self as cuda, CUresult};
use halyard_platform_api::{Error, Result, Status};

/// Codes after which the process can use the device no more, and what they mean for the operator.
fn fatal(code: CUresult) -> Option<&'static str> {
    use CUresult::*;
    Some(match code {
        CUDA_ERROR_ILLEGAL_ADDRESS | CUDA_ERROR_MISALIGNED_ADDRESS | CUDA_ERROR_INVALID_ADDRESS_SPACE => {
            "a kernel touched memory that is not its own; restart the process, and report it with compute-sanitizer's \
             output"
        }
        CUDA_ERROR_LAUNCH_FAILED
        | CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUDA_ERROR_INVALID_PC
        | CUDA_ERROR_HARDWARE_STACK_ERROR
        | CUDA_ERROR_ASSERT => "a kernel failed; restart the process, and report it with compute-sanitizer's output",
        CUDA_ERROR_LAUNCH_TIMEOUT => {
            "a kernel ran longer than the system lets it; restart the process on a GPU without a display"
        }
        CUDA_ERROR_ECC_UNCORRECTABLE | CUDA_ERROR_NVLINK_UNCORRECTABLE => {
            "the hardware failed; see the kernel log for Xid errors, reset or replace the GPU, and restart the process"
        }
        CUDA_ERROR_DEVICE_UNAVAILABLE | CUDA_ERROR_CONTEXT_IS_DESTROYED | CUDA_ERROR_DEINITIALIZED => {
            "the device went away; see the kernel log for Xid errors, and restart the process"
        }
        CUDA_ERROR_UNKNOWN => {
            "the driver does not know more; see the kernel log for Xid errors, and restart the process"
        }
        _ => return None,
    })
}

/// What to do about a code that leaves the device usable.
fn remedy(code: CUresult) -> &'static str {
    use CUresult::*;
    match code {
        CUDA_ERROR_NO_DEVICE => {
            ": the driver shows no GPU; check `nvidia-smi`, CUDA_VISIBLE_DEVICES and the container's GPU setting"
        }
        CUDA_ERROR_SYSTEM_DRIVER_MISMATCH | CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            ": kernel module and libcuda.so are of different versions; reboot, or reinstall the NVIDIA driver"
        }
        CUDA_ERROR_SYSTEM_NOT_READY => {
            ": the system's GPU services are not up; start the fabric manager (nvidia-fabricmanager) and try again"
        }
        CUDA_ERROR_OUT_OF_MEMORY => ": stop other users of the GPU, or ask for less",
        CUDA_ERROR_NO_BINARY_FOR_GPU | CUDA_ERROR_INVALID_PTX | CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            ": the code was compiled for another GPU or by a newer CUDA than the driver's; update the NVIDIA driver"
        }
        CUDA_ERROR_INVALID_IMAGE => ": the compiled code is damaged; delete the cache folder",
        _ => "",
    }
}

/// `Ok` for success, else the error of `call`.
pub(crate) fn check(call: &str, code: CUresult) -> Result<()> {
    if code == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let (status, advice) = match (fatal(code), code) {
        (Some(advice), _) => (Status::DeviceLost, format!(": {advice}")),
        (None, CUresult::CUDA_ERROR_OUT_OF_MEMORY) => (Status::OutOfMemory, remedy(code).to_string()),
        (None, CUresult::CUDA_ERROR_NO_DEVICE) => (Status::Unavailable, remedy(code).to_string()),
        (None, _) => (Status::Internal, remedy(code).to_string()),
    };
    Err(Error {
        vendor_code: i64::from(code as u32),
        ..Error::new(status, format!("{call} answered {}{advice}", describe(code)))
    })
}

/// Name and words of a code, as the driver gives them.
fn describe(code: CUresult) -> String {
    let text = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: the output is a live pointer; the texts are constants of the library.
        let found = unsafe { get(code, &mut text) } == CUresult::CUDA_SUCCESS && !text.is_null();
        // SAFETY: a text that ends in 0.
        found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    let name = text(cuda::cuGetErrorName).unwrap_or_else(|| format!("{code:?}"));
    match text(cuda::cuGetErrorString) {
        Some(words) => format!("{name} ({words})"),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fatal_code_has_advice_and_others_leave_the_device() {
        for code in [
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
            CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
        ] {
            assert!(fatal(code).is_some_and(|advice| advice.contains("restart")), "{code:?}");
        }
        for code in [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_INVALID_VALUE] {
            assert!(fatal(code).is_none(), "{code:?}");
        }
    }
}
