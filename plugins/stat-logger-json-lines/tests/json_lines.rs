//! The logger, linked and loaded from its `.so`, writes its records and refuses unknown configuration.

use std::path::PathBuf;

use halyard_platform_api::Status;
use halyard_platform_api::hooks::{
    Batch, CacheRecord, FinishedRecord, IterationRecord, LoraRecord, RejectedRecord, SchedulerRecord, ShutdownRecord,
    StartRecord, StatLogger, StatLoggerFactory, StatRecord,
};
use halyard_plugin_host::{Catalog, Kind, Plugin, SearchPath, inspect};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(1);
const LIBRARY: &str = "libhalyard_stat_logger_json_lines.so";

/// The library that Cargo built into this test's folder.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a path");
    let folder = test.parent().expect("a file is in a folder");
    let path = folder.join(LIBRARY);
    assert!(path.exists(), "{} is built with the package", path.display());
    path
}

fn linked() -> Arc<dyn StatLoggerFactory> {
    let plugin = Plugin::from_linked(halyard_stat_logger_json_lines::plugin()).expect("it starts");
    plugin.stat_logger_factory().expect("a stat logger")
}

fn loaded() -> Arc<dyn StatLoggerFactory> {
    let catalog = Catalog::discover(&SearchPath {
        plugins: vec![library()],
        ..SearchPath::default()
    });
    let candidate = catalog
        .find(Kind::StatLogger, "json-lines")
        .expect("its manifest is there");
    let plugin = catalog.load(candidate).expect("it loads");
    plugin.stat_logger_factory().expect("a stat logger")
}

fn records() -> Vec<StatRecord> {
    let iteration = IterationRecord {
        step_index: 7,
        unix_ns: u64::MAX,
        num_seqs: 3,
        inter_token_ns: [5, 8].into(),
        inter_token_counts: [2, 1].into(),
        ..IterationRecord::default()
    };
    let cache = CacheRecord {
        usage: 0.25,
        ..CacheRecord::default()
    };
    let finished = FinishedRecord {
        reason: 1,
        sequence: 11,
        generation_tokens: 5,
        request_id: "cmpl-µ\"1".into(),
        ..FinishedRecord::default()
    };
    let newer = FinishedRecord {
        reason: 9,
        ..finished.clone()
    };
    vec![
        StatRecord::Iteration(iteration),
        StatRecord::Cache(cache),
        StatRecord::Finished(finished),
        StatRecord::Finished(newer),
    ]
}

fn log(logger: &mut dyn StatLogger, records: &[StatRecord]) -> halyard_platform_api::Result<()> {
    logger.log_batch(&Batch {
        records,
        deadline: DEADLINE,
        num_dropped: 0,
    })
}

fn written(factory: &dyn StatLoggerFactory, name: &str) -> Vec<Value> {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, "{\"before\":1}\n").expect("the scratch folder is writable");
    let mut logger = factory
        .create(&json!({ "path": path }).to_string())
        .expect("the file can be opened");
    log(&mut *logger, &records()).expect("the disk takes it");
    logger.flush(DEADLINE).expect("the disk takes it");
    let text = std::fs::read_to_string(&path).expect("the file is there");
    assert!(text.ends_with('\n'));
    text.lines()
        .map(|line| serde_json::from_str(line).expect("each line is JSON"))
        .collect()
}

fn check(lines: &[Value]) {
    assert_eq!(lines.len(), 5);
    assert_eq!(lines[0], json!({"before": 1}), "it appends");
    assert_eq!(lines[1]["type"], "iteration");
    assert_eq!(lines[1]["step_index"], 7);
    assert_eq!(lines[1]["unix_ns"], u64::MAX);
    assert_eq!(lines[1]["num_seqs"], 3);
    assert_eq!(
        (&lines[1]["inter_token_ns"], &lines[1]["inter_token_counts"]),
        (&json!([5, 8]), &json!([2, 1]))
    );
    assert_eq!(lines[2]["usage"], 0.25);
    assert_eq!(lines[3]["reason"], "length");
    assert_eq!(lines[3]["sequence"], 11);
    assert_eq!(lines[3]["request_id"], "cmpl-µ\"1");
    assert_eq!(lines[4]["reason"], "unknown", "a newer host's code");
}

