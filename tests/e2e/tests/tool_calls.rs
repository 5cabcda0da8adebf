//! Chats with tools to their end, by clients of other projects, against a running server whose model's words are
//! written down. A client that cannot be installed is skipped, with the reason.

use std::path::Path;
use std::process::Command;

use halyard_e2e::clients::{node_with, output, python_with};
use halyard_e2e::scripted::ScriptedModel;
use halyard_e2e::{Server, build_with_binary, fixture};
use serde_json::{Value, json};

const CALL: &str = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>";
const OTHER: &str = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Basel\"}}\n</tool_call>";

/// A model that asks for the weather, once or for two places, and tells it.
fn weather_model() -> ScriptedModel {
    let thinks = |thought: &str, text: &str| format!("<think>\n{thought}\n</think>\n\n{text}<|im_end|>");
    let results = "<tool_response>\n4 mm\n</tool_response>\n<tool_response>\n0 mm\n</tool_response>";
    let lines = [
        ("Rain in Bern?", thinks("I must look.", CALL)),
        (
            "<tool_response>\n4 mm\n</tool_response>",
            thinks("It rains.", "Yes: 4 mm."),
        ),
        (
            "Rain in Bern and Basel?",
            format!("Two places.\n{CALL}\n{OTHER}<|im_end|>"),
        ),
        (results, "Only in Bern.<|im_end|>".to_owned()),
        ("Force.", "{\"city\": \"Bern\"}<|im_end|>".to_owned()),
    ];
    let lines: Vec<(&str, &str)> = lines.iter().map(|(after, say)| (*after, say.as_str())).collect();
    ScriptedModel::with_template_of(&fixture("../"), "qwen3", &lines)
}

const PARSERS: [&str; 4] = [
    "--enable-auto-tool-choice",
    "--reasoning-parser",
    "qwen3",
    "--tool-call-parser=hermes",
];

/// Runs a script with the program that an installation gave, and looks for its last words.
fn agrees(program: Result<Command, String>, script: &str) {
    agrees_with(program, script, &[], &[]);
}

/// The same with more flags of the server and more words for the script.
fn agrees_with(program: Result<Command, String>, script: &str, flags: &[&str], words: &[&str]) {
    let mut command = match program {
        Ok(command) => command,
        Err(reason) => {
            println!("skipped: {reason}");
            return;
        }
    };
    let model = weather_model();
    let server = Server::scripted(&model, &[&PARSERS[..], flags].concat());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(script);
    let text = output(
        command.arg(script).args([&server.url, "scripted"]).args(words),
        "the script",
    );
    let text = text.unwrap_or_else(|error| panic!("{error}"));
    println!("{text}");
    assert!(text.contains("agrees"), "{text}");
}

fn python(packages: &[&str]) -> Result<Command, String> {
    python_with(Path::new(env!("CARGO_TARGET_TMPDIR")), packages).map(Command::new)
}

fn node(packages: &[&str]) -> Result<Command, String> {
    let folder = node_with(Path::new(env!("CARGO_TARGET_TMPDIR")), packages)?;
    let mut command = Command::new("node");
    command.current_dir(folder);
    Ok(command)
}

#[test]
fn openai_1() {
    agrees(python(&["openai==1.109.1"]), "chat_tools.py");
}

#[test]
fn openai_2() {
    agrees(python(&["openai==2.44.0"]), "chat_tools.py");
}

#[test]
fn openai_3() {
    agrees(python(&["openai==3.54.0"]), "chat_tools.py");
}

#[test]
fn openai_2_responses() {
    agrees(python(&["openai==2.44.0"]), "responses.py");
}

#[test]
fn openai_3_responses() {
    agrees(python(&["openai==3.54.0"]), "responses.py");
}

#[test]
fn openai_3_stored_responses() {
    agrees_with(
        python(&["openai==3.54.0"]),
        "responses.py",
        &["--enable-responses-store"],
        &["store"],
    );
}

#[test]
fn anthropic_0() {
    agrees(python(&["anthropic==0.122.0"]), "messages.py");
}

#[test]
fn anthropic_2() {
    agrees(python(&["anthropic==2.12.0"]), "messages.py");
}

