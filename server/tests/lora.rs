//! LoRA adapters over HTTP: as models of requests, loaded and unloaded by request, found by a resolver, refused with
//! words, and in the metrics.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{Options, TestServer, fixture, until};
use axum::body::Body;
use axum::http::Request;
use halyard_engine::{AdapterSource, LoraConfig};
use halyard_platform_api::lora_resolver::{LoraQuery, LoraResolver, LoraResolverFactory};
use halyard_platform_api::{Error, Result};
use halyard_request_hooks::{LoraResolvers, ResolverSettings};
use halyard_server::http::state::LoraState;
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const LOAD: &str = "/v1/load_lora_adapter";
const UNLOAD: &str = "/v1/unload_lora_adapter";

fn adapter(name: &str) -> PathBuf {
    fixture("llama-lora").join(name)
}

/// rank4 from the start, two slots.
fn with_lora(lora: LoraState) -> Options {
    Options {
        lora_config: Some(LoraConfig {
            adapters: vec![("rank4".to_owned(), AdapterSource::Folder(adapter("rank4")))],
            max_loras: 2,
            ..LoraConfig::default()
        }),
        lora,
        ..Options::default()
    }
}

fn updating() -> TestServer {
    TestServer::with(with_lora(LoraState::new(true, None)))
}

/// Prompt and first tokens of an adapter's golden.
fn golden(name: &str) -> (Value, Vec<Value>) {
    let text = std::fs::read_to_string(adapter(name).join("goldens.json")).expect("goldens");
    let golden: Value = serde_json::from_str(&text).expect("JSON");
    let case = &golden["cases"][0];
    let ids = case["hf_fp32"]["ids"].as_array().expect("ids")[..8].to_vec();
    (case["prompt_ids"].clone(), ids)
}

