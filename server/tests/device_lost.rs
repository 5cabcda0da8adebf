//! A device that is lost while requests run: each of them gets an error with the reason, and so do later requests.

mod common;

use common::{Options, TestServer};
use halyard_delayed::{DelayedPlatform, Fault};
use halyard_platform_api::Platform;
use serde_json::json;

const WHY: &str = "the device was lost, as the test planned";

/// A server whose device fails at the given submit.
fn server(submit: u64) -> TestServer {
    let platform = DelayedPlatform::new(1, 5).with_fault(Fault::LostAt(submit));
    TestServer::with(Options {
        device: Some(platform.open(0).expect("opens")),
        ..Options::default()
    })
}

#[tokio::test]
async fn requests_in_flight_and_later_ones_are_told_why_and_health_says_it() {
    let server = server(40);
    assert_eq!(server.get("/health").await.status, 200);
    let body = |prompt| json!({"prompt": prompt, "max_tokens": 200, "temperature": 0, "ignore_eos": true});
    let (one, two, three) = (body("The river"), body("a"), body("Once upon a time"));
    let answers = tokio::join!(
        server.post("/v1/completions", &one),
        server.post("/v1/completions", &two),
        server.post("/v1/completions", &three)
    );
    for answer in [answers.0, answers.1, answers.2] {
        let error = answer.error(500);
        assert_eq!(error["code"], "engine_error");
        assert!(
            error["message"].as_str().is_some_and(|text| text.contains(WHY)),
            "{error}"
        );
    }
    for route in ["/health", "/ping"] {
        let error = server.get(route).await.error(503);
        assert!(
            error["message"].as_str().is_some_and(|text| text.contains(WHY)),
            "{error}"
        );
    }
    let error = server.post("/v1/completions", &body("late")).await.error(503);
    assert_eq!(error["code"], "engine_dead");
    assert!(
        error["message"].as_str().is_some_and(|text| text.contains(WHY)),
        "{error}"
    );
    assert_eq!(
        server.get("/v1/models").await.status,
        200,
        "what needs no device goes on"
    );
}

#[tokio::test]
async fn a_stream_ends_with_the_reason() {
    let server = server(40);
    let body = json!({"prompt": "The river", "max_tokens": 200, "temperature": 0, "ignore_eos": true, "stream": true});
    let answer = server.post("/v1/completions", &body).await;
    assert_eq!(answer.status, 200, "the stream had begun");
    assert!(answer.text.contains(WHY), "{}", answer.text);
}

#[test]
fn a_device_that_is_lost_while_loading_refuses_the_start() {
    let lost = std::panic::catch_unwind(|| server(1));
    let why = lost.err().and_then(|panic| panic.downcast::<String>().ok());
    assert!(why.is_some_and(|why| why.contains(WHY)), "loading names the reason");
}
