//! Logits processors in the real server, loaded from their libraries: a budget of thinking, masks and biases of a
//! request, and processors that fail in every way, which costs the request that met them and no other.

use std::sync::Once;

use halyard_e2e::scripted::ScriptedModel;
use halyard_e2e::{Server, build_with_binary, fixture, library, run, stderr};
use reqwest::Client;
use serde_json::{Value, json};

/// The plugins in the binary's folder, built once.
fn plugins() {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        build_with_binary(&[
            "halyard-logits-processor-thinking-budget",
            "halyard-fixture-logits-processors",
        ]);
    });
}

fn fixture_library() -> String {
    plugins();
    library("fixture_logits_processors").to_str().expect("UTF-8").to_owned()
}

async fn post_text(url: &str, route: &str, body: &Value) -> (u16, String) {
    let request = Client::new().post(format!("{url}{route}")).json(body);
    let response = request.send().await.expect("answers");
    (response.status().as_u16(), response.text().await.expect("a whole body"))
}

async fn post(url: &str, route: &str, body: &Value) -> (u16, Value) {
    let (status, text) = post_text(url, route, body).await;
    let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    (status, value)
}

/// An answer that is one.
async fn answer(url: &str, route: &str, body: &Value) -> Value {
    let (status, answer) = post(url, route, body).await;
    assert_eq!(status, 200, "{body}: {answer}");
    answer
}

/// The events of a stream, each one JSON, with `[DONE]` at the end.
fn events(text: &str) -> Vec<Value> {
    let data = text.split_terminator("\n\n");
    let data: Vec<&str> = data.map(|event| event.strip_prefix("data: ").expect(event)).collect();
    let (last, events) = data.split_last().expect("events");
    assert_eq!(*last, "[DONE]", "{text}");
    let events = events.iter().map(|event| serde_json::from_str(event).expect(event));
    events.collect()
}

/// Reasoning, content and end of a choice, whole.
fn whole(answer: &Value, choice: usize) -> [String; 3] {
    let choice = &answer["choices"][choice];
    let text = |value: &Value| value.as_str().unwrap_or_default().trim().to_owned();
    let message = &choice["message"];
    [&message["reasoning"], &message["content"], &choice["finish_reason"]].map(text)
}

/// The same of a stream's events.
fn streamed(events: &[Value], choice: u64) -> [String; 3] {
    let mut parts = [const { String::new() }; 3];
    for event in events {
        assert!(event["error"].is_null(), "{event}");
        let all = event["choices"].as_array().into_iter().flatten();
        for part in all.filter(|part| part["index"] == choice) {
            let delta = &part["delta"];
            let pieces = [&delta["reasoning"], &delta["content"], &part["finish_reason"]];
            for (text, piece) in parts.iter_mut().zip(pieces) {
                text.push_str(piece.as_str().unwrap_or_default());
            }
        }
    }
    parts.map(|text| text.trim().to_owned())
}

/// A text as the model's tokens, and tokens as a text.
struct Tokens<'a>(&'a str);

impl Tokens<'_> {
    async fn of(&self, text: &str) -> Vec<u64> {
        let body = json!({"prompt": text, "add_special_tokens": false});
        let answer = answer(self.0, "/tokenize", &body).await;
        let tokens = answer["tokens"].as_array().expect("a list").iter();
        tokens.map(|token| token.as_u64().expect("an id")).collect()
    }

    async fn text(&self, tokens: &[u64]) -> String {
        let answer = answer(self.0, "/detokenize", &json!({"tokens": tokens})).await;
        answer["prompt"].as_str().expect("a text").trim().to_owned()
    }
}

const THOUGHT: &str = "first this, then that, and what if it rains in the evening?";
const SAID: &str = "The answer is no.";

fn thinking_model() -> ScriptedModel {
    let say = format!("<think>{THOUGHT}\n\n{SAID}<|im_end|>");
    let ends = format!("<think>Yes.</think>\n\n{SAID}<|im_end|>");
    let inside = format!("{THOUGHT}\n\n{SAID}<|im_end|>");
    let lines = [("Think.", &*say), ("Briefly.", &ends), ("<think>", &inside)];
    ScriptedModel::with_template_of(&fixture("../"), "qwen3", &lines)
}

