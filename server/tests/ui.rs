//! The page's routes on the real router: files and their headers, the key, the figures, the request log and its bounds,
//! the plugins, and a server without a page.

use std::net::SocketAddr;

use crate::common::{Answer, Options, TestServer, until};
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, Request, header};
use halyard_server::http::peer::Peer;
use halyard_server::ui::{MAX_REQUESTS, SINK_NAME, assets};
use serde_json::{Value, json};

fn keyed() -> TestServer {
    TestServer::with(Options {
        api_keys: vec!["sesame"],
        ..Options::default()
    })
}

fn request(method: &str, route: &str) -> axum::http::request::Builder {
    Request::builder().method(method).uri(route)
}

async fn with_key(server: &TestServer, route: &str) -> Answer {
    let request = request("GET", route).header("authorization", "Bearer sesame");
    server.send(request.body(Body::empty()).expect("a request")).await
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("", |value| value.to_str().expect("text"))
}

/// The data, once every record before was delivered: a scrape waits for that.
async fn data(server: &TestServer, query: &str) -> Value {
    server.get("/metrics").await;
    server.get(&format!("/ui/data{query}")).await.ok()
}

async fn complete(server: &TestServer, body: Value) -> Answer {
    let mut request = Request::post("/v1/completions").header("content-type", "application/json");
    let client = ConnectInfo(Peer::Tcp(SocketAddr::from(([192, 0, 2, 7], 4711))));
    request.extensions_mut().expect("a request").insert(client);
    server
        .send(request.body(Body::from(body.to_string())).expect("a request"))
        .await
}