#[test]
fn langchain() {
    agrees(
        python(&["langchain==1.4.7", "langchain-openai==1.7.3"]),
        "langchain_agent.py",
    );
}

#[test]
fn openai_agents() {
    agrees(python(&["openai-agents==0.24.0"]), "openai_agents.py");
}

#[test]
fn openai_for_javascript() {
    agrees(node(&["openai@7.57.0"]), "chat_tools.mjs");
}

#[test]
fn ai_sdk() {
    agrees(node(&["ai@7.0.173", "@ai-sdk/openai-compatible@3.0.92"]), "ai_sdk.mjs");
}

#[test]
fn openai_for_javascript_responses() {
    agrees(node(&["openai@7.57.0"]), "responses.mjs");
}

#[test]
fn openai_for_javascript_stored_responses() {
    agrees_with(
        node(&["openai@7.57.0"]),
        "responses.mjs",
        &["--enable-responses-store"],
        &["store"],
    );
}

#[test]
fn anthropic_for_javascript() {
    agrees(node(&["@anthropic-ai/sdk@1.12.0"]), "messages.mjs");
}

#[test]
fn langchain_over_responses_and_messages() {
    agrees(
        python(&[
            "langchain==1.4.7",
            "langchain-openai==1.7.3",
            "langchain-anthropic==1.7.7",
        ]),
        "langchain_apis.py",
    );
}

#[test]
fn ai_sdk_over_responses_and_messages() {
    agrees(
        node(&["ai@7.0.173", "@ai-sdk/openai@4.0.118", "@ai-sdk/anthropic@4.0.105"]),
        "ai_sdk_apis.mjs",
    );
}

/// What a server answers to a chat.
fn post(server: &Server, body: &Value) -> String {
    post_to(server, "/v1/chat/completions", body)
}

fn post_to(server: &Server, route: &str, body: &Value) -> String {
    let mut curl = Command::new("curl");
    curl.args(["-s", "-H", "Content-Type: application/json", "-d", &body.to_string()]);
    output(curl.arg(format!("{}{route}", server.url)), "curl").expect("answers")
}

#[test]
fn a_response_in_the_background_has_the_time_of_running_requests_when_the_server_ends() {
    let line = format!("{}<|im_end|>", "It rains. ".repeat(700));
    let model = ScriptedModel::with_template_of(&fixture("../"), "qwen3", &[("", &line)]);
    for (timeout, max_output_tokens) in [("0", 4000), ("60", 600)] {
        let is_counted = || {
            let flag = format!("--shutdown-timeout={timeout}");
            let server = Server::scripted(&model, &["--enable-responses-store", &flag]);
            let body = json!({"input": "Rain?", "background": true, "max_output_tokens": max_output_tokens});
            let queued = post_to(&server, "/v1/responses", &body);
            assert!(queued.contains("\"status\":\"queued\""), "{queued}");
            server.signal("TERM");
            let (status, log) = server.wait();
            assert_eq!(status, Some(0), "{log}");
            println!("{log}");
            log.contains("finishing what runs running=1")
        };
        // On a busy machine it may have ended when the signal comes.
        assert!((0..10).any(|_| is_counted()), "it counts");
    }
}

#[test]
fn a_parser_that_is_not_named_is_the_template_s_and_the_log_says_so() {
    let model = weather_model();
    let server = Server::scripted(&model, &["--enable-auto-tool-choice"]);
    let body = json!({"messages": [{"role": "user", "content": "Rain in Bern and Basel?"}], "max_tokens": 200,
        "tools": [{"type": "function", "function": {"name": "weather"}}]});
    let answer: Value = serde_json::from_str(&post(&server, &body)).expect("JSON");
    let message = &answer["choices"][0]["message"];
    assert_eq!(
        message["tool_calls"][1]["function"]["arguments"], r#"{"city": "Basel"}"#,
        "{answer}"
    );
    server.signal("TERM");
    let (status, log) = server.wait();
    assert_eq!(status, Some(0), "{log}");
    for words in [
        "tool calls are read as hermes",
        "--reasoning-parser qwen3 would keep reasoning apart",
    ] {
        assert!(log.contains(words), "{log}");
    }
}

