//! Servers as workers behind routers of other projects, from pip. Two workers serve one model and say who answered, so
//! a test sees where a request went. Skipped, with the reason, where a router cannot be had.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use halyard_e2e::clients::{output, python_or_skip};
use halyard_e2e::scripted::ScriptedModel;
use halyard_e2e::{Server, TestFolder, build_with_binary, fixture, free_port};
use reqwest::Client;
use serde_json::{Value, json};
use tokio::task::JoinSet;

const VLLM_ROUTER: &str = "vllm-router==0.1.17";
const SMG: &str = "smg==1.13.0";
const SGLANG_ROUTER: &str = "sglang-router==0.3.2";
const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}{% endfor %}";
/// What the two workers answer.
const NAMES: [&str; 2] = ["worker one", "worker two"];
/// For what must come.
const PATIENCE: Duration = Duration::from_secs(180);
/// For events to reach a router that listens.
const EVENTS: Duration = Duration::from_secs(10);
/// Between looks.
const PAUSE: Duration = Duration::from_millis(50);

/// A worker that can end and come back on its port.
struct Worker {
    model: ScriptedModel,
    args: Vec<String>,
    url: String,
    server: Option<Server>,
}

impl Worker {
    fn start(name: &str, args: &[&str]) -> Worker {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
        let port = free_port();
        let mut all = vec!["--port".to_owned(), port.to_string()];
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        let mut worker = Worker {
            model: ScriptedModel::new(&fixtures, TEMPLATE, &[("", &format!("{name}<|im_end|>"))]),
            args: all,
            url: format!("http://127.0.0.1:{port}"),
            server: None,
        };
        worker.come_back();
        worker
    }

    fn come_back(&mut self) {
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        self.server = Some(Server::scripted(&self.model, &args));
    }

    /// As a machine that loses its power.
    fn die(&mut self) {
        self.server = None;
    }
}

/// A router's process and where it listens.
struct Router {
    process: Child,
    url: String,
    log: PathBuf,
    client: Client,
    _folder: TestFolder,
}

impl Router {
    /// Starts `program args` before the workers and waits until both answer; none, with the reason on standard output,
    /// where the package cannot be had.
    async fn start(package: &str, program: &[&str], workers: &[Worker; 2], args: &[&str]) -> Option<Router> {
        let python = python_or_skip(Path::new(env!("CARGO_TARGET_TMPDIR")), &[package])?;
        let folder = TestFolder::new("router");
        let log = folder.0.join("log");
        let file = std::fs::File::create(&log).expect("a log");
        let (port, metrics) = (free_port().to_string(), free_port().to_string());
        let mut command = Command::new(python.with_file_name(program[0]));
        command
            .args(&program[1..])
            .args(["--host", "127.0.0.1", "--port", &port]);
        command.args(["--prometheus-port", &metrics, "--log-level", "debug", "--worker-urls"]);
        command.args(workers.iter().map(|worker| &worker.url)).args(args);
        command.current_dir(&folder.0).stdin(Stdio::null());
        command.stdout(file.try_clone().expect("the log")).stderr(file);
        let router = Router {
            process: command.spawn().expect("the router starts"),
            url: format!("http://127.0.0.1:{port}"),
            log,
            client: Client::new(),
            _folder: folder,
        };
        router
            .until("both answer", async || router.answers().await && router.spreads().await)
            .await;
        Some(router)
    }

    fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// How many batches of a worker's events it has taken in, by their numbers in its log.
    fn batches_of(&self, url: &str) -> u64 {
        let log = self.log();
        let is_of = |line: &&str| line.contains("sequence advanced") && line.contains(url);
        let numbers = log.lines().filter(is_of).filter_map(|line| {
            let digits = line.trim_end().rsplit(|letter: char| !letter.is_ascii_digit()).next();
            digits?.parse::<u64>().ok()
        });
        numbers.max().map_or(0, |last| last + 1)
    }

