//! Start lines of vLLM, run as they are: from charts, compose files and the shell. They must mean the same here as in
//! vLLM, and flags without an effect are reported in one line.

use std::process::Command;

use halyard_e2e::{Server, TestFolder, fixture, halyard, run, stderr};
use serde_json::{Value, json};

/// `halyard serve` with the words of a line, on the CPU where the line chooses nothing.
fn serve(line: &str) -> Command {
    let words: Vec<&str> = std::iter::once("serve").chain(line.split_whitespace()).collect();
    let mut command = halyard(&words);
    command.env("HALYARD_PLATFORM", "cpu");
    command
}

/// The model of every line.
fn model() -> String {
    text(&fixture("llama"))
}

fn text(path: &std::path::Path) -> String {
    path.to_str().expect("a UTF-8 path").to_owned()
}

/// A server, and what it was started with.
struct Started {
    server: Server,
}

impl Started {
    fn line(line: &str) -> Started {
        Started {
            server: Server::start(&mut serve(line)),
        }
    }

    async fn get(&self, route: &str, key: Option<&str>) -> Value {
        let request = reqwest::Client::new().get(format!("{}{route}", self.server.url));
        let request = match key {
            Some(key) => request.bearer_auth(key),
            None => request,
        };
        request.send().await.expect("answers").json().await.expect("JSON")
    }

    async fn post(&self, route: &str, body: &Value) -> Value {
        let request = reqwest::Client::new().post(format!("{}{route}", self.server.url));
        request
            .json(body)
            .send()
            .await
            .expect("answers")
            .json()
            .await
            .expect("JSON")
    }

    /// Ends the server; its log.
    fn log(self) -> String {
        self.server.signal("TERM");
        let (status, log) = self.server.wait();
        assert_eq!(status, Some(0), "{log}");
        log
    }
}

fn notes(log: &str) -> Vec<&str> {
    log.lines()
        .filter(|line| line.contains("accepted, needs nothing here"))
        .collect()
}

#[tokio::test]
async fn a_container_of_the_shortest_kind() {
    let model = model();
    let line = format!("{model} --host 0.0.0.0 --port 0 --trust-remote-code");
    let server = Started::line(&line);
    assert!(
        server.server.url.starts_with("http://127.0.0.1:"),
        "{}",
        server.server.url
    );
    assert_eq!(server.get("/v1/models", None).await["data"][0]["id"], json!(model));
    let log = server.log();
    assert!(
        notes(&log)[0].ends_with("accepted, needs nothing here: --trust-remote-code"),
        "{log}"
    );
    assert!(!log.contains("not chosen"), "absent platforms are not reported: {log}");
}

#[tokio::test]
async fn a_helm_chart() {
    let model = model();
    let line = format!(
        "{model} --host 0.0.0.0 --port 0 --served-model-name llm chat --dtype bfloat16 \
         --tensor-parallel-size 1 --pipeline-parallel-size 1 --gpu-memory-utilization 0.9 \
         --max-model-len 0.2k --max-num-seqs 32 --enable-chunked-prefill --enable-prefix-caching \
         --disable-log-requests --swap-space 4 --uvicorn-log-level warning"
    );
    let server = Started::line(&line);
    let models = server.get("/v1/models", None).await;
    assert_eq!(models["data"][1]["id"], "chat");
    assert_eq!(models["data"][0]["max_model_len"], 200);
    let log = server.log();
    assert!(log.contains("--dtype bfloat16") && log.contains("float32"), "{log}");
    assert_eq!(notes(&log).len(), 1, "{log}");
    for flag in [
        "--pipeline-parallel-size",
        "--enable-chunked-prefill",
        "--disable-log-requests",
        "--swap-space",
    ] {
        assert!(notes(&log)[0].contains(flag), "{flag}: {log}");
    }
}

#[tokio::test]
async fn a_compose_file_with_keys() {
    let model = model();
    let line = format!(
        "--model {model} --port 0 --api-key first second --served_model_name=llm --max_model_len 128 -tp \
         1 -O3 --enforce-eager"
    );
    let server = Started::line(&line);
    for key in ["first", "second"] {
        assert_eq!(server.get("/v1/models", Some(key)).await["data"][0]["id"], "llm");
    }
    assert_eq!(server.get("/v1/models", None).await["error"]["code"], "invalid_api_key");
    let address = format!("{}/v1/", server.server.url);
    let answer = run(&[
        "chat",
        "--url",
        &address,
        "--api-key",
        "second",
        "--max-tokens",
        "3",
        "hello",
    ]);
    assert!(answer.status.success(), "{}", stderr(&answer));
}

#[tokio::test]
async fn a_line_for_the_cpu_from_earlier_years() {
    let model = model();
    let line = format!(
        "{model} --port 0 --device cpu --dtype half --task generate --block-size 16 \
         --num-scheduler-steps 8 --use-v2-block-manager --max-seq-len-to-capture 8192"
    );
    let server = Started::line(&line);
    assert_eq!(server.get("/v1/models", None).await["data"][0]["max_model_len"], 256);
    let log = server.log();
    assert!(log.contains("--dtype float16"), "{log}");
}

