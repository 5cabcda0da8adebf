//! A tiny real model on the reference backend behind the real router, and requests to it without a socket.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use halyard_engine::{EngineConfig, EngineHandle, LoraConfig};
use halyard_hooks::HubConfig;
use halyard_models::{DummyWeights, LoadFormat, ModelFiles};
use halyard_platform_api::hooks::StartRecord;
use halyard_platform_api::{Device, Platform};
use halyard_plugin_host::{Catalog, SearchPath};
use halyard_reference::ReferencePlatform;
use halyard_request_hooks::IoProcessors;
use halyard_server::hooks::{ChosenSink, Hooks};
use halyard_server::http::auth::ApiKeys;
use halyard_server::http::response_store::{ResponseStore, StoreLimits};
use halyard_server::http::routes::router;
use halyard_server::http::state::{AppState, LoraState};
use halyard_server::http::text_work::TextWork;
use halyard_server::http::transport::Transport;
use halyard_server::openai::parsers::Parsers;
use halyard_server::openai::policy::{Limits, ServingDefaults};
use halyard_server::ui::{Ui, sink};
use halyard_text::AnswerFormat;
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;

/// A folder of tests/fixtures/models.
pub fn fixture(name: &str) -> PathBuf {
    // tests/fuzz has this file too, from another folder.
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let models = here.ancestors().map(|folder| folder.join("tests/fixtures/models"));
    models
        .into_iter()
        .find(|folder| folder.is_dir())
        .expect("the fixtures")
        .join(name)
}

/// A deadline that is not what a test is about: beyond any stall of a machine.
pub const NEVER: Duration = Duration::from_secs(600);

/// A server that was never bound to a socket.
pub struct TestServer {
    pub router: Router,
    pub state: Arc<AppState>,
}

/// How a test server differs from the ordinary one.
#[derive(Default)]
pub struct Options {
    /// A folder in place of the fixture `llama`.
    pub model: Option<PathBuf>,
    pub api_keys: Vec<&'static str>,
    pub max_waiting: Option<u32>,
    pub max_model_len: Option<u32>,
    pub body_bytes: Option<usize>,
    /// The device; the reference device where none is named.
    pub device: Option<Arc<dyn Device>>,
    pub io: IoProcessors,
    /// The operator's limits and defaults for requests.
    pub serving: ServingDefaults,
    /// How answers are read: the formats of tool calls and of reasoning.
    pub parsers: (Option<&'static str>, Option<&'static str>),
    /// Grammars bind reasoning too.
    pub binds_reasoning: bool,
    /// Random weights in place of the model's file.
    pub dummy_weights: bool,
    /// Adapters of the engine, and the server's part.
    pub lora_config: Option<LoraConfig>,
    pub lora: LoraState,
    pub transport: Transport,
    /// The bounds of stored responses, where they are stored.
    pub responses: Option<StoreLimits>,
    /// Routes for development.
    pub dev_mode: bool,
    /// The engine may sleep.
    pub sleep_mode: bool,
    /// No page at /ui.
    pub no_ui: bool,
    /// No OpenAPI document and no page of it.
    pub no_docs: bool,
}

impl TestServer {
    pub fn new() -> Self {
        TestServer::with(Options::default())
    }

    pub fn with(options: Options) -> Self {
        let mut config = EngineConfig::for_model(options.model.unwrap_or_else(|| fixture("llama")));
        config.cache.kv_cache_memory_bytes = Some(4 << 20);
        config.scheduler.max_num_seqs = 8;
        config.model.max_model_len = options.max_model_len.or(config.model.max_model_len);
        config.lora = options.lora_config;
        config.sleep_mode = options.sleep_mode;
        let max_waiting = options.max_waiting.unwrap_or(64);
        config.scheduler.max_waiting = max_waiting;
        config.grammars.max_compile_time = NEVER;
        config.guides.max_mask_time = NEVER;
        config.model.load_format = match options.dummy_weights {
            true => LoadFormat::Dummy,
            false => LoadFormat::Auto,
        };
        let files = ModelFiles::open(&config.model.path, config.model.load_format, DummyWeights::default());
        let files = files.expect("the fixture");
        let reference = || ReferencePlatform::new().open(0).expect("the host");
        let device = options.device.unwrap_or_else(reference);
        let prometheus = ChosenSink {
            name: "prometheus".to_owned(),
            config: "{}".to_owned(),
            isolation: halyard_server::isolation::IsolationMode::None,
        };
        let search = SearchPath::default();
        let ui = (!options.no_ui).then(|| Ui::new([device.info()], Vec::new()));
        let (sinks, own) = ([prometheus], ui.as_ref().map(|ui| sink(ui, 0)));
        let hub = HubConfig {
            call_deadline: NEVER,
            create_deadline: NEVER,
            ..HubConfig::default()
        };
        let hooks = Hooks::start_with(&Catalog::default(), search, &sinks, hub, vec![own]).expect("linked");
        let max_loras = config.lora.as_ref().map_or(0, |lora| lora.max_loras);
        let engine = EngineHandle::start(config, device, files, hooks.sender(0), &mut |_| {}).expect("starts");
        hooks.engine_started(
            0,
            &StartRecord {
                model: "tiny".into(),
                max_loras,
                max_model_len: engine.info().max_model_len,
                ..StartRecord::default()
            },
        );
        engine.tell_adapters();
        let (calls, reasoning) = options.parsers;
        let format = AnswerFormat::new(calls, reasoning).expect("known formats");
        let state = Arc::new(AppState {
            parsers: Parsers::new(&format, engine.tokenizer()).binding_reasoning(options.binds_reasoning),
            engine: engine.into(),
            first_rank: 0,
            model_names: vec!["tiny".to_owned(), "also-tiny".to_owned()],
            model_root: "fixture".to_owned(),
            created: 1,
            api_keys: ApiKeys::new(&options.api_keys),
            limits: Limits {
                body_bytes: options.body_bytes.unwrap_or(1 << 20),
                ..Limits::default()
            }
            .within(max_waiting),
            serving: options.serving,
            hooks: Arc::new(hooks),
            priority_scheduling: false,
            log_prompts: false,
            in_flight: AtomicU64::new(0),
            abortable: Default::default(),
            dev_mode: options.dev_mode,
            has_docs: !options.no_docs,
            io: options.io,
            ui,
            logits: Default::default(),
            kv_events: Vec::new(),
            lora: options.lora,
            responses: options.responses.map(ResponseStore::new),
            text_work: TextWork::new(
                options.body_bytes.unwrap_or(1 << 20),
                Arc::clone(&options.transport.body_memory),
            ),
            transport: Arc::new(options.transport),
        });
        TestServer {
            router: router(Arc::clone(&state)),
            state,
        }
    }

