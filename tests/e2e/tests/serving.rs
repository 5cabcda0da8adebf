//! A running server under load and at its end: streams that complete while others are cut, blocks that come back, a
//! shutdown that lets answers finish, and logs that keep prompts to themselves.

use halyard_e2e::{Server, fixture, free_port, halyard};
use reqwest::Client;
use serde_json::{Value, json};

/// Events of a stream that has come so far.
struct Events {
    response: reqwest::Response,
    held: Vec<u8>,
}

impl Events {
    async fn open(client: &Client, url: &str, body: &Value) -> Events {
        let response = client
            .post(format!("{url}/v1/completions"))
            .json(body)
            .send()
            .await
            .expect("answers");
        assert_eq!(response.status(), 200);
        Events {
            response,
            held: Vec::new(),
        }
    }

    /// The next event's data; `None` at the end of the connection.
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.held.windows(2).position(|pair| pair == b"\n\n") {
                let event = self.held.drain(..end + 2).collect();
                let event = String::from_utf8(event).expect("whole characters");
                return event.trim_end().strip_prefix("data: ").map(str::to_owned);
            }
            let bytes = self.response.chunk().await.expect("no broken connection")?;
            self.held.extend(bytes);
        }
    }

    /// Reads to the end; the usage.
    async fn finish(mut self) -> Value {
        let mut usage = Value::Null;
        while let Some(data) = self.next().await {
            if data == "[DONE]" {
                return usage;
            }
            let value: Value = serde_json::from_str(&data).expect("JSON");
            assert!(value["error"].is_null(), "{value}");
            usage = value["usage"].clone();
        }
        panic!("the stream ended without [DONE]");
    }
}

async fn metrics(client: &Client, url: &str) -> String {
    client
        .get(format!("{url}/metrics"))
        .send()
        .await
        .expect("answers")
        .text()
        .await
        .expect("text")
}

fn metric(text: &str, start: &str) -> f64 {
    let line = text
        .lines()
        .find(|line| line.starts_with(start))
        .unwrap_or_else(|| panic!("no {start} in {text}"));
    line.rsplit(' ')
        .next()
        .and_then(|value| value.parse().ok())
        .expect("a number")
}

