//! Batch files on the real router: each line gets its answer or its error, and what is written is whole lines.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::{Options, TestServer, until};
use halyard_server::batch::{self, BatchLimits, Counts, Output};
use serde_json::{Value, json};

const LIMITS: BatchLimits = BatchLimits {
    in_flight: 4,
    line_bytes: 1 << 20,
};

struct Answers(PathBuf);

impl Answers {
    fn new(name: &str) -> Answers {
        Answers(std::env::temp_dir().join(format!("halyard-batch-{name}-{}.jsonl", std::process::id())))
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        let _ = std::fs::remove_file(self.0.with_extension("jsonl.partial"));
    }
}

fn line(id: &str, url: &str, body: Value) -> String {
    json!({"custom_id": id, "method": "POST", "url": url, "body": body}).to_string()
}

fn read(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("a file");
    assert!(text.is_empty() || text.ends_with('\n'), "the last line is whole");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

#[tokio::test]
async fn every_line_has_its_answer_or_its_error() {
    let server = TestServer::new();
    let greedy = json!({"prompt": [5, 6], "max_tokens": 3, "temperature": 0});
    let lines = [
        line("text", "/v1/completions", greedy.clone()),
        line(
            "chat",
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
        ),
        line("model", "/v1/completions", json!({"model": "other", "prompt": "x"})),
        line("embed", "/v1/embeddings", json!({"input": "x"})),
        line("field", "/v1/completions", json!({"prompt": "x", "max_tokens": -1})),
        "{\"custom_id\": \"half\", ".to_owned(),
        line("stream", "/v1/completions", json!({"prompt": "x", "stream": true})),
    ];
    let answers = Answers::new("every");
    let mut output = Output::create(&answers.0).expect("a file");
    let mut told = Vec::new();
    let text = lines.join("\n");
    let counts = batch::run(&server.router, text.as_bytes(), &mut output, LIMITS, |counts| {
        told.push(counts)
    });
    let counts = counts.await.expect("answers");
    assert_eq!(counts, Counts { answered: 2, failed: 5 });
    assert_eq!(told.len(), 7);
    output.finish().expect("its name");
    let written = read(&answers.0);
    let by_id: BTreeMap<&str, &Value> = written
        .iter()
        .map(|answer| (answer["custom_id"].as_str().unwrap_or("none"), answer))
        .collect();
    assert_eq!(by_id.len(), 7);
    let direct = server.post("/v1/completions", &greedy).await.ok();
    let text = &by_id["text"]["response"];
    assert_eq!(text["status_code"], 200);
    assert_eq!(
        text["body"]["choices"], direct["choices"],
        "what the route says over HTTP"
    );
    assert_eq!(by_id["text"]["error"], Value::Null);
    assert!(text["request_id"].as_str().is_some_and(|id| !id.is_empty()));
    assert_eq!(by_id["chat"]["response"]["body"]["object"], "chat.completion");
    for (id, status, word) in [
        ("model", 404, "`other` does not exist"),
        ("embed", 404, "/v1/embeddings"),
        ("field", 400, "max_tokens"),
        ("none", 400, "line 6: it is not JSON"),
        ("stream", 400, "line 7: body.stream"),
    ] {
        let answer = by_id[id];
        assert_eq!(answer["response"]["status_code"], status, "{answer}");
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(message.contains(word), "{message}");
        assert_eq!(answer["response"]["body"]["error"], answer["error"]);
    }
}

#[tokio::test]
async fn requests_that_find_no_place_wait_for_one() {
    let server = TestServer::with(Options {
        max_waiting: Some(1),
        ..Options::default()
    });
    let all: Vec<String> = (0..40)
        .map(|n| {
            line(
                &n.to_string(),
                "/v1/completions",
                json!({"prompt": [5], "max_tokens": 8}),
            )
        })
        .collect();
    let answers = Answers::new("places");
    let mut output = Output::create(&answers.0).expect("a file");
    let limits = BatchLimits {
        in_flight: 40,
        ..LIMITS
    };
    let text = all.join("\n");
    let counts = batch::run(&server.router, text.as_bytes(), &mut output, limits, |_| {});
    assert_eq!(
        counts.await.expect("answers"),
        Counts {
            answered: 40,
            failed: 0
        }
    );
}

#[tokio::test]
async fn a_run_that_is_interrupted_leaves_whole_lines_and_no_request() {
    let server = TestServer::new();
    let all: Vec<String> = (0..50)
        .map(|n| {
            line(
                &n.to_string(),
                "/v1/completions",
                json!({"prompt": [5], "max_tokens": 20, "ignore_eos": true}),
            )
        })
        .collect();
    let answers = Answers::new("interrupted");
    let mut output = Output::create(&answers.0).expect("a file");
    let (enough, mut stop) = tokio::sync::mpsc::unbounded_channel();
    let text = all.join("\n");
    let run = batch::run(&server.router, text.as_bytes(), &mut output, LIMITS, |counts| {
        let _ = enough.send(counts.answered);
    });
    let stopped = async { while stop.recv().await.is_some_and(|answered| answered < 5) {} };
    tokio::select! {
        biased;
        () = stopped => {}
        counts = run => panic!("it went to its end: {counts:?}"),
    }
    assert!(!answers.0.exists(), "the batch is not complete");
    let written = read(output.path());
    assert!((5..50).contains(&written.len()), "{}", written.len());
    let in_flight = async || server.state.in_flight.load(std::sync::atomic::Ordering::Relaxed);
    until("none in flight", in_flight, |count| *count == 0).await;
}
