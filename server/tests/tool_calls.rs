//! Tool calls and reasoning through the real router: a model whose text is known calls tools in several families'
//! formats, whole and streamed. Answers to the byte are in `data/tool_call_bytes.txt`.

use std::fmt::Write;
use std::num::NonZeroU32;

use crate::common::{Answer, assert_recorded, fixture};
use crate::scripted_server::scripted::ScriptedModel;
use crate::scripted_server::{Scripted, THINKING};
use axum::body::Body;
use axum::http::Request;
use halyard_server::openai::policy::ServingDefaults;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const HERMES: &str = "Let me look.\n\
                      <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>\
                      <tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call><|im_end|>";
/// What a template of harmony's form writes.
const HARMONY: &str = "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}\
                       <|start|>assistant";
const HARMONY_CALL: &str = "<|channel|>analysis<|message|>Rain?<|end|><|start|>assistant<|channel|>commentary \
                            to=functions.weather <|constrain|>json<|message|>{\"city\": \"Bern\"}<|call|>";

impl Scripted {
    async fn ask(&self, changes: Value) -> Answer {
        let request = Request::post(CHAT)
            .header("content-type", "application/json")
            .header("x-request-id", "1");
        let body = Body::from(body(changes).to_string());
        self.server.send(request.body(body).expect("a request")).await
    }

    /// The one choice of a whole answer.
    async fn whole(&self, changes: Value) -> Value {
        let answer = self.ask(changes).await.ok();
        assert_eq!(answer["choices"].as_array().map(Vec::len), Some(1), "{answer}");
        answer["choices"][0].clone()
    }

    /// The same as OpenAI's clients add up the pieces of a stream.
    async fn added_up(&self, mut changes: Value) -> Value {
        changes["stream"] = json!(true);
        let events = self.ask(changes).await.events();
        added_up(&events, 0)
    }
}

fn function(name: &str, properties: Value) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}})
}

/// A chat with two tools, and fields that differ.
fn body(changes: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Rain in Bern?"}], "max_tokens": 400,
        "temperature": 0, "tools": [function("weather", json!({"city": {"type": "string"}})),
        function("time", json!({}))]});
    for (name, value) in changes.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

/// The choice `index` of a stream's events. Deltas must come in the order that clients rely on.
fn added_up(events: &[Value], index: u64) -> Value {
    let mut message = json!({"content": null, "reasoning": null});
    let mut calls: Vec<Value> = Vec::new();
    let mut finish = Value::Null;
    let choices = events
        .iter()
        .flat_map(|event| event["choices"].as_array().expect("a list"));
    for choice in choices.filter(|choice| choice["index"] == index) {
        assert!(finish.is_null(), "nothing comes after the end: {choice}");
        finish = choice["finish_reason"].clone();
        let delta = &choice["delta"];
        for name in ["content", "reasoning"] {
            if let Some(text) = delta[name].as_str().filter(|text| !text.is_empty()) {
                let so_far = message[name].as_str().unwrap_or_default();
                message[name] = json!(format!("{so_far}{text}"));
            }
        }
        let none = Vec::new();
        for part in delta["tool_calls"].as_array().unwrap_or(&none) {
            let at = part["index"].as_u64().expect("an index") as usize;
            let function = &part["function"];
            if at == calls.len() {
                assert_eq!(
                    (&part["type"], &function["arguments"]),
                    (&json!("function"), &json!("")),
                    "{part}"
                );
                calls.push(json!({"id": part["id"], "type": "function", "function": function}));
            } else {
                assert_eq!(at + 1, calls.len(), "pieces belong to the last call");
                assert!(part.get("id").is_none() && function.get("name").is_none(), "{part}");
                let call = &mut calls[at]["function"]["arguments"];
                let so_far = call.as_str().expect("text");
                *call = json!(format!("{so_far}{}", function["arguments"].as_str().expect("text")));
            }
        }
    }
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    json!({"message": message, "finish_reason": finish})
}