fn ask(model: &str, prompt: &Value) -> Value {
    json!({"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0, "return_token_ids": true})
}

async fn is_peft(server: &TestServer, model: &str, name: &str) {
    let (prompt, expected) = golden(name);
    let answer = server.post(COMPLETIONS, &ask(model, &prompt)).await.ok();
    assert_eq!(answer["model"], model);
    assert_eq!(answer["choices"][0]["token_ids"], json!(expected), "{model}");
}

#[tokio::test]
async fn an_adapter_is_a_model_with_a_parent() {
    let server = updating();
    is_peft(&server, "rank4", "rank4").await;
    let models = server.get("/v1/models").await.ok();
    let cards = models["data"].as_array().expect("a list");
    let card = cards.iter().find(|card| card["id"] == "rank4").expect("the adapter");
    assert_eq!(card["parent"], "tiny");
    assert_eq!(card["root"], json!(adapter("rank4")));
    assert!(
        cards
            .iter()
            .any(|card| card["id"] == "tiny" && card["parent"].is_null())
    );
    assert_eq!(server.get("/v1/models/rank4").await.ok()["parent"], "tiny");
    let error = server.post(COMPLETIONS, &ask("rank5", &json!([1]))).await.error(404);
    assert!(
        error["message"]
            .as_str()
            .expect("text")
            .contains("`tiny`, `also-tiny`, `rank4`"),
        "{error}"
    );
}

#[tokio::test]
async fn adapters_come_and_go_by_request() {
    let server = updating();
    let load = json!({"lora_name": "team/wide", "lora_path": adapter("rank16")});
    let answer = server.post(LOAD, &load).await;
    assert_eq!(
        (answer.status.as_u16(), answer.text.contains("'team/wide' added")),
        (200, true),
        "{}",
        answer.text
    );
    is_peft(&server, "team/wide", "rank16").await;
    assert_eq!(server.post(LOAD, &load).await.error(400)["code"], "adapter_exists");
    assert_eq!(
        server.post(UNLOAD, &json!({"lora_name": "team/wide"})).await.status,
        200
    );
    server
        .post(COMPLETIONS, &ask("team/wide", &json!([1])))
        .await
        .error(404);
    assert_eq!(
        server.post(UNLOAD, &json!({"lora_name": "team/wide"})).await.error(404)["code"],
        "adapter_not_found"
    );
    assert_eq!(server.post(LOAD, &load).await.status, 200, "the name is free again");
    is_peft(&server, "team/wide", "rank16").await;
}

#[tokio::test]
async fn what_cannot_be_loaded_is_refused_with_words() {
    let server = updating();
    let load = |name: &str, path: PathBuf| json!({"lora_name": name, "lora_path": path});
    let refused = [
        (load("tiny", adapter("rank4")), 400, "a name of the base model"),
        (load("x", adapter("none")), 400, "no adapter_config.json"),
        (load("", adapter("rank4")), 400, "is empty"),
        (json!({"lora_name": "x"}), 400, "lora_path"),
        (json!({"lora_name": 7, "lora_path": "/"}), 400, "lora_name"),
    ];
    for (body, status, words) in refused {
        let error = server.post(LOAD, &body).await.error(status);
        assert!(
            error["message"].as_str().expect("text").contains(words),
            "{body}: {error}"
        );
    }
    let fixed = TestServer::with(with_lora(LoraState::default()));
    for route in [LOAD, UNLOAD] {
        let error = fixed.post(route, &load("x", adapter("rank4"))).await.error(403);
        assert!(
            error["message"]
                .as_str()
                .expect("text")
                .contains("--allow-runtime-lora-updating"),
            "{error}"
        );
    }
    let plain = TestServer::with(Options {
        lora: LoraState::new(true, None),
        ..Options::default()
    });
    let error = plain.post(LOAD, &load("x", adapter("rank4"))).await.error(404);
    assert!(
        error["message"].as_str().expect("text").contains("--enable-lora"),
        "{error}"
    );
}

#[tokio::test]
async fn loading_needs_the_key() {
    let server = TestServer::with(Options {
        api_keys: vec!["secret"],
        ..with_lora(LoraState::new(true, None))
    });
    let body = json!({"lora_name": "x", "lora_path": adapter("rank16")});
    assert_eq!(server.post(LOAD, &body).await.status, 401);
    assert!(!server.state.engine.has_adapter("x"));
    let with_key = Request::post(LOAD)
        .header("content-type", "application/json")
        .header("authorization", "Bearer secret");
    let answer = server
        .send(with_key.body(Body::from(body.to_string())).expect("a request"))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

/// Knows the fixtures' names, is broken for one and refuses another.
struct Fixtures {
    asked: Arc<AtomicUsize>,
}

impl LoraResolverFactory for Fixtures {
    fn create(&self, _: &str) -> Result<Arc<dyn LoraResolver>> {
        Ok(Arc::new(Fixtures {
            asked: Arc::clone(&self.asked),
        }))
    }
}

impl LoraResolver for Fixtures {
    fn resolve(&self, query: &LoraQuery<'_>) -> Result<Option<PathBuf>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match query.name {
            "rslora8" | "rank16" => Ok(Some(adapter(query.name))),
            "hollow" => Ok(Some(adapter("nothing-there"))),
            "../up" => Err(Error::invalid("names have no `..`")),
            "flaky" => panic!("the resolver is broken"),
            _ => Ok(None),
        }
    }
}

fn resolving() -> (TestServer, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let factory: Arc<dyn LoraResolverFactory> = Arc::new(Fixtures {
        asked: Arc::clone(&asked),
    });
    let chosen = vec![("fixtures".to_owned(), factory, "{}".to_owned())];
    let resolvers = LoraResolvers::create(chosen, "tiny".to_owned(), ResolverSettings::default()).expect("starts");
    let server = TestServer::with(with_lora(LoraState::new(false, Some(resolvers))));
    (server, asked)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_a_resolver_knows_is_served() {
    let (server, asked) = resolving();
    // Many at once: asked once, read once.
    let requests = (0..6).map(|_| is_peft(&server, "rslora8", "rslora8"));
    futures::future::join_all(requests).await;
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    let status = server.state.engine.adapters();
    let found = status
        .iter()
        .find(|adapter| adapter.name == "rslora8")
        .expect("it is there");
    assert_eq!(found.disk_reads_total, 1);
    is_peft(&server, "rslora8", "rslora8").await;
    is_peft(&server, "rank4", "rank4").await;
    assert_eq!(
        asked.load(Ordering::Relaxed),
        1,
        "names that are known are not asked for"
    );
}

#[tokio::test]
async fn resolvers_errors_have_a_reason_and_are_never_500() {
    let (server, _) = resolving();
    for (name, status, words) in [
        ("unknown", 404, "does not exist"),
        ("../up", 400, "no `..`"),
        ("flaky", 503, "flaky"),
        ("hollow", 503, "found but cannot be served"),
    ] {
        let error = server.post(COMPLETIONS, &ask(name, &json!([1]))).await.error(status);
        assert!(
            error["message"].as_str().expect("text").contains(words),
            "{name}: {error}"
        );
    }
    is_peft(&server, "rank16", "rank16").await;
}

/// The value of an adapter's metric; `None` while there is none.
fn metric(text: &str, name: &str, adapter: &str) -> Option<f64> {
    let start = format!("halyard:lora_{name}{{model_name=\"tiny\",engine=\"0\",lora=\"{adapter}\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&start))?;
    Some(line.parse().expect("a number"))
}

/// Asks until every adapter is where it should be: the engine tells of its adapters when it has nothing else to do.
async fn comes_to_be(server: &TestServer, expected: &[(&str, f64)]) {
    let settled = |text: &String| {
        let found = |(adapter, place): &(&str, f64)| metric(text, "residency", adapter) == Some(*place);
        expected.iter().all(found)
    };
    let text = async || server.get("/metrics").await.text;
    until(&format!("{expected:?}"), text, settled).await;
}

#[tokio::test]
async fn metrics_tell_file_host_memory_and_device_apart() {
    const FILE: f64 = 0.0;
    const HOST: f64 = 1.0;
    const DEVICE: f64 = 2.0;
    let source = |name: &str| (name.to_owned(), AdapterSource::Folder(adapter(name)));
    let server = TestServer::with(Options {
        lora_config: Some(LoraConfig {
            adapters: vec![source("rank4"), source("rank16")],
            max_loras: 1,
            max_cpu_loras: Some(1),
            ..LoraConfig::default()
        }),
        lora: LoraState::new(true, None),
        ..Options::default()
    });
    // No request asked for one yet; the last one read has the only place in host memory.
    comes_to_be(&server, &[("rank4", FILE), ("rank16", HOST)]).await;
    is_peft(&server, "rank4", "rank4").await;
    comes_to_be(&server, &[("rank4", DEVICE), ("rank16", FILE)]).await;
    is_peft(&server, "rank16", "rank16").await;
    comes_to_be(&server, &[("rank4", FILE), ("rank16", DEVICE)]).await;
    let load = json!({"lora_name": "third", "lora_path": adapter("rslora8")});
    assert_eq!(server.post(LOAD, &load).await.status, 200);
    comes_to_be(&server, &[("third", HOST), ("rank16", DEVICE)]).await;
    let unload = json!({"lora_name": "rank16"});
    assert_eq!(server.post(UNLOAD, &unload).await.status, 200);
    comes_to_be(&server, &[("third", HOST), ("rank4", FILE)]).await;
    let text = async || server.get("/metrics").await.text;
    until("without the unloaded adapter", text, |text| {
        metric(text, "residency", "third").is_some() && metric(text, "residency", "rank16").is_none()
    })
    .await;
}

#[tokio::test]
async fn metrics_name_each_adapter() {
    let server = updating();
    is_peft(&server, "rank4", "rank4").await;
    let text = async || server.get("/metrics").await.text;
    let text = until("loaded and idle", text, |text| {
        let shows = |name, value| metric(text, name, "rank4") == Some(value);
        shows("requests_running", 0.0) && shows("device_loads_total", 1.0)
    })
    .await;
    let value = |name| metric(&text, name, "rank4").unwrap_or_else(|| panic!("no {name} in {text}"));
    assert_eq!(value("requests_total"), 1.0);
    assert_eq!(value("device_loads_total"), 1.0);
    assert_eq!(value("residency"), 2.0);
    assert_eq!(value("requests_running"), 0.0);
    assert!(value("load_seconds_total") > 0.0);
    assert!(
        text.contains("vllm:lora_requests_info{") && text.contains("max_lora=\"2\""),
        "{text}"
    );
}