#[test]
fn every_field_of_every_record_is_written() {
    let all = [
        StatRecord::Start(StartRecord::default()),
        StatRecord::Scheduler(SchedulerRecord::default()),
        StatRecord::Iteration(IterationRecord::default()),
        StatRecord::Finished(FinishedRecord::default()),
        StatRecord::Cache(CacheRecord::default()),
        StatRecord::Lora(LoraRecord::default()),
        StatRecord::Rejected(RejectedRecord::default()),
        StatRecord::Shutdown(ShutdownRecord::default()),
    ];
    assert_eq!(all.len(), StatRecord::KINDS.len());
    for (record, (kind, _)) in all.iter().zip(StatRecord::KINDS) {
        let kind = kind.to_lowercase();
        let structs = halyard_platform_api::abi::tables::structs();
        let layout = structs.iter().find(|s| s.name == format!("halyard_{kind}_record"));
        let fields = &layout.expect("each kind has a struct").fields;
        let object = halyard_stat_logger_json_lines::line(record);
        assert_eq!(object["type"], kind.as_str());
        for field in fields.iter().filter(|field| field.name != "struct_size") {
            assert!(object.get(field.name).is_some(), "{kind} lacks {}", field.name);
        }
        assert_eq!(object.as_object().map(|o| o.len()), Some(fields.len()), "{kind}");
    }
}

#[test]
fn linked_it_writes_one_object_a_line() {
    check(&written(&*linked(), "linked.jsonl"));
}

#[test]
fn loaded_it_writes_the_same() {
    check(&written(&*loaded(), "loaded.jsonl"));
}

#[test]
fn its_library_tells_what_it_is_without_running() {
    let report = inspect(&library()).expect("a plugin");
    let manifest = &report.manifests[0];
    assert_eq!(
        (manifest.name.as_str(), manifest.kind),
        ("json-lines", Kind::StatLogger)
    );
    assert_eq!(manifest.version, env!("CARGO_PKG_VERSION"));
    assert!(report.runs_here);
}

#[test]
fn unknown_keys_and_wrong_values_are_named() {
    let refused = |config: &str, words: &str| {
        let error = linked().create(config).map(|_| ()).expect_err(words);
        assert_eq!(error.status, Status::InvalidArgument);
        assert!(
            error.message.starts_with("json-lines: ") && error.message.contains(words),
            "{error}"
        );
    };
    refused(r#"{"pth": "x"}"#, "`pth`");
    refused(r#"{"path": 3}"#, "integer `3`");
    refused("[]", "configuration []");
    refused("", "EOF");
    refused(r#"{"path": "/fictional/folder/x.jsonl"}"#, "/fictional/folder/x.jsonl");
}

#[test]
fn a_full_disk_is_an_error_and_the_logger_lives() {
    let mut logger = linked().create(r#"{"path": "/dev/full"}"#).expect("it opens");
    let error = log(&mut *logger, &records()).expect_err("no space");
    assert_eq!((error.status, error.vendor_code), (Status::Internal, 28));
    assert!(error.message.contains("/dev/full"), "{error}");
    assert!(log(&mut *logger, &records()).is_err(), "an error does not poison");
}

#[test]
fn without_a_path_it_writes_to_standard_error() {
    let mut logger = linked().create("{}").expect("standard error is there");
    log(&mut *logger, &records()).expect("taken");
    logger.flush(DEADLINE).expect("written");
}

#[test]
fn lines_of_several_engines_in_one_file_are_whole_and_say_whose_they_are() {
    let folder = std::env::temp_dir().join(format!("halyard-json-lines-engines-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("made");
    let path = folder.join("stats.jsonl");
    let config = json!({ "path": path }).to_string();
    const LINES: usize = 400;
    std::thread::scope(|scope| {
        for engine_index in 0..2 {
            let mut logger = linked().create(&config).expect("it opens");
            scope.spawn(move || {
                let start = StartRecord {
                    engine_index,
                    ..StartRecord::default()
                };
                log(&mut *logger, &[StatRecord::Start(start)]).expect("written");
                // Batches longer than any buffer on the way.
                let batch = vec![StatRecord::Iteration(IterationRecord::default()); LINES / 4];
                (0..4).for_each(|_| log(&mut *logger, &batch).expect("written"));
            });
        }
    });
    let text = std::fs::read_to_string(&path).expect("it is there");
    std::fs::remove_dir_all(&folder).expect("removed");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("whole"))
        .collect();
    for engine_index in 0..2 {
        let of_engine = lines.iter().filter(|line| line["engine_index"] == engine_index);
        assert_eq!(of_engine.count(), 1 + LINES, "engine {engine_index}");
    }
}
