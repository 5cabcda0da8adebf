//! `/pause`, `/resume`, `/is_paused` and `/reset_prefix_cache` on the real router: what each mode does to requests that
//! run and to those that come, what is refused, and that the routes are there in development mode only.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Answer, Options, TestServer, for_development_with_a_key, until, until_running, until_waiting};
use crate::long_answers::{ask, finish, server};
use axum::body::Body;
use axum::http::{Method, Request};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

async fn is_paused(server: &TestServer) -> Value {
    server.get("/is_paused").await.ok()["is_paused"].clone()
}

/// A request for two tokens, in a task: it may have to wait.
fn ask_short(server: &Arc<TestServer>) -> JoinHandle<Answer> {
    let server = Arc::clone(server);
    let body = json!({"prompt": [5], "max_tokens": 2, "ignore_eos": true});
    tokio::spawn(async move { server.post("/v1/completions", &body).await })
}

async fn until_paused(server: &TestServer) {
    until("paused", async || is_paused(server).await, |paused| *paused == true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_kept_stand_still_and_go_on() {
    let server = server("keep");
    let long = ask(&server, "/v1/completions", "long", true);
    until_running(&server, 1).await;
    assert_eq!(is_paused(&server).await, false);
    let paused = server.post_empty("/pause?mode=keep&clear_cache=false").await;
    assert_eq!(paused.ok(), json!({"status": "paused"}));
    assert_eq!(is_paused(&server).await, true);
    let steps = server.state.engine.stats().steps_total;
    let later = ask_short(&server);
    until_waiting(&server, 1).await;
    assert_eq!(server.get("/health").await.status, 200);
    // Each of these passes through the engine's thread.
    for _ in 0..20 {
        assert_eq!(server.post_empty("/reset_prefix_cache").await.ok()["success"], false);
    }
    let stats = server.state.engine.stats();
    assert_eq!((stats.steps_total, stats.num_running), (steps, 1));
    assert!(!later.is_finished() && !long.is_finished());
    assert_eq!(server.post_empty("/resume").await.ok(), json!({"status": "resumed"}));
    assert_eq!(is_paused(&server).await, false);
    assert_eq!(finish(&later.await.expect("answers").ok()), "length");
    assert!(!long.is_finished(), "it has thousands of tokens to go");
    assert_eq!(server.post("/abort_requests", &json!({})).await.ok()["aborted"], 1);
    let events = long.await.expect("answers").events();
    assert_eq!(events.last().map(finish), Some("abort"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_without_a_mode_ends_requests_as_they_are_and_holds_new_ones() {
    let server = server("abort");
    let whole = ask(&server, "/v1/chat/completions", "whole", false);
    let streamed = ask(&server, "/v1/completions", "streamed", true);
    let message = ask(&server, "/v1/messages", "message", false);
    until_running(&server, 3).await;
    // As some clients send it.
    assert_eq!(server.post("/pause", &json!({})).await.ok()["status"], "paused");
    let whole = whole.await.expect("answers").ok();
    assert_eq!(finish(&whole), "abort");
    assert!(
        whole["usage"]["completion_tokens"]
            .as_u64()
            .is_some_and(|count| count > 0 && count < 4000)
    );
    let events = streamed.await.expect("answers").events();
    assert_eq!(events.last().map(finish), Some("abort"));
    let message = message.await.expect("answers");
    assert_eq!(message.status, 503, "an API without a word for it: {}", message.text);
    assert!(message.text.contains("paused"), "{}", message.text);
    let later = ask_short(&server);
    until_waiting(&server, 1).await;
    assert!(!later.is_finished());
    server.post_empty("/resume").await.ok();
    assert_eq!(finish(&later.await.expect("answers").ok()), "length");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_waits_answers_when_the_last_one_has_ended() {
    for query in ["mode=wait", "wait_for_inflight_requests=True"] {
        let server = server("wait");
        let long = ask(&server, "/v1/completions", "long", true);
        until_running(&server, 1).await;
        let pausing = tokio::spawn({
            let server = Arc::clone(&server);
            async move { server.post_empty(&format!("/pause?{query}")).await }
        });
        until_paused(&server).await;
        let steps = async || server.state.engine.stats().steps_total;
        let before = steps().await;
        until("another step", steps, |total| *total > before).await;
        assert!(!pausing.is_finished() && !long.is_finished(), "{query}: it goes on");
        assert_eq!(server.post("/abort_requests", &json!({})).await.ok()["aborted"], 1);
        assert_eq!(pausing.await.expect("answers").ok(), json!({"status": "paused"}));
        long.await.expect("answers");
        assert_eq!(is_paused(&server).await, true);
        let stats = server.state.engine.stats();
        assert_eq!((stats.num_running, stats.kv_cache_usage), (0, 0.0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resume_answers_a_pause_that_waits() {
    let server = server("resume");
    let long = ask(&server, "/v1/completions", "long", false);
    until_running(&server, 1).await;
    let pausing = tokio::spawn({
        let server = Arc::clone(&server);
        async move { server.post_empty("/pause?mode=wait").await }
    });
    until_paused(&server).await;
    server.post_empty("/resume").await.ok();
    assert_eq!(pausing.await.expect("answers").error(409)["code"], "resumed");
    server.post("/abort_requests", &json!({})).await.ok();
    assert_eq!(finish(&long.await.expect("answers").ok()), "abort");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_prefix_cache_is_forgotten_unless_requests_use_it() {
    let server = server("reset");
    let cached = async || {
        let body = json!({"prompt": vec![7; 100], "max_tokens": 1, "ignore_eos": true});
        let answer = server.post("/v1/completions", &body).await.ok();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64()
    };
    assert_eq!(cached().await.unwrap_or(0), 0);
    assert!(cached().await > Some(0));
    assert_eq!(
        server.post_empty("/reset_prefix_cache").await.ok(),
        json!({"success": true})
    );
    assert_eq!(cached().await.unwrap_or(0), 0);
    for (query, forgets) in [("clear_cache=0", false), ("mode=keep", true)] {
        assert!(cached().await > Some(0));
        server.post_empty(&format!("/pause?{query}")).await.ok();
        server.post_empty("/resume").await.ok();
        assert_eq!(cached().await.unwrap_or(0) == 0, forgets, "{query}");
    }
    assert!(cached().await > Some(0));
    let external = server.post_empty("/reset_prefix_cache?reset_external=true").await.ok();
    assert_eq!(external["success"], false);
    assert!(
        external["reason"]
            .as_str()
            .is_some_and(|why| why.contains("reset_external"))
    );
    assert_eq!(cached().await.unwrap_or(0), 0, "its own was forgotten");
    // The one before is counted no more.
    until_running(&server, 0).await;
    let long = ask(&server, "/v1/completions", "long", false);
    until_running(&server, 1).await;
    let refused = server.post_empty("/reset_prefix_cache").await.ok();
    assert_eq!(refused["success"], false);
    assert!(
        refused["reason"]
            .as_str()
            .is_some_and(|why| why.contains("reset_running_requests=true"))
    );
    assert!(cached().await > Some(0), "nothing was forgotten");
    let reset = server
        .post_empty("/reset_prefix_cache?reset_running_requests=true")
        .await;
    assert_eq!(reset.ok(), json!({"success": true}));
    assert_eq!(cached().await.unwrap_or(0), 0);
    assert!(!long.is_finished(), "it goes on");
    server.post("/abort_requests", &json!({})).await.ok();
    assert_eq!(finish(&long.await.expect("answers").ok()), "abort");
}

fn dev_server(api_keys: Vec<&'static str>) -> TestServer {
    TestServer::with(Options {
        dev_mode: true,
        api_keys,
        ..Options::default()
    })
}

#[tokio::test]
async fn what_is_not_understood_is_refused_and_pauses_nothing() {
    let server = dev_server(Vec::new());
    for (route, named) in [
        ("/pause?mode=later", "later"),
        ("/pause?mode=", "mode"),
        ("/pause?moed=keep", "moed"),
        ("/pause?clear_cache=perhaps", "perhaps"),
        ("/pause?reset_external=true", "reset_external"),
        ("/reset_prefix_cache?reset_running=true", "reset_running"),
    ] {
        let message = server.post_empty(route).await.error(400)["message"].to_string();
        assert!(message.contains(named), "{route}: {message}");
    }
    for route in ["/pause", "/resume", "/reset_prefix_cache"] {
        let error = server.post(route, &json!({"mode": "keep"})).await.error(400);
        assert_eq!(error["param"], "mode", "{route}");
        let of_a_page = Request::post(route).header("origin", "https://page.example");
        let answer = server.send(of_a_page.body(Body::empty()).expect("a request")).await;
        assert_eq!(answer.status, 415, "{route}: {}", answer.text);
        server.get(route).await.error(405);
    }
    assert_eq!(is_paused(&server).await, false);
}

#[tokio::test]
async fn the_routes_are_for_development_and_want_a_key() {
    let (closed, plain) = (dev_server(vec!["secret"]), TestServer::new());
    let routes = [
        (Method::POST, "/pause"),
        (Method::POST, "/resume"),
        (Method::POST, "/reset_prefix_cache"),
        (Method::GET, "/is_paused"),
    ];
    for_development_with_a_key(&plain, &closed, &routes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_has_ended_says_so() {
    let server = dev_server(Vec::new());
    server.state.engine.shutdown(Duration::ZERO);
    for route in ["/pause", "/resume", "/reset_prefix_cache"] {
        assert_eq!(
            server.post_empty(route).await.error(503)["code"],
            "engine_dead",
            "{route}"
        );
    }
}
