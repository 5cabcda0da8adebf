//! Datasets of `halyard bench serve` that are files, the pages that it draws, and a server with a certificate of its
//! own: what is counted is what the files say.

use std::path::Path;

use crate::common::Authority;
use halyard_e2e::{Server, TestFolder, run, stderr};
use rcgen::ExtendedKeyUsagePurpose::ServerAuth;
use serde_json::{Value, json};

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Runs a bench with detailed figures; what it said and its result.
fn bench(folder: &TestFolder, url: &str, words: &[&str]) -> (String, Value) {
    let json = folder.0.join("out.json");
    let base = ["bench", "serve", "--base-url", url, "--output-json", text(&json)];
    let more = ["--temperature", "0", "--save-detailed", "--disable-tqdm"];
    let output = run(&[&base[..], &more, words].concat());
    assert!(output.status.success(), "{words:?}: {}", stderr(&output));
    let result = serde_json::from_slice(&std::fs::read(&json).expect("written")).expect("JSON");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
    (said, result)
}

/// What a bench that cannot run says.
fn refusal(words: &[&str]) -> String {
    let output = run(&[&["bench", "serve", "--base-url", "http://127.0.0.1:9"], words].concat());
    assert_eq!(output.status.code(), Some(2), "{words:?}: {}", stderr(&output));
    stderr(&output)
}

fn write(folder: &TestFolder, name: &str, content: &str) -> String {
    let path = folder.0.join(name);
    std::fs::write(&path, content).expect("written");
    text(&path).to_owned()
}