/// The script goes on where it stands: the forced token takes the place of the one that it had there.
#[tokio::test]
async fn thinking_ends_at_its_budget_whole_and_streamed() {
    plugins();
    let model = thinking_model();
    let budget = ["--logits-processor", "thinking-budget", "--reasoning-parser", "qwen3"];
    let server = Server::scripted(&model, &budget);
    let tokens = Tokens(&server.url);
    let thought = tokens.of(&format!("<think>{THOUGHT}\n\n{SAID}")).await;
    let chat = |after: &str, budget: Value, stream: bool| {
        json!({"messages": [{"role": "user", "content": after}], "max_tokens": 60, "temperature": 0, "n": 2,
            "stream": stream, "thinking_token_budget": budget})
    };
    let route = "/v1/chat/completions";
    for budget in [0, 1, 7] {
        let cut = [
            tokens.text(&thought[1..=budget]).await,
            tokens.text(&thought[budget + 2..]).await,
            "stop".to_owned(),
        ];
        // Beside it, requests without a budget, which think to their end, and one that ends before its budget.
        let free = chat("Think.", Value::Null, false);
        let brief = chat("Briefly.", json!(20), false);
        let (bounded, bounded_stream) = (
            chat("Think.", json!(budget), false),
            chat("Think.", json!(budget), true),
        );
        let (free, brief, answered, (status, stream)) = tokio::join!(
            answer(&server.url, route, &free),
            answer(&server.url, route, &brief),
            answer(&server.url, route, &bounded),
            post_text(&server.url, route, &bounded_stream),
        );
        assert_eq!(status, 200, "{stream}");
        let events = events(&stream);
        for choice in 0..2 {
            assert_eq!(whole(&answered, choice), cut, "{budget}: {answered}");
            assert_eq!(streamed(&events, choice as u64), cut, "{budget}: {stream}");
            let [reasoning, content, finish] = whole(&free, choice);
            assert!(reasoning.starts_with(THOUGHT) && content.is_empty(), "{free}");
            assert_eq!(finish, "stop");
            assert_eq!(whole(&brief, choice), ["Yes.", SAID, "stop"], "{brief}");
        }
    }
    // A prompt that ends inside of thinking.
    let body = json!({"prompt": "I <think>", "max_tokens": 40, "temperature": 0, "thinking_token_budget": 3});
    let inside = answer(&server.url, "/v1/completions", &body).await;
    let script = tokens.of(&format!("{THOUGHT}\n\n{SAID}")).await;
    let mut expected = script.clone();
    expected[3] = tokens.of("</think>").await[0];
    let text = inside["choices"][0]["text"].as_str().expect("a text").trim().to_owned();
    assert_eq!(text, tokens.text(&expected).await);
    // The other APIs.
    let thinks = tokens.text(&thought[1..=7]).await;
    let body = json!({"input": "Think.", "max_output_tokens": 60, "temperature": 0, "thinking_token_budget": 7});
    let response = answer(&server.url, "/v1/responses", &body).await;
    assert_eq!(response["output"][0]["content"][0]["text"], json!(thinks), "{response}");
    let body = json!({"model": "scripted", "messages": [{"role": "user", "content": "Think."}], "max_tokens": 60,
        "temperature": 0, "thinking_token_budget": 7});
    let message = answer(&server.url, "/v1/messages", &body).await;
    assert_eq!(message["content"][0]["thinking"], json!(thinks), "{message}");
}

#[tokio::test]
async fn the_operator_may_set_budget_and_words_and_a_grammar_stands_beside() {
    plugins();
    let model = thinking_model();
    let processor = r#"thinking-budget={"budget": 4, "end_text": " Enough.</think>"}"#;
    let server = Server::scripted(
        &model,
        &["--logits-processor", processor, "--reasoning-parser", "qwen3"],
    );
    let tokens = Tokens(&server.url);
    let thought = tokens.of(&format!("<think>{THOUGHT}\n\n{SAID}")).await;
    let body = |extra: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Think."}], "max_tokens": 60, "temperature": 0,
            "logprobs": true});
        body.as_object_mut()
            .expect("an object")
            .extend(extra.as_object().expect("an object").clone());
        body
    };
    let route = "/v1/chat/completions";
    let cut = answer(&server.url, route, &body(json!({}))).await;
    let reasoning = whole(&cut, 0)[0].clone();
    assert_eq!(reasoning, format!("{} Enough.", tokens.text(&thought[1..5]).await));
    let free = answer(&server.url, route, &body(json!({"thinking_token_budget": -1}))).await;
    assert!(whole(&free, 0)[0].starts_with(THOUGHT), "{free}");
    // What must follow the thoughts; the thoughts themselves are free, and cut.
    let schema = json!({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
        "additionalProperties": false});
    let grammar = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}});
    let fits = answer(&server.url, route, &body(grammar)).await;
    let [reasoning, content, finish] = whole(&fits, 0);
    assert!(reasoning.ends_with(" Enough.") && finish == "stop", "{fits}");
    let value: Value = serde_json::from_str(&content).unwrap_or_else(|error| panic!("{error}: {fits}"));
    assert!(value["a"].is_u64(), "{fits}");
    // A grammar in which thoughts cannot end says so.
    let grammar =
        json!({"prompt": "Think.", "max_tokens": 60, "structured_outputs": {"regex": "<think>[a-z, ?]{20,}"}});
    let (status, error) = post(&server.url, "/v1/completions", &grammar).await;
    let message = error["error"]["message"].as_str().unwrap_or_default();
    assert!(
        status == 500 && message.contains("`thinking-budget`"),
        "{status} {error}"
    );
    assert!(message.contains("may not come here"), "{message}");
}