#[tokio::test]
async fn of_64_streams_a_third_is_cut_and_the_rest_complete() {
    let server = Server::tiny(&["--max-num-seqs", "32", "--log-level", "warn"]);
    let client = Client::new();
    // A linear congruential generator: lengths look random and are the same each time.
    let mut state = 12_345u64;
    let mut random = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let jobs = (0..64u64).map(|index| {
        let (prompt, limit) = (5 + random(40) as usize, 40 + random(160));
        (index, prompt, limit)
    });
    let tasks: Vec<_> = jobs
        .map(|(index, prompt, limit)| {
            let (client, url) = (client.clone(), server.url.clone());
            tokio::spawn(async move {
                // Those that are cut have much left to do, however late the client reads.
                let is_cut = index % 3 == 0;
                let choices = if is_cut { 64 } else { 1 };
                let body = json!({"prompt": vec![5 + index; prompt], "max_tokens": limit, "ignore_eos": true,
                    "n": choices, "seed": index,
                    "stream": true, "return_token_ids": true, "stream_options": {"include_usage": true}});
                let mut events = Events::open(&client, &url, &body).await;
                if is_cut {
                    for _ in 0..limit / 2 {
                        events.next().await.expect("half of the tokens");
                    }
                    return;
                }
                let usage = events.finish().await;
                assert_eq!(usage["completion_tokens"], limit, "stream {index}");
                assert_eq!(usage["prompt_tokens"], prompt, "stream {index}");
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no stream failed");
    }
    // The server learns of a cut connection when the system tells it: ask until it has, each time with real work. An
    // answer may come before the record of its own step.
    const BUSY: [&str; 3] = [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
    ];
    let mut text = String::new();
    for _ in 0..500 {
        let body = json!({"prompt": [1], "max_tokens": 1});
        client
            .post(format!("{}/v1/completions", server.url))
            .json(&body)
            .send()
            .await
            .expect("answers");
        text = metrics(&client, &server.url).await;
        if BUSY.iter().all(|name| metric(&text, name) == 0.0) {
            break;
        }
    }
    for name in BUSY {
        assert_eq!(metric(&text, name), 0.0, "{name}: every row and every block came back");
    }
    let ended = |reason: &str| {
        let lines = text
            .lines()
            .filter(|line| line.starts_with("vllm:request_success_total") && line.contains(&format!("\"{reason}\"")));
        lines.map(|line| metric(line, "vllm:")).sum::<f64>()
    };
    assert!(ended("abort") > 0.0 && ended("error") == 0.0, "{text}");
    assert!(ended("length") >= 42.0, "{text}");
}

#[tokio::test]
async fn a_signal_lets_running_answers_finish() {
    let server = Server::tiny(&["--shutdown-timeout", "60"]);
    let client = Client::new();
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 200, "ignore_eos": true, "stream": true,
        "stream_options": {"include_usage": true}});
    let mut events = Events::open(&client, &server.url, &body).await;
    events.next().await.expect("it runs");
    server.signal("TERM");
    assert_eq!(events.finish().await["completion_tokens"], 200);
    let (status, log) = server.wait();
    assert_eq!(status, Some(0), "{log}");
}

#[tokio::test]
async fn past_the_deadline_answers_are_aborted_with_a_reason() {
    let server = Server::tiny(&["--shutdown-timeout", "0", "--max-num-seqs", "1"]);
    let client = Client::new();
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 240, "ignore_eos": true, "stream": true, "n": 128});
    let mut events = Events::open(&client, &server.url, &body).await;
    events.next().await.expect("it runs");
    server.signal("INT");
    let mut last = String::new();
    let mut reason = None;
    while let Some(data) = events.next().await {
        if let Ok(value) = serde_json::from_str::<Value>(&data)
            && let Some(message) = value["error"]["message"].as_str()
        {
            reason = Some(message.to_owned());
        }
        last = data;
    }
    assert_eq!(last, "[DONE]");
    assert!(
        reason.is_some_and(|reason| reason.contains("abort")),
        "the client learns why"
    );
    let (status, log) = server.wait();
    assert_eq!(status, Some(0), "{log}");
}

#[tokio::test]
async fn prompts_stay_out_of_the_log_unless_asked() {
    let secret = "the otter wears a purple hat";
    for (args, expected) in [(&[][..], false), (&["--log-prompts"][..], true)] {
        let server = Server::tiny(&[args, &["--log-level", "trace,hyper=info,reqwest=info"]].concat());
        let body = json!({"prompt": secret, "max_tokens": 1});
        let answer = Client::new()
            .post(format!("{}/v1/completions", server.url))
            .header("x-request-id", "visible-1")
            .json(&body);
        assert_eq!(answer.send().await.expect("answers").status(), 200);
        server.signal("TERM");
        let (_, log) = server.wait();
        assert!(log.contains("visible-1"), "{log}");
        assert_eq!(log.contains(secret), expected, "{log}");
    }
}

#[tokio::test]
async fn json_logs_are_json_and_say_when_it_is_ready() {
    // The banner may change, so readiness is read from the log: the port is chosen here.
    let port = free_port();
    let model = fixture("llama");
    let mut command = halyard(&[
        "serve",
        "--platform",
        "cpu",
        "--log-format",
        "json",
        "--port",
        &port.to_string(),
        "--kv-cache-memory-bytes",
        "1MiB",
    ]);
    command
        .arg("--model")
        .arg(&model)
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut child = command.spawn().expect("starts");
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().expect("piped")));
    let ready = lines.map_while(Result::ok).find(|line| {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        value["message"] == "ready"
            && value["url"]
                .as_str()
                .is_some_and(|url| url.ends_with(&format!(":{port}")))
    });
    let _ = child.kill();
    let output = child.wait_with_output().expect("ends");
    assert!(ready.is_some());
    assert!(output.stdout.is_empty(), "no banner among JSON");
}