/// What both ways must agree on: text, reasoning, calls without their ids, and the end.
fn told(choice: &Value) -> Value {
    let message = &choice["message"];
    let none = Vec::new();
    let calls = message["tool_calls"].as_array().unwrap_or(&none);
    let calls: Vec<Value> = calls.iter().map(|call| call["function"].clone()).collect();
    json!([message["content"], message["reasoning"], calls, choice["finish_reason"]])
}

fn weather() -> Value {
    json!({"name": "weather", "arguments": "{\"city\": \"Bern\"}"})
}

#[tokio::test]
async fn calls_come_whole_and_streamed_in_the_format_of_each_family() {
    let parameters = "{\"name\": \"weather\", \"parameters\": {\"city\": \"Bern\"}}<|im_end|>";
    let tagged = "<|python_tag|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Bern\"}}<|im_end|>";
    let model = |template: &str, say: &str| ScriptedModel::with_template_of(&fixture(".."), template, &[("", say)]);
    let harmony = ScriptedModel::new(&fixture(".."), HARMONY, &[("", HARMONY_CALL)]);
    let text = json!(null);
    for (name, model, reasoning, expected) in [
        ("hermes", model("qwen3", HERMES), None, json!(["Let me look.\n", null])),
        (
            "hermes",
            model("qwen3", THINKING),
            Some("qwen3"),
            json!([null, "\nRain?\n"]),
        ),
        (
            "mistral",
            model("chatml", "[TOOL_CALLS]weather[ARGS]{\"city\": \"Bern\"}<|im_end|>"),
            None,
            json!([text, null]),
        ),
        (
            "mistral",
            model(
                "chatml",
                "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}]<|im_end|>",
            ),
            None,
            json!([text, null]),
        ),
        ("llama3_json", model("chatml", parameters), None, json!([text, null])),
        ("llama3_json", model("chatml", tagged), None, json!([text, null])),
        ("openai", harmony, Some("openai_gptoss"), json!([text, "Rain?"])),
    ] {
        let scripted = Scripted::of(model, (Some(name), reasoning));
        let whole = scripted.whole(json!({})).await;
        let calls = whole["message"]["tool_calls"].as_array().expect("calls");
        assert_eq!(calls[0]["function"], weather(), "{name}: {whole}");
        assert_eq!(
            (&whole["message"]["content"], &whole["message"]["reasoning"]),
            (&expected[0], &expected[1]),
            "{name}"
        );
        assert_eq!(whole["finish_reason"], "tool_calls", "{name}");
        let id = calls[0]["id"].as_str().expect("an id");
        let letters = id.strip_prefix("call_").unwrap_or(id);
        assert!(letters.chars().all(|c| c.is_ascii_alphanumeric()), "{id}");
        assert_eq!(letters.len(), if name == "mistral" { 9 } else { 24 }, "{id}");
        assert_eq!(told(&whole), told(&scripted.added_up(json!({})).await), "{name}");
    }
}

#[tokio::test]
async fn several_calls_have_ids_of_their_own_and_only_the_first_comes_where_one_was_asked() {
    let scripted = Scripted::qwen(None, HERMES);
    for stream in [false, true] {
        let ask = async |changes: Value| match stream {
            true => scripted.added_up(changes).await,
            false => scripted.whole(changes).await,
        };
        let both = ask(json!({})).await;
        let calls = both["message"]["tool_calls"].as_array().expect("calls");
        assert_eq!(calls.len(), 2, "{both}");
        assert_ne!(calls[0]["id"], calls[1]["id"]);
        assert_eq!(calls[1]["function"], json!({"name": "time", "arguments": "{}"}));
        let one = ask(json!({"parallel_tool_calls": false})).await;
        assert_eq!(told(&one)[2], json!([weather()]), "{one}");
        assert_eq!(one["finish_reason"], "tool_calls");
    }
}