fn metric(url: &str, name: &str) -> f64 {
    let asked = ["--silent", "--fail", &format!("{url}/metrics")];
    let output = std::process::Command::new("curl").args(asked).output().expect("curl");
    let metrics = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = metrics.lines().filter(|line| line.starts_with(name));
    lines
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

#[test]
fn lengths_of_burstgpt_are_those_of_its_rows() {
    let folder = TestFolder::new("bench-burstgpt");
    let csv = write(
        &folder,
        "burst.csv",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
         1,GPT-4,9,4,13,API log\n2,ChatGPT,50,50,100,API log\n3,GPT-4,20,0,20,API log\n\
         4,GPT-4,6,2,8,Conversation log\n5,GPT-4,12,3,15,API log\n",
    );
    let server = Server::tiny(&[]);
    let dataset = ["--dataset-name", "burstgpt", "--dataset-path", &csv, "--ignore-eos"];
    let in_order = ["--disable-shuffle", "--num-prompts", "4"];
    let (_, result) = bench(&folder, &server.url, &[&dataset[..], &in_order].concat());
    assert_eq!(
        (&result["input_lens"], &result["output_lens"]),
        (&json!([9, 6, 12, 9]), &json!([4, 2, 3, 4])),
        "three rows, the first of them again"
    );
    let once = [
        "--num-prompts",
        "9",
        "--no-oversample",
        "--backend",
        "openai-chat",
        "--output-len",
        "2",
    ];
    let (said, result) = bench(&folder, &server.url, &[&dataset[..], &once].concat());
    assert_eq!(result["output_lens"], json!([2, 2, 2]));
    assert!(said.contains("3 prompts, 9 were asked for"), "{said}");
}

#[test]
fn questions_of_spec_bench_are_their_first_turns() {
    let folder = TestFolder::new("bench-spec");
    let lines = write(
        &folder,
        "question.jsonl",
        "{\"question_id\": 81, \"category\": \"writing\", \"turns\": [\"hello\", \"and then?\"]}\n\
         {\"question_id\": 82, \"category\": \"math\", \"turns\": [\"you\"], \"reference\": [\"x\"]}\n\
         {\"question_id\": 83, \"category\": \"writing\", \"turns\": [\"hello my friend\"]}\n",
    );
    let server = Server::tiny(&[]);
    let dataset = ["--dataset-name", "spec_bench", "--dataset-path", &lines, "--ignore-eos"];
    let short = ["--spec-bench-output-len", "3", "--no-oversample", "--disable-shuffle"];
    let (_, all) = bench(&folder, &server.url, &[&dataset[..], &short].concat());
    assert_eq!(all["output_lens"], json!([3, 3, 3]));
    let of_one = [&dataset[..], &short, &["--spec-bench-category", "writing"]].concat();
    let (_, writing) = bench(&folder, &server.url, &of_one);
    assert_eq!(
        writing["input_lens"],
        json!([all["input_lens"][0], all["input_lens"][2]]),
        "in the file's order"
    );
    // The chat template makes prompts longer than they are.
    let (_, plain) = bench(&folder, &server.url, &[&of_one[..], &["--skip-chat-template"]].concat());
    assert!(
        plain["input_lens"][0].as_u64() < writing["input_lens"][0].as_u64(),
        "{plain}"
    );
    let said = run(&[
        &["bench", "serve", "--base-url", &server.url],
        &dataset[..],
        &["--spec-bench-category", "maths"],
    ]
    .concat());
    assert!(
        stderr(&said).contains("no question is of `maths`; the file has: math, writing"),
        "{}",
        stderr(&said)
    );
}

#[test]
fn a_trace_comes_at_its_own_times_and_shares_its_prefixes() {
    let folder = TestFolder::new("bench-trace");
    let line = |ms: u32, input: u32, ids: &[u32]| {
        json!({"timestamp": ms, "input_length": input, "output_length": 3, "hash_ids": ids}).to_string() + "\n"
    };
    // The second has three of the first's pieces of 16 tokens, and the third none.
    let trace = [
        line(0, 64, &[1, 2, 3, 4]),
        line(400, 60, &[1, 2, 3, 9]),
        line(1200, 40, &[11, 12, 13]),
        "not read".to_owned(),
    ];
    let lines = write(&folder, "trace.jsonl", &trace.concat());
    let server = Server::tiny(&["--block-size", "16"]);
    let dataset = [
        "--dataset-name",
        "timed_trace",
        "--dataset-path",
        &lines,
        "--num-prompts",
        "3",
    ];
    let times = ["--timed-trace-sec-multiplier", "0.001"];
    // Once before, so that what is shared is cached when it comes, even if all come late and at once.
    let first = ["--num-prompts", "1"];
    bench(&folder, &server.url, &[&dataset[..], &times, &first].concat());
    let (said, result) = bench(&folder, &server.url, &[&dataset[..], &times].concat());
    assert_eq!(
        (&result["input_lens"], &result["output_lens"]),
        (&json!([64, 60, 40]), &json!([3, 3, 3])),
        "answers go on to their length"
    );
    let sent: Vec<f64> = serde_json::from_value(result["start_times"].clone()).expect("numbers");
    assert!(sent[0] < sent[1] && sent[1] >= 0.4 && sent[2] >= 1.2, "{sent:?}");
    assert!(said.contains("the requests of the trace come over 1 s"), "{said}");
    // Three pieces each of the bench's warm-up, which is the same in both runs, of the first and of the second.
    assert_eq!(metric(&server.url, "vllm:prefix_cache_hits_total"), 144.0);

    // Otherwise all at once, and without an end of their own.
    let late = write(
        &folder,
        "late.jsonl",
        &[line(0, 64, &[1, 2, 3, 4]), line(120_000, 40, &[11, 12, 13])].concat(),
    );
    let at_once = ["--no-self-timed", "--dataset-path", &late, "--num-prompts", "2"];
    let (_, result) = bench(&folder, &server.url, &[&dataset[..], &times, &at_once].concat());
    let sent: Vec<f64> = serde_json::from_value(result["start_times"].clone()).expect("numbers");
    assert!(sent.iter().all(|at| *at < 60.0), "{sent:?}");

    let rate = [&dataset[..], &["--request-rate", "4"]].concat();
    assert!(refusal(&rate).contains("--request-rate: requests of timed_trace come at their own times"));
    assert!(refusal(&["--self-timed"]).contains("--self-timed: only requests of --dataset-name timed_trace"));
    assert!(refusal(&["--dataset-name", "timed_trace"]).contains("its file is missing"));
    let late = run(&[
        &["bench", "serve", "--base-url", &server.url],
        &dataset[..4],
        &["--num-prompts", "4"],
    ]
    .concat());
    assert!(stderr(&late).contains("line 4: "), "{}", stderr(&late));
}

#[test]
fn pages_are_drawn_beside_the_result() {
    let folder = TestFolder::new("bench-plots");
    let server = Server::tiny(&[]);
    let lengths = [
        "--random-input-len",
        "8",
        "--random-output-len",
        "4",
        "--num-prompts",
        "5",
    ];
    let place = ["--result-dir", text(&folder.0), "--result-filename", "a.b.json"];
    let plots = [
        "--plot-timeline",
        "--plot-dataset-stats",
        "--timeline-itl-thresholds",
        "0.001,0.002",
    ];
    let (said, _) = bench(&folder, &server.url, &[&lengths[..], &place, &plots].concat());
    assert!(!folder.0.join("a.b.json").exists(), "only with --save-result");
    let read = |name: &str| std::fs::read_to_string(folder.0.join(name)).expect("a page");
    let timeline = read("a.b.timeline.html");
    assert_eq!(
        timeline.matches("8 prompt tokens, 4 output tokens").count(),
        5,
        "{timeline}"
    );
    // No gap is so short, so every row has the colour of the longest.
    assert_eq!(timeline.matches("<path fill=\"#d55e00\"").count(), 5, "{timeline}");
    let stats = read("a.b.dataset_stats.html");
    assert!(stats.contains("<title>8 tokens: 5 requests</title>"), "{stats}");
    for page in [timeline, stats] {
        assert!(!page.contains("http") && !page.contains("<script") && page.ends_with("</html>\n"));
    }
    assert!(said.contains("a.b.timeline.html"), "{said}");
    assert!(refusal(&["--timeline-itl-thresholds", "5"]).contains("two rising numbers"));
}

#[test]
fn a_server_with_a_certificate_of_its_own_is_measured_when_asked() {
    let folder = TestFolder::new("bench-insecure");
    let own = Authority::new(&folder.0, "own");
    let (cert, key) = own.sign(&folder.0, "another.name", ServerAuth);
    let server = Server::tiny(&["--ssl-certfile", text(&cert), "--ssl-keyfile", text(&key)]);
    let lengths = [
        "--random-input-len",
        "8",
        "--random-output-len",
        "2",
        "--num-prompts",
        "3",
    ];
    let (_, result) = bench(&folder, &server.url, &[&lengths[..], &["--insecure"]].concat());
    assert_eq!(result["completed"], 3);
    let output = run(&[&["bench", "serve", "--base-url", &server.url], &lengths[..]].concat());
    assert!(
        !output.status.success() && stderr(&output).contains("UnknownIssuer") && stderr(&output).contains("--insecure"),
        "{}",
        stderr(&output)
    );
}
