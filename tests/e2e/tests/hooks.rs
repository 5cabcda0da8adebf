//! Stat loggers in a running server: broken ones together with good ones under 64 streams, and a reload under load. No
//! request may notice.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use halyard_e2e::{Server, TestFolder, halyard, library, run, stderr};
use reqwest::Client;
use serde_json::{Value, json};

/// A library of the workspace, built into the binary's folder.
fn built(package: &str) -> PathBuf {
    halyard_e2e::build_with_binary(&[package]);
    library(&package.trim_start_matches("halyard-").replace('-', "_"))
}

/// Runs `count` streams of `tokens` at once; each must end well with all its tokens.
async fn streams(client: &Client, url: &str, count: usize, tokens: usize) {
    let tasks: Vec<_> = (0..count)
        .map(|index| {
            let (client, url) = (client.clone(), url.to_owned());
            tokio::spawn(async move {
                let body = json!({"prompt": [5 + index, 7, 9], "max_tokens": tokens, "ignore_eos": true, "stream": true,
                    "stream_options": {"include_usage": true}});
                let answer = client.post(format!("{url}/v1/completions")).json(&body).send().await;
                let answer = answer.expect("answers");
                assert_eq!(answer.status(), 200, "stream {index}");
                let text = answer.text().await.expect("to its end");
                assert!(text.trim_end().ends_with("data: [DONE]"), "stream {index}: {text}");
                assert!(!text.contains("\"error\""), "stream {index}: {text}");
                assert!(
                    text.contains(&format!("\"completion_tokens\":{tokens}")),
                    "stream {index}: {text}"
                );
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no stream failed");
    }
}

async fn metrics(client: &Client, url: &str) -> String {
    let answer = client.get(format!("{url}/metrics")).send().await.expect("answers");
    answer.text().await.expect("a text")
}

fn metric(text: &str, start: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(start));
    let line = line.unwrap_or_else(|| panic!("no {start} in\n{text}"));
    line.rsplit(' ')
        .next()
        .and_then(|value| value.parse().ok())
        .expect("a number")
}

async fn listed(client: &Client, url: &str) -> Value {
    let answer = client
        .get(format!("{url}/admin/plugins"))
        .send()
        .await
        .expect("answers");
    assert_eq!(answer.status(), 200);
    answer.json().await.expect("JSON")
}

fn sink<'a>(list: &'a Value, name: &str) -> &'a Value {
    let sinks = list["stat_loggers"].as_array().expect("a list");
    sinks.iter().find(|sink| sink["name"] == name).expect(name)
}

