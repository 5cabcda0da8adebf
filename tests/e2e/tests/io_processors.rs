//! IO processors in the real server, loaded from their libraries: redaction of requests and answers, whole and
//! streamed; processors that fail in every way, which costs the request that met them and no other.

use std::sync::Once;

use halyard_e2e::{Server, build_with_binary, library, run, stderr};
use reqwest::Client;
use serde_json::{Value, json};

/// The plugins in the binary's folder, built once.
fn plugins() {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| build_with_binary(&["halyard-io-processor-redact", "halyard-fixture-io-processors"]));
}

fn fixture_library() -> String {
    plugins();
    let path = library("fixture_io_processors");
    path.to_str().expect("UTF-8").to_owned()
}

async fn post(url: &str, route: &str, body: &Value) -> (u16, String) {
    let response = Client::new()
        .post(format!("{url}{route}"))
        .json(body)
        .send()
        .await
        .expect("answers");
    (response.status().as_u16(), response.text().await.expect("a whole body"))
}

async fn post_json(url: &str, route: &str, body: &Value) -> (u16, Value) {
    let (status, text) = post(url, route, body).await;
    (
        status,
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")),
    )
}

async fn get(url: &str, route: &str) -> String {
    let response = reqwest::get(format!("{url}{route}")).await.expect("answers");
    assert_eq!(response.status(), 200, "{route}");
    response.text().await.expect("a whole body")
}

/// How a series of IO processors begins.
fn named(name: &str, labels: &str) -> String {
    format!("halyard:io_processor_{name}{{{labels}}} ")
}

/// The value of a series of IO processors.
fn metric(text: &str, name: &str, labels: &str) -> u64 {
    let start = named(name, labels);
    let value = text.lines().find_map(|line| line.strip_prefix(&start));
    let value = value.unwrap_or_else(|| panic!("no {start} in\n{text}"));
    value.parse().expect("a count")
}

/// The events of a stream, each one JSON, with `[DONE]` at the end.
fn events(text: &str) -> Vec<Value> {
    let data: Vec<&str> = text
        .split_terminator("\n\n")
        .map(|event| event.strip_prefix("data: ").expect(event))
        .collect();
    let (last, events) = data.split_last().expect("events");
    assert_eq!(*last, "[DONE]", "{text}");
    events
        .iter()
        .map(|event| serde_json::from_str(event).expect(event))
        .collect()
}

/// The text of a choice over a stream's events, its finish reason, and the stream's usage.
fn gathered(events: &[Value], choice: u64) -> (String, Value, Value) {
    let (mut text, mut finish, mut usage) = (String::new(), Value::Null, Value::Null);
    for event in events {
        assert!(event["error"].is_null(), "{event}");
        for part in event["choices"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|part| part["index"] == choice)
        {
            text.push_str(
                part["text"]
                    .as_str()
                    .or(part["delta"]["content"].as_str())
                    .unwrap_or_default(),
            );
            if !part["finish_reason"].is_null() {
                assert!(finish.is_null(), "two ends: {event}");
                finish = part["finish_reason"].clone();
            }
        }
        if !event["usage"].is_null() {
            usage = event["usage"].clone();
        }
    }
    (text, finish, usage)
}

