//! Anthropic's Messages API through the real router: a model whose words are known thinks, talks and calls tools, whole
//! and streamed; and what is refused, in Anthropic's form.

use std::fmt::Write;

use crate::common::{Answer, Options, TestServer, assert_recorded, fixture};
use crate::damaged::Damaged;
use crate::scripted_server::scripted::ScriptedModel;
use crate::scripted_server::{Scripted, THINKING};
use axum::body::Body;
use axum::http::Request;
use halyard_server::openai::policy::ServingDefaults;
use serde_json::{Value, json};

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";
const CALLS: &str = "Let me look.\n\
                     <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>\
                     <tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call><|im_end|>";

fn tool(name: &str, properties: Value) -> Value {
    json!({"name": name, "input_schema": {"type": "object", "properties": properties}})
}

/// A question with two tools, and fields that differ.
fn body(changes: Value) -> Value {
    let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": "Rain in Bern?"}],
        "max_tokens": 400, "temperature": 0,
        "tools": [tool("weather", json!({"city": {"type": "string"}})), tool("time", json!({}))]});
    for (name, value) in changes.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

async fn ask(server: &TestServer, route: &str, body: &Value) -> Answer {
    let request = Request::post(route)
        .header("content-type", "application/json")
        .header("anthropic-version", "2023-06-01")
        .header("x-request-id", "1");
    server
        .send(request.body(Body::from(body.to_string())).expect("a request"))
        .await
}

/// An error in Anthropic's form; returns its type and message.
fn error(answer: &Answer, status: u16) -> (String, String) {
    assert_eq!(answer.status, status, "{}", answer.text);
    let body = answer.json();
    assert_eq!(body["type"], "error", "{body}");
    let word = |name: &str| body["error"][name].as_str().expect("a text").to_owned();
    assert_eq!(body["error"].as_object().map(serde_json::Map::len), Some(2), "{body}");
    (word("type"), word("message"))
}

/// The events of a stream, whose names are those of their data.
fn events(text: &str) -> Vec<Value> {
    let read = |event: &str| {
        let (name, data) = event.split_once('\n').expect("two lines");
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        assert_eq!(name, format!("event: {}", data["type"].as_str().expect("a type")));
        data
    };
    text.split_terminator("\n\n").map(read).collect()
}

/// The message that a client adds up, which checks the order of events.
fn added_up(text: &str) -> Value {
    let mut events = events(text).into_iter();
    let mut message = events.next().expect("a start")["message"].clone();
    assert_eq!(
        (&message["content"], &message["stop_reason"]),
        (&json!([]), &Value::Null)
    );
    let mut open = None;
    let mut pieces = String::new();
    let mut ended = 0;
    for event in events {
        let content = message["content"].as_array_mut().expect("a list");
        let index = event["index"].as_u64().map(|index| index as usize);
        match event["type"].as_str().expect("a type") {
            "ping" => {}
            "content_block_start" => {
                assert_eq!((open, index), (None, Some(content.len())), "{event}");
                content.push(event["content_block"].clone());
                open = index;
                pieces.clear();
            }
            "content_block_delta" => {
                assert_eq!((open, index.is_some()), (index, true), "{event}");
                let delta = &event["delta"];
                let block = content.last_mut().expect("a block");
                let (field, into) = match delta["type"].as_str().expect("a type") {
                    "text_delta" => ("text", "text"),
                    "thinking_delta" => ("thinking", "thinking"),
                    "signature_delta" => ("signature", "signature"),
                    "input_json_delta" => {
                        pieces.push_str(delta["partial_json"].as_str().expect("a text"));
                        continue;
                    }
                    other => panic!("{other}"),
                };
                let so_far = block[into].as_str().expect("a text");
                block[into] = json!(format!("{so_far}{}", delta[field].as_str().expect("a text")));
            }
            "content_block_stop" => {
                assert_eq!(open.take(), index, "{event}");
                let block = content.last_mut().expect("a block");
                if block["type"] == "tool_use" {
                    assert_eq!(block["input"], json!({}));
                    block["input"] =
                        serde_json::from_str(&pieces).unwrap_or_else(|_| json!({"INVALID_JSON": pieces.clone()}));
                }
            }
            "message_delta" => {
                assert_eq!(open, None);
                for name in ["stop_reason", "stop_sequence"] {
                    message[name] = event["delta"][name].clone();
                }
                message["usage"] = event["usage"].clone();
            }
            "message_stop" => ended += 1,
            other => panic!("{other}"),
        }
    }
    assert_eq!(ended, 1, "{text}");
    message
}

