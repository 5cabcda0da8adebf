//! Reasoning before a grammar: what a request asks of the text binds what comes behind the model's reasoning, on each
//! API that has reasoning, whole and streamed.

use crate::common::{Options, fixture};
use crate::scripted_server::Scripted;
use crate::scripted_server::scripted::ScriptedModel;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const CALL: &str = r#"[{"name": "weather", "parameters": {"city": "Bern"}}]"#;
const RAIN: &str = r#"{"city": "Bern"}"#;
const POINT: &str = r#"{"a": "x"}"#;
/// What a model writes that was not asked for anything.
const TALK: &str = "It rains in Bern today, I think, and there is a lot of it.";

fn parameters() -> Value {
    json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": false})
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "weather", "parameters": parameters()}}])
}

fn point() -> Value {
    json!({"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": false})
}

fn schema() -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": point()}}})
}

fn required() -> Value {
    json!({"tools": tools(), "tool_choice": "required"})
}

fn named() -> Value {
    json!({"tools": tools(), "tool_choice": {"type": "function", "function": {"name": "weather"}}})
}

/// The choice of a whole answer: content, reasoning, calls, end.
fn told(message: &Value, finish: &Value) -> Value {
    let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
    let calls: Vec<Value> = calls.iter().map(|call| call["function"]["arguments"].clone()).collect();
    json!([message["content"], message["reasoning"], calls, finish])
}

impl Scripted {
    fn says(&self, text: &str) {
        self.model.set_lines(&[("", &format!("{text}<|im_end|>"))]);
    }

    /// A chat's answer, which a stream tells as well.
    async fn chat(&self, fields: Value) -> Value {
        let mut body = json!({"messages": [{"role": "user", "content": "Rain?"}], "max_tokens": 120, "temperature": 0});
        let all = body.as_object_mut().expect("an object");
        all.extend(fields.as_object().expect("an object").clone());
        let whole = self.server.post(CHAT, &body).await.ok()["choices"][0].clone();
        body["stream"] = json!(true);
        let mut message = json!({"content": null, "reasoning": null, "tool_calls": []});
        let mut finish = Value::Null;
        for event in self.server.post(CHAT, &body).await.events() {
            let choice = &event["choices"][0];
            for name in ["content", "reasoning"] {
                if let Some(text) = choice["delta"][name].as_str().filter(|text| !text.is_empty()) {
                    message[name] = json!(format!("{}{text}", message[name].as_str().unwrap_or_default()));
                }
            }
            for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
                let calls = message["tool_calls"].as_array_mut().expect("a list");
                let index = call["index"].as_u64().expect("an index") as usize;
                if index == calls.len() {
                    calls.push(json!({"function": {"arguments": ""}}));
                }
                let arguments = &mut calls[index]["function"]["arguments"];
                let piece = call["function"]["arguments"].as_str().expect("a text");
                *arguments = json!(format!("{}{piece}", arguments.as_str().expect("a text")));
            }
            if choice["finish_reason"].is_string() {
                finish = choice["finish_reason"].clone();
            }
        }
        let whole = told(&whole["message"], &whole["finish_reason"]);
        assert_eq!(told(&message, &finish), whole, "streamed and whole");
        whole
    }
}

/// A template that opens reasoning, closes it, or says nothing of it.
fn model(opens: &str) -> ScriptedModel {
    let template = format!(
        "{{% for m in messages %}}{{{{ m.role }}}}: {{{{ m.content }}}}\n{{% endfor %}}assistant: {opens}\
         {{% if enable_thinking is defined and not enable_thinking %}}<think>\n</think>\n{{% endif %}}"
    );
    ScriptedModel::new(&fixture(".."), &template, &[])
}

fn server(opens: &str, reasoning: &'static str) -> Scripted {
    Scripted::of(model(opens), (Some("hermes"), Some(reasoning)))
}