/// Masks and biases act on a real model's logits, together with the request's own.
#[tokio::test]
async fn masks_and_biases_of_a_request_act() {
    let fixtures = fixture_library();
    let server = Server::tiny(&["--plugin", &fixtures, "--logits-processor", "obedient"]);
    let ids = async |extra: Value| -> Vec<u64> {
        let mut body = json!({"prompt": [5, 6, 7], "max_tokens": 12, "temperature": 0, "ignore_eos": true,
            "return_token_ids": true});
        body.as_object_mut()
            .expect("an object")
            .extend(extra.as_object().expect("an object").clone());
        let answer = answer(&server.url, "/v1/completions", &body).await;
        let tokens = answer["choices"][0]["token_ids"].as_array().expect("ids").iter();
        tokens.map(|token| token.as_u64().expect("an id")).collect()
    };
    let xargs = |args: Value| json!({"vllm_xargs": args});
    let free = ids(json!({})).await;
    let only = ids(xargs(json!({"only": [40, 41, 42]}))).await;
    assert_eq!(only, ids(json!({"allowed_token_ids": [40, 41, 42]})).await);
    assert!(
        only.iter().all(|token| (40..43).contains(token)) && only != free,
        "{only:?}"
    );
    let sum = ids(json!({"logit_bias": {"50": 9.5, "51": 9.0}})).await;
    let mut both = xargs(json!({"biases": [50, 3.5, 51, 9, 50, 2]}));
    both["logit_bias"] = json!({"50": 4});
    assert_eq!(ids(both).await, sum);
    assert_ne!(sum, free);
    // The host's tokenizer: one of the word's tokens each time.
    let word = ids(xargs(json!({"word": "rain"}))).await;
    let tokens = Tokens(&server.url).of("rain").await;
    assert!(
        word.iter().all(|token| tokens.contains(token)),
        "{word:?} of {tokens:?}"
    );
}