    /// A POST without a body.
    pub async fn post_empty(&self, route: &str) -> Answer {
        self.send(Request::post(route).body(Body::empty()).expect("a request"))
            .await
    }

    pub async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.expect("routers do not fail");
        Answer::of(response).await
    }

    pub async fn post(&self, route: &str, body: &Value) -> Answer {
        self.post_bytes(route, body.to_string().into_bytes()).await
    }

    pub async fn post_bytes(&self, route: &str, body: Vec<u8>) -> Answer {
        let request = Request::post(route).header("content-type", "application/json");
        self.send(request.body(Body::from(body)).expect("a request")).await
    }

    pub async fn get(&self, route: &str) -> Answer {
        self.send(Request::get(route).body(Body::empty()).expect("a request"))
            .await
    }
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    /// Reads the whole body.
    pub async fn of(response: axum::response::Response) -> Answer {
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.expect("the whole body").to_bytes();
        Answer {
            status: parts.status,
            headers: parts.headers,
            text: String::from_utf8(bytes.to_vec()).expect("UTF-8"),
        }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The JSON of an answer with status 200.
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        self.json()
    }

    /// The error object of an answer with this status.
    pub fn error(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        let error = self.json()["error"].clone();
        for key in ["message", "type", "param", "code"] {
            assert!(
                error.as_object().is_some_and(|object| object.contains_key(key)),
                "no {key} in {error}"
            );
        }
        error
    }

    /// The events of a stream, without the ending `[DONE]`, which must be there.
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text);
        assert!(
            self.headers["content-type"]
                .to_str()
                .expect("text")
                .starts_with("text/event-stream")
        );
        let data: Vec<&str> = self
            .text
            .split("\n\n")
            .filter_map(|event| event.strip_prefix("data: "))
            .collect();
        let (last, events) = data.split_last().expect("events");
        assert_eq!(*last, "[DONE]");
        events
            .iter()
            .map(|event| serde_json::from_str(event).expect("JSON"))
            .collect()
    }
}

/// Compares a record of answers, each behind `### `, with the one that is committed in `data`. With HALYARD_BLESS=1 it
/// becomes that.
pub fn assert_recorded(file: &str, record: &str) {
    let path = fixture("../../../server/tests/data").join(file);
    if std::env::var_os("HALYARD_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&path, record).expect("writes");
    }
    let committed = std::fs::read_to_string(path).expect("committed");
    for (found, expected) in record.split("### ").zip(committed.split("### ")) {
        assert_eq!(found, expected);
    }
    assert_eq!(record.len(), committed.len());
}

/// `routes` are not there on the server `plain`, which is not for development, and want `closed`'s key.
pub async fn for_development_with_a_key(plain: &TestServer, closed: &TestServer, routes: &[(Method, &str)]) {
    for (method, route) in routes {
        let request = || {
            let request = Request::builder().method(method.clone()).uri(*route);
            request.body(Body::empty()).expect("a request")
        };
        plain.send(request()).await.error(404);
        closed.send(request()).await.error(401);
    }
}

/// What `ask` gives once `settled` holds; fails with `awaited` after two minutes. An engine, for one, answers first,
/// and counts and records the step behind it.
pub async fn until<T: std::fmt::Debug>(awaited: &str, ask: impl AsyncFn() -> T, settled: impl Fn(&T) -> bool) -> T {
    let start = Instant::now();
    loop {
        let found = ask().await;
        if settled(&found) {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(120), "not {awaited}: {found:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until so many requests have a row.
pub async fn until_running(server: &TestServer, count: u64) {
    let running = async || server.state.engine.stats().num_running;
    until(&format!("{count} running"), running, |found| *found == count).await;
}

/// Waits until so many requests wait for a row.
pub async fn until_waiting(server: &TestServer, count: u64) {
    let waiting = async || server.state.engine.stats().num_waiting;
    until(&format!("{count} waiting"), waiting, |found| *found == count).await;
}