#[tokio::test]
async fn a_model_thinks_first_wherever_its_reasoning_begins() {
    // By the format, by the prompt, and by the model itself.
    for (opens, reasoning, start) in [
        ("", "deepseek_r1", ""),
        ("<think>\n", "qwen3", ""),
        ("", "qwen3", "<think>"),
        ("", "glm45", "<think>"),
        ("", "granite", "Here is my thought process:"),
        ("", "gemma4", "<|channel>thought\n"),
    ] {
        let end = match reasoning {
            "granite" => "Here is my response:",
            "gemma4" => "<channel|>",
            _ => "</think>",
        };
        let scripted = server(opens, reasoning);
        for (fields, say, expected) in [
            (schema(), POINT, json!([POINT, "Rain?", [], "stop"])),
            (required(), CALL, json!([null, "Rain?", [RAIN], "tool_calls"])),
            (named(), RAIN, json!([null, "Rain?", [RAIN], "stop"])),
            (
                json!({"structured_outputs": {"choice": ["yes", "no"]}}),
                "no",
                json!(["no", "Rain?", [], "stop"]),
            ),
        ] {
            scripted.says(&format!("{start}Rain?{end}{say}"));
            assert_eq!(scripted.chat(fields.clone()).await, expected, "{reasoning} {fields}");
            // What comes behind the end is bound.
            scripted.says(&format!("{start}Rain?{end}{TALK}"));
            let bound = scripted.chat(fields.clone()).await;
            assert_eq!(bound[1], "Rain?", "{reasoning}: {bound}");
            assert!(!bound.to_string().contains("It rains"), "{reasoning}: {bound}");
        }
    }
}

#[tokio::test]
async fn a_model_that_does_not_think_is_bound_at_once() {
    let scripted = server("", "qwen3");
    for (fields, say, expected) in [
        (schema(), POINT, json!([POINT, null, [], "stop"])),
        (required(), CALL, json!([null, null, [RAIN], "tool_calls"])),
        (named(), RAIN, json!([null, null, [RAIN], "stop"])),
    ] {
        scripted.says(say);
        assert_eq!(scripted.chat(fields.clone()).await, expected);
        scripted.says(TALK);
        // It may still begin to think, as nothing else that it would say is allowed.
        let bound = scripted.chat(fields.clone()).await;
        assert!(!bound.to_string().contains("It rains"), "{bound}");
        assert!(bound[0].is_null() || bound[0] == POINT, "{bound}");
        // The template closes reasoning: not even its marker may come.
        scripted.says(&format!("<think>{say}"));
        let mut closed = fields;
        closed["chat_template_kwargs"] = json!({"enable_thinking": false});
        let bound = scripted.chat(closed).await;
        assert_eq!(bound[1], json!(null), "{bound}");
    }
    // A text that begins as the marker does.
    let marker_like = json!({"structured_outputs": {"choice": ["<thin>", "<think"]}});
    scripted.says("<thin>");
    assert_eq!(scripted.chat(marker_like).await, json!(["<thin>", null, [], "stop"]));
}

#[tokio::test]
async fn a_request_without_a_grammar_and_one_for_a_plain_text_are_as_before() {
    let scripted = server("", "deepseek_r1");
    scripted.says("Rain?</think>Yes.");
    assert_eq!(scripted.chat(json!({})).await, json!(["Yes.", "Rain?", [], "stop"]));
    let body = json!({"prompt": "Rain?", "max_tokens": 60, "temperature": 0,
        "structured_outputs": {"choice": ["Yes", "No"]}});
    let answer = scripted.server.post("/v1/completions", &body).await.ok();
    let text = answer["choices"][0]["text"].as_str();
    assert!(
        matches!(text, Some("Yes" | "No")),
        "no reasoning in completions: {answer}"
    );
}

#[tokio::test]
async fn calls_in_thoughts_are_thoughts_and_an_answer_does_not_end_in_them() {
    let scripted = server("", "deepseek_r1");
    let thought = "I could <tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call> now.";
    for reasoning in ["deepseek_r1", "kimi_k2"] {
        let scripted = server("", reasoning);
        scripted.says(&format!("{thought}</think>{POINT}"));
        let mut fields = schema();
        fields["tools"] = tools();
        assert_eq!(
            scripted.chat(fields).await,
            json!([POINT, thought, [], "stop"]),
            "{reasoning}"
        );
    }
    // The end token cannot come within reasoning, nor can one of the request's.
    for fields in [json!({}), json!({"stop_token_ids": [9]})] {
        let mut fields = fields;
        fields["max_tokens"] = json!(20);
        fields["structured_outputs"] = json!({"regex": "x"});
        scripted.says("Rain?");
        let open = scripted.chat(fields).await;
        assert_eq!((&open[0], &open[3]), (&json!(null), &json!("length")), "{open}");
        assert!(open[1].as_str().is_some_and(|text| text.starts_with("Rain?")), "{open}");
    }
}

