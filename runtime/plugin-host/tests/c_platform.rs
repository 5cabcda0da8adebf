//! A platform written in C against the header loads and works; folders, shadowing, choice, allow-list and reports.

mod support;

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use halyard_platform_api::ops::Add;
use halyard_platform_api::{BufferKind, DType, EncoderMode, OpSpec, QueueKind, Status};
use halyard_plugin_host::{
    AllowList, Catalog, Kind, PluginError, SearchPath, Stage, inspect, platform_reports, plugin_reports,
    select_platform,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use support::{assert_stage, build, catalog_of, catalog_with, folder};

#[test]
fn a_platform_in_c_serves_memory_and_queues() {
    let library = build(&folder("c_works"), "libminimal.so", &[]);
    let selected = select_platform(&catalog_of(&library), None).expect("it works");
    assert_eq!(selected.plugin.manifest().version, "3.2.1");
    assert_eq!(selected.devices.len(), 1);
    assert_eq!(selected.devices[0].name, "Minimal C device");
    let device = selected.platform.open(0).expect("one device");
    assert_eq!(device.info(), &selected.devices[0]);

    let buffer = device.create_buffer(100, BufferKind::Device).expect("there is room");
    assert_eq!(device.memory().expect("it counts").used_bytes, 100);
    buffer.write(10, &[1, 2, 3]).expect("within the buffer");
    let mut out = [9; 4];
    buffer.read(9, &mut out).expect("within the buffer");
    assert_eq!(out, [0, 1, 2, 3]);
    let past = buffer.write(98, &[0; 3]).expect_err("past the end");
    assert_eq!(past.status, Status::InvalidArgument);
    assert!(
        past.message.contains("minimal") && past.message.contains("98"),
        "{past}"
    );
    let overflow = buffer.read(u64::MAX, &mut out).expect_err("past the end");
    assert_eq!(overflow.status, Status::InvalidArgument);
    drop(buffer);
    assert_eq!(device.memory().expect("it counts").used_bytes, 0);
    let large = device
        .create_buffer(2 << 20, BufferKind::Device)
        .map(|_| ())
        .expect_err("more than max_buffer_bytes");
    assert!(large.message.contains("1048576"), "{large}");
    let zero = device.create_buffer(0, BufferKind::Device).map(|_| ());
    assert_eq!(zero.map_err(|e| e.status), Err(Status::InvalidArgument));

    let queue = device.create_queue(QueueKind::Compute).expect("a compute queue");
    let encoder = queue.create_encoder(EncoderMode::OneShot).expect("one-shot");
    let command = encoder.finish().expect("empty");
    assert_eq!(queue.submit(&[command.id()], &[]), Ok(1));
    assert_eq!(queue.completed(), 1);
    queue.wait(1, 0).expect("done");
    assert_eq!(queue.wait(2, 0).map_err(|e| e.status), Err(Status::InvalidArgument));
}

#[test]
fn what_a_c_platform_lacks_is_told_with_its_reason() {
    let library = build(&folder("c_lacks"), "libminimal.so", &[]);
    let selected = select_platform(&catalog_of(&library), Some("minimal")).expect("it works");
    let device = selected.platform.open(0).expect("one device");
    let add = OpSpec::Add(Add {
        width: 4,
        dtype: DType::F32,
    });
    let error = device.ops().support(&add).expect_err("no ops");
    assert_eq!(error.status, Status::Unsupported);
    assert_eq!(error.vendor_code, 42);
    assert_eq!(error.message, "minimal: the minimal device computes nothing");
    assert!(device.attention().backends().is_empty());
    let report = device
        .ops()
        .claim(&halyard_platform_api::Program::default())
        .expect("optional");
    assert!(
        report.claims.is_empty() && report.left.contains("claims no composites"),
        "{report:?}"
    );
    let lone = device.communicator_id().expect_err("no communicator interface");
    assert_eq!(lone.status, Status::Unsupported);
    let queue = device.create_queue(QueueKind::Compute).expect("a compute queue");
    let reusable = queue
        .create_encoder(EncoderMode::Reusable)
        .map(|_| ())
        .expect_err("one-shot only");
    assert!(reusable.message.contains("one-shot encoders only"), "{reusable}");
    let far = selected.platform.open(7).map(|_| ()).expect_err("one device");
    assert_eq!(far.status, Status::NotFound);
}

/// Keeps the text of every event.
#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for Heard {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = event.metadata().level().to_string();
        event.record(&mut Text(&mut text));
        self.0.lock().expect("no panic while it is held").push(text);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn a_plugin_logs_through_the_host() {
    let library = build(&folder("c_logs"), "libminimal.so", &[]);
    let selected = select_platform(&catalog_of(&library), Some("minimal")).expect("it works");
    let heard = Arc::new(Heard::default());
    tracing::subscriber::with_default(heard.clone(), || drop(selected.platform.open(0)));
    let texts = heard.0.lock().expect("no panic while it is held");
    assert_eq!(*texts, ["INFO message=device closed plugin=minimal"]);
}

#[test]
fn a_newer_vendors_larger_table_loads() {
    let library = build(&folder("c_larger"), "libminimal.so", &["LARGER_TABLE"]);
    let selected = select_platform(&catalog_of(&library), Some("minimal")).expect("it works");
    let device = selected.platform.open(0).expect("one device");
    let queue = device.create_queue(QueueKind::Compute).expect("a compute queue");
    assert_eq!(queue.submit(&[], &[]), Ok(1));
}

#[test]
fn a_descriptor_with_fields_the_other_side_does_not_know_is_refused() {
    use halyard_platform_api::abi::{SpecBytes, read_spec};
    let spec = OpSpec::Vendor(halyard_platform_api::ops::VendorOp {
        name: "add".to_string(),
        version: 1,
        descriptor: [&16u32.to_ne_bytes()[..], &[0; 8], &[1, 0, 0, 0]].concat(),
    });
    let bytes = SpecBytes::new(&spec, u32::MAX);
    let mut wire = bytes.wire();
    wire.code = Add::CODE;
    // SAFETY: `bytes` outlives the call.
    let error = unsafe { read_spec(&wire) }.expect_err("a newer host's field is set");
    assert_eq!(error.status, Status::Unsupported);
    assert!(error.message.contains("byte 12"), "{error}");
}

#[test]
fn folders_pass_over_what_is_no_plugin_and_keep_what_is_a_broken_one() {
    let folder = folder("folders");
    std::fs::write(folder.join("a.so"), "text").expect("writable");
    build(&folder, "b.so", &["BROKEN_NO_MANIFEST"]);
    build(&folder, "c.so", &["BROKEN_MANIFEST_TEXT"]);
    build(&folder, "d.so", &[]);
    std::fs::write(folder.join("e.txt"), "text").expect("writable");
    let catalog = Catalog::discover(&SearchPath {
        program_folder: Some(folder.clone()),
        ..SearchPath::default()
    });
    assert_eq!(catalog.candidates().len(), 1);
    assert!(catalog.candidates()[0].path.ends_with("d.so"));
    let failures: Vec<String> = catalog.failures().map(|f| f.to_string()).collect();
    assert!(failures.len() == 1 && failures[0].contains("c.so"), "{failures:?}");
    assert_eq!(catalog.explicit_failure(), None);
    assert_eq!(catalog.searched(), [folder]);
    select_platform(&catalog, None).expect("a broken neighbour does not stop the others");
    let given = Catalog::discover(&SearchPath {
        plugin_dirs: catalog.searched().to_vec(),
        ..SearchPath::default()
    });
    select_platform(&given, None).expect("nor in a folder that was given");
}

#[test]
fn the_first_of_a_name_in_search_order_wins_and_the_other_is_reported() {
    let (near, far) = (folder("shadow_near"), folder("shadow_far"));
    let first = build(&near, "z.so", &[]).canonicalize().expect("built");
    let second = build(&far, "a.so", &[]).canonicalize().expect("built");
    let search = SearchPath {
        plugin_dirs: vec![near.clone()],
        path_variable: Some(std::env::join_paths([&near, &far]).expect("no colon in it")),
        system_dirs: vec![far.join("absent")],
        ..SearchPath::default()
    };
    let catalog = Catalog::discover(&search);
    let found: Vec<_> = catalog
        .candidates()
        .iter()
        .map(|c| (c.path.clone(), c.shadowed_by.clone()))
        .collect();
    assert_eq!(found, [(first.clone(), None), (second.clone(), Some(first.clone()))]);
    assert_eq!(catalog.find(Kind::Platform, "minimal").expect("known").path, first);
    let reports = plugin_reports(&catalog);
    assert_eq!(reports[1].shadowed_by, Some(first));
    assert_eq!(reports[0].reason, None);
}

#[test]
fn relative_and_missing_folders_are_refused_where_they_were_asked_for() {
    let relative = SearchPath {
        path_variable: Some("::plugins:".into()),
        ..SearchPath::default()
    };
    let catalog = Catalog::discover(&relative);
    let failure = catalog.explicit_failure().expect("a relative folder is refused");
    assert!(failure.to_string().contains("a relative path"), "{failure}");
    assert_eq!(
        catalog.failures().count(),
        1,
        "empty entries mean nothing, not the working directory"
    );
    let absent = SearchPath {
        plugin_dirs: vec!["/fictional/folder".into()],
        ..SearchPath::default()
    };
    let failure = Catalog::discover(&absent)
        .explicit_failure()
        .cloned()
        .expect("a missing folder is refused");
    assert!(failure.to_string().contains("--plugin-dir"), "{failure}");
}

#[test]
fn a_misspelt_name_is_an_error_with_the_nearest_one() {
    let library = build(&folder("misspelt"), "libminimal.so", &[]);
    let catalog = catalog_of(&library);
    let error = select_platform(&catalog, Some("minimall"))
        .err()
        .expect("no such platform");
    let PluginError::UnknownName { nearest, known, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(
        (nearest.as_deref(), known.as_slice()),
        (Some("minimal"), &["minimal".to_string()][..])
    );
    assert!(error.to_string().contains("did you mean `minimal`?"), "{error}");
    let far = select_platform(&catalog, Some("xyz")).err().expect("no such platform");
    assert!(!far.to_string().contains("did you mean"), "{far}");
}

#[test]
fn without_a_usable_platform_every_reason_is_given() {
    let library = build(&folder("unusable"), "libminimal.so", &["BROKEN_NO_DEVICE"]);
    let catalog = catalog_of(&library);
    let error = select_platform(&catalog, None).err().expect("no device");
    let PluginError::NoPlatform { rejected, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(rejected[0].name, "minimal");
    assert!(rejected[0].reason.contains("no minimal chip"), "{error}");
    let reports = platform_reports(&catalog);
    assert!(
        reports[0]
            .reason
            .as_ref()
            .is_some_and(|r| r.contains("no minimal chip"))
    );
    let empty = select_platform(&Catalog::default(), None).err().expect("nothing there");
    assert!(empty.to_string().contains("--plugin-dir"), "{empty}");
}

#[test]
fn reports_tell_stages_devices_and_file_facts() {
    let library = build(&folder("reports"), "libminimal.so", &[]);
    let catalog = catalog_of(&library);
    let why = catalog.why("minimal").expect("known");
    let stages: Vec<Stage> = why.iter().map(|r| r.stage).collect();
    use Stage::{Allowed, Architecture, Devices, Entry, Found, Libraries, Manifest, Negotiated, Opened, Started};
    let all = [
        Found,
        Manifest,
        Allowed,
        Architecture,
        Libraries,
        Opened,
        Entry,
        Negotiated,
        Started,
        Devices,
    ];
    assert_eq!(stages, all);
    assert!(why.iter().all(|r| r.passed), "{why:?}");

    let report = &platform_reports(&catalog)[0];
    assert_eq!(
        (report.name.as_str(), report.version.as_str(), report.priority),
        ("minimal", "3.2.1", 5)
    );
    assert_eq!(report.devices[0].free_memory_bytes, Some(1 << 20));
    assert_eq!(report.devices[0].compute_dtypes, ["F32"]);
    let json = serde_json::to_value(report).expect("reports are JSON");
    assert_eq!(json["devices"][0]["name"], "Minimal C device");

    let inspected = inspect(&library).expect("readable");
    assert!(inspected.runs_here);
    assert_eq!(inspected.manifests[0].entry, "minimal_entry");
    assert_eq!(inspected.sha256.len(), 64);
    assert_eq!(inspected.bytes, std::fs::metadata(&library).expect("built").len());
}

#[test]
fn an_allow_list_admits_the_listed_sum_only() {
    let folder = folder("allowed");
    let library = build(&folder, "libminimal.so", &[]);
    let sum = inspect(&library).expect("readable").sha256;
    let list = |text: &str| AllowList::parse(text, &folder.join("plugins.lock"));
    let tried = |text: &str| {
        let list = list(text).expect("well-formed");
        select_platform(&catalog_with(&library, Some(list)), Some("minimal")).map(|_| ())
    };
    for key in ["libminimal.so", "minimal", library.to_str().expect("UTF-8")] {
        tried(&format!("[plugins]\n\"{key}\" = \"{sum}\"")).expect("listed");
    }
    let other = sum.chars().rev().collect::<String>();
    let wrong = tried(&format!("[plugins]\nminimal = \"{other}\"")).expect_err("another sum");
    assert_stage(&wrong, Stage::Allowed, &[&sum, &other]);
    let absent = tried("[plugins]").expect_err("not listed");
    assert_stage(&absent, Stage::Allowed, &["not listed", "plugins.lock"]);
    let short = list("[plugins]\nminimal = \"abc\"").expect_err("no sum");
    assert!(short.to_string().contains("\"abc\""), "{short}");
    assert!(list("plugins = 3").is_err());
    assert!(AllowList::read(&folder.join("absent.lock")).is_err());
}
