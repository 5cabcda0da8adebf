//! LoRA in the real server, over HTTP: adapters as models with PEFT's answers, loading and unloading under load and
//! with which keys, and a resolver over a folder that no name leads out of.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use halyard_e2e::{Server, TestFolder, build_with_binary, fixture, run, stderr};
use reqwest::{Client, Response};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const LOAD: &str = "/v1/load_lora_adapter";
const UNLOAD: &str = "/v1/unload_lora_adapter";
/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(120);

fn adapter(name: &str) -> PathBuf {
    fixture("llama-lora").join(name)
}

/// A running server and a client, with a key where the server wants one.
struct Api {
    server: Server,
    client: Client,
    key: &'static str,
}

impl Api {
    fn new(key: &'static str, args: &[&str]) -> Api {
        Api {
            server: Server::tiny(&[&["--allow-quantized-act=false"], args].concat()),
            client: Client::new(),
            key,
        }
    }

    async fn send(&self, route: &str, body: &Value, key: &str) -> Response {
        let request = self.client.post(format!("{}{route}", self.server.url)).json(body);
        let request = if key.is_empty() {
            request
        } else {
            request.bearer_auth(key)
        };
        request.send().await.expect("answers")
    }

    async fn post(&self, route: &str, body: &Value) -> (u16, String) {
        let response = self.send(route, body, self.key).await;
        (response.status().as_u16(), response.text().await.expect("a whole body"))
    }

    async fn get(&self, route: &str) -> (u16, String) {
        let request = self.client.get(format!("{}{route}", self.server.url));
        let response = request.bearer_auth(self.key).send().await.expect("answers");
        (response.status().as_u16(), response.text().await.expect("a whole body"))
    }

    /// An answer's error, which must have this status.
    async fn refused(&self, route: &str, body: &Value, status: u16) -> Value {
        let (found, text) = self.post(route, body).await;
        assert_eq!(found, status, "{route} {body}: {text}");
        json(&text)["error"].clone()
    }

    /// Whether a model's greedy answer is the golden's.
    async fn says(&self, model: &str, golden: &Path) {
        let golden: Value = json(&fs::read_to_string(golden).expect("goldens"));
        let case = &golden["cases"][0];
        let ids = &case["hf_fp32"]["ids"].as_array().expect("ids")[..12];
        let body = json!({"model": model, "prompt": case["prompt_ids"], "max_tokens": 12, "temperature": 0,
            "return_token_ids": true});
        let (status, text) = self.post(COMPLETIONS, &body).await;
        assert_eq!(status, 200, "{model}: {text}");
        assert_eq!(json(&text)["choices"][0]["token_ids"], json!(ids), "{model}");
    }

    async fn says_as(&self, model: &str, name: &str) {
        self.says(model, &adapter(name).join("goldens.json")).await;
    }