#[tokio::test]
async fn reasoning_can_be_hidden_cut_off_and_continued() {
    let scripted = server("", "deepseek_r1");
    scripted.says(&format!("Rain?</think>{CALL}"));
    let mut hidden = required();
    hidden["include_reasoning"] = json!(false);
    assert_eq!(scripted.chat(hidden).await, json!([null, null, [RAIN], "tool_calls"]));
    let mut both = required();
    both["n"] = json!(2);
    both["messages"] = json!([{"role": "user", "content": "Rain?"}]);
    let answer = scripted.server.post(CHAT, &both).await.ok();
    for choice in answer["choices"].as_array().expect("choices") {
        assert_eq!(choice["message"]["reasoning"], "Rain?", "{answer}");
    }
    let tokens = answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64();
    assert!(tokens.is_some_and(|tokens| tokens > 0), "{answer}");

    let opened = json!([{"role": "user", "content": "Rain?"}, {"role": "assistant", "content": "<think>Ra"}]);
    let model = ScriptedModel::with_template_of(&fixture(".."), "chatml", &[]);
    let scripted = Scripted::of(model, (Some("hermes"), Some("qwen3")));
    for (mut fields, say, expected) in [
        (schema(), POINT, json!([POINT, "in?", [], "stop"])),
        (required(), CALL, json!([null, "in?", [RAIN], "tool_calls"])),
    ] {
        scripted.says(&format!("in?</think>{say}"));
        fields["messages"] = opened.clone();
        fields["continue_final_message"] = json!(true);
        fields["add_generation_prompt"] = json!(false);
        assert_eq!(scripted.chat(fields).await, expected);
    }
}

#[tokio::test]
async fn a_forced_call_that_is_cut_off_leaves_no_half_call_in_the_text() {
    for (reasoning, start) in [(None, ""), (Some("deepseek_r1"), "Rain?</think>")] {
        let scripted = Scripted::of(model(""), (Some("hermes"), reasoning));
        for (fields, say) in [(required(), CALL), (named(), RAIN)] {
            scripted.says(&format!("{start}{say}"));
            let mut partial = 0;
            for max_tokens in 1.. {
                let mut fields = fields.clone();
                fields["max_tokens"] = json!(max_tokens);
                let choice = scripted.chat(fields).await;
                assert_eq!(choice[0], json!(null), "{max_tokens}: {choice}");
                if choice[3] != "length" {
                    break;
                }
                partial += usize::from(choice[2].as_array().is_some_and(|calls| calls.len() == 1));
            }
            assert!(partial > 3, "{partial} cuts within the arguments");
            let list = json!([{"name": "weather", "input_schema": parameters()}]);
            let choice = match fields["tool_choice"].is_string() {
                true => json!({"type": "any"}),
                false => json!({"type": "tool", "name": "weather"}),
            };
            let body = json!({"messages": [{"role": "user", "content": "Rain?"}], "tools": list,
                "tool_choice": choice, "max_tokens": 3});
            let answer = scripted.server.post("/v1/messages", &body).await.ok();
            assert_eq!(answer["stop_reason"], "max_tokens", "{answer}");
            let blocks = answer["content"].as_array().expect("blocks").iter();
            let texts: String = blocks.filter_map(|block| block["text"].as_str()).collect();
            assert_eq!(texts, "", "{answer}");
            let list = json!([{"type": "function", "name": "weather", "parameters": parameters()}]);
            let body = json!({"input": "Rain?", "tools": list, "tool_choice": "required", "max_output_tokens": 3});
            let answer = scripted.server.post("/v1/responses", &body).await.ok();
            assert_eq!(answer["incomplete_details"]["reason"], "max_output_tokens", "{answer}");
            assert!(!answer["output"].to_string().contains("[{\\"), "{answer}");
        }
    }
}

