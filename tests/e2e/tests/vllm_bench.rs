//! A bench line of vLLM, run as it is, and the datasets that a bench can take: the result has vLLM's fields.

use halyard_e2e::{Server, TestFolder, run, stderr};
use serde_json::{Value, json};

fn text(path: &std::path::Path) -> String {
    path.to_str().expect("a UTF-8 path").to_owned()
}

/// A line of vLLM's documentation, with a small model's lengths.
#[test]
fn a_bench_line() {
    let server = Server::tiny(&[]);
    let folder = TestFolder::new("vllm-bench");
    let (folder, port) = (
        text(&folder.0),
        server.url.rsplit(':').next().expect("a port").to_owned(),
    );
    let line = [
        "bench",
        "serve",
        "--backend",
        "vllm",
        "--model",
        "org/tiny",
        "--served-model-name",
        "tiny",
        "--host",
        "127.0.0.1",
        "--port",
        &port,
        "--endpoint",
        "/v1/completions",
        "--dataset-name",
        "random",
        "--random-input-len",
        "12",
        "--random-output-len",
        "5",
        "--random-range-ratio",
        "0.25",
        "--random-prefix-len",
        "3",
        "--num-prompts",
        "20",
        "--request-rate",
        "100",
        "--burstiness",
        "0.5",
        "--max-concurrency",
        "4",
        "--seed",
        "42",
        "--tokenizer",
        "org/tiny",
        "--ignore-eos",
        "--percentile-metrics",
        "ttft,tpot,itl,e2el",
        "--metric-percentiles",
        "50,90,99.9",
        "--goodput",
        "ttft:60000",
        "e2el:60000",
        "--num-warmups",
        "2",
        "--temperature",
        "0",
        "--disable-tqdm",
        "--trust-remote-code",
        "--save-result",
        "--result-dir",
        &folder,
        "--result-filename",
        "out.json",
        "--metadata",
        "version=1",
        "tp=1",
    ];
    let output = run(&line);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", stderr(&output));
    assert!(
        stderr(&output).contains("accepted, needs nothing here: --trust-remote-code, --tokenizer"),
        "{}",
        stderr(&output)
    );
    for row in [
        "Serving Benchmark Result",
        "Successful requests:                     20",
        "P99.9 TTFT (ms):",
    ] {
        assert!(said.contains(row), "{row}: {said}");
    }
    let path = std::path::Path::new(&folder).join("out.json");
    let result: Value = serde_json::from_slice(&std::fs::read(path).expect("written")).expect("JSON");
    assert_eq!(result["completed"], 20);
    assert_eq!(result["failed"], 0);
    assert_eq!(
        (&result["backend"], &result["endpoint_type"]),
        (&json!("vllm"), &json!("vllm"))
    );
    assert_eq!(
        (&result["model_id"], &result["tokenizer_id"]),
        (&json!("org/tiny"), &json!("org/tiny"))
    );
    assert_eq!(
        (&result["num_prompts"], &result["max_concurrency"]),
        (&json!(20), &json!(4))
    );
    assert_eq!(
        (&result["request_rate"], &result["burstiness"]),
        (&json!(100.0), &json!(0.5))
    );
    assert_eq!((&result["version"], &result["tp"]), (&json!("1"), &json!("1")));
    let (input, output) = (
        result["total_input_tokens"].as_u64(),
        result["total_output_tokens"].as_u64(),
    );
    // 3 + 9 to 15 tokens, and 3 to 7, of 20 requests; not all of one length.
    assert!(input.is_some_and(|tokens| (240..=360).contains(&tokens)), "{input:?}");
    assert!(output.is_some_and(|tokens| (60..=140).contains(&tokens)), "{output:?}");
    for key in [
        "duration",
        "request_throughput",
        "request_goodput",
        "output_throughput",
        "total_token_throughput",
        "max_output_tokens_per_s",
        "max_concurrent_requests",
        "mean_ttft_ms",
        "median_ttft_ms",
        "std_ttft_ms",
        "p50_ttft_ms",
        "p90_ttft_ms",
        "p99.9_ttft_ms",
        "mean_tpot_ms",
        "mean_itl_ms",
        "p90_itl_ms",
        "mean_e2el_ms",
    ] {
        assert!(
            result[key].as_f64().is_some_and(|value| value > 0.0),
            "{key} is {}",
            result[key]
        );
    }
    assert_eq!(result["latencies"].as_array().map(Vec::len), Some(20));
    assert!(result["itls"].is_null(), "only with --save-detailed");
}