    /// Asks until a condition on `/metrics` holds.
    async fn metrics_until(&self, condition: &str, holds: impl Fn(&str) -> bool) {
        let end = Instant::now() + PATIENCE;
        loop {
            let (_, text) = self.get("/metrics").await;
            if holds(&text) {
                return;
            }
            assert!(Instant::now() < end, "not {condition}: {text}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// `NAME=FOLDER` of a fixture's adapter.
fn module(name: &str) -> String {
    format!("{name}={}", adapter(name).display())
}

/// The text and the number of tokens of a stream that came whole.
fn whole(stream: &str) -> (String, u64) {
    let (mut text, mut tokens) = (String::new(), 0);
    let mut events: Vec<&str> = stream.split_terminator("\n\n").collect();
    assert_eq!(events.pop(), Some("data: [DONE]"), "{stream}");
    for event in events {
        let event = json(event.strip_prefix("data: ").expect(event));
        assert!(event["error"].is_null(), "{event}");
        text.push_str(event["choices"][0]["text"].as_str().unwrap_or_default());
        tokens = event["usage"]["completion_tokens"].as_u64().unwrap_or(tokens);
    }
    (text, tokens)
}

#[tokio::test]
async fn adapters_are_models_with_a_parent_and_answer_as_peft() {
    let modules = ["rank4", "rslora8", "rank16"].map(module);
    let args = ["--enable-lora", "--max-loras", "2", "--lora-modules"];
    let modules: Vec<&str> = modules.iter().map(String::as_str).collect();
    let api = Api::new("", &[&args[..], &modules].concat());
    let (status, models) = api.get("/v1/models").await;
    assert_eq!(status, 200);
    let cards = json(&models)["data"].clone();
    let cards = cards.as_array().expect("a list");
    let names: Vec<_> = cards.iter().map(|card| card["id"].as_str().expect("a name")).collect();
    assert_eq!(names, ["tiny", "rank16", "rank4", "rslora8"]);
    assert!(cards[0]["parent"].is_null(), "{models}");
    for card in &cards[1..] {
        assert_eq!(card["parent"], "tiny");
        assert_eq!(card["root"], json!(adapter(card["id"].as_str().expect("a name"))));
    }
    // Three adapters and the base at the same time over two slots.
    for _ in 0..2 {
        let base = fixture("llama").join("goldens.json");
        tokio::join!(
            api.says_as("rank4", "rank4"),
            api.says_as("rslora8", "rslora8"),
            api.says("tiny", &base),
            api.says_as("rank16", "rank16"),
        );
    }
    let error = api
        .refused(COMPLETIONS, &json!({"model": "rank5", "prompt": [1]}), 404)
        .await;
    assert!(
        error["message"].as_str().is_some_and(|words| words.contains("rank4")),
        "{error}"
    );
}

/// Streams of an adapter while it is unloaded: how many had not ended by then. All must end whole and as `alone`.
async fn unload_under_streams(api: &Api, body: &Value, alone: &str, tokens: u64) -> usize {
    let mut body = body.clone();
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let mut streams = Vec::new();
    for _ in 0..12 {
        // The answer's head comes when the engine has accepted the request; most wait for a row.
        let mut response = api.send(COMPLETIONS, &body, api.key).await;
        assert_eq!(response.status(), 200);
        streams.push(tokio::spawn(async move {
            let mut text = Vec::new();
            while let Some(bytes) = response.chunk().await.expect("no broken connection") {
                text.extend_from_slice(&bytes);
            }
            String::from_utf8(text).expect("UTF-8")
        }));
    }
    let (status, text) = api.post(UNLOAD, &json!({"lora_name": "wide"})).await;
    assert_eq!(status, 200, "{text}");
    let in_flight = streams.iter().filter(|stream| !stream.is_finished()).count();
    // From now on no adapter has the name, while its streams go on; then another adapter gets it.
    let error = api
        .refused(COMPLETIONS, &json!({"model": "wide", "prompt": [1]}), 404)
        .await;
    assert_eq!(error["code"], "model_not_found", "{error}");
    let load = json!({"lora_name": "wide", "lora_path": adapter("rank4")});
    assert_eq!(api.post(LOAD, &load).await.0, 200);
    api.says_as("wide", "rank4").await;
    for stream in streams {
        let text = stream.await.expect("a stream");
        assert_eq!(whole(&text), (alone.to_owned(), tokens));
    }
    assert_eq!(api.post(UNLOAD, &json!({"lora_name": "wide"})).await.0, 200);
    in_flight
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unloading_under_load_lets_streams_end_whole() {
    const TOKENS: u64 = 200;
    let args = [
        "--enable-lora",
        "--allow-runtime-lora-updating",
        "--max-loras",
        "2",
        "--max-num-seqs",
        "4",
    ];
    let api = Api::new("", &args);
    let load = json!({"lora_name": "wide", "lora_path": adapter("rank16")});
    let body =
        json!({"model": "wide", "prompt": [5, 6, 7], "max_tokens": TOKENS, "temperature": 0, "ignore_eos": true});
    let mut in_flight = 0;
    for _ in 0..10 {
        let (status, text) = api.post(LOAD, &load).await;
        assert_eq!(status, 200, "{text}");
        let (status, alone) = api.post(COMPLETIONS, &body).await;
        assert_eq!(status, 200, "{alone}");
        let alone = json(&alone)["choices"][0]["text"].as_str().expect("a text").to_owned();
        in_flight += unload_under_streams(&api, &body, &alone, TOKENS).await;
        if in_flight > 0 {
            break;
        }
    }
    assert!(in_flight > 0, "every stream had ended before its adapter was unloaded");
    let error = api.refused(UNLOAD, &json!({"lora_name": "wide"}), 404).await;
    assert_eq!(error["code"], "adapter_not_found", "{error}");
    // Nothing of either is held any more.
    api.metrics_until("without adapters", |text| !text.contains("lora=\"wide\""))
        .await;
}

#[tokio::test]
async fn only_the_key_and_the_flag_let_requests_change_adapters() {
    let load = json!({"lora_name": "mine", "lora_path": adapter("rank4")});
    let ask = json!({"model": "mine", "prompt": [1], "max_tokens": 1});
    let args = ["--enable-lora", "--api-key", "sesame"];
    let api = Api::new("sesame", &[&args[..], &["--allow-runtime-lora-updating"]].concat());
    for key in ["", "sesam"] {
        for route in [LOAD, UNLOAD] {
            let response = api.send(route, &load, key).await;
            assert_eq!(response.status(), 401, "{route} with the key `{key}`");
        }
        api.refused(COMPLETIONS, &ask, 404).await;
    }
    assert_eq!(api.post(LOAD, &load).await.0, 200);
    assert_eq!(api.send(UNLOAD, &load, "").await.status(), 401);
    assert_eq!(api.post(COMPLETIONS, &ask).await.0, 200, "it is still there");

    let fixed = Api::new("sesame", &args);
    for route in [LOAD, UNLOAD] {
        let error = fixed.refused(route, &load, 403).await;
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|words| words.contains("--allow-runtime-lora-updating")),
            "{error}"
        );
    }
    fixed.refused(COMPLETIONS, &ask, 404).await;

    for option in [
        "--allow-runtime-lora-updating",
        "--lora-modules=a=/",
        "--lora-resolver=filesystem",
    ] {
        let output = run(&["serve", option]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(
            stderr(&output).contains("--enable-lora"),
            "{option}: {}",
            stderr(&output)
        );
    }
}

/// A text that no answer may contain.
const SECRET: &str = "the-otter-is-in-the-safe";

/// A folder of adapters, and outside it another one that no request may get.
fn folders(name: &str) -> TestFolder {
    let folder = TestFolder::new(name);
    let at = |below: &str| folder.0.join(below);
    for (from, to) in [
        ("rank4", "root/rank4"),
        ("rank16", "root/team/wide"),
        ("rslora8", "secret/rslora8"),
        ("rank4", "root/half"),
        ("rank4", "root/other-half"),
    ] {
        fs::create_dir_all(at(to)).expect("a folder");
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            fs::copy(adapter(from).join(file), at(to).join(file)).expect("copied");
        }
    }
    fs::write(at("secret/adapter_config.json"), SECRET).expect("written");
    fs::write(at("secret/adapter_model.safetensors"), SECRET).expect("written");
    symlink("../secret", at("root/leak")).expect("a link");
    symlink(at("secret/rslora8"), at("root/absolute-leak")).expect("a link");
    symlink("../..", at("root/team/up")).expect("a link");
    // Adapters of their own with a file that is someone else's.
    for file in ["half/adapter_config.json", "other-half/adapter_model.safetensors"] {
        let (own, file) = (at("root").join(file), Path::new(file).file_name().expect("a name"));
        fs::remove_file(&own).expect("it was made");
        symlink(at("secret/rslora8").join(file), own).expect("a link");
    }
    // One that is no adapter at all.
    fs::create_dir_all(at("root/garbage")).expect("a folder");
    fs::write(at("root/garbage/adapter_config.json"), SECRET).expect("written");
    fs::write(at("root/garbage/adapter_model.safetensors"), SECRET).expect("written");
    folder
}

#[tokio::test]
async fn no_name_leads_the_resolver_out_of_its_folder() {
    build_with_binary(&["halyard-lora-resolver-filesystem"]);
    let folder = folders("lora-resolver");
    let resolver = format!("filesystem:root={}", folder.0.join("root").display());
    let api = Api::new("", &["--enable-lora", "--lora-resolver", &resolver]);
    let absolute = folder.0.join("secret/rslora8").display().to_string();
    let (long, deep) = ("x".repeat(5000), "../".repeat(40) + "etc");
    let attempts = [
        // With `..`, in every place.
        ("..", 400),
        ("../secret/rslora8", 400),
        ("rank4/../../secret/rslora8", 400),
        ("rank4/..", 400),
        ("./rank4", 400),
        (deep.as_str(), 400),
        // Absolute ones, and those that look so elsewhere.
        (absolute.as_str(), 400),
        ("/etc/passwd", 400),
        ("//etc/passwd", 400),
        ("file:///etc/passwd", 400),
        ("..\\secret\\rslora8", 400),
        ("C:\\secret", 400),
        // Encoded: names are not decoded, so these are names of no adapter.
        ("%2e%2e%2fsecret%2frslora8", 404),
        ("..%2fsecret%2frslora8", 400),
        ("%2fetc%2fpasswd", 404),
        ("%252e%252e%252fsecret", 404),
        ("\u{ff0e}\u{ff0e}/secret", 404),
        // Links that leave the root: of the folder, on the way to it, and of a file in it.
        ("leak", 400),
        ("leak/rslora8", 400),
        ("absolute-leak", 400),
        ("team/up/secret/rslora8", 400),
        ("half", 400),
        ("other-half", 400),
        // What a file system or a library might cut off.
        ("rank4\0", 400),
        ("rank4\n", 400),
        ("rank4/", 400),
        (long.as_str(), 400),
        // Files and folders of the root that are no adapters.
        ("rank4/adapter_config.json", 404),
        ("team", 404),
        ("absent", 404),
    ];
    let mut seen = String::new();
    for (name, status) in attempts {
        let completion = json!({"model": name, "prompt": [1], "max_tokens": 1});
        let chat = json!({"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1});
        for (route, body) in [(COMPLETIONS, completion), (CHAT, chat)] {
            let error = api.refused(route, &body, status).await;
            assert!(
                error["message"].as_str().is_some_and(|words| !words.is_empty()),
                "{error}"
            );
            seen.push_str(&error.to_string());
        }
    }
    // In the place of a path, where a client's library may decode it or not.
    for path in ["..%2Fsecret%2Frslora8", "%2E%2E/secret", "%2Fetc%2Fpasswd", "leak"] {
        let (status, text) = api.get(&format!("/v1/models/{path}")).await;
        assert_eq!(status, 404, "{path}: {text}");
        seen.push_str(&text);
    }
    let error = api
        .refused(COMPLETIONS, &json!({"model": "garbage", "prompt": [1]}), 503)
        .await;
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|words| words.contains("cannot be served")),
        "{error}"
    );
    seen.push_str(&error.to_string());
    assert!(!seen.contains(SECRET) && !seen.contains("root:"), "{seen}");
    // What is there is served, after all of it.
    api.says_as("rank4", "rank4").await;
    api.says_as("team/wide", "rank16").await;
    let (_, models) = api.get("/v1/models").await;
    let models = json(&models);
    let names: Vec<&Value> = models["data"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|card| &card["id"])
        .collect();
    assert_eq!(names, ["tiny", "rank4", "team/wide"]);
    let Api { server, .. } = api;
    server.signal("TERM");
    let (status, log) = server.wait();
    assert_eq!(status, Some(0), "{log}");
    assert!(!log.contains("panicked") && !log.contains(SECRET), "{log}");
}
