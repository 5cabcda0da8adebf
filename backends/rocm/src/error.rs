//! The runtime's codes as errors: the call, its answer, and the remedy. An error that leaves the device dead says that
//! it is lost.

use std::ffi::c_int;

use halyard_platform_api::{Error, Result, Status};

/// `hipError_t`.
pub(crate) type Code = c_int;

/// `hipErrorNotReady`: no error.
pub(crate) const NOT_READY: Code = 600;

/// Codes after which the process can use the device no more, and what they mean for the operator.
fn fatal(code: Code) -> Option<&'static str> {
    Some(match code {
        700 => {
            "a kernel touched memory that is not its own; restart the process, and report it with AMD_LOG_LEVEL=3's \
             output"
        }
        702 => "a kernel ran longer than the system lets it; restart the process on a GPU without a display",
        710 | 719 => "a kernel failed; restart the process, and report it with the kernel log (dmesg)",
        214 => "the hardware failed; see the kernel log (dmesg), reset or replace the GPU, and restart the process",
        4 | 709 => "the device went away; see the kernel log (dmesg), and restart the process",
        999 | 1052 | 1053 => "the runtime does not know more; see the kernel log (dmesg), and restart the process",
        _ => return None,
    })
}

/// Status and advice of a code that leaves the device usable.
fn remedy(code: Code) -> (Status, &'static str) {
    match code {
        2 => (Status::OutOfMemory, ": stop other users of the GPU, or ask for less"),
        3 | 35 | 100 | 101 => (
            Status::Unavailable,
            ": the runtime shows no GPU; check `rocminfo`, HIP_VISIBLE_DEVICES, that this user may open /dev/kfd and \
             /dev/dri/render* (groups \
             render and video), and the container's devices",
        ),
        200 | 209 | 218 => (
            Status::Internal,
            ": the code was compiled for another GPU; delete the cache folder",
        ),
        801 => (
            Status::Unsupported,
            ": this version of ROCm or this GPU lacks it; install a newer ROCm",
        ),
        _ => (Status::Internal, ""),
    }
}

/// `Ok` for success, else the error of `call`; `describe` gives the runtime's name and words for a code.
pub(crate) fn check_with(call: &str, code: Code, describe: impl Fn(Code) -> (String, String)) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    let (status, advice) = match fatal(code) {
        Some(advice) => (Status::DeviceLost, format!(": {advice}")),
        None => {
            let (status, advice) = remedy(code);
            (status, advice.to_string())
        }
    };
    let (name, words) = describe(code);
    Err(Error {
        vendor_code: i64::from(code),
        ..Error::new(status, format!("{call} answered {code} {name} ({words}){advice}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_statuses_with_a_remedy() {
        let of = |code| check_with("hipX", code, |_| ("name".into(), "words".into()));
        assert!(of(0).is_ok());
        for (code, status, advice) in [
            (700, Status::DeviceLost, "restart"),
            (719, Status::DeviceLost, "restart"),
            (2, Status::OutOfMemory, "ask for less"),
            (100, Status::Unavailable, "/dev/kfd"),
            // What ROCm 5.2 says where there is no device.
            (101, Status::Unavailable, "HIP_VISIBLE_DEVICES"),
            (209, Status::Internal, "cache folder"),
            (1, Status::Internal, "words"),
        ] {
            let error = of(code).unwrap_err();
            assert_eq!((error.status, error.vendor_code), (status, i64::from(code)), "{error}");
            assert!(
                error.message.starts_with("hipX answered") && error.message.contains(advice),
                "{error}"
            );
        }
    }
}