#[tokio::test]
async fn adapters_after_one_flag() {
    let (model, folder) = (model(), text(&fixture("llama-lora").join("rank4")));
    let (one, two) = (format!("one={folder}"), format!("two={folder}"));
    let line = format!(
        "{model} --port 0 --enable-lora --lora-modules {one} {two} --max-loras 2 --max-lora-rank 16 \
         --no-enable-prefix-caching"
    );
    let server = Started::line(&line);
    let models = server.get("/v1/models", None).await;
    let names: Vec<&str> = models["data"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|m| m["id"].as_str())
        .collect();
    assert!(names.contains(&"one") && names.contains(&"two"), "{names:?}");
}

#[tokio::test]
async fn compilation_and_executors() {
    let model = model();
    let line = format!(
        r#"{model} --port 0 -cc {{"cudagraph_mode":"FULL"}} --compilation-config.mode 3 --async-scheduling
         --distributed-executor-backend mp --data-parallel-size 1 --api-server-count 1
         --attention-backend FLASH_ATTN --max-cudagraph-capture-size 512 --moe-backend auto
         --limit-mm-per-prompt {{"image":0}}"#
    );
    let server = Started::line(&line);
    assert_eq!(server.get("/v1/models", None).await["object"], "list");
}

#[tokio::test]
async fn templates_and_sampling_defaults() {
    let folder = TestFolder::new("vllm-template");
    let template = folder.0.join("plain.jinja");
    std::fs::write(
        &template,
        "{% for m in messages %}{{ m.content }}{% endfor %}{{ mood }}",
    )
    .expect("written");
    let (model, template) = (model(), text(&template));
    let line = format!(
        r#"{model} --port 0 --chat-template {template} --chat-template-content-format string
         --generation-config vllm --override-generation-config {{"temperature":0.0,"max_new_tokens":3}}
         --max-logprobs 5 --response-role assistant --return-tokens-as-token-ids --seed 7"#
    );
    let server = Started::line(&line);
    let content = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let rendered = json!({"messages": [{"role": "user", "content": content}], "add_special_tokens": false});
    let plain = json!({"prompt": "a\nb", "add_special_tokens": false});
    let count = |answer: Value| answer["count"].as_u64().expect("a count");
    assert_eq!(
        count(server.post("/tokenize", &rendered).await),
        count(server.post("/tokenize", &plain).await)
    );
    // The defaults of the flag: three tokens, the likeliest ones, twice the same.
    let chat = json!({"messages": [{"role": "user", "content": "hello"}], "ignore_eos": true});
    let first = server.post("/v1/chat/completions", &chat).await;
    assert_eq!(first["usage"]["completion_tokens"], 3, "{first}");
    let second = server.post("/v1/chat/completions", &chat).await;
    assert_eq!(
        first["choices"][0]["message"]["content"],
        second["choices"][0]["message"]["content"]
    );
}

#[tokio::test]
async fn another_tokenizer_and_a_longer_context() {
    let (model, tokenizer) = (model(), text(&fixture("qwen2")));
    let line = format!(
        r#"{model} --port 0 --tokenizer {tokenizer} --tokenizer-mode auto --hf-overrides
         {{"max_position_embeddings":512}} --max-model-len 0.5k --max-num-batched-tokens 1K
         --load-format safetensors --kv-cache-dtype auto --revision main"#
    );
    let server = Started::line(&line);
    assert_eq!(server.get("/v1/models", None).await["data"][0]["max_model_len"], 500);
    let log = server.log();
    assert!(log.contains("--revision main says nothing here"), "{log}");
}

#[tokio::test]
async fn a_number_of_blocks_and_an_observability_stack() {
    let model = model();
    let line = format!(
        "{model} --port 0 --num-gpu-blocks-override 64 --scheduling-policy priority --max-log-len 100 \
         --enable-request-id-headers --enable-prompt-tokens-details --enable-server-load-tracking \
         --disable-uvicorn-access-log --runner generate --convert none --disable-log-stats --log-level \
         WARNING"
    );
    let server = Started::line(&line);
    let answer = reqwest::get(format!("{}/metrics", server.server.url))
        .await
        .expect("answers");
    let metrics = answer.text().await.expect("text");
    assert!(metrics.contains("num_gpu_blocks=\"64\""), "{metrics}");
    assert!(server.log().is_empty(), "nothing was wrong");
}

