//! `POST /abort_requests` on the real router: requests that run end as they are, others go on, and the route is there
//! in development mode only.

use std::sync::atomic::Ordering;

use crate::common::{Options, TestServer, until_running};
use crate::long_answers::{ask, finish, server};
use serde_json::json;

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