/// The lines of a JSON-lines file.
fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("the sink's file");
    let read = |line: &str| serde_json::from_str(line).expect("each line is whole");
    text.lines().map(read).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_sinks_are_quarantined_and_named_and_no_request_notices() {
    let folder = TestFolder::new("broken-sinks");
    let file = folder.0.join("stats.jsonl");
    let (broken, good) = (built("halyard-broken-plugins"), built("halyard-stat-logger-json-lines"));
    let config = format!("json-lines:path={}", file.display());
    let server = Server::tiny(&[
        "--plugin",
        broken.to_str().expect("UTF-8"),
        "--plugin",
        good.to_str().expect("UTF-8"),
        "--stat-logger",
        "panics",
        "--stat-logger",
        "errors",
        "--stat-logger",
        "sleeps",
        "--stat-logger",
        "garbage",
        "--stat-logger",
        &config,
        // Enough for the good ones on a busy machine.
        "--stat-logger-deadline-ms",
        "10000",
    ]);
    let client = Client::new();
    streams(&client, &server.url, 64, 24).await;
    // More rounds until each bad one has been found out; a scrape makes the sinks look at their queues at once.
    let started = Instant::now();
    let text = loop {
        streams(&client, &server.url, 4, 8).await;
        let text = metrics(&client, &server.url).await;
        let found_out =
            |name: &str| metric(&text, &format!("halyard:hook_quarantines_total{{sink=\"{name}\"}}")) >= 1.0;
        if ["panics", "errors", "sleeps", "garbage"]
            .iter()
            .all(|name| found_out(name))
        {
            break text;
        }
        assert!(started.elapsed() < Duration::from_secs(120), "{text}");
    };
    assert_eq!(metric(&text, "halyard:hook_engine_waits_total"), 0.0);
    assert_eq!(metric(&text, "halyard:hook_stuck{sink=\"sleeps\"}"), 1.0);
    assert!(metric(&text, "halyard:hook_failures_total{sink=\"panics\",reason=\"panic\"}") >= 1.0);
    assert!(metric(&text, "halyard:hook_failures_total{sink=\"errors\",reason=\"error\"}") >= 3.0);
    assert_eq!(
        metric(&text, "halyard:hook_failures_total{sink=\"sleeps\",reason=\"timeout\"}"),
        1.0
    );
    assert!(
        metric(&text, "vllm:generation_tokens_total") >= 64.0 * 24.0,
        "the good ones go on"
    );
    let list = listed(&client, &server.url).await;
    let words = |name: &str| sink(&list, name)["last_error"].as_str().unwrap_or_default().to_owned();
    assert!(words("panics").contains("are too many for me"), "{list}");
    assert!(words("errors").contains("the database is away"), "{list}");
    assert!(
        words("garbage").contains("4711") || words("garbage").contains("18446744073709551615"),
        "{list}"
    );
    assert_eq!(sink(&list, "sleeps")["state"], "stuck");
    for name in [
        "panics",
        "errors",
        "sleeps",
        "garbage",
        "json-lines",
        "prometheus",
        "log-line",
    ] {
        let count = |key: &str| sink(&list, name)[key].as_u64().expect("a count");
        assert_eq!(
            count("accepted"),
            count("delivered") + count("dropped") + count("pending"),
            "{name}"
        );
    }
    assert_eq!(sink(&list, "json-lines")["dropped"], 0);
    let shown = run(&["plugins", "list", "--url", &server.url]);
    let shown = String::from_utf8(shown.stdout).expect("UTF-8");
    assert!(shown.contains("sleeps") && shown.contains("stuck"), "{shown}");
    let refused = run(&["plugins", "reload", "sleeps", "--url", &server.url]);
    assert!(!refused.status.success());
    assert!(stderr(&refused).contains("is stuck in a call"), "{}", stderr(&refused));
    server.signal("TERM");
    let (status, log) = server.wait();
    assert_eq!(status, Some(0), "{log}");
    assert!(log.contains("stat logger put into quarantine"), "{log}");
    let written = lines(&file);
    assert_eq!(written[0]["type"], "start");
    assert_eq!(written.last().map(|line| line["type"].clone()), Some(json!("shutdown")));
    assert!(written.iter().filter(|line| line["type"] == "finished").count() >= 64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_under_load_loses_no_record_and_no_request() {
    let folder = TestFolder::new("reload");
    let file = folder.0.join("stats.jsonl");
    let original = built("halyard-stat-logger-json-lines");
    let installed = folder.0.join("libsink.so");
    std::fs::copy(&original, &installed).expect("copies");
    let config = format!("json-lines:path={}", file.display());
    let server = Server::tiny(&[
        "--plugin",
        installed.to_str().expect("UTF-8"),
        "--stat-logger",
        &config,
        "--stat-logger-deadline-ms",
        "60000",
    ]);
    let client = Client::new();
    let load = {
        let (client, url) = (client.clone(), server.url.clone());
        tokio::spawn(async move {
            for _ in 0..3 {
                streams(&client, &url, 16, 40).await;
            }
        })
    };
    for generation in 2..4 {
        // A newer file takes the place of the old one, as `install` would do it.
        let newer = folder.0.join("newer");
        std::fs::copy(&original, &newer).expect("copies");
        std::fs::rename(&newer, &installed).expect("renames");
        let output = tokio::task::spawn_blocking({
            let url = server.url.clone();
            move || halyard(&["plugins", "reload", "json-lines", "--url", &url, "--json"]).output()
        });
        let output = output.await.expect("runs").expect("starts");
        assert!(output.status.success(), "{}", stderr(&output));
        let reloaded: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(reloaded["generation"], generation);
    }
    load.await.expect("no stream failed");
    // Overwritten in place, the file is the running code: that is refused in words.
    let bytes = std::fs::read(&original).expect("reads");
    let same_place = std::fs::OpenOptions::new().append(true).open(&installed);
    std::io::Write::write_all(&mut same_place.expect("opens"), &bytes[..1]).expect("writes");
    let refused = run(&["plugins", "reload", "json-lines", "--url", &server.url]);
    assert!(
        stderr(&refused).contains("overwritten while it is in use"),
        "{}",
        stderr(&refused)
    );
    let list = listed(&client, &server.url).await;
    assert_eq!(list["engine_waits"], 0);
    assert_eq!(sink(&list, "json-lines")["generation"], 3);
    server.signal("TERM");
    let (status, log) = server.wait();
    assert_eq!(status, Some(0), "{log}");
    let written = lines(&file);
    let starts: Vec<usize> = (0..written.len()).filter(|&i| written[i]["type"] == "start").collect();
    assert_eq!(starts.len(), 3, "each generation begins with the start record");
    let finished = written.iter().filter(|line| line["type"] == "finished").count();
    assert_eq!(finished, 48, "old and new together have every request");
    let steps: Vec<u64> = written
        .iter()
        .filter(|line| line["type"] == "iteration")
        .map(|line| line["step_index"].as_u64().expect("a number"))
        .collect();
    assert_eq!(
        steps,
        (1..=steps.len() as u64).collect::<Vec<_>>(),
        "no step is missing or reported twice"
    );
    let accepted = sink(&list, "json-lines")["accepted"].as_u64().expect("a count");
    assert_eq!(sink(&list, "json-lines")["dropped"], 0);
    assert!(written.len() as u64 >= accepted, "all that was accepted is written");
}

#[test]
fn a_table_that_ends_early_stops_the_start_in_words() {
    let broken = built("halyard-broken-plugins");
    let model = halyard_e2e::fixture("llama");
    let output = run(&[
        "serve",
        "--port",
        "0",
        "--platform",
        "cpu",
        "--model",
        model.to_str().expect("UTF-8"),
        "--plugin",
        broken.to_str().expect("UTF-8"),
        "--stat-logger",
        "short",
    ]);
    assert!(!output.status.success());
    let words = stderr(&output);
    assert!(words.contains("lacks required functions: drop, log_batch"), "{words}");
}
