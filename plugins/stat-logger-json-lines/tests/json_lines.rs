//! The logger, linked and loaded from its `.so`, writes what it is given and refuses what it does not know.

use std::path::PathBuf;

use halyard_platform_api::Status;
use halyard_platform_api::hooks::{FinishedRecord, StatLoggerFactory, StatRecord, StepRecord};
use halyard_plugin_host::{Catalog, Kind, Plugin, SearchPath, inspect};
use serde_json::{Value, json};
use std::sync::Arc;

const LIBRARY: &str = "libhalyard_stat_logger_json_lines.so";

/// The library that Cargo built beside this test.
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
    let mut step = StepRecord::zeroed();
    step.step_index = 7;
    step.unix_ns = u64::MAX;
    step.num_running = 3;
    step.kv_cache_usage = 0.25;
    step.dropped_records = 2;
    let mut finished = FinishedRecord::zeroed();
    finished.reason = 1;
    finished.request = 11;
    finished.generation_tokens = 5;
    let mut streamed = finished;
    streamed.reason = 9;
    streamed.first_token_ns = 4;
    vec![
        StatRecord::Step(step),
        StatRecord::Finished(finished),
        StatRecord::Finished(streamed),
    ]
}

fn written(factory: &dyn StatLoggerFactory, name: &str) -> Vec<Value> {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, "{\"before\":1}\n").expect("the scratch folder is writable");
    let mut logger = factory
        .create(&json!({ "path": path }).to_string())
        .expect("the file can be opened");
    logger.record(&records()).expect("the disk takes it");
    logger.flush().expect("the disk takes it");
    let text = std::fs::read_to_string(&path).expect("the file is there");
    assert!(text.ends_with('\n'));
    text.lines()
        .map(|line| serde_json::from_str(line).expect("each line is JSON"))
        .collect()
}

fn check(lines: &[Value]) {
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[0], json!({"before": 1}), "it appends");
    assert_eq!(lines[1]["type"], "step");
    assert_eq!(lines[1]["step_index"], 7);
    assert_eq!(lines[1]["unix_ns"], u64::MAX);
    assert_eq!(lines[1]["num_running"], 3);
    assert_eq!(lines[1]["kv_cache_usage"], 0.25);
    assert_eq!(lines[1]["dropped_records"], 2);
    assert_eq!(lines[1].as_object().map(|o| o.len()), Some(13));
    assert_eq!(
        lines[2],
        json!({"type": "finished", "unix_ns": 0, "request": 11, "reason": "length", "prompt_tokens": 0, "cached_tokens": 0,
               "generation_tokens": 5, "queue_ns": 0, "total_ns": 0})
    );
    assert_eq!(
        (&lines[3]["first_token_ns"], &lines[3]["reason"]),
        (&json!(4), &json!("unknown"))
    );
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
    logger.record(&records()).expect("held back");
    let error = logger.flush().expect_err("no space");
    assert_eq!((error.status, error.vendor_code), (Status::Internal, 28));
    assert!(error.message.contains("/dev/full"), "{error}");
    assert!(logger.flush().is_err(), "an error does not poison");
}

#[test]
fn without_a_path_it_writes_to_standard_error() {
    let mut logger = linked().create("{}").expect("standard error is there");
    logger.record(&records()).expect("taken");
    logger.flush().expect("written");
}
