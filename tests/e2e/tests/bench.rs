//! `halyard bench` on the CPU platform: what it counts is what ran, and its file holds the keys that vLLM's has.

use std::path::Path;

use halyard_e2e::{Server, TestFolder, fixture, run, stderr};
use serde_json::Value;

/// Runs a bench of the tiny model and reads its file.
fn bench(folder: &TestFolder, kind: &str, args: &[&str]) -> Value {
    let path = folder.0.join(format!("{kind}.json"));
    let (model, json) = (fixture("llama"), path.to_str().expect("UTF-8"));
    let model = model.to_str().expect("UTF-8");
    let engine = [
        "--platform",
        "cpu",
        "--model",
        model,
        "--kv-cache-memory-bytes",
        "16MiB",
        "--output-json",
        json,
    ];
    let output = run(&[&["bench", kind], &engine[..], args].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    read(&path)
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("a file of figures")).expect("JSON")
}

fn above_zero(figures: &Value, key: &str) {
    let value = figures[key]
        .as_f64()
        .unwrap_or_else(|| panic!("{key} is not in {figures}"));
    assert!(value > 0.0, "{key} is {value}");
}

#[test]
fn latency_measures_every_pair_and_derives_the_decode_step() {
    let folder = TestFolder::new("bench-latency");
    let args = [
        "--input-len",
        "5",
        "--output-len",
        "1,4",
        "--batch-size",
        "1,3",
        "--num-iters-warmup",
        "1",
        "--num-iters",
        "2",
    ];
    let figures = bench(&folder, "latency", &args);
    let results = figures["results"].as_array().expect("results");
    let pairs: Vec<_> = results
        .iter()
        .map(|r| (r["batch_size"].as_u64(), r["output_len"].as_u64()))
        .collect();
    let pair = |b, o| (Some(b), Some(o));
    assert_eq!(pairs, [pair(1, 1), pair(1, 4), pair(3, 1), pair(3, 4)]);
    for result in results {
        assert_eq!(result["latencies"].as_array().map(Vec::len), Some(2), "{result}");
        above_zero(result, "avg_latency");
        above_zero(&result["percentiles"], "50");
    }
    // On a busy machine the longer run's best may be the shorter one; then there is no figure.
    let best = |i: usize| results[i]["best_latency"].as_f64().expect("seconds");
    let derived = [(1, best(1) - best(0)), (3, best(3) - best(2))];
    let derived = derived.into_iter().filter(|(_, more_s)| *more_s > 0.0);
    let expected: Vec<_> = derived.map(|(batch, more_s)| (batch, more_s / 3.0 * 1e3)).collect();
    let steps = figures["decode_steps"].as_array().expect("steps");
    assert_eq!(steps.len(), expected.len(), "{figures}");
    for (step, (batch, ms)) in steps.iter().zip(expected) {
        assert_eq!(step["batch_size"].as_u64(), Some(batch));
        let given = step["decode_step_ms"].as_f64().expect("milliseconds");
        assert!((given - ms).abs() < 1e-9 * ms.max(1.0), "{given} for {ms}");
    }
}

#[test]
fn throughput_counts_all_tokens() {
    let folder = TestFolder::new("bench-throughput");
    let figures = bench(
        &folder,
        "throughput",
        &["--input-len", "6", "--output-len", "4", "--num-prompts", "10"],
    );
    assert_eq!(figures["num_requests"], 10);
    assert_eq!(figures["total_num_prompt_tokens"], 60);
    assert_eq!(figures["total_num_output_tokens"], 40);
    assert_eq!(figures["total_num_tokens"], 100);
    for key in [
        "elapsed_time",
        "requests_per_second",
        "tokens_per_second",
        "output_tokens_per_second",
    ] {
        above_zero(&figures, key);
    }
}

#[test]
fn startup_starts_the_server_with_the_flags_given() {
    let folder = TestFolder::new("bench-startup");
    let figures = bench(&folder, "startup", &["--num-iters-cold", "1", "--num-iters-warm", "2"]);
    above_zero(&figures, "avg_cold_startup_time");
    assert_eq!(figures["warm_startup_times"].as_array().map(Vec::len), Some(2));
}

#[test]
fn startup_tells_why_the_server_did_not_start() {
    let output = run(&["bench", "startup", "--platform", "cpuu"]);
    assert!(!output.status.success());
    assert!(stderr(&output).contains("cpuu"), "{}", stderr(&output));
}

#[test]
fn serve_measures_what_a_client_sees() {
    let server = Server::tiny(&[]);
    let folder = TestFolder::new("bench-serve");
    let path = folder.0.join("serve.json");
    let json = path.to_str().expect("UTF-8");
    let args = [
        "--random-input-len",
        "5",
        "--random-output-len",
        "4",
        "--num-prompts",
        "8",
        "--random-vocab-size",
        "64",
    ];
    let target = [
        "--base-url",
        &server.url,
        "--output-json",
        json,
        "--request-rate",
        "200",
        "--max-concurrency",
        "3",
    ];
    let output = run(&[&["bench", "serve"], &target[..], &args[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let figures = read(&path);
    assert_eq!(figures["completed"], 8);
    assert_eq!(figures["failed"], 0);
    assert_eq!(figures["total_output_tokens"], 32);
    for key in ["request_throughput", "mean_ttft_ms", "median_tpot_ms", "p99_e2el_ms"] {
        above_zero(&figures, key);
    }
}

#[test]
fn options_that_mean_nothing_are_refused_before_anything_runs() {
    for (args, word) in [
        (&["bench", "serve", "--max-concurrency", "0"][..], "--max-concurrency"),
        (&["bench", "serve", "--metric-percentiles", "101"], "percentile"),
        (&["bench", "serve", "--request-rate", "1e-20"], "rate"),
        (&["bench", "serve", "--random-vocab-size", "0"], "--random-vocab-size"),
        (&["bench", "latency", "--output-len", "0"], "--output-len"),
        (
            &["bench", "latency", "--batch-size", "8", "--max-num-seqs", "4"],
            "--max-num-seqs, which is 4",
        ),
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(word), "{args:?}: {}", stderr(&output));
    }
}
