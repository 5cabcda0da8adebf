//! Copies of a model in one server: both take requests, metrics tell them apart, and what cannot be is refused.

use halyard_e2e::scripted::ScriptedModel;
use halyard_e2e::{Server, TestFolder, run, stderr};
use serde_json::{Value, json};

const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}{% endfor %}";

fn fixtures() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

async fn ask(client: &reqwest::Client, server: &Server, content: &str) -> Value {
    let body = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 40});
    let asked = client.post(format!("{}/v1/chat/completions", server.url)).json(&body);
    let answer = asked.send().await.expect("an answer<|im_end|>");
    assert_eq!(answer.status(), 200);
    answer.json().await.expect("JSON")
}

async fn get(server: &Server, route: &str) -> String {
    let answer = reqwest::get(format!("{}{route}", server.url))
        .await
        .expect("an answer<|im_end|>");
    assert_eq!(answer.status(), 200, "{route}");
    answer.text().await.expect("text")
}

/// The value of the line that begins so.
fn value(metrics: &str, start: &str) -> f64 {
    let line = metrics.lines().find(|line| line.starts_with(start));
    let line = line.unwrap_or_else(|| panic!("no {start} in\n{metrics}"));
    line.rsplit(' ')
        .next()
        .and_then(|value| value.parse().ok())
        .expect("a number")
}

#[tokio::test]
async fn two_copies_share_requests_and_their_metrics_are_told_apart() {
    let lines = [
        ("first question", "one answer<|im_end|>"),
        ("second question", "another answer<|im_end|>"),
    ];
    let model = ScriptedModel::new(&fixtures(), TEMPLATE, &lines);
    let folder = TestFolder::new("data-parallel");
    let stats = folder.0.join("stats.jsonl");
    halyard_e2e::build_with_binary(&["halyard-stat-logger-json-lines"]);
    let logger = format!("json-lines:path={}", stats.display());
    let events = folder.0.join("events");
    let events_config = format!(
        r#"{{"enable_kv_cache_events": true, "endpoint": "ipc://{}"}}"#,
        events.display()
    );
    let server = Server::scripted(
        &model,
        &[
            "-dp",
            "2",
            "--stat-logger",
            &logger,
            "--kv-events-config",
            &events_config,
        ],
    );
    assert!(
        events.exists() && folder.0.join("events_dp1").exists(),
        "a publisher each"
    );
    let client = reqwest::Client::new();
    for round in 0..3 {
        for (question, answer) in lines {
            let found = ask(&client, &server, &format!("round {round}: {question}")).await;
            assert_eq!(
                found["choices"][0]["message"]["content"],
                answer.trim_end_matches("<|im_end|>")
            );
        }
    }
    // Records come a moment later.
    let mut metrics = String::new();
    for _ in 0..200 {
        metrics = get(&server, "/metrics").await;
        let ended = |engine| {
            let name = "vllm:request_success_total{";
            let lines = metrics.lines().filter(|line| line.starts_with(name));
            let own = lines.filter(|line| line.contains(&format!("engine=\"{engine}\"")));
            own.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum::<f64>()
        };
        if ended(0) + ended(1) == 6.0 {
            assert_eq!((ended(0), ended(1)), (3.0, 3.0), "equal requests take turns");
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    for engine in [0, 1] {
        let start = format!("vllm:prompt_tokens_total{{model_name=\"scripted\",engine=\"{engine}\"}}");
        assert!(value(&metrics, &start) > 0.0);
    }
    let described = metrics
        .lines()
        .filter(|line| *line == "# TYPE vllm:prompt_tokens_total counter");
    assert_eq!(described.count(), 1, "{metrics}");
    let info: Value = serde_json::from_str(&get(&server, "/server_info").await).expect("JSON");
    assert_eq!(info["dp_size"], 2);
    server.signal("TERM");
    let (status, log) = server.wait();
    assert_eq!(status, Some(0), "{log}");
    let text = std::fs::read_to_string(&stats).expect("the logger wrote");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("whole lines"))
        .collect();
    for engine in [0, 1] {
        let kinds = |kind| {
            lines
                .iter()
                .any(|line| line["engine_index"] == engine && line["type"] == kind)
        };
        assert!(
            kinds("start") && kinds("finished") && kinds("shutdown"),
            "engine {engine}: {text}"
        );
    }
}

#[tokio::test]
async fn a_prefix_is_asked_again_where_it_is_cached() {
    let model = ScriptedModel::new(&fixtures(), TEMPLATE, &[("question", "an answer<|im_end|>")]);
    let server = Server::scripted(&model, &["-dp", "2"]);
    let client = reqwest::Client::new();
    // Three prefixes over two copies: without affinity each would be asked again where it is not.
    let prefixes = ["river", "mountain", "island"].map(|word| format!("{word} after {word}, ").repeat(40));
    let mut num_asked_again = 0.0;
    for round in ["first", "second"] {
        num_asked_again = 0.0;
        for prefix in &prefixes {
            let answer = ask(&client, &server, &format!("{prefix} the {round} question")).await;
            num_asked_again += answer["usage"]["prompt_tokens"].as_f64().expect("a count");
        }
    }
    let of = |metrics: &str, name: &str| {
        [0, 1].map(|engine| {
            let line = format!("vllm:prefix_cache_{name}_total{{model_name=\"scripted\",engine=\"{engine}\"}}");
            value(metrics, &line)
        })
    };
    // Records come a moment later.
    let mut metrics = String::new();
    for _ in 0..200 {
        metrics = get(&server, "/metrics").await;
        if of(&metrics, "queries").iter().sum::<f64>() > 1.9 * num_asked_again {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let hits = of(&metrics, "hits");
    assert!(
        hits.iter().all(|hits| *hits > 0.0),
        "both copies were asked again: {hits:?}"
    );
    assert!(
        hits.iter().sum::<f64>() > 0.9 * num_asked_again,
        "{hits:?} of {num_asked_again}"
    );
}

#[tokio::test]
async fn a_rank_behind_a_load_balancer_runs_one_copy_and_says_which() {
    let model = ScriptedModel::new(&fixtures(), TEMPLATE, &[("question", "an answer<|im_end|>")]);
    let line = [
        "--data-parallel-size",
        "4",
        "--data-parallel-rank",
        "3",
        "--data-parallel-external-lb",
    ];
    let server = Server::scripted(&model, &line);
    ask(&reqwest::Client::new(), &server, "a question").await;
    let metrics = get(&server, "/metrics").await;
    assert!(metrics.contains("engine=\"3\""), "{metrics}");
    assert!(!metrics.contains("engine=\"0\""), "{metrics}");
}

#[test]
fn copies_without_devices_and_ranks_that_are_none_are_refused() {
    let model = halyard_e2e::fixture("llama");
    let model = model.to_str().expect("UTF-8");
    for (flags, words) in [
        (
            &["-dp", "2"][..],
            &["--data-parallel-size", "2 copies", "1 device(s)", "halyard platforms"][..],
        ),
        (
            &["-dp", "2", "-dpn", "2"],
            &["--data-parallel-rank", "2: ranks count from 0"],
        ),
        (
            &["-dp", "2", "-dpe"],
            &["--data-parallel-external-lb", "--data-parallel-rank"],
        ),
        (&["-dp", "0"], &["--data-parallel-size", "0"]),
    ] {
        let output = run(&[&["serve", "--platform", "cpu", "--model", model, "--port", "0"], flags].concat());
        assert!(!output.status.success(), "{flags:?}");
        let said = stderr(&output);
        assert!(words.iter().all(|word| said.contains(word)), "{flags:?}: {said}");
    }
}
