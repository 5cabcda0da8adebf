//! What an operator sets for streams: how many tokens an event has, and comments while nothing comes.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::common::{Answer, Options, TestServer, until};
use crate::long_answers::{ask, server_with};
use axum::body::Body;
use axum::http::Request;
use halyard_server::openai::policy::ServingDefaults;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

/// A server whose streams have events of so many tokens.
fn in_pieces_of(tokens: u32) -> TestServer {
    let serving = ServingDefaults {
        stream_interval: NonZeroU32::new(tokens).expect("not 0"),
        ..ServingDefaults::default()
    };
    TestServer::with(Options {
        serving,
        ..Options::default()
    })
}

/// One choice of a stream: the tokens of each event, and what all of them say together.
#[derive(Debug, Default, PartialEq)]
struct Choice {
    sizes: Vec<usize>,
    text: String,
    ids: Vec<Value>,
    logprobs: Vec<Value>,
    finish: Value,
}

fn choice(events: &[Value], index: u64) -> Choice {
    let mut all = Choice::default();
    let choices = events.iter().filter_map(|event| event["choices"].as_array());
    for choice in choices.flatten().filter(|choice| choice["index"] == index) {
        let text = choice["delta"]["content"].as_str().or(choice["text"].as_str());
        all.text.push_str(text.unwrap_or_default());
        if let Some(ids) = choice["token_ids"].as_array() {
            all.sizes.push(ids.len());
            all.ids.extend(ids.clone());
        }
        let logprobs = &choice["logprobs"];
        let entries = logprobs["content"].as_array().or(logprobs["token_logprobs"].as_array());
        all.logprobs.extend(entries.cloned().unwrap_or_default());
        all.finish = choice["finish_reason"].clone();
    }
    all
}

async fn streamed(server: &TestServer, route: &str, fields: &Value) -> Vec<Value> {
    let mut body = json!({"max_tokens": 11, "stream": true, "return_token_ids": true, "ignore_eos": true, "seed": 3});
    for (key, value) in fields.as_object().expect("an object") {
        body[key] = value.clone();
    }
    server.post(route, &body).await.events()
}

#[tokio::test]
async fn an_event_has_as_many_tokens_as_is_set_after_the_first() {
    let (single, four) = (TestServer::new(), in_pieces_of(4));
    let completion = json!({"prompt": "The river", "n": 2, "logprobs": 1});
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "n": 2, "logprobs": true});
    for (route, body) in [("/v1/completions", completion), ("/v1/chat/completions", chat)] {
        let (alone, together) = (
            streamed(&single, route, &body).await,
            streamed(&four, route, &body).await,
        );
        for index in 0..2 {
            let (alone, together) = (choice(&alone, index), choice(&together, index));
            let tokens = |choice: &Choice| {
                choice
                    .sizes
                    .iter()
                    .copied()
                    .filter(|size| *size > 0)
                    .collect::<Vec<_>>()
            };
            assert_eq!(tokens(&alone), [1; 11], "{route}");
            assert_eq!(tokens(&together), [1, 4, 4, 2], "{route}");
            assert_eq!(together.finish, "length");
            assert_eq!(together.logprobs.len(), 11);
            let sizes = alone.sizes.clone();
            assert_eq!(alone, Choice { sizes, ..together }, "{route}");
        }
    }
}

#[tokio::test]
async fn a_stop_string_within_an_event_ends_it() {
    let (single, many) = (TestServer::new(), in_pieces_of(64));
    let whole = choice(&streamed(&single, "/v1/completions", &json!({"prompt": [5]})).await, 0);
    let middle: String = whole
        .text
        .chars()
        .skip(whole.text.chars().count() / 2)
        .take(3)
        .collect();
    let body = json!({"prompt": [5], "stop": middle});
    let (alone, together) = (
        choice(&streamed(&single, "/v1/completions", &body).await, 0),
        choice(&streamed(&many, "/v1/completions", &body).await, 0),
    );
    assert_eq!(together.finish, "stop");
    assert!(
        matches!(together.sizes[..], [1, more] if more > 1),
        "{:?}",
        together.sizes
    );
    assert_eq!((alone.text, alone.ids), (together.text, together.ids));
}

#[tokio::test]
async fn what_was_held_is_told_when_the_operator_ends_an_answer() {
    for route in ["/pause", "/abort_requests"] {
        let serving = ServingDefaults {
            stream_interval: NonZeroU32::MAX,
            ..ServingDefaults::default()
        };
        let server = server_with(&route[1..], serving);
        let long = ask(&server, "/v1/completions", "held", true);
        let steps = async || server.state.engine.stats().steps_total;
        until("some steps", steps, |steps| *steps > 9).await;
        server.post(route, &json!({})).await.ok();
        let events = long.await.expect("answers").events();
        assert_eq!(events.len(), 2, "the first token, and the rest: {events:?}");
        let rest = &events[1]["choices"][0];
        assert_eq!(rest["finish_reason"], "abort");
        assert_ne!(rest["text"], "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_stream_gets_comments() {
    let server = TestServer::with(Options {
        dev_mode: true,
        serving: ServingDefaults {
            sse_keep_alive: Some(Duration::from_millis(5)),
            ..ServingDefaults::default()
        },
        ..Options::default()
    });
    let mut body = json!({"prompt": [5], "max_tokens": 3, "ignore_eos": true, "temperature": 0});
    let whole = server.post("/v1/completions", &body).await.ok();
    server.post_empty("/pause?mode=keep&clear_cache=false").await.ok();
    body["stream"] = json!(true);
    let request = Request::post("/v1/completions").header("content-type", "application/json");
    let request = request.body(Body::from(body.to_string())).expect("a request");
    let response = server.router.clone().oneshot(request).await.expect("answers");
    let (parts, mut body) = response.into_parts();
    for _ in 0..3 {
        let frame = body.frame().await.expect("a frame").expect("bytes");
        assert_eq!(frame.into_data().expect("data"), ": keep-alive\n\n");
    }
    server.post_empty("/resume").await.ok();
    let rest = body.collect().await.expect("the rest").to_bytes();
    let answer = Answer {
        status: parts.status,
        headers: parts.headers,
        text: String::from_utf8(rest.to_vec()).expect("UTF-8"),
    };
    assert_eq!(
        choice(&answer.events(), 0).text,
        whole["choices"][0]["text"].as_str().expect("text")
    );
}