#[tokio::test]
async fn requests_are_redacted_before_the_model_reads_them() {
    plugins();
    let server = Server::tiny(&[
        "--io-processor",
        "redact:replacement=<gone>",
        "--log-prompts",
        "--log-level",
        "info",
    ]);
    let prompt = "Mail bob@example.com with AKIAABCDEFGH12345678";
    let body = json!({"prompt": prompt, "echo": true, "max_tokens": 1, "temperature": 0});
    let fresh = get(&server.url, "/metrics").await;
    assert_eq!(
        metric(&fresh, "errors_total", "processor=\"redact\",reason=\"panic\""),
        0
    );
    let (status, answer) = post_json(&server.url, "/v1/completions", &body).await;
    assert_eq!(status, 200, "{answer}");
    let text = answer["choices"][0]["text"].as_str().expect("a text");
    assert!(text.starts_with("Mail <gone> with <gone>"), "{text}");
    let clean = json!({"prompt": "Mail <gone> with <gone>", "max_tokens": 1, "temperature": 0});
    let (_, same) = post_json(&server.url, "/v1/completions", &clean).await;
    assert_eq!(
        answer["usage"]["prompt_tokens"], same["usage"]["prompt_tokens"],
        "the model read the redacted text"
    );
    let chat = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "I am eve@example.com"}]}],
        "max_tokens": 1});
    assert_eq!(post_json(&server.url, "/v1/chat/completions", &chat).await.0, 200);
    for (body, word) in [
        (json!({"prompt": "a", "max_tokens": 1, "logprobs": 1}), "logprobs"),
        (json!({"prompt": [1, 2], "max_tokens": 1}), "token ids"),
    ] {
        let (status, answer) = post_json(&server.url, "/v1/completions", &body).await;
        assert_eq!(
            (status, answer["error"]["code"].as_str()),
            (400, Some("io_processor_rejected")),
            "{answer}"
        );
        let message = answer["error"]["message"].as_str().expect("words");
        assert!(message.contains("`redact`") && message.contains(word), "{message}");
    }
    server.signal("TERM");
    let (_, log) = server.wait();
    assert!(
        log.contains("I am <gone>") && !log.contains("example.com") && !log.contains("AKIAABCD"),
        "{log}"
    );
}

#[tokio::test]
async fn answers_are_redacted_across_pieces_and_keep_their_form() {
    let fixtures = fixture_library();
    // The first processor sees answers last: it redacts what the second one wrote.
    let server = Server::tiny(&[
        "--io-processor",
        "redact",
        "--plugin",
        &fixtures,
        "--io-processor",
        "scripted",
    ]);
    let script = [
        "Mail b",
        "ob@exam",
        "ple.c",
        "om or use s",
        "k-a1B2c3D4e5F6g7H8i9J0k1",
        "L2m3, not AK",
        "IA. Grü",
        "ße",
    ];
    let whole = "Mail [REDACTED] or use [REDACTED], not AKIA. Grüße";
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "io_script": script, "max_tokens": 24,
        "ignore_eos": true});
    let completion = json!({"prompt": "Hi", "io_script": script, "max_tokens": 24, "ignore_eos": true});
    for (route, body) in [("/v1/chat/completions", chat), ("/v1/completions", completion)] {
        let (status, answer) = post_json(&server.url, route, &body).await;
        assert_eq!(status, 200, "{answer}");
        let choice = &answer["choices"][0];
        // A whole answer is one push: the script's first piece, and the rest at the end.
        let text = choice["text"]
            .as_str()
            .or(choice["message"]["content"].as_str())
            .expect("a text");
        assert_eq!((text, choice["finish_reason"].as_str()), (whole, Some("length")));
        let mut streamed = body.clone();
        streamed["stream"] = json!(true);
        streamed["stream_options"] = json!({"include_usage": true});
        let (status, stream) = post(&server.url, route, &streamed).await;
        assert_eq!(status, 200, "{stream}");
        let events = events(&stream);
        let (text, finish, usage) = gathered(&events, 0);
        assert_eq!((text.as_str(), finish.as_str()), (whole, Some("length")), "{stream}");
        assert_eq!(usage["completion_tokens"], answer["usage"]["completion_tokens"]);
        assert!(events.len() > 5, "it came in pieces: {stream}");
        for secret in ["bob", "exam", "a1B2"] {
            assert!(!stream.contains(secret), "{stream}");
        }
    }
    // Several samples keep apart: each choice has the script's pieces in its own order of coming, redacted.
    let body =
        json!({"prompt": ["Hi", "Ho"], "n": 2, "io_script": [], "max_tokens": 3, "stream": true, "ignore_eos": true});
    let (_, stream) = post(&server.url, "/v1/completions", &body).await;
    let events = events(&stream);
    for choice in 0..4 {
        assert_eq!(gathered(&events, choice).1, "length", "{stream}");
    }
}