#[tokio::test]
async fn a_call_that_is_cut_off_is_given_as_far_as_it_came() {
    let scripted = Scripted::qwen(None, HERMES);
    let all = scripted.whole(json!({"return_token_ids": true})).await;
    let tokens = all["token_ids"].as_array().expect("ids").len();
    let mut cut_within = 0;
    for max_tokens in 1..tokens {
        let whole = scripted.whole(json!({"max_tokens": max_tokens})).await;
        let streamed = scripted.added_up(json!({"max_tokens": max_tokens})).await;
        assert_eq!(told(&whole), told(&streamed), "{max_tokens}");
        assert_eq!(whole["finish_reason"], "length", "{max_tokens}");
        let arguments = whole["message"]["tool_calls"][0]["function"]["arguments"].as_str();
        cut_within += usize::from(arguments.is_some_and(|text| "{\"city\": \"Bern\"}" != text));
    }
    assert!(cut_within > 5, "{cut_within} cuts within the arguments");
}

#[tokio::test]
async fn events_of_several_tokens_tell_the_same() {
    for interval in [1, 3, 64] {
        let serving = ServingDefaults {
            stream_interval: NonZeroU32::new(interval).expect("not 0"),
            ..ServingDefaults::default()
        };
        let model = ScriptedModel::with_template_of(&fixture(".."), "qwen3", &[("", THINKING)]);
        let scripted = Scripted::serving(model, (Some("hermes"), Some("qwen3")), serving);
        let mut fields = json!({"return_token_ids": true, "stream_options": null});
        let whole = scripted.ask(fields.clone()).await.ok();
        fields["stream"] = json!(true);
        fields["stream_options"] = json!({"include_usage": true});
        let events = scripted.ask(fields).await.events();
        assert_eq!(told(&added_up(&events, 0)), told(&whole["choices"][0]), "{interval}");
        let usage = &events.last().expect("usage")["usage"];
        for name in ["completion_tokens", "completion_tokens_details"] {
            assert_eq!(usage[name], whole["usage"][name], "{name}, {interval}");
        }
        assert_ne!(usage["completion_tokens_details"]["reasoning_tokens"], 0);
        let ids = |event: &Value| event["choices"][0]["token_ids"].as_array().map_or(0, Vec::len);
        let most = events.iter().map(ids).max();
        let all = usage["completion_tokens"].as_u64().expect("a count") as usize;
        assert_eq!(most, Some((interval as usize).min(all - 1)), "tokens of an event");
    }
}

#[tokio::test]
async fn reasoning_is_kept_apart_counted_and_left_out_where_it_is_not_wanted() {
    let scripted = Scripted::qwen(Some("qwen3"), THINKING);
    let fields = json!({"tools": null, "logprobs": true, "return_token_ids": true, "stream_options": null});
    scripted
        .model
        .set_lines(&[("", "<think>\nRain?\n</think>\n\nYes.<|im_end|>")]);
    let answer = scripted.ask(fields.clone()).await.ok();
    let choice = &answer["choices"][0];
    assert_eq!(told(choice), json!(["\n\nYes.", "\nRain?\n", [], "stop"]));
    // `\nRain?\n` is all between the markers, which are a token each.
    let ids = choice["token_ids"].as_array().expect("ids");
    let body = json!({"prompt": "\nRain?\n", "add_special_tokens": false});
    let between = scripted.server.post("/tokenize", &body).await.ok()["count"].clone();
    assert_eq!(
        answer["usage"]["completion_tokens_details"],
        json!({"reasoning_tokens": between})
    );
    assert_eq!(
        choice["logprobs"]["content"].as_array().expect("a list").len(),
        ids.len()
    );
    let mut streamed = fields.clone();
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true});
    let events = scripted.ask(streamed).await.events();
    assert_eq!(told(&added_up(&events, 0)), told(choice));
    let last = &events.last().expect("usage")["usage"];
    for name in ["completion_tokens", "completion_tokens_details"] {
        assert_eq!(last[name], answer["usage"][name], "{name}");
    }
    let pieces = events
        .iter()
        .filter_map(|event| event["choices"][0]["token_ids"].as_array());
    assert_eq!(&pieces.flatten().cloned().collect::<Vec<_>>(), ids, "each token once");

    let mut hidden = fields;
    hidden["include_reasoning"] = json!(false);
    let answer = scripted.ask(hidden.clone()).await.ok();
    let choice = &answer["choices"][0];
    assert_eq!(told(choice), json!(["\n\nYes.", null, [], "stop"]));
    // Tokens would tell it.
    assert_eq!(
        (&choice["logprobs"], choice.get("token_ids")),
        (&json!(null), None),
        "{choice}"
    );
    assert_eq!(
        answer["usage"]["completion_tokens_details"],
        json!({"reasoning_tokens": between})
    );
    assert_eq!(told(&scripted.added_up(hidden).await), told(choice));
}