/// A whole message, which must be what its stream adds up to; the ids of calls are random.
async fn told(server: &TestServer, changes: Value) -> Value {
    let mut body = body(changes);
    let mut whole = ask(server, MESSAGES, &body).await.ok();
    body["stream"] = json!(true);
    let streamed = ask(server, MESSAGES, &body).await;
    assert_eq!(streamed.status, 200, "{}", streamed.text);
    let mut streamed = added_up(&streamed.text);
    for message in [&mut whole, &mut streamed] {
        for block in message["content"].as_array_mut().expect("a list") {
            if let Some(id) = block.get_mut("id") {
                assert!(id.as_str().is_some_and(|id| id.starts_with("call_")), "{id}");
                *id = json!("ID");
            }
        }
        // The second one finds the prompt in the cache.
        let usage = message["usage"].as_object_mut().expect("an object");
        let cached = usage["cache_read_input_tokens"].as_u64().expect("a number");
        let input = usage["input_tokens"].as_u64().expect("a number");
        usage.insert("cache_read_input_tokens".to_owned(), json!(0));
        usage.insert("input_tokens".to_owned(), json!(input + cached));
    }
    assert_eq!(whole, streamed);
    whole
}

fn weather() -> Value {
    json!({"type": "tool_use", "id": "ID", "name": "weather", "input": {"city": "Bern"}})
}

#[tokio::test]
async fn thoughts_text_and_calls_are_blocks_whole_and_streamed() {
    let scripted = Scripted::qwen(Some("qwen3"), THINKING);
    let message = told(&scripted.server, json!({})).await;
    let thought = json!({"type": "thinking", "thinking": "\nRain?\n", "signature": "unsigned"});
    assert_eq!(message["content"], json!([thought, weather()]));
    assert_eq!(message["stop_reason"], "tool_use");
    for (name, value) in [
        ("id", "msg_1"),
        ("type", "message"),
        ("role", "assistant"),
        ("model", "tiny"),
    ] {
        assert_eq!(message[name], value);
    }
    let hidden = json!({"thinking": {"type": "adaptive", "display": "omitted"}});
    assert_eq!(told(&scripted.server, hidden).await["content"], json!([weather()]));

    scripted.model.set_lines(&[("", CALLS)]);
    let text = json!({"type": "text", "text": "Let me look.\n"});
    let time = json!({"type": "tool_use", "id": "ID", "name": "time", "input": {}});
    let both = told(&scripted.server, json!({})).await;
    assert_eq!(both["content"], json!([text, weather(), time]));
    let single = json!({"tool_choice": {"type": "auto", "disable_parallel_tool_use": true}});
    assert_eq!(
        told(&scripted.server, single).await["content"],
        json!([text, weather()])
    );
    let none = told(&scripted.server, json!({"tool_choice": {"type": "none"}})).await;
    assert_eq!(
        (&none["content"][0]["type"], &none["stop_reason"]),
        (&json!("text"), &json!("end_turn"))
    );
}

#[tokio::test]
async fn an_answer_says_why_it_ended() {
    let scripted = Scripted::qwen(None, "Yes, it rains.<|im_end|>");
    let server = &scripted.server;
    let text = |text: &str| json!([{"type": "text", "text": text}]);
    let plain = json!({"tools": null});
    let all = told(server, plain).await;
    assert_eq!(
        (&all["content"], &all["stop_reason"]),
        (&text("Yes, it rains."), &json!("end_turn"))
    );
    let stopped = told(server, json!({"stop_sequences": ["rain", "x"], "tools": null})).await;
    assert_eq!(stopped["content"], text("Yes, it "));
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!("rain"))
    );
    let cut = told(server, json!({"max_tokens": 1, "tools": null})).await;
    assert_eq!(
        (&cut["stop_reason"], &cut["usage"]["output_tokens"]),
        (&json!("max_tokens"), &json!(1))
    );
    // An answer without a word.
    scripted.model.set_lines(&[("", "<|im_end|>")]);
    let empty = told(server, json!({"tools": null})).await;
    assert_eq!(
        (&empty["content"], &empty["stop_reason"]),
        (&text(""), &json!("end_turn"))
    );

    scripted.model.set_lines(&[("", CALLS)]);
    let stopped = told(server, json!({"stop_sequences": ["</tool_call>"]})).await;
    assert_eq!(
        (&stopped["stop_reason"], &stopped["content"][1]),
        (&json!("tool_use"), &weather())
    );
    let stopped = told(server, json!({"stop_sequences": ["Bern"]})).await;
    assert_eq!(stopped["content"][1]["input"], json!({"INVALID_JSON": "{\"city\": \""}));
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!("Bern"))
    );
    let all = told(server, json!({})).await;
    let mut cut_within = 0;
    for max_tokens in 1..all["usage"]["output_tokens"].as_u64().expect("a number") {
        let cut = told(server, json!({"max_tokens": max_tokens})).await;
        assert_eq!(cut["stop_reason"], "max_tokens", "{cut}");
        cut_within += usize::from(cut["content"][1]["input"].get("INVALID_JSON").is_some());
    }
    assert!(cut_within > 3, "{cut_within} cuts within the arguments");
}

