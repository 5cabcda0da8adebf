//! Answers to the byte: each request below gets the answer that `data/answer_bytes.txt` holds, with its fields in
//! order, its nulls and its numbers as they are written. So do the requests of `data/vllm_parity.json` that are
//! refused. Ids are given; times and the fingerprint are replaced by words, and log-probabilities are rounded.

use std::fmt::Write;
use std::time::Duration;

use crate::common::{Answer, Options, TestServer, assert_recorded, fixture, until_running};
use crate::damaged::Damaged;
use crate::long_answers::slow_device;
use axum::body::Body;
use axum::http::Request;
use halyard_delayed::{DelayedPlatform, Fault};
use halyard_platform_api::Platform;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
/// Headers that a route sets.
const HEADERS: [&str; 4] = ["content-type", "cache-control", "x-accel-buffering", "retry-after"];

/// All answers, in the form of the file.
#[derive(Default)]
struct Record(String);

impl Record {
    fn add(&mut self, name: &str, answer: &Answer) {
        let Answer { status, headers, text } = answer;
        let _ = write!(self.0, "### {name}\n{}", status.as_u16());
        for header in HEADERS {
            if let Some(value) = headers.get(header) {
                let _ = write!(self.0, " {header}={}", value.to_str().expect("ASCII"));
            }
        }
        let _ = writeln!(self.0, "\n{}", settle(text));
    }

    async fn ask(&mut self, server: &TestServer, name: &str, route: &str, body: &Value) -> Answer {
        let answer = server.send(post(route, body)).await;
        self.add(name, &answer);
        answer
    }
}

fn post(route: &str, body: &Value) -> Request<Body> {
    Request::post(route)
        .header("content-type", "application/json")
        .header("x-request-id", "1")
        .body(Body::from(body.to_string()))
        .expect("a request")
}

/// A body without what differs between runs or machines: times, the fingerprint, and the last digits of
/// log-probabilities. Those must be an f32 that is written as an f64.
fn settle(text: &str) -> String {
    let mut settled = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(string) = string_at(rest) {
            rest = &rest[string.len()..];
            let fingerprint = string.starts_with("\"halyard-") && settled.ends_with("\"system_fingerprint\":");
            settled.push_str(if fingerprint { "\"halyard\"" } else { string });
            continue;
        }
        let number = number_at(rest);
        if number.is_empty() {
            let next = rest.chars().next().expect("not empty");
            settled.push(next);
            rest = &rest[next.len_utf8()..];
            continue;
        }
        rest = &rest[number.len()..];
        if number.contains(['.', 'e']) {
            let value: f64 = number.parse().expect("a number");
            assert_eq!(f64::from(value as f32), value, "{number} is no f32");
            assert_eq!(json!(value).to_string(), number, "the shortest form of an f64");
            let _ = write!(settled, "{value:.2}");
        } else if settled.ends_with("\"created\":") && number.len() == 10 {
            settled.push_str("TIME");
        } else {
            settled.push_str(number);
        }
    }
    settled
}

/// The JSON string at the beginning of a text, with its quotes.
fn string_at(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('"')?;
    let mut is_escaped = false;
    let end = inner.find(|next| {
        let ends = next == '"' && !is_escaped;
        is_escaped = next == '\\' && !is_escaped;
        ends
    })?;
    Some(&text[..end + 2])
}

fn number_at(text: &str) -> &str {
    let end = text.find(|next: char| !matches!(next, '0'..='9' | '-' | '+' | '.' | 'e'));
    let number = &text[..end.unwrap_or(text.len())];
    let digits = number.strip_prefix('-').unwrap_or(number);
    if digits.starts_with(|next: char| next.is_ascii_digit()) {
        number
    } else {
        ""
    }
}

/// The events of each choice together: how those of several prompts mix is not fixed.
fn by_choice(answer: &mut Answer) {
    let mut events: Vec<&str> = answer.text.split_inclusive("\n\n").collect();
    let index = |event: &&str| {
        let data: Option<Value> = serde_json::from_str(event.trim_start_matches("data: ")).ok();
        data.and_then(|data| data["choices"][0]["index"].as_u64())
            .unwrap_or(u64::MAX)
    };
    events.sort_by_key(index);
    answer.text = events.concat();
}

/// The first event and the last two: how many stand between them is not fixed.
fn ends(answer: &mut Answer) {
    let events: Vec<&str> = answer.text.split_inclusive("\n\n").collect();
    assert!(events.len() > 3, "{}", answer.text);
    answer.text = format!("{}…\n{}", events[0], events[events.len() - 2..].concat());
}

fn hi() -> Value {
    json!([{"role": "user", "content": "The river"}])
}

