//! `POST /abort_requests` on the real router: requests that run end as they are, others go on, and the route is there
//! in development mode only.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::http::Request;
use common::{Answer, Options, TestServer, fixture};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Tokens of a context.
const LONGEST: u32 = 4096;

/// A server whose answers take long: thousands of tokens.
fn server(name: &str) -> Arc<TestServer> {
    let folder = std::env::temp_dir().join(format!("halyard-abort-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("made");
    for file in std::fs::read_dir(fixture("llama")).expect("the fixture") {
        let file = file.expect("a file").path();
        std::fs::copy(&file, folder.join(file.file_name().expect("a name"))).expect("copied");
    }
    let config = folder.join("config.json");
    let text = std::fs::read_to_string(&config).expect("text");
    let longer = text.replace("\"max_position_embeddings\": 256", "\"max_position_embeddings\": 65536");
    std::fs::write(&config, longer).expect("writes");
    let server = TestServer::with(Options {
        dev_mode: true,
        model: Some(folder.clone()),
        max_model_len: Some(LONGEST),
        ..Options::default()
    });
    std::fs::remove_dir_all(&folder).expect("was there");
    Arc::new(server)
}

/// Asks for as much as the context holds.
fn ask(server: &Arc<TestServer>, route: &'static str, id: &'static str, stream: bool) -> JoinHandle<Answer> {
    let server = Arc::clone(server);
    tokio::spawn(async move {
        let mut body = json!({"max_tokens": LONGEST - 96, "ignore_eos": true, "stream": stream});
        match route {
            "/v1/completions" => body["prompt"] = json!([5]),
            _ => body["messages"] = json!([{"role": "user", "content": "x"}]),
        }
        let request = Request::post(route)
            .header("content-type", "application/json")
            .header("x-request-id", id);
        server
            .send(request.body(Body::from(body.to_string())).expect("a request"))
            .await
    })
}

async fn until_running(server: &TestServer, count: u64) {
    while server.state.engine.stats().num_running != count {
        tokio::task::yield_now().await;
    }
}

fn finish(answer: &Value) -> &str {
    answer["choices"][0]["finish_reason"].as_str().unwrap_or("none")
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_end_by_id_and_all_at_once() {
    let server = server("end");
    let named = ask(&server, "/v1/chat/completions", "one", false);
    let streamed = ask(&server, "/v1/completions", "two", true);
    let message = ask(&server, "/v1/messages", "three", false);
    until_running(&server, 3).await;
    let aborted = server
        .post("/abort_requests", &json!({"request_ids": ["chatcmpl-one", "unknown"]}))
        .await;
    assert_eq!(aborted.ok(), json!({"status": "aborted", "aborted": 1}));
    let named = named.await.expect("answers").ok();
    assert_eq!(finish(&named), "abort");
    assert!(
        named["usage"]["completion_tokens"]
            .as_u64()
            .is_some_and(|count| count < 4000)
    );
    until_running(&server, 2).await;
    let aborted = server.post("/abort_requests", &json!({"request_ids": ["two"]})).await;
    assert_eq!(aborted.ok()["aborted"], 1);
    let events = streamed.await.expect("answers").events();
    assert_eq!(events.last().map(finish), Some("abort"));
    assert_eq!(server.post("/abort_requests", &json!({})).await.ok()["aborted"], 1);
    let message = message.await.expect("answers");
    assert_eq!(message.status, 503, "an API without a word for it: {}", message.text);
    until_running(&server, 0).await;
    assert_eq!(server.state.in_flight.load(Ordering::Relaxed), 0);
    assert_eq!(server.post("/abort_requests", &json!({})).await.ok()["aborted"], 0);
    let later = server
        .post(
            "/v1/completions",
            &json!({"prompt": [5], "max_tokens": 2, "ignore_eos": true}),
        )
        .await;
    assert_eq!(finish(&later.ok()), "length");
}

#[tokio::test]
async fn ids_that_are_none_are_refused_and_nothing_ends() {
    let server = TestServer::with(Options {
        dev_mode: true,
        ..Options::default()
    });
    for bad in [
        json!({"request_ids": "one"}),
        json!({"request_ids": [1]}),
        json!({"request_ids": {}}),
    ] {
        let error = server.post("/abort_requests", &bad).await.error(400);
        assert_eq!(error["param"], "request_ids");
    }
    server.post_bytes("/abort_requests", b"[]".to_vec()).await.error(400);
}

#[tokio::test]
async fn the_route_is_for_development_only() {
    TestServer::new().post("/abort_requests", &json!({})).await.error(404);
    let closed = TestServer::with(Options {
        dev_mode: true,
        api_keys: vec!["secret"],
        ..Options::default()
    });
    closed.post("/abort_requests", &json!({})).await.error(401);
}