#[tokio::test]
async fn files_need_no_key_and_tell_nothing() {
    let (server, open) = (keyed(), TestServer::new());
    for file in assets::assets() {
        let route = format!("/ui/{}", file.name);
        let answer = server.get(&route).await;
        assert_eq!(answer.status, 200, "{route}");
        assert_eq!(answer.text.as_bytes(), file.bytes);
        assert_eq!(text(&answer.headers, "content-type"), file.content_type);
        assert_eq!(text(&answer.headers, "x-content-type-options"), "nosniff");
        assert_eq!(text(&answer.headers, "x-frame-options"), "DENY");
        assert_eq!(text(&answer.headers, "cache-control"), "no-cache");
        assert_eq!(text(&answer.headers, "referrer-policy"), "no-referrer");
        let policy = text(&answer.headers, "content-security-policy");
        for rule in ["default-src 'self'", "frame-ancestors 'none'", "trusted-types 'none'"] {
            assert!(policy.contains(rule), "{policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.text, open.get(&route).await.text, "the same for every server");
    }
    let page = server.get("/ui/").await;
    assert!(page.text.contains("<main"), "{}", page.text);
    assert!(
        !page.text.contains("style=") && !page.text.contains("onclick"),
        "nothing inline"
    );
    assert_eq!(page.text.matches("<script").count(), 1);
    assert!(page.text.contains("<script type=\"module\" src="));
    let moved = server.get("/ui").await;
    assert_eq!((moved.status.as_u16(), text(&moved.headers, "location")), (308, "ui/"));
}

#[tokio::test]
async fn a_browser_that_has_a_file_is_told_so() {
    let server = TestServer::new();
    let known = server.get("/ui/app.js").await;
    let tag = text(&known.headers, "etag").to_owned();
    for (sent, status) in [
        (tag.clone(), 304),
        (format!("\"other\", W/{tag}"), 304),
        ("\"other\"".to_owned(), 200),
    ] {
        let request = request("GET", "/ui/app.js").header(header::IF_NONE_MATCH, &sent);
        let answer = server.send(request.body(Body::empty()).expect("a request")).await;
        assert_eq!(answer.status, status, "{sent}");
        assert_eq!(answer.text.is_empty(), status == 304);
        assert_eq!(text(&answer.headers, "etag"), tag);
    }
    assert_ne!(tag, text(&server.get("/ui/style.css").await.headers, "etag"));
}

#[tokio::test]
async fn data_needs_the_key() {
    let server = keyed();
    for route in ["/ui/data", "/ui/system", "/ui/none.js", "/ui/../v1/models"] {
        assert_eq!(server.get(route).await.error(401)["code"], "invalid_api_key", "{route}");
    }
    assert_eq!(with_key(&server, "/ui/data").await.ok()["model"], "tiny");
    assert_eq!(
        with_key(&server, "/ui/system").await.ok()["model"]["architecture"],
        "LlamaForCausalLM"
    );
    assert_eq!(
        with_key(&server, "/ui/none.js").await.error(404)["code"],
        "unknown_route"
    );
    let answer = with_key(&server, "/ui/data").await;
    assert_eq!(text(&answer.headers, "cache-control"), "no-store");
    let wrong = request("POST", "/ui/data").header("authorization", "Bearer sesame");
    let refused = server.send(wrong.body(Body::empty()).expect("a request")).await;
    assert_eq!(refused.error(405)["code"], "method_not_allowed");
}

#[tokio::test]
async fn a_server_without_a_page_has_no_route_of_it() {
    let server = TestServer::with(Options {
        no_ui: true,
        api_keys: vec!["sesame"],
        ..Options::default()
    });
    for route in ["/ui", "/ui/", "/ui/app.js", "/ui/data", "/ui/system"] {
        server.get(route).await.error(401);
        assert_eq!(
            with_key(&server, route).await.error(404)["code"],
            "unknown_route",
            "{route}"
        );
    }
    let sinks = with_key(&server, "/admin/plugins").await.ok();
    assert!(!sinks.to_string().contains(&format!("\"{SINK_NAME}\"")), "{sinks}");
}

#[tokio::test]
async fn figures_and_the_log_show_what_ran() {
    let server = TestServer::new();
    let body = json!({"model": "tiny", "prompt": ["one two", "three"], "n": 2, "max_tokens": 5, "ignore_eos": true});
    complete(&server, body).await.ok();
    let is_recorded = |shown: &Value| {
        shown["figures"]["inter_token"]["count"] == 16
            && shown["figures"]["end_to_end"]["count"] == 2
            && shown["requests"][0]["num_ended"] == 4
            && shown["stats"]["generation_tokens_total"] == 20
    };
    let shown = until("recorded", async || data(&server, "").await, is_recorded).await;
    assert_eq!(shown["figures"]["first_token"]["count"], 4);
    assert_eq!(shown["figures"]["inter_token"]["count"], 16);
    assert_eq!(shown["figures"]["end_to_end"]["count"], 2);
    assert!(
        shown["figures"]["step"]["count"].as_u64() >= Some(5),
        "{}",
        shown["figures"]["step"]
    );
    assert!(shown["figures"]["step"]["p50_ms"].as_f64() > Some(0.0));
    assert_eq!(shown["stats"]["generation_tokens_total"], 20);
    let entry = &shown["requests"][0];
    for (name, value) in [
        ("route", json!("/v1/completions")),
        ("model", json!("tiny")),
        ("client", json!("192.0.2.7")),
        ("num_sequences", json!(4)),
        ("num_ended", json!(4)),
        ("generation_tokens", json!(20)),
        ("is_stream", json!(false)),
        ("finish", json!("length")),
        ("status", json!(null)),
    ] {
        assert_eq!(entry[name], value, "{name} of {entry}");
    }
    let times = ["submitted_ms", "admitted_ms", "first_token_ms", "ended_ms"].map(|name| entry[name].as_f64());
    assert!(
        times.windows(2).all(|pair| pair[0].is_some() && pair[0] <= pair[1]),
        "{entry}"
    );
    // The engine ends a request before the answer has been written; both clocks are this process's.
    assert!(entry["answered_ms"].as_f64() >= times[2], "{entry}");
    let revision = shown["revision"].as_u64().expect("a number");
    assert_eq!(
        data(&server, &format!("?revision={revision}")).await["requests"],
        json!([])
    );
}

#[tokio::test]
async fn refusals_are_in_the_log_without_their_words() {
    let server = TestServer::new();
    let secret = json!({"model": "tiny", "prompt": "my secret", "temperature": -3});
    complete(&server, secret).await.error(400);
    complete(&server, json!({"model": "no secret", "prompt": "x"}))
        .await
        .error(404);
    let shown = data(&server, "").await["requests"].clone();
    assert_eq!(
        (&shown[0]["finish"], &shown[0]["status"]),
        (&json!("refused"), &json!(400))
    );
    assert_eq!(shown[0]["detail"], "field temperature");
    assert_eq!(
        (&shown[1]["status"], &shown[1]["detail"]),
        (&json!(404), &json!("model_not_found, field model"))
    );
    assert!(!shown.to_string().contains("secret"), "{shown}");
}

#[tokio::test]
async fn strangers_do_not_fill_the_log() {
    let server = keyed();
    complete(&server, json!({"prompt": "x"})).await.error(401);
    let shown = with_key(&server, "/ui/data").await.ok();
    assert_eq!(shown["requests"], json!([]));
}

#[tokio::test]
async fn the_log_keeps_the_last_requests() {
    let server = TestServer::new();
    for _ in 0..MAX_REQUESTS + 3 {
        complete(&server, json!({"model": "none", "prompt": "x"}))
            .await
            .error(404);
    }
    let shown = data(&server, "").await;
    let entries = shown["requests"].as_array().expect("a list");
    assert_eq!(entries.len(), MAX_REQUESTS);
    assert_eq!(entries[0]["number"], 4);
}

#[tokio::test]
async fn a_stream_is_open_until_its_client_leaves() {
    let server = TestServer::new();
    let body = json!({"prompt": "one", "max_tokens": 64, "ignore_eos": true, "stream": true});
    let request = Request::post("/v1/completions").header("content-type", "application/json");
    let request = request.body(Body::from(body.to_string())).expect("a request");
    let response = tower::ServiceExt::oneshot(server.router.clone(), request)
        .await
        .expect("an answer");
    let entry = data(&server, "").await["requests"][0].clone();
    assert_eq!(
        (&entry["answered_ms"], &entry["is_stream"]),
        (&json!(null), &json!(true))
    );
    drop(response);
    let entry = data(&server, "?revision=999999").await["requests"].clone();
    assert_eq!(entry, json!([]), "it is not open any more");
    assert!(data(&server, "").await["requests"][0]["answered_ms"].as_f64() > Some(0.0));
}

#[tokio::test]
async fn numbers_of_the_query_are_checked() {
    let server = TestServer::new();
    for (query, field) in [("after=-1", "after"), ("revision=x", "revision"), ("after=", "after")] {
        assert_eq!(
            server.get(&format!("/ui/data?{query}")).await.error(400)["param"],
            field
        );
    }
    let shown = server.get("/ui/data?after=18446744073709551615").await.ok();
    assert_eq!(shown["figures"]["series"]["steps"], json!([]));
    let shown = server.get("/ui/data").await.ok();
    let seconds = shown["figures"]["series"]["steps"].as_array().map(Vec::len);
    assert_eq!(
        seconds,
        shown["figures"]["kept_seconds"]
            .as_u64()
            .map(|seconds| seconds as usize)
    );
}

#[tokio::test]
async fn the_system_names_devices_loggers_and_adapters() {
    let server = TestServer::new();
    let shown = server.get("/ui/system").await.ok();
    assert!(
        shown["devices"][0]["name"]
            .as_str()
            .is_some_and(|name| !name.is_empty()),
        "{shown}"
    );
    let names: Vec<&str> = shown["stat_loggers"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|sink| sink["name"].as_str())
        .collect();
    assert_eq!(names, ["prometheus", SINK_NAME]);
    assert_eq!(
        (&shown["adapters"], &shown["plugins"]),
        (&json!([]), &json!([])),
        "no search path"
    );
}