/// Good requests that differ in what their answers hold.
fn requests() -> Vec<(&'static str, &'static str, Value)> {
    let opened = json!([{"role": "user", "content": "The"}, {"role": "assistant", "content": "river"}]);
    let usage = json!({"include_usage": true});
    let steady = json!({"include_usage": true, "continuous_usage_stats": true});
    let river = "The river";
    vec![
        (
            "completion",
            COMPLETIONS,
            json!({"prompt": river, "max_tokens": 4, "temperature": 0}),
        ),
        (
            "completion, stream",
            COMPLETIONS,
            json!({"prompt": river, "max_tokens": 4, "temperature": 0, "stream": true}),
        ),
        (
            "completion, n 2",
            COMPLETIONS,
            json!({"prompt": river, "max_tokens": 4, "temperature": 0.9, "seed": 7, "n": 2}),
        ),
        (
            "completion, n 2, stream, usage",
            COMPLETIONS,
            json!({"prompt": river, "max_tokens": 4, "temperature": 0.9, "seed": 7, "n": 2, "stream": true,
                "stream_options": usage}),
        ),
        (
            "completion, stream, usage in each piece",
            COMPLETIONS,
            json!({"prompt": river, "max_tokens": 3, "temperature": 0, "stream": true, "stream_options": steady}),
        ),
        (
            "completion, logprobs",
            COMPLETIONS,
            json!({"prompt": river, "max_tokens": 3, "temperature": 0, "logprobs": 2}),
        ),
        (
            "completion, logprobs, stream",
            COMPLETIONS,
            json!({"prompt": river, "max_tokens": 3, "temperature": 0, "logprobs": 2, "stream": true}),
        ),
        (
            "completion, logprobs 0",
            COMPLETIONS,
            json!({"prompt": river, "max_tokens": 2, "temperature": 0, "logprobs": 0}),
        ),
        (
            "completion, forbidden tokens' logprobs",
            COMPLETIONS,
            json!({"prompt": river, "max_tokens": 2, "temperature": 0, "logprobs": 5, "allowed_token_ids": [297, 368]}),
        ),
        (
            "completion, tokens as ids",
            COMPLETIONS,
            json!({"prompt": river, "max_tokens": 2, "temperature": 0, "logprobs": 1,
                "return_tokens_as_token_ids": true}),
        ),
        (
            "completion, echo",
            COMPLETIONS,
            json!({"prompt": river, "max_tokens": 3, "temperature": 0, "echo": true}),
        ),
        (
            "completion, echo of ids, stream",
            COMPLETIONS,
            json!({"prompt": [297, 368], "max_tokens": 3, "temperature": 0, "echo": true, "stream": true}),
        ),
        (
            "completion, echo, logprobs, n 2",
            COMPLETIONS,
            json!({"prompt": river, "max_tokens": 2, "temperature": 0.9, "seed": 7, "n": 2, "echo": true,
                "logprobs": 1}),
        ),
        (
            "completion, echo, logprobs, stream",
            COMPLETIONS,
            json!({"prompt": river, "max_tokens": 3, "temperature": 0, "echo": true, "logprobs": 1, "stream": true}),
        ),
        (
            "completion, a prompt scored alone",
            COMPLETIONS,
            json!({"prompt": river, "max_tokens": 0, "echo": true, "logprobs": 1, "return_token_ids": true}),
        ),
        (
            "completion, a prompt scored alone, stream",
            COMPLETIONS,
            json!({"prompt": river, "max_tokens": 0, "temperature": 0, "echo": true, "logprobs": 1,
                "return_token_ids": true, "stream": true}),
        ),
        (
            "completion, prompt logprobs",
            COMPLETIONS,
            json!({"prompt": river, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 2, "return_token_ids": true}),
        ),
        (
            "completion, ids",
            COMPLETIONS,
            json!({"prompt": river, "max_tokens": 3, "temperature": 0, "return_token_ids": true}),
        ),
        (
            "completion, ids, stream",
            COMPLETIONS,
            json!({"prompt": river, "max_tokens": 3, "temperature": 0, "return_token_ids": true, "stream": true}),
        ),
        (
            "completion, a stop string",
            COMPLETIONS,
            json!({"prompt": river, "max_tokens": 24, "temperature": 0, "stop": ["was"]}),
        ),
        (
            "completion, a stop string, stream",
            COMPLETIONS,
            json!({"prompt": river, "max_tokens": 24, "temperature": 0, "stop": "was", "stream": true,
                "stream_options": usage}),
        ),
        (
            "completion, a stop token, stream",
            COMPLETIONS,
            json!({"prompt": river, "max_tokens": 8, "temperature": 0, "allowed_token_ids": [297],
                "stop_token_ids": [297], "stream": true}),
        ),
        (
            "completion, the end of the sequence",
            COMPLETIONS,
            json!({"prompt": river, "max_tokens": 8, "temperature": 0, "allowed_token_ids": [2],
                "return_token_ids": true}),
        ),
        (
            "completion, several prompts",
            COMPLETIONS,
            json!({"prompt": [river, "a"], "max_tokens": 2, "temperature": 0, "n": 2, "model": "also-tiny",
                "return_token_ids": true}),
        ),
        (
            "completion, several prompts, stream",
            COMPLETIONS,
            json!({"prompt": [river, "a"], "max_tokens": 2, "temperature": 0, "return_token_ids": true,
                "stream": true, "stream_options": usage}),
        ),
        (
            "chat",
            CHAT,
            json!({"messages": hi(), "max_tokens": 4, "temperature": 0}),
        ),
        (
            "chat, stream",
            CHAT,
            json!({"messages": hi(), "max_tokens": 4, "temperature": 0, "stream": true}),
        ),
        (
            "chat, n 2",
            CHAT,
            json!({"messages": hi(), "max_tokens": 3, "temperature": 0.9, "seed": 7, "n": 2}),
        ),
        (
            "chat, n 2, stream, usage, ids",
            CHAT,
            json!({"messages": hi(), "max_tokens": 3, "temperature": 0.9, "seed": 7, "n": 2, "stream": true,
                "return_token_ids": true, "stream_options": usage}),
        ),
        (
            "chat, stream, usage in each piece, ids",
            CHAT,
            json!({"messages": hi(), "max_tokens": 2, "temperature": 0, "return_token_ids": true, "stream": true,
                "stream_options": steady}),
        ),
        (
            "chat, logprobs, ids, prompt logprobs",
            CHAT,
            json!({"messages": hi(), "max_tokens": 2, "temperature": 0, "logprobs": true, "top_logprobs": 2,
                "return_token_ids": true, "prompt_logprobs": 1}),
        ),
        (
            "chat, logprobs, stream",
            CHAT,
            json!({"messages": hi(), "max_tokens": 2, "temperature": 0, "logprobs": true, "top_logprobs": 2,
                "stream": true}),
        ),
        (
            "chat, logprobs alone",
            CHAT,
            json!({"messages": hi(), "max_tokens": 2, "temperature": 0, "logprobs": true}),
        ),
        (
            "chat, continued and echoed",
            CHAT,
            json!({"messages": opened, "max_tokens": 3, "temperature": 0, "continue_final_message": true,
                "echo": true}),
        ),
        (
            "chat, continued and echoed, stream",
            CHAT,
            json!({"messages": opened, "max_tokens": 3, "temperature": 0, "continue_final_message": true,
                "echo": true, "stream": true, "return_token_ids": true, "stream_options": usage}),
        ),
        (
            "chat, the end of the sequence at once, stream",
            CHAT,
            json!({"messages": hi(), "max_tokens": 8, "temperature": 0, "allowed_token_ids": [2], "stream": true}),
        ),
        (
            "tokenize",
            "/tokenize",
            json!({"prompt": river, "return_token_strs": true}),
        ),
        ("tokenize, chat", "/tokenize", json!({"messages": hi()})),
        ("detokenize", "/detokenize", json!({"tokens": [297, 368]})),
    ]
}

