//! The layers around every route, on the real router: panics that are answered and counted, host names, CORS, draining,
//! and the log level.

use std::sync::Arc;

use crate::common::{Answer, Options, TestServer};
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use futures::StreamExt;
use halyard_server::http::cors::CorsRules;
use halyard_server::http::host_check::HostRules;
use halyard_server::http::layers::with_layers;
use halyard_server::http::limits::ConnectionLimits;
use halyard_server::http::transport::Transport;
use serde_json::json;
use tower::ServiceExt;

fn with_hosts(hosts: HostRules) -> Transport {
    Transport::new(ConnectionLimits::default(), hosts, None)
}

#[tokio::test]
async fn a_panic_is_an_answer_and_is_counted() {
    let server = TestServer::new();
    let broken = || async {
        let index = std::hint::black_box(3);
        [1, 2, 3][index].to_string()
    };
    let stream_that_breaks = || async {
        let pieces = futures::stream::iter(0..3).map(|n| {
            assert!(n < 2, "a defect in the stream");
            Ok::<_, std::io::Error>(Bytes::from(format!("data: {n}\n\n")))
        });
        let response = Response::builder().header("content-type", "text/event-stream; charset=utf-8");
        response.body(Body::from_stream(pieces)).expect("a response")
    };
    let routes = Router::new()
        .route("/broken", get(broken))
        .route("/broken-stream", get(stream_that_breaks));
    let router = with_layers(routes, Arc::clone(&server.state));
    let ask = async |path: &str| {
        let request = Request::get(path).header("x-request-id", "mine").body(Body::empty());
        let response = router.clone().oneshot(request.expect("a request")).await;
        Answer::of(response.expect("routers do not fail")).await
    };
    let answer = ask("/broken").await;
    let error = answer.error(500);
    assert_eq!(error["code"], "internal_error");
    assert!(!answer.text.contains("out of bounds"), "what it said stays in the log");
    assert_eq!(answer.headers["x-request-id"], "mine");
    let events = ask("/broken-stream").await.events();
    assert_eq!(events[..2], [json!(0), json!(1)]);
    assert_eq!(events[2]["error"]["code"], "internal_error");
    assert_eq!(events.len(), 3);
    let metrics = server.get("/metrics").await.text;
    assert!(metrics.contains("halyard:handler_panics_total 2\n"), "{metrics}");
    server
        .post("/v1/completions", &json!({"prompt": [5], "max_tokens": 1}))
        .await
        .ok();
}

#[tokio::test]
async fn a_page_that_gave_its_name_this_address_is_refused() {
    let server = TestServer::with(Options {
        transport: with_hosts(HostRules::new(&["127.0.0.1"], true, &["mine.example".to_owned()])),
        ..Options::default()
    });
    let ask = async |host: &str| {
        let request = Request::get("/v1/models").header("host", host).body(Body::empty());
        server.send(request.expect("a request")).await
    };
    for host in ["127.0.0.1:8000", "localhost", "[::1]:8000", "mine.example:8000"] {
        ask(host).await.ok();
    }
    let error = ask("evil.example:8000").await.error(421);
    let message = error["message"].as_str().expect("text");
    assert!(
        message.contains("evil.example") && message.contains("--allowed-hosts"),
        "{message}"
    );
    // The second of two headers counts, and so does the host in the request's line (HTTP/2 has no other).
    let two = Request::get("/v1/models")
        .header("host", "localhost")
        .header("host", "evil.example");
    server
        .send(two.body(Body::empty()).expect("a request"))
        .await
        .error(421);
    let absolute = Request::get("http://evil.example/health").body(Body::empty());
    server.send(absolute.expect("a request")).await.error(421);
    server.get("/health").await;
}

#[tokio::test]
async fn pages_of_other_origins_are_answered_only_where_they_are_allowed() {
    let preflight = |origin: &str| {
        Request::options("/v1/completions")
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "authorization,content-type")
            .body(Body::empty())
            .expect("a request")
    };
    let closed = TestServer::with(Options {
        api_keys: vec!["secret"],
        ..Options::default()
    });
    let answer = closed.send(preflight("https://app.example")).await;
    answer.error(401);
    assert!(!answer.headers.contains_key("access-control-allow-origin"));
    let rules = CorsRules {
        origins: vec!["https://app.example".to_owned()],
        ..CorsRules::default()
    };
    let server = TestServer::with(Options {
        api_keys: vec!["secret"],
        transport: Transport::new(
            ConnectionLimits::default(),
            HostRules::default(),
            rules.layer().expect("rules"),
        ),
        ..Options::default()
    });
    let answer = server.send(preflight("https://app.example")).await;
    assert_eq!(answer.status, 200, "before the key: {}", answer.text);
    assert_eq!(answer.headers["access-control-allow-origin"], "https://app.example");
    assert_eq!(
        answer.headers["access-control-allow-headers"],
        "authorization,content-type"
    );
    let answer = server.send(preflight("https://evil.example")).await;
    assert!(
        !answer.headers.contains_key("access-control-allow-origin"),
        "{:?}",
        answer.headers
    );
    // The request itself still needs its key, and a page may read why it was refused.
    let request = Request::get("/v1/models").header("origin", "https://app.example");
    let answer = server.send(request.body(Body::empty()).expect("a request")).await;
    answer.error(401);
    assert_eq!(answer.headers["access-control-allow-origin"], "https://app.example");
}

#[tokio::test]
async fn a_server_that_ends_says_so_and_takes_no_new_generation() {
    let server = TestServer::new();
    assert_eq!(server.get("/health").await.status, 200);
    server.state.transport.start_draining();
    assert_eq!(server.get("/health").await.error(503)["code"], "shutting_down");
    for route in ["/v1/completions", "/v1/chat/completions"] {
        let answer = server.post(route, &json!({"prompt": [5]})).await;
        assert_eq!(answer.error(503)["code"], "shutting_down");
        assert_eq!(answer.headers["retry-after"], "1");
    }
    server.get("/v1/models").await.ok();
    server.get("/metrics").await;
}

#[tokio::test]
async fn the_log_level_changes_for_those_with_a_key_only() {
    let open = TestServer::new();
    let answer = open.post("/admin/log-level", &json!({"level": "debug"})).await;
    assert!(
        answer.error(403)["message"]
            .as_str()
            .expect("text")
            .contains("--api-key-file")
    );
    let server = TestServer::with(Options {
        api_keys: vec!["secret"],
        ..Options::default()
    });
    // Its hook for panics would take those of other tests out of their reports.
    let usual = std::panic::take_hook();
    halyard_server::logging::start("error", Default::default()).expect("a level");
    std::panic::set_hook(usual);
    let ask = async |key: &str, level: serde_json::Value| {
        let request = Request::post("/admin/log-level")
            .header("authorization", format!("Bearer {key}"))
            .header("content-type", "application/json");
        let body = Body::from(json!({ "level": level }).to_string());
        server.send(request.body(body).expect("a request")).await
    };
    ask("other", json!("debug")).await.error(401);
    assert_eq!(ask("secret", json!(3)).await.error(400)["param"], "level");
    let error = ask("secret", json!("a=b=c")).await.error(400);
    assert!(error["message"].as_str().expect("text").contains("a=b=c"), "{error}");
    assert!(!tracing::enabled!(tracing::Level::WARN));
    assert_eq!(ask("secret", json!("warn")).await.ok()["before"], "error");
    assert!(tracing::enabled!(tracing::Level::WARN));
    assert_eq!(halyard_server::logging::level().as_deref(), Some("warn"));
}