#[tokio::test]
async fn reasoning_that_the_prompt_opens_or_closes_is_known() {
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: <think>\n\
                    {% if enable_thinking is defined and not enable_thinking %}</think>\n{% endif %}";
    let model = ScriptedModel::new(&fixture(".."), template, &[("", "Rain?\n</think>Yes.<|im_end|>")]);
    let scripted = Scripted::of(model, (None, Some("qwen3")));
    let plain = json!({"tools": null});
    assert_eq!(
        told(&scripted.whole(plain.clone()).await),
        json!(["Yes.", "Rain?\n", [], "stop"])
    );
    assert_eq!(
        told(&scripted.added_up(plain).await),
        json!(["Yes.", "Rain?\n", [], "stop"])
    );
    scripted.model.set_lines(&[("", "Yes.<|im_end|>")]);
    let closed = json!({"tools": null, "chat_template_kwargs": {"enable_thinking": false}});
    assert_eq!(told(&scripted.whole(closed).await), json!(["Yes.", null, [], "stop"]));
    // An answer that goes on within thoughts.
    let model = ScriptedModel::with_template_of(&fixture(".."), "chatml", &[("", "n?</think>Yes.<|im_end|>")]);
    let scripted = Scripted::of(model, (None, Some("qwen3")));
    let opened = json!([{"role": "user", "content": "Rain?"}, {"role": "assistant", "content": "<think>Rai"}]);
    let body =
        json!({"tools": null, "messages": opened, "continue_final_message": true, "add_generation_prompt": false});
    assert_eq!(told(&scripted.whole(body).await), json!(["Yes.", "n?", [], "stop"]));
}

#[tokio::test]
async fn calls_are_text_where_nothing_is_to_be_called() {
    let scripted = Scripted::qwen(None, HERMES);
    for changes in [json!({"tool_choice": "none"}), json!({"tools": null})] {
        let whole = scripted.whole(changes.clone()).await;
        // The markers are special tokens, of which a plain answer has none.
        let text = HERMES
            .replace("<tool_call>", "")
            .replace("</tool_call>", "")
            .replace("<|im_end|>", "");
        assert_eq!(
            whole["message"],
            json!({"role": "assistant", "content": text, "refusal": null})
        );
        assert_eq!(whole["finish_reason"], "stop");
        assert_eq!(scripted.added_up(changes).await["message"]["content"], text);
    }
    let shown = scripted
        .whole(json!({"tool_choice": "none", "skip_special_tokens": false}))
        .await;
    assert_eq!(shown["message"]["content"], HERMES.replace("<|im_end|>", ""));
}

#[tokio::test]
async fn special_tokens_that_are_no_markers_stay_out_unless_they_are_asked_for() {
    let say = HERMES.replace("Let me", "Let<|python_tag|> me");
    let scripted = Scripted::qwen(None, &say);
    let whole = scripted.whole(json!({})).await;
    assert_eq!(whole["message"]["content"], "Let me look.\n");
    let all = scripted.whole(json!({"skip_special_tokens": false})).await;
    assert_eq!(all["message"]["content"], "Let<|python_tag|> me look.\n");
    assert_eq!(told(&all)[2], told(&whole)[2]);
}