#[tokio::test]
async fn the_newest_defaults_written_out() {
    let model = model();
    let line = format!(
        "{model} --port=0 --model-impl=auto --config-format=auto --optimization-level=2 \
         --performance-mode=balanced --no-enable-expert-parallel --no-enable-sleep-mode \
         --no-enforce-eager --stream-interval=1 --logprobs-mode=raw_logprobs \
         --prefix-caching-hash-algo=sha256 --nnodes=1 --node-rank=0 --cpu-offload-gb=0 \
         --language-model-only --hf-token --enable-force-include-usage --kv-cache-memory-bytes 16M \
         --enable_auto_tool_choice --tool_call_parser=hermes --reasoning_parser qwen3 \
         --exclude-tools-when-tool-choice-none --enable-reasoning"
    );
    let server = Started::line(&line);
    assert_eq!(server.get("/v1/models", None).await["object"], "list");
}

#[tokio::test]
async fn prompts_in_the_log_are_as_long_as_was_asked_for() {
    let server = Started::line(&format!("{} --port 0 --log-prompts --max-log-len 5", model()));
    server
        .post(
            "/v1/completions",
            &json!({"prompt": "äöüß hello world", "max_tokens": 1}),
        )
        .await;
    let log = server.log();
    assert!(log.contains("äöüß ") && !log.contains("äöüß h"), "{log}");
}

#[test]
fn what_cannot_be_meant_ends_with_one_line() {
    let model = model();
    for (line, parts) in [
        (
            "--enable-auto-tool-choice --tool-call-parser hermez",
            ["--tool-call-parser", "hermes"],
        ),
        ("-pp 2", ["-pp 2", "--tensor-parallel-size"]),
        ("-ep", ["--enable-expert-parallel", "no layer with experts"]),
        (
            "--max-modle-len 5",
            ["--max-modle-len", "did you mean --max-model-len?"],
        ),
        ("another", ["`another`", "--model"]),
        ("--chat-template no/such", ["--chat-template", "no/such"]),
        ("--generation-config no/such", ["--generation-config", "no/such"]),
        ("--hf-overrides [1]", ["--hf-overrides", "object"]),
        (r#"--hf-overrides {"hidden_size":0}"#, ["--hf-overrides", "hidden_size"]),
        ("--tokenizer no/such/folder", ["--tokenizer", "no/such/folder"]),
        (
            "--num-gpu-blocks-override 999999999",
            ["--num-gpu-blocks-override", "choose 1 to"],
        ),
        (
            "--kv-offloading-size 999999",
            ["--kv-offloading-size: 999999.00 GiB", "available on this host"],
        ),
        ("--kv-offloading-size half", ["--kv-offloading-size", "GiB"]),
        (
            "--kv-offloading-size 1 --no-enable-prefix-caching",
            ["--kv-offloading-size", "prefix caching is off"],
        ),
        (
            "--kv-offloading-size 1 --kv-offloading-backend lmcache",
            ["--kv-offloading-backend", "LMCache"],
        ),
        (
            r#"--override-generation-config {"top_p":2}"#,
            ["--override-generation-config", "top_p"],
        ),
    ] {
        let output = serve(&format!("{model} --port 0 --log-level warn {line}"))
            .output()
            .expect("runs");
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{line:?}: {said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{line:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}

#[test]
fn an_error_is_one_line() {
    let output = serve("no/such/model/here").output().expect("runs");
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    let errors: Vec<&str> = said.lines().filter(|line| !line.contains("INFO")).collect();
    assert_eq!(errors.len(), 1, "{said}");
    assert!(!said.contains("not chosen"), "{said}");
    // Without a network the hub's client says nothing of its own.
    let folder = TestFolder::new("no-network");
    let mut command = serve(&format!("org/repo --download-dir {}", text(&folder.0)));
    command.env("HF_ENDPOINT", "http://127.0.0.1:9");
    let said = stderr(&command.output().expect("runs"));
    let errors: Vec<&str> = said.lines().filter(|line| !line.contains("INFO")).collect();
    assert_eq!(errors.len(), 1, "{said}");
    let known = ["halyard: org/repo: ", "check the network and HF_ENDPOINT"];
    assert!(known.iter().all(|part| errors[0].contains(part)), "{said}");
}

#[test]
fn the_banner_can_be_run_as_it_is_printed() {
    use std::io::{BufRead, BufReader};
    let model = model();
    let mut command = serve(&format!("{model} --port 0 --host 0.0.0.0 --api-key sesame"));
    let mut child = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut try_it = String::new();
    for line in lines
        .map_while(Result::ok)
        .skip_while(|line| !line.starts_with("Try"))
        .skip(1)
    {
        if line.starts_with("or: ") {
            break;
        }
        try_it.push_str(&line);
        try_it.push('\n');
    }
    let answer = Command::new("sh").args(["-c", &try_it]).env("KEY", "sesame").output();
    let _ = child.kill();
    let _ = child.wait();
    let answer = answer.expect("a shell");
    let said = String::from_utf8_lossy(&answer.stdout);
    assert!(said.contains("data: [DONE]"), "{try_it}\n{said}\n{}", stderr(&answer));
}