#[tokio::test]
async fn stop_strings_act_on_the_models_text() {
    plugins();
    let server = Server::tiny(&["--io-processor", "redact"]);
    let plain = json!({"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0, "ignore_eos": true});
    let (_, answer) = post_json(&server.url, "/v1/completions", &plain).await;
    let text = answer["choices"][0]["text"].as_str().expect("a text").to_owned();
    let stop: String = text.chars().skip(12).take(3).collect();
    let expected = &text[..text.find(&stop).expect("it is in the text")];
    for stream in [false, true] {
        let mut body = plain.clone();
        body["stop"] = json!([stop]);
        body["stream"] = json!(stream);
        let (_, raw) = post(&server.url, "/v1/completions", &body).await;
        let (text, finish) = if stream {
            let (text, finish, _) = gathered(&events(&raw), 0);
            (text, finish)
        } else {
            let answer: Value = serde_json::from_str(&raw).expect("JSON");
            let choice = &answer["choices"][0];
            (
                choice["text"].as_str().expect("a text").to_owned(),
                choice["finish_reason"].clone(),
            )
        };
        assert_eq!(
            (text.as_str(), finish.as_str()),
            (expected, Some("stop")),
            "stream {stream}"
        );
    }
}

#[tokio::test]
async fn a_failing_processor_fails_its_request_and_no_other() {
    let fixtures = fixture_library();
    let server = Server::tiny(&[
        "--plugin",
        &fixtures,
        "--io-processor",
        "faulty",
        "--io-processor",
        "garbage",
        "--io-processor-timeout-ms",
        "5000",
        "--io-processor-max-bytes",
        "4096",
    ]);
    // Streams that run all along and meet no fault.
    let good = json!({"prompt": [5, 6, 7], "max_tokens": 200, "ignore_eos": true, "stream": true,
        "stream_options": {"include_usage": true}});
    let bystanders: Vec<_> = (0..8)
        .map(|_| {
            let (url, good) = (server.url.clone(), good.clone());
            tokio::spawn(async move { post(&url, "/v1/completions", &good).await })
        })
        .collect();
    let faults = [
        ("io_fault", "panic", 500, "panicked: the request asked for it"),
        ("io_fault", "error", 500, "its tables are broken"),
        ("io_fault", "unavailable", 503, "its service is away"),
        ("io_fault", "reject", 422, "such requests are not served"),
        ("io_fault", "not-json", 500, "not a JSON object"),
        ("io_fault", "no-object", 500, "not a JSON object"),
        ("io_fault", "oversize", 500, "4096 are allowed"),
        ("io_fault", "sleep", 503, "did not answer within 5000 ms"),
        ("io_fault", "answer-panic", 500, "panicked"),
        ("io_fault", "answer-error", 500, "its tables are broken"),
        ("io_fault", "answer-refused", 400, "such answers are not given"),
        ("io_fault", "answer-oversize", 500, "are allowed"),
        ("io_fault", "answer-sleep", 503, "did not answer within 5000 ms"),
        ("io_garbage", "status", 500, "no message was given"),
        ("io_garbage", "action", 500, "code 77"),
        ("io_garbage", "utf8", 500, "not UTF-8"),
        ("io_garbage", "http-status", 500, "status 999"),
        ("io_garbage", "answer", 500, "18446744073709551615 bytes"),
    ];
    for (field, fault, expected, words) in faults {
        let name = if field == "io_fault" { "`faulty`" } else { "`garbage`" };
        for stream in [false, true] {
            let mut body = json!({"prompt": "Hi", "max_tokens": 8, "ignore_eos": true, "stream": stream});
            body[field] = json!(fault);
            let (status, text) = post(&server.url, "/v1/completions", &body).await;
            let in_stream = stream && fault.starts_with("answer");
            let error = if in_stream {
                assert_eq!(status, 200, "{fault}: {text}");
                events(&text).pop().expect("an event")["error"].clone()
            } else {
                assert_eq!(status, expected, "{fault}: {text}");
                serde_json::from_str::<Value>(&text).expect("JSON")["error"].clone()
            };
            let message = error["message"].as_str().unwrap_or_else(|| panic!("{fault}: {text}"));
            assert!(message.contains(name) && message.contains(words), "{fault}: {message}");
            // The next request finds everything in order, also the processor that has just panicked.
            let (status, answer) = post_json(
                &server.url,
                "/v1/completions",
                &json!({"prompt": "Hi", "max_tokens": 2}),
            )
            .await;
            assert_eq!(status, 200, "after {fault}: {answer}");
        }
    }
    for bystander in bystanders {
        let (status, text) = bystander.await.expect("runs");
        assert_eq!(status, 200, "{text}");
        assert_eq!(gathered(&events(&text), 0).2["completion_tokens"], 200);
    }
    // Each fault was asked for twice, and each time a good request came after it.
    let shown = get(&server.url, "/metrics").await;
    let mine: Vec<&str> = shown.lines().filter(|line| line.contains("io_processor")).collect();
    let shown = mine.join("\n");
    let of_faulty = faults.iter().filter(|(field, ..)| *field == "io_fault").count() as u64;
    let requests = 8 + 4 * faults.len() as u64;
    // What `faulty` stopped at its body never came to `garbage`.
    let stopped = 2 * 8;
    for (processor, seen, refused, errors) in [
        (
            "faulty",
            requests,
            4,
            [("deadline", 4), ("panic", 4), ("size", 4), ("error", 10), ("busy", 0)],
        ),
        (
            "garbage",
            requests - stopped,
            0,
            [("deadline", 0), ("panic", 0), ("size", 2), ("error", 8), ("busy", 0)],
        ),
    ] {
        let count = |name: &str, labels: &str| metric(&shown, name, &format!("processor=\"{processor}\"{labels}"));
        assert_eq!(count("requests_total", ""), seen, "{shown}");
        assert_eq!(count("refusals_total", ""), refused, "{shown}");
        for (reason, expected) in errors {
            let found = count("errors_total", &format!(",reason=\"{reason}\""));
            assert_eq!(found, expected, "{processor} {reason}\n{shown}");
        }
        assert_eq!(count("call_seconds_count", ",call=\"request\""), seen, "{shown}");
        let in_buckets = metric(
            &shown,
            "call_seconds_bucket",
            &format!("le=\"+Inf\",processor=\"{processor}\",call=\"request\""),
        );
        assert_eq!(in_buckets, seen, "{shown}");
    }
    let of_texts = metric(&shown, "call_seconds_count", "processor=\"faulty\",call=\"text\"");
    assert_eq!(of_texts, 2 * (of_faulty - 8), "one call ends an answer that fails");
    let late = shown
        .lines()
        .find(|line| line.starts_with(&named("call_seconds_sum", "processor=\"faulty\",call=\"request\"")));
    let late: f64 = late
        .and_then(|line| line.rsplit(' ').next()?.parse().ok())
        .expect("a sum");
    assert!(late >= 10.0, "two calls ran into the deadline of 5 s: {late}");
    server.signal("TERM");
    let (status, log) = server.wait();
    assert_eq!(status, Some(0), "hanging calls hold no server up: {log}");
}

#[test]
fn processors_are_listed_explained_and_refused_by_name() {
    let fixtures = fixture_library();
    let listed = run(&["plugins", "list", "--plugin", &fixtures]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for line in [
        "redact 0.1.0 (io-processor)",
        "faulty 1 (io-processor)",
        "garbage 1 (io-processor)",
    ] {
        assert!(listed.contains(line), "{listed}");
    }
    let why = run(&["plugins", "why", "redact"]);
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    assert!(
        why.contains("negotiated") && why.contains("started") && !why.contains("FAILED"),
        "{why}"
    );
    for (args, words) in [
        (["--io-processor", "redcat"], "did you mean `redact`"),
        (["--io-processor", "redact:replace=x"], "replace"),
        (["--io-processor", "redact:x"], "key=value"),
        (["--io-processor", "cpu"], "no io-processor plugin is named `cpu`"),
        (["--io-processor-timeout-ms", "0"], "timeout-ms"),
    ] {
        let output = run(&[&["serve", "--platform", "cpu", "--port", "0"], &args[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(words), "{args:?}: {}", stderr(&output));
    }
}
