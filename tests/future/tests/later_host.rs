//! Today's libraries under a host of a later contract: they load, work, and serve models as Hugging Face does.

mod common;
#[path = "common/rules.rs"]
mod rules;

use common::{on_libraries, serves_goldens};
use halyard_future::by_hand::{enter, told};
use halyard_future::library::Library;
use halyard_future::{LATER_INTERFACE, Newer};
use halyard_platform_api::abi::tables::{ABI_MAJOR, ABI_MINOR, DeviceTable, Host, Plugin};
use halyard_platform_api::{BufferKind, EncoderMode, Error, QueueKind, Status};
use rules::refused;

on_libraries! {
    goldens => |library: &Library| {
        serves_goldens(&library.under_a_later_host().open(0).expect("the device opens"));
    }, with computing;
}

on_libraries! {
    objects => |library: &Library| memory_and_queues(library), with every;
    versions => versions, with every;
}

fn memory_and_queues(library: &Library) {
    let platform = library.under_a_later_host();
    let devices = platform.devices().expect("there is a device");
    let device = platform.open(0).expect("the device opens");
    assert_eq!(device.info(), &devices[0]);
    let missing = platform.open(999).map(|_| ()).expect_err("there are fewer");
    assert_eq!(missing.status, Status::NotFound);
    assert!(!missing.message.contains("no message"), "{missing}");

    let before = device.memory().expect("it counts").used_bytes;
    let buffer = device.create_buffer(256, BufferKind::Device).expect("there is room");
    buffer.write(3, &[1, 2, 3]).expect("within the buffer");
    let mut bytes = [9; 5];
    buffer.read(2, &mut bytes).expect("within the buffer");
    assert_eq!(bytes, [0, 1, 2, 3, 0]);
    assert!(device.memory().expect("it counts").used_bytes >= before + 256);
    drop(buffer);
    assert_eq!(device.memory().expect("it counts").used_bytes, before);

    let queue = device.create_queue(QueueKind::Compute).expect("a compute queue");
    let encoder = queue.create_encoder(EncoderMode::OneShot).expect("one-shot");
    let command = encoder.finish().expect("empty");
    let number = queue.submit(&[command.id()], &[]).expect("one command");
    queue.wait(number, 1_000_000_000).expect("done");
    assert!(queue.completed() >= number);
    queue.reserve_scratch(4096).expect("some scratch");
}

/// What an entry answers a host of these versions.
fn entered(library: &Library, major: u32, minors: std::ops::RangeInclusive<u32>) -> Result<Plugin, Error> {
    let mut host = Newer::marked(Host::zeroed());
    host.known.abi_major = major;
    (host.known.abi_minor_min, host.known.abi_minor_max) = (*minors.start(), *minors.end());
    // Plugins keep it for the process's life.
    let host = Box::leak(Box::new(host));
    let mut plugin = Plugin::zeroed();
    // SAFETY: sized structs.
    told(|err| unsafe { (library.entry)(host.ptr(), &mut plugin, err) })?;
    Ok(plugin)
}

/// A host of several majors asks again with an older offer.
fn versions(library: &Library) {
    refused(
        "a later major",
        Status::Incompatible,
        entered(library, ABI_MAJOR + 1, 0..=9),
    );
    refused(
        "later minors",
        Status::Incompatible,
        entered(library, ABI_MAJOR, ABI_MINOR + 1..=9),
    );
    for minors in [0..=9, ABI_MINOR..=9, 0..=ABI_MINOR] {
        let plugin = entered(library, ABI_MAJOR, minors).expect("there is one in common");
        assert_eq!((plugin.abi_major, plugin.abi_minor), (ABI_MAJOR, ABI_MINOR));
    }

    let root = enter(library.entry).expect("it starts");
    let mut table = std::ptr::null();
    let mut asked = |id, major, max_minor| {
        // SAFETY: the plugin's function and instance, valid outputs.
        told(|err| unsafe { (root.find)(root.instance, id, major, max_minor, &mut table, err) })
    };
    let (major, minor) = DeviceTable::VERSION;
    refused(
        "a later major",
        Status::Incompatible,
        asked(DeviceTable::INTERFACE, major + 1, 0),
    );
    refused(
        "a later interface",
        Status::Unsupported,
        asked(LATER_INTERFACE, major, minor),
    );
    refused(
        "one of another major",
        Status::Unsupported,
        asked(LATER_INTERFACE, major + 1, 0),
    );
    for minor in [minor + 9, minor, 0] {
        asked(DeviceTable::INTERFACE, major, minor).expect("tables only grow");
    }
}
