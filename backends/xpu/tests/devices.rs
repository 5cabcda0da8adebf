//! The suite of vendors on every OpenCL device of this machine, GPUs and processors alike; a machine without one says why.

use halyard_conformance::assert_conformant;
use halyard_platform_api::{Platform, Status};
use halyard_xpu::XpuPlatform;

/// Numbers and names of the devices; none, with the reason printed.
fn devices() -> Vec<(u32, String)> {
    match XpuPlatform.devices() {
        Ok(devices) => {
            let named = devices.into_iter().map(|info| format!("{} ({})", info.name, info.detail));
            (0..).zip(named).collect()
        }
        Err(e) if e.status == Status::Unavailable && !e.message.is_empty() => {
            println!("skipped: {}", e.message);
            Vec::new()
        }
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn every_device_is_conformant() {
    for (index, name) in devices() {
        println!("device {index}: {name}");
        assert_conformant!(XpuPlatform.open(index).expect("the device opens"));
    }
}
