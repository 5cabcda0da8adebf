//! Tools for authors of stat loggers: `plugins new`, `plugins test` with its recording, the C example, and a process of
//! its own for a logger that crashes while the server serves.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use halyard_e2e::{Server, TestFolder, build_c, build_project, run, stderr};
use serde_json::{Value, json};

const C_EXAMPLE: &str = "plugins/stat-logger-c/csv.c";
const WILD: &str = "runtime/plugin-host/tests/c/wild_logger.c";
const RECORDING: &str = "../../server/src/cli/plugins/recording.jsonl";

fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

/// Runs `plugins test`; the report and the output.
fn test_plugin(library: &Path, args: &[&str]) -> (Value, Output) {
    let output = run(&[&["plugins", "test", text(library), "--json"], args].concat());
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no report: {}", stderr(&output)));
    (report, output)
}

/// The calls of a report that failed, with their words.
fn failures(report: &Value) -> Vec<String> {
    let calls = report["calls"].as_array().expect("calls").iter();
    let failed = calls.filter(|call| call["ok"] == false);
    failed
        .map(|call| format!("{}: {}", call["call"].as_str().unwrap_or("?"), call["detail"]))
        .collect()
}

fn recorded(kind: &str) -> usize {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(RECORDING)).expect("the recording");
    text.lines()
        .filter(|line| line.contains(&format!("\"type\":\"{kind}\"")))
        .count()
}

#[test]
fn the_c_example_takes_the_recording_in_both_modes() {
    let folder = TestFolder::new("c-example");
    let library = build_c(C_EXAMPLE, &folder.0);
    for mode in ["process", "none"] {
        let lines = folder.0.join(format!("{mode}.csv"));
        let config = json!({"path": lines}).to_string();
        let (report, output) = test_plugin(&library, &["--config", &config, "--isolation", mode]);
        assert_eq!(
            (output.status.code(), &report["failed"]),
            (Some(0), &json!(0)),
            "{report}"
        );
        let written = std::fs::read_to_string(&lines).expect("its file");
        let ids: Vec<&str> = written.lines().filter_map(|line| line.split(',').nth(1)).collect();
        // Each recorded request, and the empty record of every kind.
        assert_eq!(ids.len(), recorded("finished") + 1, "{written}");
        assert!(ids[0].starts_with("cmpl-") && ids.last() == Some(&""), "{written}");
    }
    let shown = run(&["plugins", "test", text(&library), "--config", "{}"]);
    assert_eq!(shown.status.code(), Some(1));
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        shown.contains("create") && shown.contains("FAILED") && shown.contains("no plain text `path`"),
        "{shown}"
    );
}

#[test]
fn loggers_that_crash_hang_or_refuse_are_lines_of_the_report() {
    let folder = TestFolder::new("wild-test");
    let library = build_c(WILD, &folder.0);
    for (action, deadline_ms, words) in [
        ("crash", "60000", "ended by signal 11 (SIGSEGV)"),
        ("hang", "400", "did not answer within"),
        ("exit", "60000", "exited with status 3"),
        ("error", "60000", "no luck today"),
        ("refuse", "60000", "refused as asked"),
    ] {
        let config = json!({"do": action, "path": folder.0.join("lines")}).to_string();
        let (report, output) = test_plugin(&library, &["--config", &config, "--deadline-ms", deadline_ms]);
        assert_eq!(output.status.code(), Some(1), "{action}: {report}");
        let failed = failures(&report);
        assert!(failed.iter().any(|line| line.contains(words)), "{action}: {failed:?}");
    }
}

