//! Plugins of a later contract on today's host: they load, what this host does not know is passed over, and models are
//! served.

mod common;

use std::sync::Arc;

use common::{in_c, on_libraries, serves_goldens};
use halyard_future::library::Library;
use halyard_future::plugin::{Is, VENDOR_CODE};
use halyard_platform_api::abi::AbiTable;
use halyard_platform_api::abi::tables::{AttentionTable, CommunicatorTable, DeviceTable, OpsTable, PlatformTable};
use halyard_platform_api::{BufferKind, Device, Program, QueueKind, Status};
use halyard_plugin_host::{Catalog, SearchPath, select_platform};

on_libraries! {
    goldens => |library: &Library| serves_goldens(&open(library, Is::Later)), with computing;
    goldens_without_programs => |library: &Library| {
        let device = open(library, Is::WithoutPrograms);
        let report = device.ops().claim(&Program::default()).expect("claims nothing");
        assert!(report.claims.is_empty() && report.left.contains("not read here"), "{report:?}");
        serves_goldens(&device);
    }, with computing;
    goldens_with_an_older_table => |library: &Library| {
        let device = open(library, Is::EndingEarly);
        let report = device.ops().claim(&Program::default()).expect("claims nothing");
        assert!(report.left.contains("claims no composites"), "{report:?}");
        serves_goldens(&device);
    }, with computing;
    facts_and_statuses => facts_and_statuses, with computing;
    interfaces_of_another_major => interfaces_of_another_major, with computing;
}

fn open(library: &Library, is: Is) -> Arc<dyn Device> {
    let plugin = library.as_a_later_plugin(is).unwrap_or_else(|e| panic!("{e}"));
    plugin
        .platform()
        .expect("a platform")
        .open(0)
        .expect("the device opens")
}

fn facts_and_statuses(library: &Library) {
    let plugin = library.as_a_later_plugin(Is::Later).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(plugin.manifest().version, "9.0");
    assert_eq!(plugin.manifest().other.len(), 2, "keys of later are kept to be shown");
    let platform = plugin.platform().expect("a platform");
    let today = library.under_a_later_host();
    assert_eq!(
        platform.devices(),
        today.devices(),
        "bits that nobody knows are dropped"
    );
    let device = platform.open(0).expect("the device opens");
    assert_eq!(device.info(), &today.devices().expect("there is one")[0]);

    let error = platform.open(999).map(|_| ()).expect_err("there are fewer");
    assert_eq!((error.status, error.vendor_code), (Status::Internal, VENDOR_CODE));
    assert!(
        error.message.starts_with(&library.manifest.name) && error.message.len() > 10,
        "{error}"
    );

    let refused = library
        .as_a_later_plugin(Is::OutOfRange)
        .expect_err("0.3 was not offered");
    assert!(refused.contains("ABI 0.3"), "{refused}");
}

fn interfaces_of_another_major(library: &Library) {
    let device = open(library, Is::OfAnotherMajor(CommunicatorTable::ID));
    let lone = device.communicator_id().expect_err("it is as if absent");
    assert_eq!(lone.status, Status::Unsupported);
    let device = open(library, Is::OfAnotherMajor(AttentionTable::ID));
    assert!(device.attention().backends().is_empty());
    for required in [PlatformTable::ID, DeviceTable::ID, OpsTable::ID] {
        let refused = library
            .as_a_later_plugin(Is::OfAnotherMajor(required))
            .expect_err("it cannot do without");
        assert!(refused.contains("is of version 7.0"), "{refused}");
    }
}

#[test]
fn a_file_with_manifests_of_later_forms_and_kinds_loads() {
    let path = in_c("tests/future/tests/c/later.c");
    let catalog = Catalog::discover(&SearchPath {
        plugins: vec![path],
        ..SearchPath::default()
    });
    assert_eq!(catalog.failures().count(), 0);
    let selected = select_platform(&catalog, None).unwrap_or_else(|e| panic!("{e}"));
    let manifest = selected.plugin.manifest();
    assert_eq!(
        (manifest.name.as_str(), manifest.version.as_str(), manifest.abi.as_str()),
        ("minimal", "9.0", "0.9")
    );
    let keys: Vec<&str> = manifest.other.keys().map(String::as_str).collect();
    assert_eq!(keys, ["interfaces", "signed"]);

    let device = selected.platform.open(0).expect("the device opens");
    let buffer = device.create_buffer(64, BufferKind::Device).expect("there is room");
    buffer.write(0, &[5; 64]).expect("within the buffer");
    let queue = device.create_queue(QueueKind::Compute).expect("a compute queue");
    assert_eq!(queue.submit(&[], &[]), Ok(1));
}
