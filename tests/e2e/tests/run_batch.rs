//! `halyard run-batch` as an operator runs it: a file of requests becomes a file of answers, and one that is
//! interrupted leaves whole lines.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use halyard_e2e::{TestFolder, fixture, halyard, stderr};
use serde_json::{Value, json};

fn command(folder: &Path) -> Command {
    let mut command = halyard(&["run-batch", "--platform", "cpu", "--kv-cache-memory-bytes", "16MiB"]);
    command.args([
        "--served-model-name",
        "tiny",
        "--disable-log-stats",
        "--swap-space",
        "4",
    ]);
    command.arg("--model").arg(fixture("llama"));
    command
        .arg("-i")
        .arg(folder.join("in.jsonl"))
        .arg("-o")
        .arg(folder.join("out.jsonl"));
    command
}

fn request(id: usize, max_tokens: u32) -> String {
    let body = json!({"model": "tiny", "messages": [{"role": "user", "content": "The river"}],
        "max_tokens": max_tokens, "ignore_eos": true, "temperature": 0});
    json!({"custom_id": format!("r{id}"), "method": "POST", "url": "/v1/chat/completions", "body": body}).to_string()
}

fn whole_lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("a file");
    assert!(text.is_empty() || text.ends_with('\n'), "the last line is whole");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

#[test]
fn a_file_of_requests_becomes_a_file_of_answers() {
    let folder = TestFolder::new("run-batch");
    let lines = [request(0, 4), "nothing".to_owned(), request(1, 6)];
    std::fs::write(folder.0.join("in.jsonl"), lines.join("\n")).expect("writes");
    let output: Output = command(&folder.0).output().expect("runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("3 requests: 2 answered, 1 refused"), "{said}");
    let answers = whole_lines(&folder.0.join("out.jsonl"));
    let tokens = |id: &str| {
        let answer = answers
            .iter()
            .find(|answer| answer["custom_id"] == id)
            .expect("an answer");
        answer["response"]["body"]["usage"]["completion_tokens"].clone()
    };
    assert_eq!((answers.len(), tokens("r0"), tokens("r1")), (3, json!(4), json!(6)));
    let missing = command(&folder.0).args(["-i", "/no/such/file"]).output().expect("runs");
    assert_eq!(missing.status.code(), Some(2));
    assert!(
        stderr(&missing).contains("--input-file: /no/such/file"),
        "{}",
        stderr(&missing)
    );
}

#[test]
fn an_interrupted_run_leaves_whole_lines() {
    let folder = TestFolder::new("run-batch-interrupted");
    let lines: Vec<String> = (0..20_000).map(|id| request(id, 20)).collect();
    std::fs::write(folder.0.join("in.jsonl"), lines.join("\n")).expect("writes");
    let mut child = command(&folder.0)
        .args(["--batch-concurrency", "4"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("runs");
    let partial = folder.0.join("out.jsonl.partial");
    while std::fs::metadata(&partial).map_or(0, |found| found.len()) == 0 {
        assert!(child.try_wait().expect("a child").is_none(), "it ended");
        std::thread::yield_now();
    }
    let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(interrupt.expect("kill runs").success());
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("interrupted; the answers so far"),
        "{}",
        stderr(&output)
    );
    assert!((1..20_000).contains(&whole_lines(&partial).len()));
    assert!(!folder.0.join("out.jsonl").exists());
}