#[test]
fn what_cannot_be_tested_is_refused_with_the_reason() {
    let folder = TestFolder::new("refused-test");
    let library = build_c(C_EXAMPLE, &folder.0);
    let platform = halyard_e2e::library("cpu");
    let records = folder.0.join("records.jsonl");
    std::fs::write(&records, "{\"type\":\"finished\",\"reason\":\"tired\"}\n").expect("written");
    for (args, words) in [
        (vec![text(&platform)], "has no stat logger"),
        (vec![text(&library), "--name", "csw"], "`csv`"),
        (
            vec![text(&library), "--records", text(&records)],
            "line 1: Finished field `reason`: \"tired\"",
        ),
        (vec![text(&records)], "an ELF shared library"),
    ] {
        let output = run(&[&["plugins", "test"], &args[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(words), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn a_new_rust_project_builds_offline_outside_the_checkout_and_loads() {
    let folder = TestFolder::new("new-rust");
    let project = folder.0.join("sink");
    let made = run(&["plugins", "new", "stat-logger", "my-sink", "--path", text(&project)]);
    assert!(made.status.success(), "{}", stderr(&made));
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    build_project(&project, &cargo, &["build", "--release", "--offline", "--quiet"]);
    let library = project.join("target/release/libstat_logger_my_sink.so");
    let printed = String::from_utf8_lossy(&made.stdout).into_owned();
    assert!(
        printed.contains("target/release/libstat_logger_my_sink.so"),
        "{printed}"
    );
    let (report, output) = test_plugin(&library, &[]);
    assert_eq!(
        (output.status.code(), &report["name"]),
        (Some(0), &json!("my-sink")),
        "{report}"
    );
    // What it prints is a line for each finished request, on standard error.
    let lines = stderr(&output)
        .lines()
        .filter(|line| line.contains("prompt tokens"))
        .count();
    assert_eq!(lines, recorded("finished") + 1, "{}", stderr(&output));
    let again = run(&["plugins", "new", "stat-logger", "my-sink", "--path", text(&project)]);
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("it exists"), "{}", stderr(&again));
}

#[test]
fn a_new_c_project_builds_and_loads() {
    let folder = TestFolder::new("new-c");
    let project = folder.0.join("sink");
    let made = run(&[
        "plugins",
        "new",
        "stat-logger",
        "my-c-sink",
        "--language",
        "c",
        "--path",
        text(&project),
    ]);
    assert!(made.status.success(), "{}", stderr(&made));
    build_project(&project, "make", &["CFLAGS=-O2 -Wall -Wextra -Werror"]);
    let lines = folder.0.join("lines.csv");
    let config = json!({"path": lines}).to_string();
    let (report, _) = test_plugin(&project.join("libmy_c_sink.so"), &["--config", &config]);
    assert_eq!(
        (&report["name"], &report["failed"]),
        (&json!("my-c-sink"), &json!(0)),
        "{report}"
    );
}

#[test]
fn names_that_no_project_can_have_are_refused() {
    let folder = TestFolder::new("new-names");
    for name in ["My", "a_b", "../x", "a--b", "9lives"] {
        let path = folder.0.join("project");
        let output = run(&["plugins", "new", "stat-logger", name, "--path", text(&path)]);
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert!(stderr(&output).contains("such as `my-sink`"), "{}", stderr(&output));
        assert!(!path.exists());
    }
}

async fn post(client: &reqwest::Client, url: &str, body: Value) -> (u16, String) {
    let sent = client
        .post(format!("{url}/v1/completions"))
        .json(&body)
        .send()
        .await
        .expect("answers");
    (sent.status().as_u16(), sent.text().await.expect("a body"))
}

async fn get(client: &reqwest::Client, url: &str, route: &str) -> String {
    let sent = client.get(format!("{url}{route}")).send().await.expect("answers");
    assert_eq!(sent.status(), 200, "{route}");
    sent.text().await.expect("a body")
}

fn sink<'a>(list: &'a Value, name: &str) -> &'a Value {
    let sinks = list["stat_loggers"].as_array().expect("a list");
    sinks.iter().find(|sink| sink["name"] == name).expect(name)
}

/// Keys of each kind of line.
fn keys(lines: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut all = BTreeMap::new();
    for line in lines.lines() {
        let value: Value = serde_json::from_str(line).expect("JSON");
        let kind = value["type"].as_str().expect("a type").to_owned();
        all.insert(kind, value.as_object().expect("an object").keys().cloned().collect());
    }
    all
}

/// Also makes the recording: run with HALYARD_BLESS=1 after records have changed.
#[tokio::test]
async fn the_recording_is_of_a_real_run_and_has_todays_fields() {
    let folder = TestFolder::new("recording");
    let lines = folder.0.join("stats.jsonl");
    let logger = format!("json-lines={}", json!({"path": lines}));
    let adapter = format!("poet={}", text(&halyard_e2e::fixture("llama-lora").join("rank4")));
    let server = Server::tiny(&[
        "--stat-logger",
        &logger,
        "--max-model-len",
        "64",
        "--enable-lora",
        "--lora-modules",
        &adapter,
    ]);
    let client = reqwest::Client::new();
    for index in 0..3u64 {
        let prompt = vec![5 + index / 2; 20];
        let body = json!({"prompt": prompt, "max_tokens": 4 + index, "ignore_eos": true, "n": 1 + index / 2});
        assert_eq!(post(&client, &server.url, body).await.0, 200);
    }
    let adapted = json!({"model": "poet", "prompt": vec![5; 20], "max_tokens": 4, "ignore_eos": true});
    assert_eq!(post(&client, &server.url, adapted).await.0, 200);
    let refused = post(&client, &server.url, json!({"prompt": vec![5; 80], "max_tokens": 4})).await;
    assert_eq!(refused.0, 400, "{}", refused.1);
    server.signal("TERM");
    let (status, log) = server.wait();
    assert_eq!(status, Some(0), "{log}");
    let fresh = std::fs::read_to_string(&lines).expect("the run's records");
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join(RECORDING);
    if std::env::var_os("HALYARD_BLESS").is_some_and(|value| value == "1") {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .canonicalize()
            .expect("the repository");
        std::fs::write(&committed, fresh.replace(text(&root), "")).expect("the recording is writable");
        return;
    }
    let stored = std::fs::read_to_string(&committed).expect("the recording");
    let (stored, fresh) = (keys(&stored), keys(&fresh));
    assert_eq!(
        stored, fresh,
        "records changed: run this test with HALYARD_BLESS=1 and commit the recording"
    );
    let kinds: Vec<&str> = fresh.keys().map(String::as_str).collect();
    assert_eq!(
        kinds,
        [
            "cache",
            "finished",
            "iteration",
            "lora",
            "rejected",
            "scheduler",
            "shutdown",
            "start"
        ],
        "a run has every kind of record"
    );
}

/// Children of a process and their states.
fn children(id: u32) -> Vec<(u32, char)> {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).expect("a running server");
    let ids = tasks.flatten().flat_map(|task| {
        let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        text.split_whitespace()
            .filter_map(|id| id.parse().ok())
            .collect::<Vec<u32>>()
    });
    let state = |id: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        Some((id, stat.rsplit(") ").next()?.chars().next()?))
    };
    ids.filter_map(state).collect()
}