#[tokio::test]
async fn a_conversation_goes_on_behind_a_call_and_in_words_that_were_begun() {
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>";
    let scripted = Scripted::qwen(Some("qwen3"), "<|im_end|>");
    let result = format!("{call}<|im_end|>\n<|im_start|>user\n<tool_response>\nyes, 4 mm\n</tool_response>");
    scripted.model.set_lines(&[
        (
            "system\nBe brief.",
            &format!("<think>\nRain?\n</think>\n\n{call}<|im_end|>"),
        ),
        (&result, "It rains.<|im_end|>"),
    ]);
    let server = &scripted.server;
    let system = json!([{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]);
    let first = ask(server, MESSAGES, &body(json!({"system": system}))).await.ok();
    let content = first["content"].clone();
    assert_eq!(content[1]["name"], "weather", "{first}");
    let result = json!({"type": "tool_result", "tool_use_id": content[1]["id"],
        "content": [{"type": "text", "text": "yes, 4 mm"}]});
    let messages = json!([{"role": "user", "content": "Rain in Bern?"}, {"role": "assistant", "content": content},
        {"role": "user", "content": [result]}]);
    let answer = told(server, json!({"system": system, "messages": messages})).await;
    assert_eq!(answer["content"], json!([{"type": "text", "text": "It rains."}]));

    scripted.model.set_lines(&[
        ("It", "rains.<|im_end|>"),
        ("<|im_start|>assistant\n", "Wrong.<|im_end|>"),
    ]);
    let begun = json!([{"role": "user", "content": "Rain?"}, {"role": "assistant", "content": "It "}]);
    let answer = told(server, json!({"messages": begun, "tools": null})).await;
    assert_eq!(answer["content"], json!([{"type": "text", "text": "rains."}]));
}

#[tokio::test]
async fn calls_and_schemas_are_forced() {
    let list = r#"[{"name": "weather", "parameters": {"city": "Bern"}}]<|im_end|>"#;
    let scripted = Scripted::new("qwen3", (None, None), list);
    let server = &scripted.server;
    let any = told(server, json!({"tool_choice": {"type": "any"}})).await;
    assert_eq!(
        (&any["content"], &any["stop_reason"]),
        (&json!([weather()]), &json!("tool_use"))
    );
    scripted.model.set_lines(&[("", "{\"city\": \"Bern\"}<|im_end|>")]);
    let named = told(server, json!({"tool_choice": {"type": "tool", "name": "weather"}})).await;
    assert_eq!(
        (&named["content"], &named["stop_reason"]),
        (&json!([weather()]), &json!("tool_use"))
    );
    // A model that wants to talk is not let.
    scripted.model.set_lines(&[("", "No, it does not rain.<|im_end|>")]);
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"],
        "additionalProperties": false});
    let format = json!({"effort": "low", "format": {"type": "json_schema", "schema": schema}});
    let answer = told(
        server,
        json!({"output_config": format, "tools": null, "max_tokens": 60}),
    )
    .await;
    let text = answer["content"][0]["text"].as_str().expect("a text");
    assert_eq!(
        serde_json::from_str::<Value>(text).expect("JSON"),
        json!({"a": "x"}),
        "{text}"
    );
}

