//! `/sleep`, `/wake_up`, `/is_sleeping` and `/collective_rpc` on the real router: memory, requests, metrics and health
//! while the engine sleeps, weights of another folder, and what is refused.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Options, TestServer, fixture, for_development_with_a_key, until_running, until_waiting};
use crate::long_answers::{ask, finish};
use axum::http::Method;
use halyard_platform_api::{Device, Platform};
use halyard_reference::ReferencePlatform;
use serde_json::{Value, json};

/// A POST that answers 200 without a body, as vLLM's.
async fn done(server: &TestServer, route: &str) {
    let answer = server.post_empty(route).await;
    assert_eq!((answer.status.as_u16(), answer.text.as_str()), (200, ""), "{route}");
}

async fn is_sleeping(server: &TestServer) -> Value {
    server.get("/is_sleeping").await.ok()["is_sleeping"].clone()
}

fn dev_server(device: Option<Arc<dyn Device>>, sleep_mode: bool) -> Arc<TestServer> {
    Arc::new(TestServer::with(Options {
        dev_mode: true,
        sleep_mode,
        device,
        ..Options::default()
    }))
}

async fn text(server: &TestServer) -> Value {
    let body = json!({"prompt": [17, 5, 90], "max_tokens": 12, "ignore_eos": true, "temperature": 0});
    server.post("/v1/completions", &body).await.ok()["choices"][0]["text"].clone()
}