#[test]
fn a_bench_of_chats_and_of_files() {
    let server = Server::tiny(&[]);
    let folder = TestFolder::new("vllm-bench-files");
    let json = text(&folder.0.join("out.json"));
    let bench = |words: &[&str]| -> Value {
        let base = [
            "bench",
            "serve",
            "--base-url",
            &server.url,
            "--output-json",
            &json,
            "--temperature",
            "0",
        ];
        let output = run(&[&base[..], words].concat());
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
        serde_json::from_slice(&std::fs::read(&json).expect("written")).expect("JSON")
    };
    let chat = [
        "--backend",
        "openai-chat",
        "--endpoint",
        "/v1/chat/completions",
        "--num-prompts",
        "4",
    ];
    let lengths = ["--random-input-len", "10", "--random-output-len", "4"];
    let result = bench(&[&chat[..], &lengths, &["--save-detailed"]].concat());
    assert_eq!(result["output_lens"], json!([4, 4, 4, 4]));
    assert_eq!(result["itls"].as_array().map(Vec::len), Some(4));
    let lines = folder.0.join("custom.jsonl");
    std::fs::write(
        &lines,
        "{\"prompt\": \"hello\", \"output_tokens\": 2}\n\n{\"prompt\": \"you\", \"output_tokens\": 3}\n",
    )
    .expect("written");
    let lines = text(&lines);
    let custom = [
        "--dataset-name",
        "custom",
        "--dataset-path",
        &lines,
        "--custom-output-len",
        "-1",
        "--ignore-eos",
    ];
    // Repeated to the number asked for, in their order.
    let order = ["--num-prompts", "5", "--disable-shuffle", "--save-detailed"];
    assert_eq!(
        bench(&[&custom[..], &order].concat())["output_lens"],
        json!([2, 3, 2, 3, 2])
    );
    let once = [
        "--num-prompts",
        "5",
        "--disable-shuffle",
        "--save-detailed",
        "--no-oversample",
        "--skip-chat-template",
    ];
    assert_eq!(bench(&[&custom[..], &once].concat())["output_lens"], json!([2, 3]));
    let talks = folder.0.join("talks.json");
    let turn = |text: &str| json!({"from": "human", "value": text});
    let long = "hello there my friend, how are you today?";
    std::fs::write(
        &talks,
        json!([{"conversations": [turn(long), turn(long)]}, {"conversations": [turn("a"), turn("b")]}]).to_string(),
    )
    .expect("written");
    let talks = text(&talks);
    let sharegpt = [
        "--dataset-name",
        "sharegpt",
        "--dataset-path",
        &talks,
        "--num-prompts",
        "2",
        "--sharegpt-output-len",
        "3",
    ];
    let result = bench(&[&sharegpt[..], &["--ignore-eos"]].concat());
    assert_eq!(
        (&result["completed"], &result["total_output_tokens"]),
        (&json!(2), &json!(6))
    );
    for (words, part) in [
        (&["--dataset-name", "custom"][..], "--dataset-path"),
        (&["--dataset-name", "random", "--dataset-path", "x"], "--dataset-path"),
        (
            &["--backend", "openai-chat", "--endpoint", "/v1/completions"],
            "--endpoint",
        ),
        (&["--backend", "tgi"], "openai-chat"),
        (&["--goodput", "itl:1"], "goodput"),
        (&["--random-range-ratio", "1"], "share"),
        (&["--dataset-name", "custom", "--dataset-path", &talks], "line 1"),
    ] {
        let output = run(&[&["bench", "serve", "--base-url", &server.url], words].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "{words:?}: {}", stderr(&output));
    }
}

/// Prompts that begin alike, at a rate that grows, for adapters in turn, under names; two results are two lines.
#[test]
fn prompts_with_a_common_beginning() {
    let adapters = halyard_e2e::fixture("llama-lora");
    let modules = ["rank16", "rank4"].map(|name| format!("{name}={}", text(&adapters.join(name))));
    let lora = [
        "--allow-quantized-act=false",
        "--enable-lora",
        "--max-loras",
        "2",
        "--lora-modules",
    ];
    let server = Server::tiny(&[&lora[..], &[modules[0].as_str(), modules[1].as_str()]].concat());
    let folder = TestFolder::new("vllm-bench-prefixes");
    let place = text(&folder.0);
    let dataset = [
        "bench",
        "serve",
        "--base-url",
        &server.url,
        "--dataset-name",
        "prefix_repetition",
    ];
    let lengths = [
        "--prefix-repetition-prefix-len",
        "64",
        "--prefix-repetition-suffix-len",
        "8",
    ];
    let counts = [
        "--prefix-repetition-num-prefixes",
        "3",
        "--prefix-repetition-output-len",
        "5",
    ];
    let rate = [
        "--ramp-up-strategy",
        "linear",
        "--ramp-up-start-rps",
        "20",
        "--ramp-up-end-rps",
        "200",
    ];
    let names = ["--lora-modules", "rank16", "rank4", "--lora-assignment", "round-robin"];
    let ids = [
        "--num-prompts",
        "13",
        "--request-id-prefix",
        "mine-",
        "--ready-check-timeout-sec",
        "60",
    ];
    let result = ["--append-result", "--result-dir", &place, "--result-filename", "lines"];
    let all = [&dataset[..], &lengths, &counts, &rate, &names, &ids, &result].concat();
    for _ in 0..2 {
        let output = run(&all);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let lines = std::fs::read_to_string(folder.0.join("lines")).expect("a file of results");
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines.len(), 2);
    for line in lines {
        // 12 divides by 3.
        assert_eq!(
            (&line["completed"], &line["total_input_tokens"]),
            (&json!(12), &json!(12 * 72))
        );
        assert_eq!(
            (&line["ramp_up_strategy"], &line["ramp_up_end_rps"]),
            (&json!("linear"), &json!(200.0))
        );
    }
    server.signal("TERM");
    let (_, log) = server.wait();
    for index in 0..12 {
        assert_eq!(log.matches(&format!("id=mine-{index} ")).count(), 2, "{log}");
    }
}