#[tokio::test]
async fn messages_and_responses_think_first_too() {
    let scripted = server("", "deepseek_r1");
    scripted.says(&format!("Rain?</think>{CALL}"));
    let body = json!({"messages": [{"role": "user", "content": "Rain?"}], "max_tokens": 100,
        "tools": [{"name": "weather", "input_schema": parameters()}], "tool_choice": {"type": "any"}});
    let answer = scripted.server.post("/v1/messages", &body).await.ok();
    let content = answer["content"].as_array().expect("blocks");
    assert_eq!(
        (&content[0]["type"], &content[0]["thinking"]),
        (&json!("thinking"), &json!("Rain?")),
        "{answer}"
    );
    assert_eq!(content[1]["input"], json!({"city": "Bern"}), "{answer}");
    assert_eq!(answer["stop_reason"], "tool_use");
    let body = json!({"input": "Rain?", "tool_choice": "required",
        "tools": [{"type": "function", "name": "weather", "parameters": parameters()}]});
    let answer = scripted.server.post("/v1/responses", &body).await.ok();
    let output = answer["output"].as_array().expect("items");
    assert_eq!(output[0]["content"][0]["text"], "Rain?", "{answer}");
    assert_eq!(
        (&output[1]["type"], &output[1]["arguments"]),
        (&json!("function_call"), &json!(RAIN)),
        "{answer}"
    );

    scripted.says(&format!("Rain?</think>{POINT}"));
    let body = json!({"messages": [{"role": "user", "content": "Rain?"}], "max_tokens": 100,
        "output_config": {"format": {"type": "json_schema", "schema": point()}}});
    let answer = scripted.server.post("/v1/messages", &body).await.ok();
    assert_eq!(answer["content"][0]["thinking"], "Rain?", "{answer}");
    assert_eq!(answer["content"][1]["text"], POINT, "{answer}");
    let body = json!({"input": "Rain?", "text": {"format": {"type": "json_schema", "name": "n", "schema": point()}}});
    let answer = scripted.server.post("/v1/responses", &body).await.ok();
    assert_eq!(answer["output"][0]["type"], "reasoning", "{answer}");
    assert_eq!(answer["output"][1]["content"][0]["text"], POINT, "{answer}");
}

#[tokio::test]
async fn harmony_thinks_before_a_schema() {
    let template = "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}\
                    <|start|>assistant";
    let model = ScriptedModel::new(&fixture(".."), template, &[]);
    let scripted = Scripted::of(model, (Some("openai"), Some("openai_gptoss")));
    let analysis = "<|channel|>analysis<|message|>Rain?<|end|><|start|>assistant<|channel|>final<|message|>";
    for (say, is_right) in [(POINT, true), (TALK, false)] {
        scripted.model.set_lines(&[("", &format!("{analysis}{say}<|return|>"))]);
        let answer = scripted.chat(schema()).await;
        assert_eq!(answer[1], "Rain?", "{answer}");
        assert_eq!(answer[0] == POINT, is_right, "{answer}");
        assert!(!answer.to_string().contains("It rains"), "{answer}");
    }
}

#[tokio::test]
async fn reasoning_that_stays_in_the_text_comes_before_no_forced_call() {
    let scripted = server("", "minimax_m2_append_think");
    for (fields, say, expected) in [
        (required(), CALL, json!([null, null, [RAIN], "tool_calls"])),
        (named(), RAIN, json!([null, null, [RAIN], "stop"])),
    ] {
        scripted.says(say);
        assert_eq!(scripted.chat(fields).await, expected);
    }
    scripted.says(&format!("Rain?</think>{POINT}"));
    let answer = scripted.chat(schema()).await;
    assert_eq!(answer[0], format!("<think>Rain?</think>{POINT}"), "{answer}");
}

#[tokio::test]
async fn enable_in_reasoning_binds_from_the_first_token() {
    let options = Options {
        parsers: (Some("hermes"), Some("deepseek_r1")),
        binds_reasoning: true,
        ..Options::default()
    };
    let scripted = Scripted::with(model(""), options);
    for (fields, say, expected) in [
        (required(), CALL, json!([null, null, [RAIN], "tool_calls"])),
        (named(), RAIN, json!([null, null, [RAIN], "stop"])),
    ] {
        scripted.says(say);
        assert_eq!(scripted.chat(fields.clone()).await, expected);
        scripted.says(&format!("Rain?</think>{say}"));
        let bound = scripted.chat(fields).await;
        assert_eq!(bound[1], json!(null), "{bound}");
    }
}