#[tokio::test]
async fn thinking_reaches_the_template() {
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
                    {{ enable_thinking if enable_thinking is defined else '?' }} \
                    {{ reasoning_effort if reasoning_effort is defined else '?' }}.";
    let lines = [
        ("? ?.", "nothing said<|im_end|>"),
        ("True ?.", "on<|im_end|>"),
        ("False ?.", "off<|im_end|>"),
        ("True high.", "high<|im_end|>"),
    ];
    let model = ScriptedModel::new(&fixture(".."), template, &lines);
    let scripted = Scripted::of(model, (None, None));
    let with = |thinking: Value| json!({"tools": null, "max_tokens": 2000, "thinking": thinking});
    for (changes, expected) in [
        (with(json!(null)), "nothing said"),
        (with(json!({"type": "adaptive"})), "nothing said"),
        (with(json!({"type": "enabled", "budget_tokens": 1024})), "on"),
        (with(json!({"type": "disabled"})), "off"),
        (json!({"tools": null, "output_config": {"effort": "high"}}), "high"),
        (
            json!({"tools": null, "chat_template_kwargs": {"enable_thinking": true, "reasoning_effort": "high"}}),
            "high",
        ),
    ] {
        let answer = told(&scripted.server, changes.clone()).await;
        assert_eq!(answer["content"][0]["text"], expected, "{changes}");
    }
}

#[tokio::test]
async fn tokens_are_counted_without_an_answer() {
    let scripted = Scripted::qwen(None, "Yes.<|im_end|>");
    let server = &scripted.server;
    for changes in [json!({}), json!({"system": "Be brief."}), json!({"tools": null})] {
        let body = body(changes);
        let usage = ask(server, MESSAGES, &body).await.ok()["usage"].clone();
        let number = |name: &str| usage[name].as_u64().expect("a number");
        let expected = number("input_tokens") + number("cache_read_input_tokens");
        let mut counted = body;
        counted.as_object_mut().expect("an object").remove("max_tokens");
        assert_eq!(
            ask(server, COUNT, &counted).await.ok(),
            json!({"input_tokens": expected})
        );
    }
    let long = json!([{"role": "user", "content": "a b c ".repeat(20_000)}]);
    let count = ask(server, COUNT, &json!({"model": "tiny", "messages": long}))
        .await
        .ok();
    assert!(
        count["input_tokens"].as_u64() > Some(8192),
        "longer than the context: {count}"
    );
    let (kind, _) = error(&ask(server, COUNT, &json!({"messages": "Hi"})).await, 400);
    assert_eq!(kind, "invalid_request_error");
}

#[tokio::test]
async fn what_is_wrong_is_refused_in_anthropic_s_form() {
    let scripted = Scripted::qwen(None, "Yes.<|im_end|>");
    let server = &scripted.server;
    let image = json!([{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]);
    for (changes, words) in [
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens is 0"),
        (json!({"max_tokens": 100_000}), "maximum context length"),
        (json!({"messages": []}), "at least one message"),
        (json!({"messages": image}), "\"image\""),
        (json!({"system": 5}), "system is 5"),
        (json!({"stop_sequences": [""]}), "stop_sequences[0] is empty"),
        (json!({"stop_sequences": [5]}), "stop_sequences must be"),
        (json!({"temperature": 3}), "temperature is 3"),
        (json!({"top_p": "much"}), "top_p"),
        (json!({"tool_choice": {"type": "tool"}}), "without a name"),
        (json!({"tool_choice": {"type": "tool", "name": "snow"}}), "`snow`"),
        (json!({"tool_choice": {"type": "required"}}), "auto, any, tool or none"),
        (json!({"tool_choice": {"type": "any"}, "tools": null}), "no tools"),
        (
            json!({"tools": [{"name": "a b", "input_schema": {}}]}),
            "tools[0].name is \"a b\"",
        ),
        (
            json!({"tools": [{"name": "f", "input_schema": 5}]}),
            "tools[0].input_schema must be",
        ),
        (
            json!({"tools": [{"type": "bash_20250124", "name": "bash"}]}),
            "tools[0].type must be \"custom\"",
        ),
        (json!({"thinking": {"type": "on"}}), "enabled, disabled or adaptive"),
        (json!({"thinking": {"type": "enabled"}}), "budget_tokens is missing"),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 5}}),
            "budget_tokens is 5",
        ),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
            "less than max_tokens",
        ),
        (json!({"output_config": {"effort": "some"}}), "output_config.effort"),
        (
            json!({"output_config": {"format": {"type": "text"}}}),
            "output_config.format is",
        ),
        (
            json!({"output_config": {"format": {"type": "json_schema", "schema": {"$ref": "#/x"}}}, "tools": null}),
            "output_config.format.schema",
        ),
    ] {
        for stream in [false, true] {
            let mut body = body(changes.clone());
            body["stream"] = json!(stream);
            let answer = ask(server, MESSAGES, &body).await;
            let (kind, message) = error(&answer, 400);
            assert_eq!(kind, "invalid_request_error", "{changes}");
            assert!(message.contains(words), "{changes}: {message}");
        }
    }
    let unknown = ask(server, MESSAGES, &body(json!({"model": "claude"}))).await;
    assert_eq!(error(&unknown, 404).0, "not_found_error");
    for route in [MESSAGES, COUNT] {
        assert_eq!(error(&server.get(route).await, 405).0, "invalid_request_error");
        let broken = server.post_bytes(route, b"{".to_vec()).await;
        assert_eq!(error(&broken, 400).0, "invalid_request_error");
    }
    // Other routes keep OpenAI's form.
    server.get("/v1/messagesx").await.error(404);
    server.get("/v1/chat/completions").await.error(405);
}

