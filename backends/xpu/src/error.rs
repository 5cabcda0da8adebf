//! The runtime's codes as errors: the call, its answer, and the remedy.

use halyard_platform_api::{Error, Result, Status};

use crate::api::SUCCESS;

/// No runtime is registered with the loader library.
pub(crate) const PLATFORM_NOT_FOUND: i32 = -1001;
/// No device of the asked kind.
pub(crate) const DEVICE_NOT_FOUND: i32 = -1;
/// The text of a kernel file does not compile.
pub(crate) const BUILD_PROGRAM_FAILURE: i32 = -11;
/// The compiler does not know an option.
pub(crate) const INVALID_BUILD_OPTIONS: i32 = -43;

/// Name of a code, what it means for the caller, and what to do about it.
fn meaning(code: i32) -> (&'static str, Status, &'static str) {
    use Status::*;
    const RESTART: &str = ": a kernel failed or the device went away; see the system's log, and restart the process";
    const LESS: &str = ": stop other users of the device, or ask for less";
    const STALE: &str = ": the compiled code is of another device or runtime; delete the cache folder";
    match code {
        -1 => ("CL_DEVICE_NOT_FOUND", Unavailable, ""),
        -2 => ("CL_DEVICE_NOT_AVAILABLE", DeviceLost, RESTART),
        -3 => (
            "CL_COMPILER_NOT_AVAILABLE",
            Unavailable,
            ": install the runtime's compiler",
        ),
        -4 => ("CL_MEM_OBJECT_ALLOCATION_FAILURE", OutOfMemory, LESS),
        -5 => ("CL_OUT_OF_RESOURCES", DeviceLost, RESTART),
        -6 => ("CL_OUT_OF_HOST_MEMORY", OutOfMemory, LESS),
        -11 => ("CL_BUILD_PROGRAM_FAILURE", Unsupported, ""),
        -14 => ("CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST", DeviceLost, RESTART),
        -30 => ("CL_INVALID_VALUE", Internal, ""),
        -33 => ("CL_INVALID_DEVICE", Internal, ""),
        -34 => ("CL_INVALID_CONTEXT", Internal, ""),
        -36 => ("CL_INVALID_COMMAND_QUEUE", Internal, ""),
        -42 => ("CL_INVALID_BINARY", Internal, STALE),
        -43 => ("CL_INVALID_BUILD_OPTIONS", Unsupported, ""),
        -45 => ("CL_INVALID_PROGRAM_EXECUTABLE", Internal, STALE),
        -46 => ("CL_INVALID_KERNEL_NAME", Internal, ""),
        -48 => ("CL_INVALID_KERNEL", Internal, ""),
        -49 => ("CL_INVALID_ARG_INDEX", Internal, ""),
        -50 => ("CL_INVALID_ARG_VALUE", Internal, ""),
        -51 => ("CL_INVALID_ARG_SIZE", Internal, ""),
        -52 => ("CL_INVALID_KERNEL_ARGS", Internal, ""),
        -54 => ("CL_INVALID_WORK_GROUP_SIZE", Unsupported, ""),
        -55 => ("CL_INVALID_WORK_ITEM_SIZE", Unsupported, ""),
        -57 => ("CL_INVALID_EVENT_WAIT_LIST", Internal, ""),
        -58 => ("CL_INVALID_EVENT", Internal, ""),
        -59 => ("CL_INVALID_OPERATION", Internal, ""),
        -61 => ("CL_INVALID_BUFFER_SIZE", OutOfMemory, LESS),
        PLATFORM_NOT_FOUND => ("CL_PLATFORM_NOT_FOUND_KHR", Unavailable, ""),
        // The event's own failure, as the runtime reports what ended a command.
        _ => ("an unknown code", Internal, ""),
    }
}

/// The error of `call`, which answered `code`.
pub(crate) fn error(call: &str, code: i32) -> Error {
    let (name, status, advice) = meaning(code);
    Error {
        vendor_code: i64::from(code),
        ..Error::new(status, format!("{call} answered {name} ({code}){advice}"))
    }
}

/// `Ok` for success, else the error of `call`.
pub(crate) fn check(call: &str, code: i32) -> Result<()> {
    match code {
        SUCCESS => Ok(()),
        code => Err(error(call, code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_tell_a_lost_device_from_a_full_one() {
        assert_eq!(check("f", SUCCESS), Ok(()));
        assert_eq!(error("f", -5).status, Status::DeviceLost);
        let full = error("clSVMAlloc", -4);
        assert_eq!((full.status, full.vendor_code), (Status::OutOfMemory, -4));
        assert!(full.message.contains("clSVMAlloc") && full.message.contains("ask for less"));
        assert!(error("f", -7777).message.contains("-7777"));
    }
}
