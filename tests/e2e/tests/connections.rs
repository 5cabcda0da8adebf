//! Connections of a running server: more of them than it may have open, ones that never become requests, and how it
//! ends, reloads its keys and keeps them to itself.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use halyard_e2e::{Server, TestFolder, fixture, halyard};
use reqwest::Client;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const KEY: &str = "open-sesame-41";
/// For what must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// The tiny model with these flags, and at most `files` open files.
fn with_file_limit(files: u32, args: &[&str]) -> Server {
    let model = fixture("llama");
    let base = [
        "serve",
        "--port",
        "0",
        "--platform",
        "cpu",
        "--kv-cache-memory-bytes",
        "16MiB",
    ];
    let mut inner = halyard(&[&base[..], args].concat());
    inner.arg("--model").arg(&model);
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!("ulimit -n {files}; exec \"$@\""))
        .arg("sh")
        .arg(inner.get_program())
        .args(inner.get_args())
        .stdin(Stdio::null());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Server::start(&mut command)
}

/// Descriptors for the test's own sockets.
fn raise_own_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).expect("the hard limit may be asked for");
    assert!(
        limit.maximum.is_none_or(|most| most > 2000),
        "this test needs 2000 open files"
    );
}

/// One of three kinds: silent, half a head, half a body under an accepted key.
async fn open_unfinished(server: &Server, kind: usize) -> TcpStream {
    let address = server.url.strip_prefix("http://").expect("http");
    let mut stream = TcpStream::connect(address).await.expect("connects");
    let half_body = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\nContent-Type: \
         application/json\r\n\
         Content-Length: 1000\r\n\r\n{{\"prompt\": "
    );
    let text = ["", "GET /health HTTP/1.1\r\nHost: loc", half_body.as_str()][kind % 3];
    // It may have been given up already.
    let _ = stream.write_all(text.as_bytes()).await;
    stream
}

async fn complete(client: &Client, server: &Server, key: &str) -> u16 {
    let request = client.post(format!("{}/v1/completions", server.url)).bearer_auth(key);
    let answer = request.json(&json!({"prompt": [5, 6], "max_tokens": 2})).send().await;
    answer.expect("answers").status().as_u16()
}

async fn status_of(client: &Client, server: &Server, path: &str) -> u16 {
    let answer = client.get(format!("{}{path}", server.url)).send().await;
    answer.expect("answers").status().as_u16()
}

async fn metric(client: &Client, server: &Server, start: &str) -> f64 {
    let request = client.get(format!("{}/metrics", server.url)).bearer_auth(KEY);
    let text = request.send().await.expect("answers").text().await.expect("text");
    let line = text.lines().find(|line| line.starts_with(start));
    let line = line.unwrap_or_else(|| panic!("no {start} in\n{text}"));
    line.rsplit(' ')
        .next()
        .and_then(|value| value.parse().ok())
        .expect("a number")
}

/// A count, once it is at least so much: the end of a connection is counted after its client saw it.
async fn count_of(least: f64, client: &Client, server: &Server, start: &str) -> f64 {
    let begun = Instant::now();
    loop {
        let count = metric(client, server, start).await;
        if count >= least {
            return count;
        }
        assert!(begun.elapsed() < PATIENCE, "{start} is {count}, not {least}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn more_connections_than_open_files_shut_nobody_out() {
    raise_own_limit();
    let patient = ["--request-header-timeout", "600", "--request-body-timeout", "600"];
    let server = with_file_limit(1024, &[&["--api-key", KEY][..], &patient].concat());
    let mut unfinished = Vec::new();
    for kind in 0..1500 {
        unfinished.push(open_unfinished(&server, kind).await);
        if kind % 100 == 99 {
            // Each time on a connection of its own, as a stranger's would be.
            let client = Client::new();
            assert_eq!(status_of(&client, &server, "/health").await, 200, "after {kind}");
            assert_eq!(complete(&client, &server, KEY).await, 200, "after {kind}");
        }
    }
    let client = Client::new();
    let limit = metric(&client, &server, "halyard:http_connections_limit").await;
    assert!((500.0..1024.0).contains(&limit), "{limit}");
    let open = metric(&client, &server, "halyard:http_connections ").await;
    assert!(open <= limit + 16.0, "{open} of {limit}");
    let evicted = "halyard:http_connections_ended_total{reason=\"evicted\"}";
    count_of(1500.0 - limit, &client, &server, evicted).await;
    let refused = metric(
        &client,
        &server,
        "halyard:http_connections_refused_total{reason=\"accept_error\"}",
    )
    .await;
    assert_eq!(refused, 0.0, "descriptors never ran out");
    drop(unfinished);
    server.signal("TERM");
    let (status, log) = server.wait();
    assert_eq!(status, Some(0), "{log}");
    let lines = log
        .lines()
        .filter(|line| line.contains("all connections are taken"))
        .count();
    assert_eq!(lines, 1, "{log}");
    assert!(!log.contains(KEY), "{log}");
}

#[tokio::test]
async fn what_never_becomes_a_request_is_closed_by_its_deadline() {
    let flags = [
        // The test itself writes some time after it connects.
        "--request-header-timeout",
        "10",
        "--request-body-timeout",
        "1",
        "--timeout-keep-alive",
        "1",
    ];
    let server = Server::tiny(&[&["--api-key", KEY][..], &flags].concat());
    let mut unfinished = Vec::new();
    for kind in 0..90 {
        unfinished.push(open_unfinished(&server, kind).await);
    }
    for (kind, stream) in unfinished.iter_mut().enumerate() {
        let mut answer = String::new();
        // Its end is the server's doing: nothing is sent any more.
        stream.read_to_string(&mut answer).await.expect("closed, not reset");
        let expected = if kind % 3 == 2 { "HTTP/1.1 408 " } else { "" };
        assert!(
            answer.starts_with(expected) && answer.is_empty() == expected.is_empty(),
            "{kind}: {answer}"
        );
    }
    let client = Client::new();
    for (counted, expected) in [
        ("halyard:http_connections_ended_total{reason=\"header_timeout\"}", 60.0),
        ("halyard:http_bodies_refused_total{reason=\"late\"}", 30.0),
    ] {
        assert_eq!(count_of(expected, &client, &server, counted).await, expected);
    }
    assert_eq!(complete(&client, &server, KEY).await, 200);
}

#[tokio::test]
async fn a_key_on_the_command_line_leaves_it() {
    let server = Server::tiny(&["--api-key", KEY, "--max-num-seqs", "2"]);
    let line = std::fs::read(format!("/proc/{}/cmdline", server.id())).expect("it runs");
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    assert!(!line.contains(KEY) && !line.contains("--api-key"), "{line}");
    assert!(line.contains("--max-num-seqs 2"), "{line}");
    let name = std::fs::read_to_string(format!("/proc/{}/comm", server.id())).expect("it runs");
    assert_eq!(name.trim(), "halyard");
    let client = Client::new();
    assert_eq!(complete(&client, &server, KEY).await, 200);
    assert_eq!(complete(&client, &server, "another").await, 401);
}

/// The environments of a process's children.
fn environments_of_children(parent: u32) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("Linux").flatten() {
        let folder: PathBuf = entry.path();
        let Ok(stat) = std::fs::read_to_string(folder.join("stat")) else {
            continue;
        };
        // The name stands in brackets and may hold anything; then state and parent.
        let fields = stat.rsplit(") ").next().unwrap_or_default();
        if fields.split(' ').nth(1) == Some(&parent.to_string()) {
            let read = |name: &str| std::fs::read(folder.join(name)).unwrap_or_default();
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).replace('\0', "\n");
            found.push((text(read("cmdline")), text(read("environ"))));
        }
    }
    found
}

#[tokio::test]
async fn a_hook_in_a_process_of_its_own_does_not_get_the_key() {
    let folder = TestFolder::new("hook-keys");
    let file = folder.0.join("stats.jsonl");
    let logger = format!("json-lines:path={}", file.display());
    let args = [
        "--api-key",
        KEY,
        "--stat-logger",
        &logger,
        "--hook-isolation",
        "process",
    ];
    let server = Server::tiny(&args);
    let own = std::fs::read(format!("/proc/{}/environ", server.id())).expect("it runs");
    assert!(String::from_utf8_lossy(&own).contains(KEY), "the server itself has it");
    let children = environments_of_children(server.id());
    let hooks: Vec<_> = children
        .iter()
        .filter(|(line, _)| line.contains("hook-child"))
        .collect();
    assert!(!hooks.is_empty(), "{children:?}");
    for (line, environment) in hooks {
        assert!(
            !environment.is_empty() && !environment.contains(KEY),
            "{line}\n{environment}"
        );
    }
}

#[tokio::test]
async fn a_hangup_reads_the_keys_again_and_ends_nothing() {
    let folder = TestFolder::new("keys");
    let file = folder.0.join("keys");
    std::fs::write(&file, "# ours\nfirst\n").expect("writes");
    let server = Server::tiny(&["--api-key-file", file.to_str().expect("UTF-8")]);
    let client = Client::new();
    assert_eq!(complete(&client, &server, "first").await, 200);
    std::fs::write(&file, "second\n").expect("writes");
    server.signal("HUP");
    // Asked until it has happened.
    while complete(&client, &server, "second").await != 200 {}
    assert_eq!(complete(&client, &server, "first").await, 401);
    // An empty file opens nothing.
    std::fs::write(&file, "").expect("writes");
    server.signal("HUP");
    for _ in 0..20 {
        assert_eq!(complete(&client, &server, "").await, 401);
    }
    assert_eq!(complete(&client, &server, "second").await, 200);
    server.signal("TERM");
    let (status, log) = server.wait();
    assert_eq!(status, Some(0), "{log}");
    assert!(log.contains("keys reloaded"), "{log}");
    assert!(!log.contains("second"), "{log}");
}

#[tokio::test]
async fn draining_is_told_before_the_port_closes() {
    let server = Server::tiny(&["--drain-delay", "600"]);
    let client = Client::new();
    assert_eq!(status_of(&client, &server, "/health").await, 200);
    server.signal("TERM");
    while status_of(&client, &server, "/health").await != 503 {}
    // The port is open, for new connections too.
    let fresh = Client::new();
    let request = fresh.post(format!("{}/v1/completions", server.url));
    let answer = request.json(&json!({"prompt": [5]})).send().await.expect("answers");
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()["retry-after"], "1");
    let error: Value = answer.json().await.expect("JSON");
    assert_eq!(error["error"]["code"], "shutting_down");
    assert_eq!(status_of(&fresh, &server, "/v1/models").await, 200);
    server.signal("TERM");
    assert_eq!(server.wait().0, Some(1), "a second signal ends at once");
}

#[tokio::test]
async fn a_streams_log_line_comes_at_its_end_with_what_it_took() {
    let server = Server::tiny(&[]);
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 9, "ignore_eos": true, "stream": true});
    let client = Client::new();
    let request = client
        .post(format!("{}/v1/completions", server.url))
        .header("x-request-id", "one-41");
    let answer = request.json(&body).send().await.expect("answers");
    assert!(answer.text().await.expect("a stream").contains("[DONE]"));
    let evil = client
        .get(format!("{}/v1/models", server.url))
        .header("host", "evil.example");
    assert_eq!(
        evil.send().await.expect("answers").status(),
        421,
        "on loopback names are checked"
    );
    server.signal("TERM");
    let (_, log) = server.wait();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("one-41")).collect();
    let [line] = lines[..] else {
        panic!("{log}");
    };
    for part in [
        "status=200",
        "client=127.0.0.1:",
        "first_byte_ms=",
        "elapsed_ms=",
        "prompt_tokens=3",
        "completion_tokens=9",
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    assert!(!line.contains("client_left"), "{line}");
}