#[tokio::test]
async fn a_stream_that_fails_ends_with_the_error_and_nothing_else() {
    let model = Damaged::embeddings("llama", 48, &[368]);
    let server = TestServer::with(Options {
        model: Some(model.path().to_path_buf()),
        ..Options::default()
    });
    let chat = json!([{"role": "user", "content": "The river"}]);
    let answer = ask(
        &server,
        MESSAGES,
        &json!({"messages": chat, "max_tokens": 9, "stream": true}),
    )
    .await;
    let told = events(&answer.text);
    assert_eq!((answer.status.as_u16(), told.len()), (200, 1), "{}", answer.text);
    assert_eq!(
        (&told[0]["type"], &told[0]["error"]["type"]),
        (&json!("error"), &json!("api_error"))
    );
    let whole = ask(&server, MESSAGES, &json!({"messages": chat, "max_tokens": 9})).await;
    assert_eq!(error(&whole, 500).0, "api_error");

    let answer = ask(&server, "/v1/responses", &json!({"input": "The river", "stream": true})).await;
    let told = events(&answer.text);
    let kinds: Vec<&Value> = told.iter().map(|event| &event["type"]).collect();
    assert_eq!(
        kinds,
        ["response.created", "response.in_progress", "response.failed"],
        "{}",
        answer.text
    );
    let failed = &told[2]["response"];
    assert_eq!(
        (&failed["status"], &failed["error"]["code"]),
        (&json!("failed"), &json!("server_error"))
    );
    assert!(
        failed["error"]["message"].as_str().is_some_and(|text| !text.is_empty()),
        "{failed}"
    );
    let numbers: Vec<&Value> = told.iter().map(|event| &event["sequence_number"]).collect();
    assert_eq!(numbers, [0, 1, 2]);
    let whole = ask(&server, "/v1/responses", &json!({"input": "The river"})).await;
    whole.error(500);
}

#[tokio::test]
async fn a_key_comes_in_either_header() {
    let server = TestServer::with(Options {
        api_keys: vec!["secret"],
        ..Options::default()
    });
    let sent = async |header: &str, value: &str| {
        let request = Request::post(MESSAGES)
            .header("content-type", "application/json")
            .header(header, value);
        server.send(request.body(Body::from("{}")).expect("a request")).await
    };
    for (header, value) in [
        ("x-api-key", "other"),
        ("authorization", "Bearer other"),
        ("x-other", "secret"),
    ] {
        assert_eq!(error(&sent(header, value).await, 401).0, "authentication_error");
    }
    for (header, value) in [("x-api-key", "secret"), ("authorization", "Bearer secret")] {
        assert_eq!(
            error(&sent(header, value).await, 400).0,
            "invalid_request_error",
            "past the key"
        );
    }
}

#[tokio::test]
async fn messages_are_what_they_were_to_the_byte() {
    let scripted = Scripted::serving(
        ScriptedModel::with_template_of(&fixture(".."), "qwen3", &[("", THINKING)]),
        (Some("hermes"), Some("qwen3")),
        ServingDefaults::default(),
    );
    let mut record = String::new();
    for (name, changes) in [
        ("a thought and a call", json!({})),
        ("cut off within the thought", json!({"max_tokens": 4})),
        ("text", json!({"tools": null, "stop_sequences": ["</think>"]})),
    ] {
        for stream in [false, true] {
            let mut body = body(changes.clone());
            body["stream"] = json!(stream);
            let answer = ask(&scripted.server, MESSAGES, &body).await;
            let content_type = answer.headers["content-type"].to_str().expect("ASCII");
            let _ = writeln!(record, "### {name}, {content_type}\n{}", settle(&answer.text));
        }
    }
    assert_recorded("message_bytes.txt", &record);
}

/// An answer without the ids of calls, which are random.
fn settle(text: &str) -> String {
    let mut parts = text.split("\"id\":\"call_");
    let mut settled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let _ = write!(settled, "\"id\":\"call_…{}", &part[24..]);
    }
    settled
}
