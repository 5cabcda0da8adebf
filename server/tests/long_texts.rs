//! Texts longer than the context, through the router: refused before they are tokenised, in the words that clients look
//! for, and never in the way of a short request.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{NEVER, Options, TestServer, until};
use axum::body::Body;
use axum::http::Request;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use halyard_server::http::limits::ConnectionLimits;
use halyard_server::http::transport::Transport;
use serde_json::json;
use tokio::task::JoinHandle;

fn server() -> TestServer {
    TestServer::with(Options {
        body_bytes: Some(16 << 20),
        ..Options::default()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_longer_than_the_context_are_refused_as_vllm_does() {
    let server = server();
    let long = "a ".repeat(4 << 20);
    for body in [json!({"prompt": long}), json!({"prompt": ["short", long]})] {
        let answer = server.post("/v1/completions", &body).await;
        assert_eq!(answer.status, 400);
        let error = &answer.json()["error"];
        assert_eq!(error["code"], "context_length_exceeded");
        let message = error["message"].as_str().expect("a message");
        assert!(
            message
                .starts_with("This model's maximum context length is 256 tokens. However, your request has at least "),
            "{message}"
        );
    }
    // The second prompt is none, and is not looked at.
    for first in [json!("a ".repeat(1000)), json!(vec![5; 256])] {
        let answer = server.post("/v1/completions", &json!({"prompt": [first, {}]})).await;
        assert_eq!(answer.error(400)["code"], "context_length_exceeded", "{}", answer.text);
    }
    let truncated = json!({"prompt": ["a ".repeat(1000), vec![5; 256]], "truncate_prompt_tokens": 5, "max_tokens": 1});
    assert_eq!(server.post("/v1/completions", &truncated).await.status, 200);
    let truncated = json!({"prompt": "a ".repeat(50_000), "truncate_prompt_tokens": 5, "max_tokens": 1});
    assert_eq!(server.post("/v1/completions", &truncated).await.status, 200);
    let chat = json!({"messages": [{"role": "user", "content": long}]});
    let answer = server.post("/v1/chat/completions", &chat).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.json()["error"]["code"]),
        (400, &json!("context_length_exceeded"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tokenize_takes_more_than_the_context_and_states_its_limit() {
    let server = server();
    let answer = server.post("/tokenize", &json!({"prompt": "a ".repeat(50_000)})).await;
    assert_eq!(answer.status, 200);
    let count = answer.json()["count"].as_u64().expect("a count");
    assert!(count >= 50_000, "{count}");
    let answer = server.post("/tokenize", &json!({"prompt": "a ".repeat(1 << 20)})).await;
    assert_eq!(answer.status, 400);
    let body = answer.json();
    let message = body["error"]["message"].as_str().expect("a message");
    assert!(message.contains("the limit is 262144"), "{message}");
}

/// Longer than a long request takes that waits for nothing.
const A_WHILE: Duration = Duration::from_millis(300);

/// A long request on a task of its own; its status.
fn start_long(server: &Arc<TestServer>) -> JoinHandle<u16> {
    let server = Arc::clone(server);
    let long = json!({"prompt": "a ".repeat(1 << 20)});
    tokio::spawn(async move { server.post("/tokenize", &long).await.status.as_u16() })
}

#[tokio::test(flavor = "multi_thread")]
async fn short_requests_are_answered_while_long_ones_wait() {
    let server = Arc::new(server());
    // All shares of large bodies are taken: none can begin.
    let held = server.state.text_work.hold_all();
    let waiting = start_long(&server);
    tokio::time::sleep(A_WHILE).await;
    let short = server.post("/tokenize", &json!({"prompt": "hello"})).await;
    assert_eq!(short.status, 200);
    let chat = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1});
    assert_eq!(server.post("/v1/chat/completions", &chat).await.status, 200);
    // Long, and not large.
    let long = json!({"prompt": "hello ".repeat(8000)});
    assert_eq!(server.post("/tokenize", &long).await.status, 200);
    assert!(!waiting.is_finished(), "nothing large is converted without its share");
    drop(held);
    assert_eq!(waiting.await.expect("no panic"), 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn shares_come_back_when_a_client_goes() {
    let server = Arc::new(server());
    let before = server.state.text_work.free_bytes();
    // More than there are threads for long bodies: each client goes while it waits for its share.
    for _ in 0..5 {
        let held = server.state.text_work.hold_all();
        let waiting = start_long(&server);
        tokio::time::sleep(A_WHILE).await;
        waiting.abort();
        assert!(waiting.await.expect_err("it waits").is_cancelled());
        drop(held);
        assert_eq!(server.state.text_work.free_bytes(), before);
    }
    let after = tokio::time::timeout(NEVER, start_long(&server)).await;
    assert_eq!(after.expect("a thread is free").expect("no panic"), 400);
    assert_eq!(server.state.transport.body_memory.bytes(), 0);
}

/// A request that announces 1 MB, sends all but a few bytes of it and then nothing.
fn stalled() -> Request<Body> {
    let most = stream::iter([Ok::<_, std::io::Error>(Bytes::from(vec![b' '; 1_000_000 - 9]))]);
    let request = Request::post("/tokenize")
        .header("content-type", "application/json")
        .header("content-length", "1000000");
    let body = Body::from_stream(most.chain(stream::pending()));
    request.body(body).expect("a request")
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_stall_give_way_to_those_that_come() {
    let limits = ConnectionLimits {
        pending_body_bytes: 4_000_000,
        ..ConnectionLimits::default()
    };
    let server = TestServer::with(Options {
        body_bytes: Some(16 << 20),
        transport: Transport::new(limits, Default::default(), None),
        ..Options::default()
    });
    let server = Arc::new(server);
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let server = Arc::clone(&server);
        waiting.spawn(async move { server.send(stalled()).await });
    }
    let read = async || server.state.transport.body_memory.bytes();
    until("four bodies", read, |bytes| *bytes >= 4 * (1_000_000 - 9)).await;
    tokio::time::sleep(Duration::from_millis(2100)).await;
    let long = json!({"prompt": "a ".repeat(100_000)});
    for _ in 0..3 {
        assert_eq!(server.post("/tokenize", &long).await.status, 200);
    }
    let answer = waiting.join_next().await.expect("four wait").expect("no panic");
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["error"]["code"], "too_many_bodies");
    assert_eq!(answer.headers["retry-after"], "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_million_bad_words_are_counted_and_not_encoded() {
    let server = server();
    let body = json!({"prompt": [5], "bad_words": vec!["word"; 900_000]});
    let answer = server.post("/v1/completions", &body).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"]["param"], "bad_words");
}

#[tokio::test(flavor = "multi_thread")]
async fn template_variables_beyond_their_number_are_refused() {
    let server = server();
    let ask = async |count: usize| {
        let values: serde_json::Map<_, _> = (0..count).map(|i| (format!("k{i}"), json!("v"))).collect();
        let body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1,
            "chat_template_kwargs": {"deep": [values]}});
        server.post("/v1/chat/completions", &body).await
    };
    // The list and the object in it count, too.
    assert_eq!(ask((1 << 14) - 2).await.status, 200);
    let answer = ask((1 << 14) - 1).await;
    assert_eq!(answer.status, 400);
    let error = &answer.json()["error"];
    assert_eq!(error["param"], "chat_template_kwargs");
    let words = error["message"].as_str().expect("words");
    assert!(
        words.contains("16385 values") && words.contains("at most 16384"),
        "{words}"
    );
}