#[tokio::test]
async fn a_failing_processor_fails_its_request_and_no_other() {
    let fixtures = fixture_library();
    let server = Server::tiny(&[
        "--plugin",
        &fixtures,
        "--logits-processor",
        "obedient",
        "--logits-processor-timeout-ms",
        "5000",
    ]);
    // Streams that run all along: half of them without a processor, half with.
    let body = |args: Value, max_tokens: u64, stream: bool| {
        json!({"prompt": [5, 6, 7], "max_tokens": max_tokens, "ignore_eos": true, "stream": stream,
            "stream_options": if stream { json!({"include_usage": true}) } else { Value::Null },
            "vllm_xargs": args})
    };
    let bystanders: Vec<_> = (0..8)
        .map(|i| {
            let args = if i % 2 == 0 {
                json!({})
            } else {
                json!({"biases": [40, 1]})
            };
            let (url, good) = (server.url.clone(), body(args, 200, true));
            tokio::spawn(async move { post_text(&url, "/v1/completions", &good).await })
        })
        .collect();
    let faults = [
        ("open-panic", 500, "panicked: the request asked for it"),
        ("open-error", 500, "its tables are broken"),
        ("open-unavailable", 503, "its service is away"),
        ("open-sleep", 503, "did not answer within 5000 ms"),
        ("refuse", 400, "such requests are not served"),
        ("start-error", 500, "its samples are broken"),
        ("start-panic", 500, "panicked: the request asked for it"),
        ("panic", 500, "panicked: the request asked for it"),
        ("error", 500, "its tables are broken"),
        ("sleep", 500, "did not answer within 5000 ms"),
        ("nothing", 500, "leaves no token"),
        ("not-a-number", 500, "the bias NaN of token 5"),
        ("beyond", 500, "is outside the vocabulary"),
        ("too-many", 500, "more than 1024 biases"),
    ];
    for (fault, expected, words) in faults {
        for (at, stream) in [(0, false), (3, false), (3, true)] {
            let failing = body(json!({"fault": fault, "at": at}), 8, stream);
            let (status, text) = post_text(&server.url, "/v1/completions", &failing).await;
            let is_opening = fault.starts_with("open") || fault == "refuse";
            let error = match stream && !is_opening {
                true => {
                    assert_eq!(status, 200, "{fault}: {text}");
                    events(&text).pop().expect("an event")["error"].clone()
                }
                false => {
                    assert_eq!(status, expected, "{fault}: {text}");
                    serde_json::from_str::<Value>(&text).expect("JSON")["error"].clone()
                }
            };
            let message = error["message"].as_str().unwrap_or_else(|| panic!("{fault}: {text}"));
            assert!(
                message.contains("`obedient`") && message.contains(words),
                "{fault}: {message}"
            );
            let code = error["code"].as_str().unwrap_or_default();
            let codes = ["logits_processor_rejected", "logits_processor_failed", "engine_error"];
            let kind = if fault == "refuse" {
                0
            } else {
                2 - usize::from(is_opening)
            };
            assert_eq!(code, codes[kind], "{fault}");
            // The next request finds everything in order, also the processor that has just panicked.
            let good = body(json!({"only": [44]}), 2, false);
            answer(&server.url, "/v1/completions", &good).await;
        }
    }
    // What hangs in its end holds nobody up.
    let ends = body(json!({"fault": "drop-sleep"}), 2, false);
    for _ in 0..3 {
        answer(&server.url, "/v1/completions", &ends).await;
    }
    for bystander in bystanders {
        let (status, text) = bystander.await.expect("runs");
        assert_eq!(status, 200, "{text}");
        let events = events(&text);
        assert_eq!(
            events.last().expect("an event")["usage"]["completion_tokens"],
            200,
            "{text}"
        );
    }
    let shown = reqwest::get(format!("{}/metrics", server.url)).await.expect("answers");
    let shown = shown.text().await.expect("a text");
    let count = |name: &str, labels: &str| -> u64 {
        let start = format!("halyard:logits_processor_{name}{{processor=\"obedient\"{labels}}} ");
        let value = shown.lines().find_map(|line| line.strip_prefix(&start));
        value
            .unwrap_or_else(|| panic!("no {start} in\n{shown}"))
            .parse()
            .expect("a count")
    };
    let requests = 8 + 6 * faults.len() as u64 + 3;
    assert_eq!(count("requests_total", ""), requests);
    assert_eq!(count("refusals_total", ""), 3);
    for (reason, kinds) in [("deadline", 2), ("panic", 3), ("error", 8), ("size", 0), ("busy", 0)] {
        assert_eq!(
            count("errors_total", &format!(",reason=\"{reason}\"")),
            3 * kinds,
            "{reason}"
        );
    }
    assert_eq!(count("call_seconds_count", ",call=\"request\""), requests);
    assert!(count("call_seconds_count", ",call=\"token\"") > 800);
    server.signal("TERM");
    let (status, log) = server.wait();
    assert_eq!(status, Some(0), "hanging calls hold no server up: {log}");
}

#[test]
fn processors_are_listed_explained_and_refused_by_name() {
    let fixtures = fixture_library();
    let listed = run(&["plugins", "list", "--plugin", &fixtures]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for line in [
        "thinking-budget 0.1.0 (logits-processor)",
        "obedient 1 (logits-processor)",
    ] {
        assert!(listed.contains(line), "{listed}");
    }
    let why = run(&["plugins", "why", "thinking-budget"]);
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    assert!(why.contains("started") && !why.contains("FAILED"), "{why}");
    for (args, words) in [
        (
            ["--logits-processor", "thinking-budge"],
            "did you mean `thinking-budget`",
        ),
        (["--logits-processor", "thinking-budget:budget"], "key=value"),
        (
            ["--logits-processor", "cpu"],
            "no logits-processor plugin is named `cpu`",
        ),
        (["--logits-processor-timeout-ms", "0"], "timeout-ms"),
        (["--logits-processors", "a.B"], "--logits-processor "),
    ] {
        let output = run(&[&["serve", "--platform", "cpu", "--port", "0"], &args[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(words), "{args:?}: {}", stderr(&output));
    }
    // The model's tokenizer is there when a configuration is read.
    let model = fixture("llama");
    let model = model.to_str().expect("UTF-8");
    let args = ["serve", "--platform", "cpu", "--port", "0", "--model", model];
    let output = run(&[&args[..], &["--logits-processor", "thinking-budget:bugdet=4"]].concat());
    assert!(
        !output.status.success() && stderr(&output).contains("bugdet"),
        "{}",
        stderr(&output)
    );
}