/// Which of vLLM's states `/metrics` shows.
async fn state(server: &TestServer) -> String {
    let metrics = server.get("/metrics").await.text;
    let mut lines = metrics
        .lines()
        .filter(|line| line.starts_with("vllm:engine_sleep_state{"));
    assert_eq!(lines.clone().count(), 3, "{metrics}");
    let present = lines.find(|line| line.ends_with(" 1")).expect("one holds");
    assert!(present.contains("model_name=\"tiny\",engine=\"0\""), "{present}");
    let (_, named) = present.split_once("sleep_state=\"").expect("a state");
    named.split('"').next().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_goes_and_comes_back_with_the_same_answers() {
    let device = ReferencePlatform::new().open(0).expect("the host");
    let used = || device.memory().expect("a report").used_bytes;
    let before = used();
    let server = dev_server(Some(device.clone()), true);
    let (awake, expected) = (used(), text(&server).await);
    assert!(awake > before + (1 << 20), "{before} {awake}");
    for (level, name) in [
        ("?level=1", "weights_offloaded"),
        ("?level=2", "discard_all"),
        ("", "weights_offloaded"),
    ] {
        assert_eq!(
            (is_sleeping(&server).await, state(&server).await),
            (json!(false), "awake".to_owned())
        );
        done(&server, &format!("/sleep{level}")).await;
        assert_eq!(used(), before);
        assert_eq!(
            (is_sleeping(&server).await, state(&server).await),
            (json!(true), name.to_owned())
        );
        assert_eq!(server.get("/health").await.status, 200);
        assert_eq!(server.get("/is_paused").await.ok()["is_paused"], true);
        assert_eq!(server.post_empty("/resume").await.error(409)["code"], "asleep");
        let asking = Arc::clone(&server);
        let waiting = tokio::spawn(async move { text(&asking).await });
        until_waiting(&server, 1).await;
        match name {
            "discard_all" => {
                assert_eq!(
                    server.post_empty("/wake_up?tags=kv_cache").await.error(409)["code"],
                    "weights_first"
                );
                done(&server, "/wake_up?tags=weights").await;
                assert_eq!(is_sleeping(&server).await, true);
                assert!(!waiting.is_finished() && used() > before);
                done(&server, "/wake_up?tags=kv_cache").await;
            }
            _ => done(&server, "/wake_up?tags=weights&tags=kv_cache").await,
        }
        assert_eq!(waiting.await.expect("answers"), expected);
        assert_eq!((used(), text(&server).await), (awake, expected.clone()));
        done(&server, "/wake_up").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_run_end_or_go_on() {
    // The model's folder is gone: level 1 does not need it.
    let server = crate::long_answers::server("sleep");
    let long = ask(&server, "/v1/completions", "long", true);
    until_running(&server, 1).await;
    done(&server, "/sleep?mode=keep").await;
    assert!(!long.is_finished());
    done(&server, "/wake_up").await;
    until_running(&server, 1).await;
    done(&server, "/sleep").await;
    let events = long.await.expect("answers").events();
    assert_eq!(events.last().map(finish), Some("abort"));
    done(&server, "/sleep?level=2").await;
    let failed = server.post_empty("/wake_up").await.error(503);
    assert_eq!(failed["code"], "wake_failed");
    assert!(failed["message"].to_string().contains("sleeps on"), "{failed}");
    assert_eq!(is_sleeping(&server).await, true);
    assert_eq!(server.get("/health").await.status, 200);
}

fn reload(path: &str) -> Value {
    json!({"method": "reload_weights", "kwargs": {"weights_path": path}})
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_of_another_folder_are_loaded_and_other_models_refused() {
    let folder = std::env::temp_dir().join(format!("halyard-reload-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("made");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("llama").join(file), folder.join(file)).expect("copied");
    }
    let weights = folder.join("model.safetensors");
    let mut bytes = std::fs::read(&weights).expect("weights");
    // The last tensor's values.
    let end = bytes.len() - 4096;
    bytes[end..].fill(0);
    std::fs::write(&weights, bytes).expect("written");
    let server = dev_server(None, false);
    let expected = text(&server).await;
    let path = folder.display().to_string();
    let loaded = server.post("/collective_rpc", &reload(&path)).await.ok();
    assert_eq!(loaded, json!({"results": [null]}));
    assert_ne!(text(&server).await, expected);
    let llama = fixture("llama").display().to_string();
    server.post("/collective_rpc", &reload(&llama)).await.ok();
    assert_eq!(text(&server).await, expected);
    std::fs::remove_dir_all(&folder).expect("was there");
    let qwen = fixture("qwen3").display().to_string();
    for (path, code, named) in [
        (qwen.as_str(), "other_model", "Qwen3ForCausalLM"),
        (path.as_str(), "weights_unreadable", path.as_str()),
    ] {
        let error = server.post("/collective_rpc", &reload(path)).await.error(400);
        assert_eq!(error["code"], code, "{error}");
        assert!(error["message"].to_string().contains(named), "{error}");
    }
    assert_eq!(text(&server).await, expected);
}

#[tokio::test]
async fn what_is_not_understood_is_refused_and_changes_nothing() {
    let server = dev_server(None, true);
    for (route, named) in [
        ("/sleep?level=0", "/pause"),
        ("/sleep?level=3", "level is 3"),
        ("/sleep?level=deep", "level"),
        ("/sleep?mode=later", "later"),
        ("/sleep?levle=2", "levle"),
        ("/wake_up?tags=scheduling", "scheduling"),
        ("/wake_up?tag=weights", "tag"),
    ] {
        let message = server.post_empty(route).await.error(400)["message"].to_string();
        assert!(message.contains(named), "{route}: {message}");
    }
    for (body, param) in [
        (json!({}), "method"),
        (json!({"method": "sleep"}), "method"),
        (json!({"method": "reload_weights"}), "kwargs"),
        (
            json!({"method": "reload_weights", "kwargs": {"weights_path": ""}}),
            "kwargs",
        ),
        (
            json!({"method": "reload_weights", "kwargs": {"weights_path": "/x", "is_checkpoint_format": true}}),
            "kwargs",
        ),
        (json!({"method": "reload_weights", "args": ["/x"]}), "args"),
        (
            json!({"method": "reload_weights", "kwargs": {"weights_path": "/x"}, "timeout": 3}),
            "timeout",
        ),
        (
            json!({"method": "reload_weights", "kwargs": {"weights_path": "/x"}, "more": 3}),
            "more",
        ),
    ] {
        let error = server.post("/collective_rpc", &body).await.error(400);
        assert_eq!(error["param"], param, "{body}: {error}");
    }
    for route in ["/sleep", "/wake_up"] {
        let error = server.post(route, &json!({"level": 2})).await.error(400);
        assert_eq!(error["param"], "level", "{route}");
        server.get(route).await.error(405);
    }
    assert_eq!(is_sleeping(&server).await, false);
    let off = dev_server(None, false);
    let error = off.post_empty("/sleep").await.error(409);
    assert_eq!(error["code"], "sleep_mode_off");
    assert!(error["message"].to_string().contains("--enable-sleep-mode"), "{error}");
    assert_eq!(off.get("/is_paused").await.ok()["is_paused"], false);
}

#[tokio::test]
async fn the_routes_are_for_development_and_want_a_key() {
    let plain = TestServer::with(Options {
        sleep_mode: true,
        ..Options::default()
    });
    let closed = TestServer::with(Options {
        dev_mode: true,
        sleep_mode: true,
        api_keys: vec!["secret"],
        ..Options::default()
    });
    let routes = [
        (Method::POST, "/sleep"),
        (Method::POST, "/wake_up"),
        (Method::GET, "/is_sleeping"),
        (Method::POST, "/collective_rpc"),
    ];
    for_development_with_a_key(&plain, &closed, &routes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_has_ended_says_so() {
    let server = dev_server(None, true);
    server.state.engine.shutdown(Duration::ZERO);
    for route in ["/sleep", "/wake_up"] {
        assert_eq!(
            server.post_empty(route).await.error(503)["code"],
            "engine_dead",
            "{route}"
        );
    }
    let llama = fixture("llama").display().to_string();
    let error = server.post("/collective_rpc", &reload(&llama)).await.error(503);
    assert_eq!(error["code"], "engine_dead");
}
