//! `halyard bench` on the CPU platform: what it counts is what ran, and its file holds the keys that vLLM's has.

use std::path::Path;
use std::process::Command;

use halyard_e2e::{Server, TestFolder, binary, build_with_binary, fixture, free_port, run, stderr};
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

/// The repository's own bench asks over plain sockets; a server checks the host's name there, too.
#[test]
fn the_repositorys_bench_starts_a_server_and_hears_it() {
    build_with_binary(&["halyard-bench"]);
    let (model, binary) = (fixture("llama"), binary());
    let asked = Command::new(binary.with_file_name("halyard-bench"))
        .arg("startup")
        .args(["--serve", "--platform cpu --kv-cache-memory-bytes 16MiB"])
        .arg("--model")
        .arg(model)
        .arg("--binary")
        .arg(binary)
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&asked.stdout);
    assert!(asked.status.success(), "{said}{}", stderr(&asked));
    assert!(said.contains("ready after start"), "{said}");
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

#[test]
fn a_sweep_runs_every_combination_once_and_goes_on_where_it_stood() {
    let folder = TestFolder::new("bench-sweep");
    let port = free_port();
    let model = fixture("llama");
    let serve = format!(
        "halyard serve --platform cpu --model '{}' --kv-cache-memory-bytes 16MiB --port {port}",
        model.display()
    );
    let bench = format!(
        "halyard bench serve --dataset-name random --random-input-len 5 --random-output-len 3 --num-prompts 4 --port \
         {port}"
    );
    let out = folder.0.to_str().expect("UTF-8");
    let sweep = |more: &[&str]| {
        let line = [
            "bench",
            "sweep",
            "serve",
            "--serve-cmd",
            &serve,
            "--bench-cmd",
            &bench,
            "--serve-params",
            r#"{"few": {"max_num_seqs": 1}, "many": {"max_num_seqs": 4}}"#,
            "--bench-params",
            r#"[{"max_concurrency": 1}, {"max_concurrency": 4}]"#,
            "--num-runs",
            "1",
            "--output-dir",
            out,
            "--experiment-name",
            "grid",
        ];
        run(&[&line[..], more].concat())
    };
    let output = sweep(&["--link-vars", "max_num_seqs=max_concurrency"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let grid = folder.0.join("grid");
    let file = |serve: &str, bench: &str| {
        grid.join(format!("SERVE-{serve}-BENCH-max_concurrency={bench}"))
            .join("run=0.json")
    };
    // The link leaves two of four.
    assert!(file("few", "1").exists() && file("many", "4").exists());
    assert!(!file("few", "4").exists() && !file("many", "1").exists());
    let first = read(&file("few", "1"));
    assert_eq!(
        (&first["completed"], &first["serve_params"]["max_num_seqs"]),
        (&4.into(), &1.into())
    );
    above_zero(&first, "output_throughput");

    assert!(!sweep(&[]).status.success(), "a sweep of this name is there");
    std::fs::write(file("few", "1"), r#"{"kept": true}"#).expect("written");
    let output = sweep(&["--resume"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(file("few", "4").exists() && file("many", "1").exists());
    assert_eq!(
        read(&file("few", "1"))["kept"],
        true,
        "what was there is not made again"
    );
    assert_eq!(read(&grid.join("summary.json")).as_array().map(Vec::len), Some(4));
    let page = std::fs::read_to_string(grid.join("report.html")).expect("a report");
    assert!(page.contains("max_concurrency=4") && page.contains("</html>"), "{page}");
}

#[test]
fn a_sweep_says_why_its_server_or_a_run_failed() {
    let folder = TestFolder::new("bench-sweep-fails");
    let out = folder.0.to_str().expect("UTF-8");
    let sweep = |name: &str, commands: &[&str]| {
        let line = [
            "bench",
            "sweep",
            "serve",
            "--output-dir",
            out,
            "--num-runs",
            "1",
            "--experiment-name",
            name,
        ];
        run(&[&line[..], commands].concat())
    };
    let output = sweep(
        "server",
        &[
            "--serve-cmd",
            "halyard serve --port 0 --model /no/such/model",
            "--bench-cmd",
            "halyard bench serve --port 1",
        ],
    );
    let said = stderr(&output);
    assert!(
        said.contains("--serve-cmd") && said.contains("SERVE-as_given.log"),
        "{said}"
    );
    let log = std::fs::read_to_string(folder.0.join("server/SERVE-as_given.log")).expect("its words");
    assert!(log.contains("/no/such/model"), "{log}");

    let server = Server::tiny(&[]);
    let there = format!("halyard bench serve --base-url {}", server.url);
    let said = stderr(&sweep(
        "taken",
        &["--serve-cmd", "halyard serve", "--bench-cmd", &there],
    ));
    assert!(said.contains("in use already"), "{said}");

    // Without a server's command, one that runs is measured.
    let output = sweep("run", &["--bench-cmd", &format!("{there} --dataset-name nothing")]);
    let said = stderr(&output);
    assert!(
        !output.status.success() && said.contains("1 runs failed") && said.contains("run=0.log"),
        "{said}"
    );
    assert!(!folder.0.join("run/SERVE-as_given-BENCH-as_given/run=0.json").exists());
}