#[tokio::test]
async fn a_logger_that_dereferences_null_in_its_own_process_hurts_no_stream() {
    let folder = TestFolder::new("crash");
    let (wild, csv) = (build_c(WILD, &folder.0), build_c(C_EXAMPLE, &folder.0));
    let requests = folder.0.join("requests.csv");
    let started = folder.0.join("started");
    let loggers = [
        format!("wild={}", json!({"do": "crash", "path": started})),
        format!("csv={}", json!({"path": requests})),
    ];
    let server = Server::tiny(&[
        "--plugin",
        text(&wild),
        "--plugin",
        text(&csv),
        "--stat-logger",
        &loggers[0],
        "--stat-logger",
        &loggers[1],
        "--hook-isolation",
        "process",
        // The good one must not be late on a busy machine.
        "--stat-logger-deadline-ms",
        "60000",
    ]);
    let client = reqwest::Client::new();
    let tasks: Vec<_> = (0..32u64)
        .map(|index| {
            let (client, url) = (client.clone(), server.url.clone());
            let body = json!({"prompt": vec![5 + index; 8], "max_tokens": 40, "ignore_eos": true, "stream": true,
                "stream_options": {"include_usage": true}});
            tokio::spawn(async move { post(&client, &url, body).await })
        })
        .collect();
    for task in tasks {
        let (status, body) = task.await.expect("a task");
        assert_eq!(status, 200);
        assert!(
            body.contains("\"completion_tokens\":40") && body.trim_end().ends_with("[DONE]"),
            "{body}"
        );
    }
    // A scrape makes a logger look at its queue at once; the first crash may come with it.
    let started_at = Instant::now();
    let list = loop {
        let shown = get(&client, &server.url, "/metrics").await;
        assert!(
            shown.contains("halyard:hook_failures_total{sink=\"wild\",reason=\"panic\"} 0"),
            "{shown}"
        );
        let list: Value = serde_json::from_str(&get(&client, &server.url, "/admin/plugins").await).expect("JSON");
        let crashes = sink(&list, "wild")["failures"]["crash"].as_u64().expect("a count");
        let crashed = format!("halyard:hook_failures_total{{sink=\"wild\",reason=\"crash\"}} {crashes}\n");
        if crashes > 0 && get(&client, &server.url, "/metrics").await.contains(&crashed) {
            break list;
        }
        assert!(started_at.elapsed() < Duration::from_secs(60), "{shown}");
    };
    let wild = sink(&list, "wild");
    let crashes = wild["failures"]["crash"].as_u64().expect("a count");
    assert_eq!(wild["isolation"], "process");
    assert!(
        wild["last_error"]
            .as_str()
            .is_some_and(|words| words.contains("SIGSEGV")),
        "{list}"
    );
    assert!(wild["quarantines"].as_u64() >= Some(crashes), "{list}");
    assert_eq!(sink(&list, "csv")["failures"]["crash"], 0);
    assert_eq!(list["engine_waits"], 0);
    let shown = tokio::task::spawn_blocking({
        let url = server.url.clone();
        move || run(&["plugins", "list", "--url", &url])
    });
    let shown = String::from_utf8_lossy(&shown.await.expect("runs").stdout).into_owned();
    assert!(
        shown.contains(" crashes, ") && !shown.contains(" 0 crashes, ") && shown.contains("runs in a process"),
        "{shown}"
    );
    // One that has just crashed is a zombie until the server looks.
    let zombies = || -> BTreeSet<u32> {
        let all = children(server.id()).into_iter();
        all.filter(|(_, state)| *state == 'Z').map(|(id, _)| id).collect()
    };
    let (mut left, looked_at) = (zombies(), Instant::now());
    while !left.is_empty() {
        assert!(looked_at.elapsed() < Duration::from_secs(60), "zombies: {left:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        left = &left & &zombies();
    }
    server.signal("TERM");
    let id = server.id();
    let (status, log) = server.wait();
    assert_eq!(status, Some(0), "{log}");
    assert!(log.contains("its process was ended by signal 11 (SIGSEGV)"), "{log}");
    assert!(!log.contains("panicked"), "{log}");
    let written = std::fs::read_to_string(&started).expect("it was given records before it crashed");
    assert_eq!(written.lines().next(), Some("start tiny"), "{written}");
    let starts = written.lines().filter(|line| *line == "start tiny").count() as u64;
    assert!(starts >= crashes, "each new process gets the start again: {written}");
    // Its neighbour in a process of its own lost nothing.
    let lines = std::fs::read_to_string(&requests).expect("its file");
    assert_eq!(lines.lines().count(), 32, "{lines}");
    assert!(!Path::new(&format!("/proc/{id}")).exists());
}

#[test]
fn a_misspelt_hook_or_mode_stops_the_start() {
    for (value, words) in [
        ("procces", "neither `none` nor `process`"),
        ("csw=process", "csw: no --stat-logger of this name"),
    ] {
        let model = halyard_e2e::fixture("llama");
        let args = [
            "serve",
            "--platform",
            "cpu",
            "--model",
            text(&model),
            "--port",
            "0",
            "--hook-isolation",
            value,
        ];
        let output = run(&args);
        assert_eq!(output.status.code(), Some(2), "{value}");
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    }
}

#[test]
fn the_hidden_command_by_hand_says_what_it_is_for() {
    let output = run(&["hook-child", "csv"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("--hook-isolation process"),
        "{}",
        stderr(&output)
    );
    let help = run(&["--help"]);
    assert!(
        !String::from_utf8_lossy(&help.stdout).contains("hook-child"),
        "it is hidden"
    );
}
