//! docs/metrics.md is written from what a server with every feature that has metrics shows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use halyard_e2e::{Server, build_with_binary};
use serde_json::json;

const PREFACE: &str = "# Metrics

`GET /metrics`, in Prometheus' text format. Written by a test from a server's own answer (`HALYARD_BLESS=1 cargo test -p
halyard-e2e metrics_page`). Names that begin with `vllm:` are vLLM's, with its labels and buckets; `halyard:` are
Halyard's own. Some have no line before the first event of their kind, and some belong to a flag: IO processors, logits
processors, adapters, KV cache events. What stands behind them: [operator guide](operator-guide.md#metrics).
";

/// What one metric says of itself.
#[derive(Default)]
struct Metric {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

/// The metrics of a text, by name; labels are those that its lines have.
fn read(text: &str) -> BTreeMap<String, Metric> {
    let mut metrics: BTreeMap<String, Metric> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            metrics.entry(name.to_owned()).or_default().help = help.trim_end_matches('.').to_owned();
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            metrics.entry(name.to_owned()).or_default().kind = kind.to_owned();
        }
    }
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, rest)) = line.split_once('{') else {
            continue;
        };
        let parts = ["", "_bucket", "_sum", "_count"];
        let named = parts
            .iter()
            .find_map(|part| metrics.contains_key(name.strip_suffix(part)?).then_some(*part));
        let metric = named.and_then(|part| metrics.get_mut(name.strip_suffix(part)?));
        let (Some(metric), Some((labels, _))) = (metric, rest.rsplit_once('}')) else {
            continue;
        };
        let names = labels.split("\",").filter_map(|label| label.split_once('='));
        metric
            .labels
            .extend(names.map(|(name, _)| name.to_owned()).filter(|name| name != "le"));
    }
    metrics
}

fn page(metrics: &BTreeMap<String, Metric>) -> String {
    let mut page = PREFACE.to_owned();
    for (title, prefix) in [
        ("vLLM's", "vllm:"),
        ("Halyard's", "halyard:"),
        ("The process's", "process_"),
    ] {
        page.push_str(&format!(
            "\n## {title}\n\n| metric | type | labels | |\n|---|---|---|---|\n"
        ));
        for (name, metric) in metrics.iter().filter(|(name, _)| name.starts_with(prefix)) {
            let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
            let (kind, help) = (&metric.kind, metric.help.replace('|', "\\|"));
            page.push_str(&format!("| `{name}` | {kind} | {} | {help} |\n", labels.join(", ")));
        }
    }
    page
}

#[tokio::test]
async fn the_page_of_metrics_is_the_server_s() {
    build_with_binary(&[
        "halyard-io-processor-redact",
        "halyard-logits-processor-thinking-budget",
        "halyard-stat-logger-otlp",
    ]);
    let flags = [
        "--io-processor",
        "redact",
        "--logits-processor",
        "thinking-budget",
        "--enable-lora",
        "--stat-logger",
        "otlp={\"endpoint\": \"http://127.0.0.1:9\"}",
        "--kv-events-config",
        "{\"enable_kv_cache_events\": true, \"endpoint\": \"tcp://*:0\"}",
    ];
    let server = Server::tiny(&flags);
    let client = reqwest::Client::new();
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "ignore_eos": true});
    let answer = client
        .post(format!("{}/v1/chat/completions", server.url))
        .json(&body)
        .send()
        .await;
    assert_eq!(answer.expect("answers").status(), 200);
    let mut text = String::new();
    for _ in 0..200 {
        let answer = client
            .get(format!("{}/metrics", server.url))
            .send()
            .await
            .expect("answers");
        text = answer.text().await.expect("text");
        if text
            .lines()
            .any(|line| line.starts_with("vllm:e2e_request_latency_seconds_count") && line.ends_with(" 1"))
        {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let metrics = read(&text);
    assert!(
        metrics
            .values()
            .all(|metric| !metric.help.is_empty() && !metric.kind.is_empty())
    );
    let listed = |name: &String| {
        ["vllm:", "halyard:", "process_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
    };
    assert!(metrics.keys().all(listed), "{:?}", metrics.keys());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    if std::env::var_os("HALYARD_BLESS").is_some() {
        std::fs::write(&path, page(&metrics)).expect("written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page(&metrics),
        "docs/metrics.md is not what the server shows; write it anew: HALYARD_BLESS=1 cargo test -p halyard-e2e \
         metrics_page\n{}",
        page(&metrics)
    );
}