/// How the scripted model writes, as its tokenizer_config.json may say it.
fn response_template() -> Value {
    json!({"defaults": {"role": "assistant"}, "start_anchor": "<|im_start|>assistant\n", "fields": {
        "thinking": {"open_pattern": r"<think>\s*", "close_pattern": r"\s*</think>\s*"},
        "tool_calls": {"open": "<tool_call>", "close": "</tool_call>", "repeats": true, "content": "json",
            "transform": {"type": "function", "function": "{content}"}},
        "content": {"close": "<|im_end|>"}}})
}

#[test]
fn a_response_template_says_how_answers_are_read_streamed_and_not() {
    let model = weather_model().with_response_template(&response_template());
    let server = Server::scripted(
        &model,
        &[
            "--enable-auto-tool-choice",
            "--tool-call-parser=hf",
            "--reasoning-parser=hf",
        ],
    );
    let body = |content: &str, stream: bool| {
        json!({"messages": [{"role": "user", "content": content}], "max_tokens": 200, "stream": stream,
            "tools": [{"type": "function", "function": {"name": "weather"}}]})
    };
    let answer: Value = serde_json::from_str(&post(&server, &body("Rain in Bern?", false))).expect("JSON");
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["reasoning"], "I must look.", "{answer}");
    assert_eq!(choice["message"]["content"], Value::Null, "{answer}");
    let function = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(
        *function,
        json!({"name": "weather", "arguments": r#"{"city": "Bern"}"#}),
        "{answer}"
    );
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    let answer: Value = serde_json::from_str(&post(&server, &body("Rain in Bern and Basel?", false))).expect("JSON");
    let message = &answer["choices"][0]["message"];
    assert_eq!(
        message["tool_calls"][1]["function"]["arguments"], r#"{"city": "Basel"}"#,
        "{answer}"
    );
    assert_eq!(
        message["content"].as_str().map(str::trim),
        Some("Two places."),
        "{answer}"
    );

    let streamed = post(&server, &body("Rain in Bern?", true));
    let deltas: Vec<Value> = streamed
        .lines()
        .filter_map(|line| line.strip_prefix("data: ").filter(|data| *data != "[DONE]"))
        .map(|data| serde_json::from_str::<Value>(data).expect("JSON")["choices"][0]["delta"].clone())
        .collect();
    let joined =
        |text: fn(&Value) -> &Value| -> String { deltas.iter().filter_map(|delta| text(delta).as_str()).collect() };
    assert_eq!(joined(|delta| &delta["reasoning"]), "I must look.", "{streamed}");
    assert_eq!(joined(|delta| &delta["content"]), "", "{streamed}");
    assert_eq!(
        joined(|delta| &delta["tool_calls"][0]["function"]["name"]),
        "weather",
        "{streamed}"
    );
    let arguments = joined(|delta| &delta["tool_calls"][0]["function"]["arguments"]);
    assert_eq!(arguments, r#"{"city": "Bern"}"#, "{streamed}");
    let pieces = deltas
        .iter()
        .filter(|delta| delta["tool_calls"][0]["function"]["arguments"].is_string());
    assert!(pieces.count() > 3, "as they come: {streamed}");
}

#[test]
fn a_response_template_comes_before_the_markers_of_the_chat_template() {
    let model = weather_model().with_response_template(&response_template());
    let server = Server::scripted(&model, &["--enable-auto-tool-choice"]);
    server.signal("TERM");
    let (status, log) = server.wait();
    assert_eq!(status, Some(0), "{log}");
    for words in [
        "tool calls are read as hf, by the response_template of tokenizer_config.json",
        "--reasoning-parser hf would keep reasoning apart",
    ] {
        assert!(log.contains(words), "{log}");
    }
}

#[test]
fn io_processors_see_calls_as_the_model_writes_them() {
    build_with_binary(&["halyard-io-processor-redact"]);
    let call = CALL.replace("Bern", "ann@example.org");
    let model = ScriptedModel::with_template_of(&fixture("../"), "qwen3", &[("", &format!("{call}<|im_end|>"))]);
    let server = Server::scripted(&model, &["--enable-auto-tool-choice", "--io-processor", "redact"]);
    for stream in [false, true] {
        let body = json!({"messages": [{"role": "user", "content": "Rain?"}], "max_tokens": 200, "stream": stream,
            "tools": [{"type": "function", "function": {"name": "weather"}}]});
        let answer = post(&server, &body);
        assert!(
            answer.contains("\"name\":\"weather\"") && answer.contains("REDACTED"),
            "{answer}"
        );
        assert!(answer.contains("\"finish_reason\":\"tool_calls\""), "{answer}");
        assert!(!answer.contains("ann") && !answer.contains("tool_call>"), "{answer}");
    }
}

#[test]
fn stored_responses_are_kept_as_io_processors_left_them() {
    build_with_binary(&["halyard-io-processor-redact"]);
    let line = "Write to ann@example.org.<|im_end|>";
    let model = ScriptedModel::with_template_of(&fixture("../"), "qwen3", &[("", line)]);
    let server = Server::scripted(&model, &["--enable-responses-store", "--io-processor", "redact"]);
    for background in [false, true] {
        let body = json!({"input": "Whom? Not bob@example.org", "background": background});
        let answer: Value = serde_json::from_str(&post_to(&server, "/v1/responses", &body)).expect("JSON");
        let id = answer["id"].as_str().expect("an id");
        let get = |below: &str| {
            let url = format!("{}/v1/responses/{id}{below}", server.url);
            output(Command::new("curl").args(["-s", &url]), "curl").expect("answers")
        };
        let stored = loop {
            let stored = get("");
            if !stored.contains("\"queued\"") && !stored.contains("\"in_progress\"") {
                break stored;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        };
        for text in [stored, get("/input_items")] {
            assert!(text.contains("REDACTED") && !text.contains("example"), "{text}");
        }
    }
}

#[test]
fn halyard_chat_dims_reasoning_on_a_terminal_and_gives_a_pipe_the_answer_alone() {
    let line = "<think>\nI must look.\n</think>\n\nYes.<|im_end|>";
    let model = ScriptedModel::with_template_of(&fixture("../"), "qwen3", &[("", line)]);
    let server = Server::scripted(&model, &["--reasoning-parser", "qwen3"]);
    let args = ["chat", "--url", &server.url, "Rain?"];
    let piped = halyard_e2e::run(&args);
    assert_eq!(
        String::from_utf8_lossy(&piped.stdout),
        "\n\nYes.\n",
        "{}",
        halyard_e2e::stderr(&piped)
    );
    // util-linux's `script` gives a program a terminal.
    let command = format!("{} chat --url {} Rain?", halyard_e2e::binary().display(), server.url);
    let shown = output(Command::new("script").args(["-qec", &command, "/dev/null"]), "script");
    match shown {
        Ok(shown) => assert_eq!(
            shown.replace("\r\n", "\n"),
            "\x1b[2m\nI must look.\n\x1b[0m\n\n\n\nYes.\n"
        ),
        Err(reason) => println!("skipped: {reason}"),
    }
}

#[test]
fn an_unknown_parser_and_a_template_without_one_stop_the_start() {
    let tiny = fixture("llama");
    let tiny = tiny.to_str().expect("UTF-8");
    for (args, words) in [
        (["--enable-auto-tool-choice", "--tool-call-parser=hermez"], "known: "),
        (["--reasoning-parser=qwen4", "--enable-auto-tool-choice"], "qwen3"),
        (
            ["--enable-auto-tool-choice", "--log-level=warn"],
            "name one by --tool-call-parser",
        ),
        (
            ["--enable-auto-tool-choice", "--tool-call-parser=hf"],
            "hf needs a response_template in the model's tokenizer_config.json",
        ),
    ] {
        let base = [
            "serve",
            "--port",
            "0",
            "--platform",
            "reference",
            "--model",
            tiny,
            "--kv-cache-memory-bytes",
            "16MiB",
        ];
        let output = halyard_e2e::run(&[&base[..], &args[..]].concat());
        let errors = halyard_e2e::stderr(&output);
        assert!(!output.status.success() && errors.contains(words), "{errors}");
    }
}
