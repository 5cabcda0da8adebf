//! On a machine without an AMD GPU the platform loads and says why there is no device, and what to do about it.

use halyard_platform_api::{Platform, Status};
use halyard_rocm::RocmPlatform;

#[test]
fn without_a_device_the_reason_and_a_remedy_are_given() {
    let error = match RocmPlatform.devices() {
        Ok(devices) => {
            assert!(!devices.is_empty(), "no device is an error, not an empty list");
            println!("skipped: there is {}", devices[0].name);
            return;
        }
        Err(error) => error,
    };
    assert_eq!(error.status, Status::Unavailable, "{error}");
    let missing = error.message.contains("libamdhip64.so") && error.message.contains("HALYARD_ROCM_LIBRARY_PATH");
    let empty = error.message.contains("/dev/kfd") && error.message.contains("HIP_VISIBLE_DEVICES");
    assert!(missing || empty, "{error}");
    // Asked again, and asked for a device, it says the same and hangs nowhere.
    assert_eq!(RocmPlatform.devices().unwrap_err().message, error.message);
    assert_eq!(RocmPlatform.open(0).err().map(|e| e.message), Some(error.message));
}
