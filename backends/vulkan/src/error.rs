//! Vulkan's result codes as errors with a status and a remedy.

use ash::vk;
use halyard_platform_api::{Error, Status};

/// What `call` answered, in words.
pub(crate) fn error(call: &str, code: vk::Result) -> Error {
    let (status, remedy) = match code {
        vk::Result::ERROR_OUT_OF_HOST_MEMORY => (Status::OutOfMemory, ": host memory is exhausted"),
        vk::Result::ERROR_OUT_OF_DEVICE_MEMORY => (Status::OutOfMemory, ": device memory is exhausted"),
        vk::Result::ERROR_TOO_MANY_OBJECTS => (
            Status::OutOfMemory,
            ": the driver allows no more allocations; ask for fewer and larger buffers",
        ),
        vk::Result::ERROR_DEVICE_LOST => (
            Status::DeviceLost,
            ": the device is gone (a fault, a reset or a time limit of the driver); the kernel log says why, restart \
             the process",
        ),
        vk::Result::ERROR_INCOMPATIBLE_DRIVER => (
            Status::Unavailable,
            ": no installed driver speaks this Vulkan version; install the vendor's Vulkan driver (on Debian \
             mesa-vulkan-drivers, which has \
             a CPU device too)",
        ),
        vk::Result::ERROR_INITIALIZATION_FAILED => (
            Status::Unavailable,
            ": the driver did not come up; `vulkaninfo --summary` shows more",
        ),
        vk::Result::ERROR_FEATURE_NOT_PRESENT | vk::Result::ERROR_EXTENSION_NOT_PRESENT => {
            (Status::Unsupported, ": the device lacks it")
        }
        _ => (Status::Internal, ""),
    };
    Error::new(status, format!("{call} answered {code:?}{remedy}"))
}

/// Turns the answer of a call into a result.
pub(crate) trait Check<T> {
    /// The value, or the error of `call`.
    fn check(self, call: &str) -> halyard_platform_api::Result<T>;
}

impl<T> Check<T> for Result<T, vk::Result> {
    fn check(self, call: &str) -> halyard_platform_api::Result<T> {
        self.map_err(|code| error(call, code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_becomes_the_status_that_callers_act_on() {
        for (code, status) in [
            (vk::Result::ERROR_OUT_OF_DEVICE_MEMORY, Status::OutOfMemory),
            (vk::Result::ERROR_DEVICE_LOST, Status::DeviceLost),
            (vk::Result::ERROR_INCOMPATIBLE_DRIVER, Status::Unavailable),
            (vk::Result::ERROR_FEATURE_NOT_PRESENT, Status::Unsupported),
            (vk::Result::ERROR_FRAGMENTATION, Status::Internal),
        ] {
            let error = error("vkCall", code);
            assert_eq!(error.status, status, "{code:?}");
            assert!(error.message.contains("vkCall"), "{}", error.message);
        }
    }
}