async fn record_answers(record: &mut Record) {
    let server = TestServer::new();
    for (name, route, body) in requests() {
        let mut answer = server.send(post(route, &body)).await;
        if name == "completion, several prompts, stream" {
            by_choice(&mut answer);
        }
        assert_eq!(answer.status, 200, "{name}: {}", answer.text);
        record.add(name, &answer);
    }
    for route in ["/v1/models", "/v1/models/also-tiny", "/v1/models/none", "/load"] {
        record.add(route, &server.get(route).await);
    }
    let mut options = Options::default();
    options.serving.force_include_usage = true;
    options.serving.response_role = "bot".to_owned();
    let server = TestServer::with(options);
    // What the cache holds of the first one is the second one's.
    let body = json!({"prompt": vec![5; 100], "max_tokens": 2, "temperature": 0});
    let messages = json!({"messages": hi(), "max_tokens": 2, "temperature": 0, "stream": true});
    for name in ["not cached", "cached"] {
        record.ask(&server, name, COMPLETIONS, &body).await;
    }
    record
        .ask(&server, "the operator's role and usage", CHAT, &messages)
        .await;
}

async fn record_failures(record: &mut Record) {
    let long = |stream: bool| {
        json!({"prompt": [297, 368], "max_tokens": 200, "temperature": 0, "ignore_eos": true,
            "stream": stream})
    };
    for stream in [false, true] {
        let platform = DelayedPlatform::new(1, 5).with_fault(Fault::LostAt(40));
        let server = TestServer::with(Options {
            device: Some(platform.open(0).expect("opens")),
            ..Options::default()
        });
        let mut answer = server.send(post(COMPLETIONS, &long(stream))).await;
        if stream {
            ends(&mut answer);
        }
        record.add(&format!("a lost device, stream {stream}"), &answer);
        record.ask(&server, "later", CHAT, &json!({"messages": hi()})).await;
    }
    let model = Damaged::embeddings("llama", 48, &[368]);
    let server = TestServer::with(Options {
        model: Some(model.path().to_path_buf()),
        ..Options::default()
    });
    for (name, route, body) in [
        ("no numbers", COMPLETIONS, long(false)),
        ("no numbers, stream", COMPLETIONS, long(true)),
        (
            "no numbers, chat, stream",
            CHAT,
            json!({"messages": hi(), "stream": true, "stream_options": {"include_usage": true}}),
        ),
    ] {
        record.ask(&server, name, route, &body).await;
    }
    for stream in [false, true] {
        let server = TestServer::with(Options {
            device: Some(slow_device()),
            ..Options::default()
        });
        let body = json!({"messages": hi(), "max_tokens": 200, "ignore_eos": true, "n": 4, "stream": stream});
        let router = server.router.clone();
        let asked = tokio::spawn(router.oneshot(post(CHAT, &body)));
        until_running(&server, 4).await;
        let engine = server.state.engine.clone();
        if stream {
            let response = asked.await.expect("answers").expect("routers do not fail");
            let (parts, mut rest) = response.into_parts();
            let first = rest.frame().await.expect("a first piece").expect("bytes");
            let first = first.into_data().expect("data");
            tokio::task::spawn_blocking(move || engine.shutdown(Duration::ZERO))
                .await
                .expect("ends");
            let rest = rest.collect().await.expect("the whole body").to_bytes();
            let text = String::from_utf8([first, rest].concat()).expect("UTF-8");
            let mut answer = Answer {
                status: parts.status,
                headers: parts.headers,
                text,
            };
            ends(&mut answer);
            record.add("aborted, stream", &answer);
        } else {
            tokio::task::spawn_blocking(move || engine.shutdown(Duration::ZERO))
                .await
                .expect("ends");
            let response = asked.await.expect("answers").expect("routers do not fail");
            record.add("aborted", &Answer::of(response).await);
        }
        record.ask(&server, "after the end", CHAT, &body).await;
    }
}

