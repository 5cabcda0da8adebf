//! The Grafana dashboard of `packaging/grafana`: each metric in it is one that a server exports, each query is PromQL
//! (by Prometheus' `promtool`, where it is installed), and its panels have places of their own.

use std::collections::BTreeSet;
use std::process::Command;

use crate::common::{TestServer, until};
use serde_json::{Value, json};

const FILE: &str = include_str!("../packaging/grafana/halyard.json");

fn dashboard() -> Value {
    serde_json::from_str(FILE).expect("JSON")
}

fn panels(dashboard: &Value) -> &[Value] {
    dashboard["panels"].as_array().expect("a list")
}

/// The queries of all panels and of the variables, with their variables filled in.
fn queries(dashboard: &Value) -> Vec<String> {
    let targets = panels(dashboard)
        .iter()
        .flat_map(|panel| panel["targets"].as_array().expect("a list"));
    let written = targets.map(|target| target["expr"].as_str().expect("a query"));
    written
        .map(|query| {
            let filled = query.replace("$__rate_interval", "1m");
            filled.replace("$model_name", ".*").replace("$instance", ".*")
        })
        .collect()
}

/// Names in a text that have a colon in them, as all metrics here do.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    let is_metric = |word: &&str| ["vllm:", "halyard:"].iter().any(|start| word.starts_with(start));
    words.filter(is_metric).collect()
}

#[tokio::test]
async fn every_metric_of_the_dashboard_is_exported() {
    let server = TestServer::new();
    let body = json!({"prompt": "one two three", "max_tokens": 3, "ignore_eos": true});
    server.post("/v1/completions", &body).await.ok();
    let named = metrics_in(FILE);
    assert!(named.len() > 20, "{named:?}");
    let missing = async || -> Vec<&str> {
        let text = server.get("/metrics").await.text;
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let exported: BTreeSet<&str> = samples.filter_map(|line| line.split(['{', ' ']).next()).collect();
        named.iter().filter(|name| !exported.contains(*name)).copied().collect()
    };
    until("all exported", missing, Vec::is_empty).await;
}

#[test]
fn panels_have_ids_and_places_of_their_own() {
    let dashboard = dashboard();
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels(&dashboard) {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64().expect("a number")), "{title}");
        let at = |name: &str| panel["gridPos"][name].as_u64().expect("a number");
        assert!(at("x") + at("w") <= 24, "{title} is wider than the grid");
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(places.insert((x, y)), "{title} covers another panel at {x}, {y}");
            }
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
    }
    let variables = dashboard["templating"]["list"].as_array().expect("a list");
    let names: Vec<&str> = variables
        .iter()
        .filter_map(|variable| variable["name"].as_str())
        .collect();
    assert_eq!(names, ["datasource", "instance", "model_name"]);
}

#[test]
fn every_query_is_promql() {
    let rules: Vec<Value> = queries(&dashboard())
        .iter()
        .enumerate()
        .map(|(index, query)| json!({"record": format!("rule:{index}"), "expr": query}))
        .collect();
    let count = rules.len();
    let file = std::env::temp_dir().join(format!("halyard-dashboard-{}.yml", std::process::id()));
    // JSON is YAML.
    let groups = json!({"groups": [{"name": "dashboard", "rules": rules}]});
    std::fs::write(&file, groups.to_string()).expect("writes");
    let checked = Command::new("promtool").args(["check", "rules"]).arg(&file).output();
    std::fs::remove_file(&file).expect("was written");
    match checked {
        Err(error) => println!("skipped: promtool cannot be run ({error}); it comes with Prometheus"),
        Ok(checked) => {
            let text = String::from_utf8_lossy(&checked.stdout).into_owned();
            let errors = String::from_utf8_lossy(&checked.stderr);
            assert!(checked.status.success(), "{text}{errors}");
            assert!(text.contains(&format!("{count} rules found")), "{text}");
        }
    }
}
