//! KV blocks in host memory, over HTTP: what was pushed out of the device counts as cached, and the metrics say so.

use std::collections::BTreeMap;

use halyard_e2e::Server;
use reqwest::Client;
use serde_json::{Value, json};

/// Asks for a completion; its text and how many tokens of the prompt were cached.
async fn ask(server: &Server, number: u64) -> (String, u64) {
    let prompt: Vec<u64> = (0..70).map(|at| (at * 37 + number * 101 + 5) % 440).collect();
    let body = json!({"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true});
    let request = Client::new().post(format!("{}/v1/completions", server.url)).json(&body);
    let answer: Value = request.send().await.expect("an answer").json().await.expect("JSON");
    let text = answer["choices"][0]["text"].as_str().expect("a text").to_owned();
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    (text, cached.expect("usage says it"))
}

/// The samples of `/metrics` by name.
async fn metrics(server: &Server) -> BTreeMap<String, f64> {
    let answer = reqwest::get(format!("{}/metrics", server.url))
        .await
        .expect("an answer");
    let text = answer.text().await.expect("text");
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        let name = name.split_once('{').map_or(name, |(name, _)| name);
        Some((name.to_owned(), value.parse().ok()?))
    };
    samples.filter_map(sample).collect()
}

#[tokio::test]
async fn prompts_that_were_pushed_out_are_cached() {
    let server = Server::tiny(&[
        "--block-size=16",
        "--num-gpu-blocks-override=8",
        "--max-model-len=96",
        "--kv-offloading-size=0.01",
    ]);
    let mut first = Vec::new();
    for number in 0..4 {
        first.push(ask(&server, number).await);
    }
    assert!(first.iter().all(|(_, cached)| *cached == 0), "{first:?}");
    for (number, (text, _)) in (0..4).zip(&first) {
        assert_eq!(ask(&server, number).await, (text.clone(), 64));
    }
    let metrics = metrics(&server).await;
    let at = |name: &str| *metrics.get(name).unwrap_or_else(|| panic!("{name}: {metrics:?}"));
    let from_host = at("vllm:external_prefix_cache_hits_total");
    assert!(from_host >= 128.0, "{metrics:?}");
    assert_eq!(from_host + at("vllm:prefix_cache_hits_total"), 256.0);
    let blocks = at("halyard:kv_offload_load_blocks_total");
    assert_eq!(blocks * 16.0, from_host);
    let stored = at("halyard:kv_offload_store_blocks_total");
    assert!(stored >= 16.0, "{metrics:?}");
    // A block has its size both ways.
    let block_bytes = at("vllm:kv_offload_store_bytes_total") / stored;
    assert_eq!(at("vllm:kv_offload_load_bytes_total"), blocks * block_bytes);
    let usage = at("vllm:kv_offload_cpu_cache_usage_perc");
    assert!(usage > 0.0 && usage < 1.0, "{usage}");
}
