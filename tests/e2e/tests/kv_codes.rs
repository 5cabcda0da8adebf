//! A server whose keys and values are codes: it answers, and says what it holds by vLLM's names.

use halyard_e2e::Server;
use reqwest::Client;
use serde_json::{Value, json};

#[tokio::test]
async fn a_cache_of_codes_serves_and_is_named() {
    let mut tokens = Vec::new();
    for kv in ["bfloat16", "int8", "int4_per_token_head"] {
        let server = Server::tiny(&[
            &format!("--kv-cache-dtype={kv}"),
            "--kv-cache-memory-bytes=512KiB",
            "--max-num-seqs=256",
        ]);
        let prompt: Vec<u64> = (0..70).map(|at| (at * 37 + 5) % 440).collect();
        let body = json!({"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true});
        let request = Client::new().post(format!("{}/v1/completions", server.url)).json(&body);
        let answer: Value = request.send().await.expect("an answer").json().await.expect("JSON");
        assert_eq!(answer["usage"]["completion_tokens"], 8, "{answer}");
        let page = reqwest::get(format!("{}/metrics", server.url))
            .await
            .expect("an answer");
        let page = page.text().await.expect("text");
        let name = match kv {
            "bfloat16" => "bf16",
            "int8" => "int8_per_token_head",
            other => other,
        };
        assert!(page.contains(&format!("cache_dtype=\"{name}\"")), "{page}");
        let info = reqwest::get(format!("{}/server_info", server.url))
            .await
            .expect("an answer");
        let info: Value = info.json().await.expect("JSON");
        tokens.push(info["max_total_tokens"].as_u64().expect("a number"));
    }
    // The fixture's heads have 16 values: 64 bytes of key and value, 40, and 32, as values of 4 bits fill rows of 32.
    let [bf16, int8, int4] = tokens[..] else {
        unreachable!("three servers")
    };
    assert!(int8 * 10 > bf16 * 15 && int4 >= bf16 * 2, "{tokens:?}");
}
