//! One line a backend: linked through its tables, and loaded from its library as the server loads it. The cpu runs
//! whole one of these ways; elsewhere a share of the rows is enough (`Options::of_test_run`). So it is for the
//! reference, as every other platform's rows compare with it.

use std::sync::Arc;

use halyard_conformance::{Options, assert_conformant, check_collectives, oracle};
use halyard_platform_api::{Device, LinkedPlugin, Platform, Status};
use halyard_plugin_host::{Catalog, Plugin, SearchPath, select_platform};

fn linked(plugin: LinkedPlugin) -> Arc<dyn Device> {
    let plugin = Plugin::from_linked(plugin).expect("the plugin negotiates");
    plugin
        .platform()
        .expect("a platform")
        .open(0)
        .expect("the device opens")
}

/// From the library that cargo puts beside this test's own binary.
fn loaded(name: &str) -> Arc<dyn Device> {
    let beside = std::env::current_exe()
        .expect("a path")
        .with_file_name(format!("libhalyard_{name}.so"));
    let search = SearchPath {
        plugins: vec![beside],
        ..SearchPath::default()
    };
    let selected = select_platform(&Catalog::discover(&search), Some(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    selected.platform.open(0).expect("the device opens")
}

#[test]
fn reference_linked() {
    assert_conformant!(linked(halyard_reference::plugin()), Options::of_test_run());
}

#[test]
fn reference_from_its_library() {
    assert_conformant!(loaded("reference"), Options::of_test_run());
}

#[test]
fn delayed_from_its_library() {
    assert_conformant!(loaded("delayed"), Options::of_test_run());
}

#[test]
fn cpu_linked() {
    assert_conformant!(linked(halyard_cpu::plugin()), Options::of_test_run());
}

#[test]
fn cpu_from_its_library() {
    assert_conformant!(loaded("cpu"));
}

#[test]
fn cpu_on_one_thread() {
    assert_conformant!(
        halyard_cpu::CpuPlatform::with_threads(1).open(0).unwrap(),
        Options::of_test_run()
    );
}

#[test]
fn cpu_on_three_threads() {
    assert_conformant!(
        halyard_cpu::CpuPlatform::with_threads(3).open(0).unwrap(),
        Options::of_test_run()
    );
}

/// Whether there is a device to test on; a machine without one must say why.
fn has_device(platform: &dyn Platform) -> bool {
    match platform.devices() {
        Ok(_) => true,
        Err(e) if e.status == Status::Unavailable && !e.message.is_empty() => {
            println!("skipped: {}", e.message);
            false
        }
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn cuda_linked() {
    if has_device(&halyard_cuda::CudaPlatform) {
        assert_conformant!(linked(halyard_cuda::plugin()));
    }
}

#[test]
fn cuda_from_its_library() {
    if has_device(&halyard_cuda::CudaPlatform) {
        assert_conformant!(loaded("cuda"));
    }
}

#[test]
fn rocm_from_its_library() {
    if has_device(&halyard_rocm::RocmPlatform) {
        assert_conformant!(loaded("rocm"));
    }
}

#[test]
fn cuda_collectives_over_all_devices() {
    if !has_device(&halyard_cuda::CudaPlatform) {
        return;
    }
    let count = halyard_cuda::CudaPlatform.devices().unwrap().len() as u32;
    if count < 2 {
        println!("skipped: one CUDA device; collectives need two");
        return;
    }
    let devices: Vec<_> = (0..count.min(4))
        .map(|index| halyard_cuda::CudaPlatform.open(index).unwrap())
        .collect();
    check_collectives(&devices).unwrap_or_else(|e| panic!("cuda, {} ranks: {e}", devices.len()));
}

#[test]
fn collectives_over_two_and_three_ranks() {
    for size in [2, 3] {
        let reference: Vec<_> = (0..size).map(|_| oracle().unwrap()).collect();
        check_collectives(&reference).unwrap_or_else(|e| panic!("reference, {size} ranks: {e}"));
        let cpu: Vec<_> = (0..size)
            .map(|_| halyard_cpu::CpuPlatform::with_threads(2).open(0).unwrap())
            .collect();
        check_collectives(&cpu).unwrap_or_else(|e| panic!("cpu, {size} ranks: {e}"));
        let loaded: Vec<_> = (0..size).map(|_| loaded("cpu")).collect();
        check_collectives(&loaded).unwrap_or_else(|e| panic!("cpu from its library, {size} ranks: {e}"));
    }
}
