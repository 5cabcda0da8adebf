//! OpenAI's Responses API through the real router: a model whose words are known thinks, talks and calls tools, whole
//! and streamed; and what is refused.

use crate::common::{Answer, TestServer};
use crate::scripted_server::{Scripted, THINKING};
use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

const RESPONSES: &str = "/v1/responses";
const CALLS: &str = "Let me look.\n\
                     <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>\
                     <tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call><|im_end|>";

fn tool(name: &str, properties: Value) -> Value {
    json!({"type": "function", "name": name, "parameters": {"type": "object", "properties": properties}})
}

/// A question with two tools, and fields that differ.
fn body(changes: Value) -> Value {
    let mut body = json!({"model": "tiny", "input": "Rain in Bern?", "max_output_tokens": 400, "temperature": 0,
        "store": true, "tools": [tool("weather", json!({"city": {"type": "string"}})), tool("time", json!({}))]});
    for (name, value) in changes.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

async fn ask(server: &TestServer, body: &Value) -> Answer {
    let request = Request::post(RESPONSES)
        .header("content-type", "application/json")
        .header("x-request-id", "1");
    server
        .send(request.body(Body::from(body.to_string())).expect("a request"))
        .await
}

/// The events of a stream, whose names are those of their data and whose numbers go up by one.
fn events(text: &str) -> Vec<Value> {
    let read = |(number, event): (usize, &str)| {
        let (name, data) = event.split_once('\n').expect("two lines");
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        assert_eq!(name, format!("event: {}", data["type"].as_str().expect("a type")));
        assert_eq!(data["sequence_number"], number, "{data}");
        data
    };
    text.split_terminator("\n\n").enumerate().map(read).collect()
}

/// The last event's answer, which must be what the events before it add up to.
fn added_up(text: &str) -> Value {
    let all = events(text);
    let kinds: Vec<&str> = all
        .iter()
        .map(|event| event["type"].as_str().expect("a type"))
        .collect();
    assert_eq!(kinds[..2], ["response.created", "response.in_progress"]);
    let (last, between) = all[2..].split_last().expect("an end");
    for event in &all[..2] {
        assert_eq!(
            (&event["response"]["status"], &event["response"]["output"]),
            (&json!("in_progress"), &json!([]))
        );
    }
    let status = last["response"]["status"].as_str().expect("a status");
    assert_eq!(last["type"], format!("response.{status}"));
    let mut output: Vec<Value> = Vec::new();
    let (mut open, mut part, mut text) = (false, false, String::new());
    for event in between {
        let kind = event["type"].as_str().expect("a type");
        if kind == "response.output_item.added" {
            assert!(!open, "{event}");
            assert_eq!(event["output_index"], output.len());
            assert_eq!(event["item"]["status"], "in_progress");
            output.push(event["item"].clone());
            open = true;
            text.clear();
            continue;
        }
        assert!(open, "{event}");
        assert_eq!(event["output_index"], output.len() - 1);
        let item = output.last_mut().expect("an item");
        if kind != "response.output_item.done" {
            assert_eq!(event["item_id"], item["id"]);
        }
        match kind {
            "response.content_part.added" => {
                assert!(!part && item["content"] == json!([]), "{event}");
                assert_eq!(
                    (&event["content_index"], &event["part"]["text"]),
                    (&json!(0), &json!(""))
                );
                part = true;
            }
            "response.output_text.delta" | "response.reasoning_text.delta" => {
                assert!(part, "{event}");
                text.push_str(event["delta"].as_str().expect("a text"));
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!((part, &event["text"]), (true, &json!(text)), "{event}");
            }
            "response.content_part.done" => {
                assert_eq!((part, &event["part"]["text"]), (true, &json!(text)), "{event}");
                item["content"] = json!([event["part"]]);
                part = false;
            }
            "response.function_call_arguments.delta" => text.push_str(event["delta"].as_str().expect("a text")),
            "response.function_call_arguments.done" => {
                assert_eq!((&event["arguments"], &event["name"]), (&json!(text), &item["name"]));
                item["arguments"] = json!(text);
            }
            "response.output_item.done" => {
                assert!(!part, "{event}");
                item["status"] = event["item"]["status"].clone();
                assert_eq!(*item, event["item"]);
                open = false;
            }
            other => panic!("{other}"),
        }
    }
    assert!(!open, "the last item has ended");
    assert_eq!(last["response"]["output"], json!(output));
    last["response"].clone()
}

/// A whole answer, which must be what its stream adds up to; the ids of calls are random.
async fn told(server: &TestServer, changes: Value) -> Value {
    let mut body = body(changes);
    let mut whole = ask(server, &body).await.ok();
    body["stream"] = json!(true);
    let streamed = ask(server, &body).await;
    assert_eq!(streamed.status, 200, "{}", streamed.text);
    let mut streamed = added_up(&streamed.text);
    for answer in [&mut whole, &mut streamed] {
        for item in answer["output"].as_array_mut().expect("a list") {
            if let Some(id) = item.get_mut("call_id") {
                assert!(id.as_str().is_some_and(|id| id.starts_with("call_")), "{id}");
                *id = json!("ID");
            }
        }
        answer["created_at"] = json!(0);
        answer["usage"]["input_tokens_details"] = json!(0);
    }
    assert_eq!(whole, streamed);
    whole
}

fn call(index: usize, name: &str, arguments: &str) -> Value {
    json!({"type": "function_call", "id": format!("fc_1_{index}"), "status": "completed", "call_id": "ID", "name": name,
        "arguments": arguments})
}

fn message(index: usize, text: &str, status: &str) -> Value {
    json!({"type": "message", "id": format!("msg_1_{index}"), "status": status, "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]})
}

#[tokio::test]
async fn thoughts_text_and_calls_are_items_whole_and_streamed() {
    let scripted = Scripted::qwen(Some("qwen3"), THINKING);
    let server = &scripted.server;
    let answer = told(server, json!({})).await;
    let thought = json!({"type": "reasoning", "id": "rs_1_0", "status": "completed", "summary": [],
        "content": [{"type": "reasoning_text", "text": "\nRain?\n"}], "encrypted_content": null});
    let rain = "{\"city\": \"Bern\"}";
    assert_eq!(answer["output"], json!([thought, call(1, "weather", rain)]));
    for (name, value) in [
        ("id", json!("resp_1")),
        ("object", json!("response")),
        ("status", json!("completed")),
        ("model", json!("tiny")),
        // It was asked for, and nothing is stored.
        ("store", json!(false)),
        ("error", json!(null)),
        ("incomplete_details", json!(null)),
        ("instructions", json!(null)),
        ("parallel_tool_calls", json!(true)),
        ("previous_response_id", json!(null)),
        ("temperature", json!(0.0)),
        ("text", json!({"format": {"type": "text"}})),
        ("tool_choice", json!("auto")),
        ("tools", body(json!({}))["tools"].clone()),
        ("max_output_tokens", json!(400)),
        ("metadata", json!({})),
    ] {
        assert_eq!(answer[name], value, "{name}");
    }
    let usage = &answer["usage"];
    let count = |name: &str| usage[name].as_u64().expect("a number");
    assert_eq!(count("input_tokens") + count("output_tokens"), count("total_tokens"));
    assert!(
        usage["output_tokens_details"]["reasoning_tokens"].as_u64() > Some(0),
        "{usage}"
    );
    let hidden = told(server, json!({"include_reasoning": false})).await;
    assert_eq!(hidden["output"], json!([call(0, "weather", rain)]));

    scripted.model.set_lines(&[("", CALLS)]);
    let both = told(server, json!({"metadata": {"a": "b"}, "user": "me", "top_p": 0.7})).await;
    let text = message(0, "Let me look.\n", "completed");
    assert_eq!(
        both["output"],
        json!([text, call(1, "weather", rain), call(2, "time", "{}")])
    );
    assert_eq!((&both["metadata"], &both["user"]), (&json!({"a": "b"}), &json!("me")));
    assert_eq!(both["top_p"], 0.7, "as it was sent");
    let one = told(server, json!({"parallel_tool_calls": false})).await;
    assert_eq!(one["output"], json!([text, call(1, "weather", rain)]));
    assert_eq!(one["parallel_tool_calls"], false);
    let none = told(server, json!({"tool_choice": "none"})).await;
    assert_eq!(none["output"].as_array().map(Vec::len), Some(1), "{none}");
}

#[tokio::test]
async fn an_answer_that_is_cut_off_is_incomplete() {
    let scripted = Scripted::qwen(Some("qwen3"), CALLS);
    let server = &scripted.server;
    let all = told(server, json!({})).await["usage"]["output_tokens"].clone();
    let mut cut_within = 0;
    for max_tokens in 1..all.as_u64().expect("a number") {
        let cut = told(server, json!({"max_output_tokens": max_tokens})).await;
        assert_eq!(cut["status"], "incomplete", "{max_tokens}");
        assert_eq!(cut["incomplete_details"], json!({"reason": "max_output_tokens"}));
        let items = cut["output"].as_array().expect("a list");
        let (last, before) = items.split_last().expect("an item");
        assert!(before.iter().all(|item| item["status"] == "completed"), "{cut}");
        if last["type"] == "function_call" && last["status"] == "incomplete" {
            cut_within += 1;
        }
    }
    assert!(cut_within > 3, "{cut_within} cuts within a call");
    let short = told(server, json!({"max_output_tokens": 1})).await;
    assert_eq!(short["output"][0]["status"], "incomplete", "{short}");
    scripted.model.set_lines(&[("", "<|im_end|>")]);
    let empty = told(server, json!({})).await;
    assert_eq!(empty["output"], json!([message(0, "", "completed")]));
}

#[tokio::test]
async fn a_conversation_goes_on_behind_a_call() {
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
    let question = json!({"role": "user", "content": [{"type": "input_text", "text": "Rain in Bern?"}]});
    let mut items = vec![question];
    let first = ask(server, &body(json!({"instructions": "Be brief.", "input": items})))
        .await
        .ok();
    assert_eq!(first["instructions"], "Be brief.");
    items.extend(first["output"].as_array().expect("a list").clone());
    let id = items[2]["call_id"].clone();
    items.push(json!({"type": "function_call_output", "call_id": id, "output": "yes, 4 mm"}));
    let answer = told(server, json!({"instructions": "Be brief.", "input": items})).await;
    assert_eq!(answer["output"], json!([message(0, "It rains.", "completed")]));
}

#[tokio::test]
async fn calls_and_texts_are_forced() {
    let list = r#"[{"name": "weather", "parameters": {"city": "Bern"}}]<|im_end|>"#;
    let scripted = Scripted::new("qwen3", (None, None), list);
    let server = &scripted.server;
    let required = told(server, json!({"tool_choice": "required"})).await;
    let rain = "{\"city\": \"Bern\"}";
    assert_eq!(required["output"], json!([call(0, "weather", rain)]));
    scripted.model.set_lines(&[("", "{\"city\": \"Bern\"}<|im_end|>")]);
    let choice = json!({"type": "function", "name": "weather"});
    let named = told(server, json!({"tool_choice": choice})).await;
    assert_eq!(
        (&named["output"], &named["tool_choice"]),
        (&json!([call(0, "weather", rain)]), &choice)
    );
    scripted.model.set_lines(&[("", "No, it does not rain.<|im_end|>")]);
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"],
        "additionalProperties": false});
    let format = json!({"format": {"type": "json_schema", "name": "n", "strict": true, "schema": schema}});
    let answer = told(server, json!({"text": format, "tools": [], "max_output_tokens": 60})).await;
    let text = answer["output"][0]["content"][0]["text"].as_str().expect("a text");
    assert_eq!(
        serde_json::from_str::<Value>(text).expect("JSON"),
        json!({"a": "x"}),
        "{text}"
    );
    assert_eq!(answer["text"], format);
}

#[tokio::test]
async fn what_is_wrong_or_needs_a_store_is_refused() {
    let scripted = Scripted::qwen(None, "Yes.<|im_end|>");
    let server = &scripted.server;
    let other_tool = json!([{"type": "web_search"}]);
    for (changes, param, words) in [
        (
            json!({"previous_response_id": "resp_2"}),
            "previous_response_id",
            "not stored",
        ),
        (json!({"conversation": "conv_2"}), "conversation", "not stored"),
        (json!({"background": true}), "background", "not stored"),
        (json!({"prompt": {"id": "x"}}), "prompt", "not stored"),
        (json!({"truncation": "auto"}), "truncation", "unasked"),
        (json!({"top_logprobs": 2}), "top_logprobs", "chat/completions"),
        (
            json!({"include": ["message.output_text.logprobs"]}),
            "include",
            "chat/completions",
        ),
        (json!({"n": 2}), "n", "one sample"),
        (json!({"input": null}), "input", "a list of items"),
        (json!({"input": []}), "input", "at least one item"),
        (
            json!({"input": [{"type": "item_reference", "id": "a"}]}),
            "input[0]",
            "not stored",
        ),
        (json!({"input": "a ".repeat(20_000)}), "input", "maximum context length"),
        (json!({"max_output_tokens": 100_000}), "input", "maximum context length"),
        (
            json!({"max_output_tokens": 0}),
            "max_output_tokens",
            "max_output_tokens is 0",
        ),
        (
            json!({"tools": other_tool}),
            "tools",
            "tools[0].type must be \"function\"",
        ),
        (
            json!({"tools": [{"type": "function", "name": "a b"}]}),
            "tools",
            "tools[0].name is \"a b\"",
        ),
        (
            json!({"tool_choice": {"type": "function", "name": "snow"}}),
            "tool_choice",
            "`snow`",
        ),
        (
            json!({"tool_choice": {"type": "allowed_tools"}}),
            "tool_choice",
            "it must be \"none\"",
        ),
        (
            json!({"tool_choice": "required", "tools": []}),
            "tool_choice",
            "no tools",
        ),
        (
            json!({"text": {"format": {"type": "xml"}}}),
            "text.format",
            "json_schema",
        ),
        (
            json!({"text": {"format": {"type": "json_schema"}}}),
            "text.format.schema",
            "an object",
        ),
        (json!({"text": {"verbosity": "low"}}), "text.verbosity", "not supported"),
        (
            json!({"reasoning": {"effort": "some"}}),
            "reasoning.effort",
            "unknown variant",
        ),
        (
            json!({"tool_choice": "required", "text": {"format": {"type": "json_object"}}}),
            "text.format",
            "tool_choice for a call",
        ),
    ] {
        for stream in [false, true] {
            let mut body = body(changes.clone());
            body["stream"] = json!(stream);
            let error = ask(server, &body).await.error(400);
            assert_eq!(error["param"], param, "{error}");
            assert!(
                error["message"].as_str().is_some_and(|text| text.contains(words)),
                "{error}"
            );
        }
    }
    // What clients send without asking for anything.
    let defaults = json!({"background": false, "truncation": "disabled", "top_logprobs": 0,
        "previous_response_id": null, "include": ["reasoning.encrypted_content"], "service_tier": "auto",
        "tool_choice": "auto", "tools": [],
        "text": {"format": {"type": "text"}, "verbosity": "medium"}, "reasoning": {"effort": null, "summary": "auto"}});
    assert_eq!(
        told(server, defaults).await["output"],
        json!([message(0, "Yes.", "completed")])
    );
    server.get("/v1/responses/resp_1").await.error(404);
}