#[tokio::test]
async fn stop_strings_end_what_the_model_writes_calls_included() {
    let scripted = Scripted::qwen(None, HERMES);
    for (stop, expected) in [
        ("look", json!(["Let me ", null, [], "stop"])),
        (
            "Bern",
            json!(["Let me look.\n", null, [{"name": "weather", "arguments": "{\"city\": \""}], "tool_calls"]),
        ),
        (
            "</tool_call>",
            json!(["Let me look.\n", null, [weather()], "tool_calls"]),
        ),
    ] {
        let whole = scripted.whole(json!({"stop": [stop]})).await;
        assert_eq!(
            (told(&whole), &whole["stop_reason"]),
            (expected, &json!(stop)),
            "{stop}"
        );
        assert_eq!(
            told(&scripted.added_up(json!({"stop": [stop]})).await),
            told(&whole),
            "{stop}"
        );
    }
}

#[tokio::test]
async fn each_choice_is_read_by_itself() {
    let scripted = Scripted::qwen(Some("qwen3"), THINKING);
    let both = scripted.ask(json!({"n": 2, "temperature": 1})).await.ok();
    let events = scripted
        .ask(json!({"n": 2, "temperature": 1, "stream": true}))
        .await
        .events();
    let mut ids = std::collections::HashSet::new();
    for index in 0..2 {
        let whole = &both["choices"][index];
        assert_eq!(told(whole), json!([null, "\nRain?\n", [weather()], "tool_calls"]));
        let streamed = added_up(&events, index as u64);
        assert_eq!(told(&streamed), told(whole));
        for choice in [whole, &streamed] {
            ids.insert(choice["message"]["tool_calls"][0]["id"].to_string());
        }
    }
    assert_eq!(ids.len(), 4);
}

#[tokio::test]
async fn a_conversation_goes_on_behind_a_call() {
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>";
    let scripted = Scripted::qwen(None, "<|im_end|>");
    scripted.model.set_lines(&[
        ("Rain in Bern?", &format!("{call}<|im_end|>")),
        // The template writes the call as the model did, and what came of it.
        (
            &format!("{call}<|im_end|>\n<|im_start|>user\n<tool_response>\nyes, 4 mm\n</tool_response>"),
            "It rains.<|im_end|>",
        ),
    ]);
    let mut messages = body(json!({}))["messages"].clone();
    let message = scripted.whole(json!({})).await["message"].clone();
    let messages = messages.as_array_mut().expect("a list");
    let id = message["tool_calls"][0]["id"].clone();
    messages.push(message);
    messages.push(json!({"role": "tool", "tool_call_id": id, "content": [{"type": "text", "text": "yes, 4 mm"}]}));
    let answer = scripted.whole(json!({"messages": messages})).await;
    assert_eq!(told(&answer), json!(["It rains.", null, [], "stop"]));
}

#[tokio::test]
async fn a_call_can_be_forced_whatever_the_model_would_say() {
    let list = r#"[{"name": "weather", "parameters": {"city": "Bern"}}, {"name": "time", "parameters": {}}]<|im_end|>"#;
    let named = json!({"type": "function", "function": {"name": "weather"}});
    for parsers in [(None, None), (Some("hermes"), Some("qwen3"))] {
        let scripted = Scripted::new("qwen3", parsers, list);
        let required = json!({"tool_choice": "required"});
        let whole = scripted.whole(required.clone()).await;
        let time = json!({"name": "time", "arguments": "{}"});
        assert_eq!(told(&whole), json!([null, null, [weather(), time], "tool_calls"]));
        assert_eq!(told(&scripted.added_up(required).await), told(&whole));
        let one = scripted
            .whole(json!({"tool_choice": "required", "parallel_tool_calls": false}))
            .await;
        assert_eq!(told(&one)[2], json!([weather()]), "the grammar ends the list: {one}");

        scripted.model.set_lines(&[("", "{\"city\": \"Bern\"}<|im_end|>")]);
        let asked = json!({"tool_choice": named});
        let whole = scripted.whole(asked.clone()).await;
        // OpenAI's word for a call that the model did not choose.
        assert_eq!(told(&whole), json!([null, null, [weather()], "stop"]));
        assert_eq!(told(&scripted.added_up(asked).await), told(&whole));

        // A model that wants to talk is not let.
        scripted
            .model
            .set_lines(&[("", "No, it does not rain in Bern today.<|im_end|>")]);
        for choice in [named.clone(), json!("required")] {
            let whole = scripted.whole(json!({"tool_choice": choice, "max_tokens": 30})).await;
            assert_eq!(whole["message"]["content"], json!(null), "{whole}");
            // A model with a parser of reasoning may also begin to think.
            if choice != "required" && parsers.1.is_none() {
                let arguments = whole["message"]["tool_calls"][0]["function"]["arguments"].as_str();
                assert!(
                    arguments.is_some_and(|text| text.trim_start().starts_with('{')),
                    "{whole}"
                );
            }
        }
    }
    let scripted = Scripted::new("qwen3", (None, None), list);
    let both = json!({"tool_choice": "required", "response_format": {"type": "json_object"}});
    let error = scripted.ask(both).await.error(400);
    assert_eq!(error["param"], "response_format", "{error}");
}