async fn record_refusals(record: &mut Record) {
    let table = fixture("../../../server/tests/data/vllm_parity.json");
    let table: Value = serde_json::from_slice(&std::fs::read(table).expect("committed")).expect("JSON");
    let server = TestServer::new();
    for case in table["requests"].as_array().expect("a list") {
        let text = |name: &str| case[name].as_str().expect("text");
        let expected = case["halyard"].as_u64().or(case["vllm"].as_u64());
        if case.get("body").is_none() || expected < Some(400) {
            continue;
        }
        let name = format!("refused: {}", text("name"));
        record.ask(&server, &name, text("route"), &case["body"]).await;
    }
    let unknown = json!({"model": "none", "prompt": "a"});
    record.ask(&server, "an unknown model", COMPLETIONS, &unknown).await;
    for body in [
        json!({"prompt": "a", "priority": "high"}),
        json!({"prompt": "a", "priority": 3}),
        json!({"prompt": "a", "cache_salt": ""}),
        json!({"prompt": "a", "request_id": "two words"}),
        json!({"prompt": "a", "model": 5}),
    ] {
        record.ask(&server, &body.to_string(), COMPLETIONS, &body).await;
    }
    let tools = |name: &str| json!([{"type": "function", "function": {"name": name}}]);
    for (name, fields) in [
        ("calls without a parser", json!({"tools": tools("f")})),
        ("a function's name", json!({"tools": tools("a b")})),
        (
            "a choice that is none",
            json!({"tools": tools("f"), "tool_choice": "some"}),
        ),
        (
            "a forced call and a text",
            json!({"tools": tools("f"), "tool_choice": "required", "response_format": {"type": "json_object"}}),
        ),
    ] {
        let mut body = json!({"messages": hi()});
        for (field, value) in fields.as_object().expect("an object") {
            body[field] = value.clone();
        }
        record.ask(&server, name, CHAT, &body).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_what_they_were_to_the_byte() {
    let mut record = Record::default();
    record_answers(&mut record).await;
    record_failures(&mut record).await;
    record_refusals(&mut record).await;
    assert_recorded("answer_bytes.txt", &record.0);
    let num_answers = record.0.split("### ").count();
    assert!(num_answers > 200, "{num_answers} answers");
}