    /// Waits for what must come.
    async fn until(&self, what: &str, is_there: impl AsyncFn() -> bool) {
        let begun = Instant::now();
        while !is_there().await {
            assert!(begun.elapsed() < PATIENCE, "{what}: never\n{}", self.log());
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn answers(&self) -> bool {
        let health = self.client.get(format!("{}/health", self.url)).send().await;
        health.is_ok_and(|answer| answer.status() == 200) && self.try_chat("are you there?").await.is_some()
    }

    async fn post(&self, route: &str, body: &Value) -> Value {
        let asked = self.client.post(format!("{}{route}", self.url)).json(body);
        let answer = asked.send().await.expect("an answer");
        let status = answer.status();
        let text = answer.text().await.expect("a whole body");
        assert_eq!(status, 200, "{text}\n{}", self.log());
        serde_json::from_str(&text).expect("JSON")
    }

    async fn try_chat(&self, content: &str) -> Option<String> {
        let asked = self.client.post(format!("{}{CHAT}", self.url)).json(&chat(content));
        let answer = asked.send().await.ok().filter(|answer| answer.status() == 200)?;
        let answer: Value = answer.json().await.ok()?;
        Some(answer["choices"][0]["message"]["content"].as_str()?.to_owned())
    }

    /// Who answers this conversation.
    async fn chat(&self, content: &str) -> String {
        let answer = self.post(CHAT, &chat(content)).await;
        let text = answer["choices"][0]["message"]["content"].as_str();
        text.unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    /// Who answers it as a stream.
    async fn streamed_chat(&self, content: &str) -> String {
        let mut body = chat(content);
        body["stream"] = json!(true);
        let asked = self.client.post(format!("{}{CHAT}", self.url)).json(&body);
        let answer = asked.send().await.expect("an answer");
        assert_eq!(answer.status(), 200);
        let kind = answer.headers()["content-type"].to_str().expect("ASCII").to_owned();
        assert!(kind.starts_with("text/event-stream"), "{kind}");
        let text = answer.text().await.expect("a whole stream");
        assert!(text.trim_end().ends_with("data: [DONE]"), "{text}");
        let chunks = text.lines().filter_map(|line| line.strip_prefix("data: {"));
        let chunks = chunks.map(|rest| serde_json::from_str(&format!("{{{rest}")).expect("a chunk"));
        let text = |chunk: Value| Some(chunk["choices"][0]["delta"]["content"].as_str()?.to_owned());
        chunks.filter_map(text).collect()
    }

    /// Waits for an answer of `name` after another worker died: until its next check the router may send a request to
    /// the dead one and hand on the error.
    async fn until_answered_by(&self, name: &str, content: &str) {
        let is_there = async || self.try_chat(content).await.as_deref() == Some(name);
        self.until("the other one answers", is_there).await;
    }

    /// What every router must do: models, chat, completions, a stream.
    async fn serves(&self) {
        let models = self.client.get(format!("{}/v1/models", self.url)).send().await;
        let models: Value = models.expect("an answer").json().await.expect("JSON");
        assert_eq!(models["data"][0]["id"], "scripted", "{models}");
        assert!(NAMES.contains(&self.chat("hello").await.as_str()));
        assert!(NAMES.contains(&self.streamed_chat("hello again").await.as_str()));
        let answer = self
            .post(
                COMPLETIONS,
                &json!({"model": "scripted", "prompt": "go on", "max_tokens": 40}),
            )
            .await;
        let text = answer["choices"][0]["text"].as_str().expect("text");
        assert!(NAMES.contains(&text), "{answer}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }

    /// Whether both answer, when several conversations that share nothing come at once.
    async fn spreads(&self) -> bool {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let mut asked = JoinSet::new();
        for _ in 0..24 {
            // The first words differ, or they would be one prefix.
            let body = chat(&long(ASKED.fetch_add(1, Relaxed)));
            let request = self.client.post(format!("{}{CHAT}", self.url)).json(&body);
            asked.spawn(async move {
                let answer = request.send().await.expect("an answer");
                answer.text().await.expect("a whole body")
            });
        }
        let answers = asked.join_all().await;
        NAMES
            .iter()
            .all(|name| answers.iter().any(|answer| answer.contains(name)))
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn chat(content: &str) -> Value {
    json!({"model": "scripted", "messages": [{"role": "user", "content": content}], "max_tokens": 40})
}

/// Several blocks of text.
fn long(seed: usize) -> String {
    (0..40).map(|at| format!("{} ", seed * 7919 + at * 31)).collect()
}

fn two_workers() -> [Worker; 2] {
    NAMES.map(|name| Worker::start(name, &[]))
}

/// Health checks that a test can wait for.
const QUICK: [&str; 6] = [
    "--health-check-interval-secs",
    "1",
    "--health-failure-threshold",
    "1",
    "--health-success-threshold",
    "1",
];

#[tokio::test]
async fn vllm_router_keeps_a_prefix_on_a_worker_and_goes_on_without_it() {
    let mut workers = two_workers();
    let args = [
        &QUICK[..],
        &["--policy", "cache_aware", "--worker-startup-check-interval", "1"],
    ]
    .concat();
    // A breaker that opens for a minute would hide that the worker is back.
    let args = [
        &args[..],
        &["--cb-timeout-duration-secs", "1", "--balance-abs-threshold", "4"],
    ]
    .concat();
    let Some(router) = Router::start(VLLM_ROUTER, &["vllm-router"], &workers, &args).await else {
        return;
    };
    router.serves().await;
    let conversation = format!("a long conversation: {}", long(99));
    let home = router.chat(&conversation).await;
    for turn in 0..5 {
        let who = router.chat(&format!("{conversation} turn {turn}")).await;
        assert_eq!(who, home, "the prefix stays where it is cached\n{}", router.log());
    }
    let (gone, other) = (usize::from(home == NAMES[1]), usize::from(home == NAMES[0]));
    workers[gone].die();
    router.until_answered_by(NAMES[other], &conversation).await;
    for turn in 5..8 {
        let who = router.chat(&format!("{conversation} turn {turn}")).await;
        assert_eq!(who, NAMES[other], "it goes on to answer");
    }
    workers[gone].come_back();
    router.until("both answer again", async || router.spreads().await).await;
}

#[tokio::test]
async fn vllm_router_without_a_memory_spreads_requests() {
    let workers = two_workers();
    let args = ["--policy", "round_robin", "--worker-startup-check-interval", "1"];
    let Some(router) = Router::start(VLLM_ROUTER, &["vllm-router"], &workers, &args).await else {
        return;
    };
    router.serves().await;
    let mut counts = [0; 2];
    for _ in 0..8 {
        counts[usize::from(router.chat("the same each time").await == NAMES[1])] += 1;
    }
    assert_eq!(counts, [4, 4]);
}

/// The router learns of a prefix that it never saw, from the events of the worker that has it.
#[tokio::test]
async fn vllm_router_follows_kv_cache_events() {
    let ports = [(); 2].map(|()| [free_port(), free_port()]);
    let mut workers = Vec::new();
    for (name, [events, replay]) in NAMES.into_iter().zip(ports) {
        let config = json!({
            "enable_kv_cache_events": true,
            "endpoint": format!("tcp://*:{events}"),
            "replay_endpoint": format!("tcp://*:{replay}"),
        });
        let args = ["--block-size", "16", "--kv-events-config", &config.to_string()];
        workers.push(Worker::start(name, &args));
    }
    let workers: [Worker; 2] = workers.try_into().ok().expect("two");
    let place = |at: usize, which: usize| format!("{}=tcp://127.0.0.1:{}", workers[at].url, ports[at][which]);
    let mut args = vec!["--policy".to_owned(), "kv_aware".to_owned()];
    args.extend(["--kv-event-model", "scripted", "--kv-event-block-size", "16"].map(str::to_owned));
    for at in 0..2 {
        args.extend(["--kv-event-source".to_owned(), place(at, 0)]);
        args.extend(["--kv-event-replay-source".to_owned(), place(at, 1)]);
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let Some(router) = Router::start(VLLM_ROUTER, &["vllm-router"], &workers, &args).await else {
        return;
    };
    for worker in &workers {
        let listens = async || figure(&router.client, &worker.url, "kv_event_subscribers").await == 1;
        router.until("it listens to each worker", listens).await;
    }
    let rounds = workers.iter().zip(NAMES).chain(workers.iter().zip(NAMES));
    for (round, (worker, name)) in rounds.enumerate() {
        let mut who = Vec::new();
        for attempt in 0..10 {
            let batches = async || figure(&router.client, &worker.url, "kv_event_batches_total").await;
            let before = batches().await;
            let content = format!(
                "{round} told to one worker alone: {}",
                long(1000 + 10 * round + attempt)
            );
            let direct = router
                .client
                .post(format!("{}{CHAT}", worker.url))
                .json(&chat(&content));
            assert_eq!(direct.send().await.expect("an answer").status(), 200);
            // Nothing but events tells the router, as no request went through it.
            let begun = Instant::now();
            let is_told = async || {
                let sent = batches().await;
                sent > before && router.batches_of(&worker.url) >= sent
            };
            while !is_told().await && begun.elapsed() < EVENTS {
                tokio::time::sleep(PAUSE).await;
            }
            who.clear();
            for turn in 0..4 {
                who.push(router.chat(&format!("{content} and then {turn}?")).await);
            }
            if who == [name; 4] {
                break;
            }
            // An event was late, or was lost before it subscribed. Both workers know this content now: try another one.
        }
        assert_eq!(who, [name; 4], "round {round}\n{}", router.log());
    }
}

/// A figure of a worker.
async fn figure(client: &Client, url: &str, name: &str) -> u64 {
    let answer = client.get(format!("{url}/metrics")).send().await.expect("an answer");
    let text = answer.text().await.expect("text");
    let line = text.lines().find(|line| line.starts_with(&format!("halyard:{name} ")));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {text}"))
}

#[tokio::test]
async fn kv_event_sources_are_vllms_and_empty_without_events() {
    let config = r#"{"enable_kv_cache_events": true, "endpoint": "tcp://*:0", "topic": "kv", "hwm": 7}"#;
    for (args, events) in [(&[][..], false), (&["--kv-events-config", config][..], true)] {
        let server = Server::tiny(args);
        let answer = reqwest::get(format!("{}/kv_event_sources", server.url))
            .await
            .expect("an answer");
        let sources: Value = answer.json().await.expect("JSON");
        if !events {
            assert_eq!(sources, json!({}));
            continue;
        }
        let endpoint = sources["0"]["endpoint"].as_str().expect("a place").to_owned();
        let port = endpoint
            .strip_prefix("tcp://*:")
            .and_then(|port| port.parse::<u16>().ok());
        assert!(port.is_some_and(|port| port > 0), "{endpoint}");
        let expected = json!({"0": {
            "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": endpoint, "replay_endpoint": null,
            "buffer_steps": 10000, "hwm": 7, "max_queue_size": 100_000, "topic": "kv",
        }});
        assert_eq!(sources, expected);
    }
}

/// SGLang's router of today, and the one before it.
#[tokio::test]
async fn smg_takes_servers_for_vllm_and_goes_on_without_one() {
    let mut workers = two_workers();
    let args = [
        &QUICK[..],
        &["--policy", "cache_aware", "--cb-timeout-duration-secs", "1"],
    ]
    .concat();
    let Some(router) = Router::start(SMG, &["smg", "launch"], &workers, &args).await else {
        return;
    };
    router.serves().await;
    let listed = router.client.get(format!("{}/workers", router.url)).send().await;
    let listed: Value = listed.expect("an answer").json().await.expect("JSON");
    for worker in listed["workers"].as_array().expect("a list") {
        let kind = (&worker["runtime_type"], &worker["connection_mode"], &worker["model_id"]);
        assert_eq!(kind, (&json!("vllm"), &json!("http"), &json!("scripted")), "{listed}");
    }
    workers[0].die();
    router.until_answered_by(NAMES[1], "without the first").await;
    for turn in 0..4 {
        assert_eq!(router.chat(&format!("without the first {turn}")).await, NAMES[1]);
    }
    workers[0].come_back();
    router.until("both answer again", async || router.spreads().await).await;
}

#[tokio::test]
async fn sglang_router_serves() {
    let workers = two_workers();
    let args = ["--policy", "round_robin"];
    let Some(router) = Router::start(SGLANG_ROUTER, &["smg", "launch"], &workers, &args).await else {
        return;
    };
    router.serves().await;
    let who = [router.chat("once").await, router.chat("once").await];
    assert_ne!(who[0], who[1], "each in its turn");
}

/// `/metrics` as the endpoint picker of llm-d and of the Gateway API inference extension reads it, parsed by
/// Prometheus' own Python library.
#[test]
fn an_endpoint_picker_finds_its_metrics() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let Some(python) = python_or_skip(folder, &["prometheus_client==0.26.0"]) else {
        return;
    };
    build_with_binary(&["halyard-stat-logger-prometheus"]);
    let adapters = fixture("llama-lora");
    let module = |name: &str| format!("{name}={}", adapters.join(name).display());
    let mut names: Vec<String> = std::fs::read_dir(&adapters)
        .expect("the adapters")
        .flatten()
        .filter(|entry| entry.path().join("adapter_config.json").exists())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let first = module(&names[0]);
    let lora = [
        "--allow-quantized-act=false",
        "--enable-lora",
        "--max-loras",
        "3",
        "--lora-modules",
        &first,
    ];
    let limits = [
        "--max-num-seqs",
        "2",
        "--num-gpu-blocks-override",
        "64",
        "--block-size",
        "16",
    ];
    let server = Server::tiny(&[&lora[..], &limits].concat());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/endpoint_picker.py");
    let text = output(
        Command::new(python).arg(script).args([&server.url, &names[0]]),
        "the picker",
    );
    let text = text.unwrap_or_else(|error| panic!("{error}"));
    assert!(text.contains("agrees"), "{text}");
}
