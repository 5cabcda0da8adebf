//! The processor through its tables: which fields of a request change, which requests are refused, and texts of several
//! choices.

use std::sync::Arc;

use halyard_io_processor_redact::plugin;
use halyard_platform_api::io_processor::{IoOpened, IoProcessor, IoRequest, IoVerdict};
use halyard_platform_api::{Result, Status};
use halyard_plugin_host::Plugin;
use serde_json::{Value, json};

fn create(config: &str) -> Result<Arc<dyn IoProcessor>> {
    let plugin = Plugin::from_linked(plugin()).expect("it loads");
    plugin.io_processor_factory().expect("its kind").create(config)
}

fn open(route: &str, body: &Value) -> IoOpened {
    let body = body.to_string();
    let request = IoRequest {
        route,
        id: "cmpl-1",
        body: &body,
        max_bytes: 1 << 20,
    };
    create("{}").expect("it starts").open(&request).expect("answered")
}

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

#[test]
fn all_texts_of_a_chat_change_and_nothing_else() {
    let body = |m: &str| {
        let arguments = json!({"to": m, "note": format!("line\nx {m}"), "n": 1}).to_string();
        json!({"model": "a@example.com", "user": "u@example.com", "messages": [
            {"role": "system", "content": format!("I am {m}")},
            {"role": "user", "name": "n@example.com", "content": [{"type": "text", "text": m},
                {"type": "image_url", "image_url": {"url": "http://u@example.com/x"}}]},
            {"role": "assistant", "content": null, "reasoning_content": m,
            "tool_calls": [{"id": "i@example.com", "type": "function",
                "function": {"name": "f@example.com", "arguments": arguments}}]},
            {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": format!("not JSON {m}")}},
            {"role": "tool", "tool_call_id": "i@example.com", "content": m}],
            "chat_template_kwargs": {"documents": [{"text": m}]}, "stop": ["s@example.com"], "max_tokens": 5})
    };
    let opened = open(CHAT, &body("bob@example.com"));
    let IoVerdict::Rewrite(rewritten) = opened.verdict else {
        panic!("{:?}", opened.verdict);
    };
    let rewritten: Value = serde_json::from_str(&rewritten).expect("JSON");
    assert_eq!(rewritten, body("[REDACTED]"));
}

#[test]
fn all_texts_of_messages_and_responses_change() {
    let body = |m: &str| {
        let block = json!({"type": "tool_use", "id": "1", "name": "f", "input": {"to": [m]}});
        let result = json!({"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": m}]});
        json!({"model": "a@example.com", "system": [{"type": "text", "text": m}], "messages": [
            {"role": "user", "content": m}, {"role": "assistant", "content": [block]},
            {"role": "user", "content": [result]}], "max_tokens": 5})
    };
    let responses = |m: &str| {
        let arguments = json!({ "to": m }).to_string();
        json!({"instructions": m, "metadata": {"m": "a@example.com"}, "input": [
            {"role": "user", "content": [{"type": "input_text", "text": m}]},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": m}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": arguments},
            {"type": "function_call_output", "call_id": "1", "output": m}]})
    };
    for (route, before, after) in [
        ("/v1/messages", body("bob@example.com"), body("[REDACTED]")),
        ("/v1/responses", responses("bob@example.com"), responses("[REDACTED]")),
    ] {
        let IoVerdict::Rewrite(rewritten) = open(route, &before).verdict else {
            panic!("{route}: nothing changed");
        };
        assert_eq!(serde_json::from_str::<Value>(&rewritten).expect("JSON"), after);
    }
}

#[test]
fn prompts_of_completions_change_and_clean_ones_pass() {
    for (prompt, expected) in [
        (json!("mail a@b.cc"), json!("mail [REDACTED]")),
        (json!(["a@b.cc", "x"]), json!(["[REDACTED]", "x"])),
    ] {
        let opened = open(
            COMPLETIONS,
            &json!({"prompt": prompt, "suffix": "a@b.cc", "logprobs": null}),
        );
        let IoVerdict::Rewrite(body) = opened.verdict else {
            panic!("{:?}", opened.verdict);
        };
        let body: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(
            body,
            json!({"prompt": expected, "suffix": "[REDACTED]", "logprobs": null})
        );
    }
    for (route, body) in [
        (COMPLETIONS, json!({"prompt": "nothing here", "x": "a@b.cc"})),
        (CHAT, json!({"model": "m"})),
        (
            CHAT,
            json!({"messages": "no list", "logprobs": false, "top_logprobs": 0, "return_token_ids": false}),
        ),
    ] {
        let opened = open(route, &body);
        assert_eq!(opened.verdict, IoVerdict::Pass);
        assert!(opened.outputs.is_some(), "the answer is redacted all the same");
    }
}

#[test]
fn what_would_show_the_raw_tokens_is_refused() {
    for (route, body, words) in [
        (CHAT, json!({"logprobs": true}), "logprobs"),
        (CHAT, json!({"top_logprobs": 3}), "top_logprobs"),
        (COMPLETIONS, json!({"prompt": "a", "logprobs": 0}), "logprobs"),
        (
            COMPLETIONS,
            json!({"prompt": "a", "prompt_logprobs": 1}),
            "prompt_logprobs",
        ),
        (
            COMPLETIONS,
            json!({"prompt": "a", "return_token_ids": true}),
            "return_token_ids",
        ),
        (COMPLETIONS, json!({"prompt": [1, 2]}), "token ids"),
        (COMPLETIONS, json!({"prompt": ["a", [1, 2]]}), "token ids"),
    ] {
        match open(route, &body).verdict {
            IoVerdict::Reject { status: 400, reason } => assert!(reason.contains(words), "{reason}"),
            verdict => panic!("{body}: {verdict:?}"),
        }
    }
}

#[test]
fn choices_keep_apart_and_the_replacement_is_the_operators() {
    let processor = create(r#"{"replacement": "<gone>"}"#).expect("it starts");
    let request = IoRequest {
        route: COMPLETIONS,
        id: "cmpl-1",
        body: r#"{"prompt": "a"}"#,
        max_bytes: 1 << 20,
    };
    let mut outputs = processor.open(&request).expect("answered").outputs.expect("wanted");
    let shown = [(0, "to bob@exa"), (1, "to eve@exa"), (0, "mple.com "), (1, "mple")];
    let shown: Vec<String> = shown
        .map(|(choice, text)| outputs.push(choice, text).expect("taken"))
        .into();
    assert_eq!(shown, ["to ", "to ", "<gone> ", ""]);
    assert_eq!(outputs.finish(0).expect("taken"), "");
    assert_eq!(outputs.finish(1).expect("taken"), "eve@example");
}

#[test]
fn configurations_are_refused_by_key() {
    let long = json!({"replacement": "x".repeat(65)}).to_string();
    for (config, words) in [
        (r#"{"replace": "x"}"#, "replace"),
        (r#"{"replacement": 1}"#, "replacement"),
        (&long, "65 bytes"),
    ] {
        let error = create(config).err().expect(config);
        assert!(
            error.status == Status::InvalidArgument && error.message.contains(words),
            "{error}"
        );
    }
}
