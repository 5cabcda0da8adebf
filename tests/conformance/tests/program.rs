//! `halyard-conformance` as a vendor runs it: on good libraries, on a platform without ops, and on libraries that
//! crash, hang or are none.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A library that cargo puts beside this test's own binary.
fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    test.with_file_name(format!("libhalyard_{name}.so"))
}

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_halyard-conformance"));
    command.args(args).output().expect("it starts")
}

fn check(file: &Path, args: &[&str]) -> (Option<i32>, Value) {
    let reference = library("reference");
    let own = [text(file), "--json", "--oracle", text(&reference)];
    let output = run(&[&own[..], args].concat());
    let report = serde_json::from_slice(&output.stdout);
    let report = report.unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code(), report)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

fn rows<'a>(report: &'a Value, op: &str) -> Vec<&'a Value> {
    let all = report["rows"].as_array().expect("rows");
    all.iter().filter(|row| row["op"] == op).collect()
}

/// The platform in C that has memory and queues and no ops, broken as `define` says.
fn without_ops(define: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("program-{define}"));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("libminimal.so");
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-O1", "-fvisibility=default", "-I"]);
    command
        .arg(root.join("platform-api/include"))
        .arg(format!("-D{define}"));
    command
        .arg("-o")
        .arg(&file)
        .arg(root.join("runtime/plugin-host/tests/c/plugin.c"));
    let output = command.output().expect("cc is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    file
}

#[test]
fn a_good_library_passes_and_the_report_names_it() {
    let (status, report) = check(
        &library("cpu"),
        &[
            "--part",
            "memory",
            "--part",
            "rules",
            "--part",
            "collectives",
            "--ranks",
            "2",
        ],
    );
    assert_eq!((status, &report["passed"]), (Some(0), &Value::Bool(true)), "{report}");
    assert_eq!(
        (&report["platform"], report["sha256"].as_str().map(str::len)),
        (&"cpu".into(), Some(64))
    );
    assert!(rows(&report, "rules").len() > 10 && rows(&report, "memory").len() > 3);
    assert_eq!(rows(&report, "collectives")[0]["variant"], "2 ranks");
    assert!(rows(&report, "add").is_empty(), "other parts were not asked for");
    let one_device = ["--part", "memory", "--part", "collectives", "--strict"];
    let (status, report) = check(&library("cpu"), &one_device);
    assert_eq!(status, Some(0), "{report}");
    assert!(rows(&report, "collectives")[0]["unsupported"].is_string(), "{report}");
}

#[test]
fn an_op_is_filtered_and_what_lacks_it_is_told() {
    let (status, report) = check(&library("cpu"), &["--part", "pointwise", "--filter", "add"]);
    assert_eq!(status, Some(0));
    let all = report["rows"].as_array().expect("rows");
    assert!(!all.is_empty() && all.iter().all(|row| row["op"] == "add"), "{report}");
    let minimal = without_ops("NOT_BROKEN");
    let only = ["--part", "pointwise", "--filter", "add"];
    let (status, report) = check(&minimal, &only);
    // Nothing ran: that is no pass.
    assert_eq!((status, &report["passed"]), (Some(1), &Value::Bool(false)), "{report}");
    assert!(rows(&report, "add")[0]["unsupported"].is_string(), "{report}");
    assert_eq!(
        rows(&report, "add")[0]["failures"],
        Value::Array(Vec::new()),
        "{report}"
    );
    let (_, report) = check(&minimal, &[&only[..], &["--strict"]].concat());
    let failure = rows(&report, "add")[0]["failures"][0].as_str();
    assert!(failure.is_some_and(|why| why.contains("every variant")), "{report}");
    let (_, report) = check(&minimal, &[&only[..], &["--strict", "--may-lack", "add"]].concat());
    assert_eq!(
        rows(&report, "add")[0]["failures"],
        Value::Array(Vec::new()),
        "{report}"
    );
    let reason = run(&[text(&library("cpu")), "--filter", "no such op", "--part", "memory"]);
    assert_eq!(reason.status.code(), Some(2));
}

#[test]
fn a_crash_and_a_hang_are_rows_and_other_parts_go_on() {
    for (define, words) in [("BROKEN_CRASH", "signal"), ("BROKEN_HANG", "no end within 8 s")] {
        let parts = ["--part", "memory", "--part", "pointwise", "--deadline", "8"];
        let (status, report) = check(&without_ops(define), &parts);
        assert_eq!(status, Some(1), "{report}");
        let (before, end): (Vec<_>, Vec<_>) = rows(&report, "memory").into_iter().partition(|row| row["passed"] == 1);
        assert_eq!(end.len(), 1, "{report}");
        assert!(
            end[0]["failures"][0].as_str().is_some_and(|why| why.contains(words)),
            "{report}"
        );
        assert_eq!(before.len(), usize::from(define == "BROKEN_HANG"), "{report}");
        assert!(rows(&report, "add")[0]["unsupported"].is_string(), "{define}: {report}");
    }
}

#[test]
fn rows_that_threads_share_are_those_of_one() {
    let only = ["--part", "pointwise", "--part", "memory", "--filter", "m"];
    let (_, alone) = check(&library("cpu"), &only);
    let (status, shared) = check(&library("cpu"), &[&only[..], &["--jobs", "3"]].concat());
    assert_eq!(status, Some(0), "{shared}");
    let names = |report: &Value| {
        let all = report["rows"].as_array().expect("rows").iter();
        let mut names: Vec<_> = all
            .map(|row| format!("{} {} {}", row["op"], row["variant"], row["cases"]))
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(&alone), names(&shared));
    assert!(names(&alone).len() > 8, "{alone}");
}

#[test]
fn what_is_no_library_is_refused() {
    let none = run(&[concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    assert_eq!(none.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&none.stderr).contains("Cargo.toml"));
    let option = run(&[text(&library("cpu")), "--platform-option", "colour=red"]);
    assert_eq!(option.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&option.stderr).contains("this platform knows isa, threads"));
}

#[test]
fn support_lists_what_runs_and_why_the_rest_does_not() {
    let output = run(&["support", text(&library("cpu")), "--json"]);
    assert!(output.status.success());
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let all = report["rows"].as_array().expect("rows");
    assert!(
        all.iter()
            .any(|row| row["op"] == "linear" && row["outcome"]["Ok"].is_string()),
        "{report}"
    );
    let refused: Vec<_> = all.iter().filter_map(|row| row["outcome"]["Err"].as_str()).collect();
    assert!(
        !refused.is_empty() && refused.iter().all(|why| !why.is_empty()),
        "{report}"
    );
}