#[tokio::test]
async fn tools_that_are_not_called_can_stay_out_of_the_prompt() {
    for excludes in [false, true] {
        let model = ScriptedModel::with_template_of(&fixture(".."), "qwen3", &[("", "a<|im_end|>")]);
        let serving = ServingDefaults {
            exclude_tools_when_tool_choice_none: excludes,
            ..ServingDefaults::default()
        };
        let scripted = Scripted::serving(model, (Some("hermes"), None), serving);
        let prompt_tokens = async |changes: Value| {
            let answer = scripted.ask(changes).await.ok();
            answer["usage"]["prompt_tokens"].as_u64().expect("a number")
        };
        let called = prompt_tokens(json!({})).await;
        let uncalled = prompt_tokens(json!({"tool_choice": "none"})).await;
        let plain = prompt_tokens(json!({"tools": null})).await;
        assert!(plain + 100 < called, "{plain} and {called}");
        assert_eq!(uncalled, if excludes { plain } else { called });
    }
}

/// An answer without what differs between runs.
fn settle(text: &str) -> String {
    let mut settled = text.to_owned();
    for (before, len, word) in [
        ("\"id\":\"call_", 24, "…"),
        ("\"created\":", 10, "TIME"),
        ("\"system_fingerprint\":\"halyard-", usize::MAX, "…"),
    ] {
        let mut parts = settled.split(before);
        let mut with_words = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = len.min(part.find('"').unwrap_or(part.len()));
            let _ = write!(with_words, "{before}{word}{}", &part[end..]);
        }
        settled = with_words;
    }
    settled
}

#[tokio::test]
async fn answers_with_calls_are_what_they_were_to_the_byte() {
    let scripted = Scripted::qwen(Some("qwen3"), THINKING);
    let mut record = String::new();
    for (name, changes) in [
        ("a thought and a call", json!({})),
        ("tokens beside it", json!({"return_token_ids": true, "max_tokens": 3})),
        (
            "usage in each piece",
            json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}}),
        ),
        ("without reasoning", json!({"include_reasoning": false})),
        ("cut off within the thought", json!({"max_tokens": 4})),
        (
            "echo",
            json!({"messages": [{"role": "user", "content": "Rain?"}, {"role": "assistant", "content": "Well"}],
            "response_role": "assistant", "echo": true}),
        ),
    ] {
        for stream in [false, true] {
            let mut changes = changes.clone();
            changes["stream"] = json!(stream);
            if !stream {
                changes["stream_options"] = json!(null);
            }
            let answer = scripted.ask(changes).await;
            assert_eq!(answer.status, 200, "{name}: {}", answer.text);
            let _ = writeln!(record, "### {name}, stream {stream}\n{}", settle(&answer.text));
        }
    }
    assert_recorded("tool_call_bytes.txt", &record);
}
