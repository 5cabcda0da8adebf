//! Anthropic's system text and messages as the messages of a chat: blocks become text, reasoning, calls and results.

use std::mem;

use serde_json::{Map, Value, json};

use crate::api_error::{ApiError, clip};

/// A text of the system that begins so is no part of the prompt: Claude Code writes a number there that differs in each
/// request, so that no prefix would be found again. vLLM leaves it out, too.
const BILLING_HEADER: &str = "x-anthropic-billing-header";

/// The messages of a chat.
///
/// # Errors
/// 400 with the path of a block that is wrong or not supported.
pub fn chat_messages(system: &Value, sent: &[Value]) -> Result<Vec<Value>, ApiError> {
    let mut messages = Vec::with_capacity(sent.len() + 1);
    let text = system_text("system", system)?;
    if !text.is_empty() {
        messages.push(json!({"role": "system", "content": text}));
    }
    for (index, message) in sent.iter().enumerate() {
        let path = format!("messages[{index}]");
        match message["role"].as_str() {
            Some("user") => add_user(&path, &message["content"], &mut messages)?,
            Some("assistant") => messages.push(assistant(&path, &message["content"])?),
            Some("system") => {
                let text = system_text(&format!("{path}.content"), &message["content"])?;
                messages.push(json!({"role": "system", "content": text}));
            }
            _ => return Err(wrong(&format!("{path}.role"), "user or assistant", &message["role"])),
        }
    }
    Ok(messages)
}

/// Whether the answer goes on in the last message: Anthropic's way to put the first words into the model's mouth.
pub fn continues(messages: &[Value]) -> bool {
    messages.last().is_some_and(|last| {
        let has_text = last["content"].as_str().is_some_and(|text| !text.trim().is_empty());
        last["role"] == "assistant" && last["tool_calls"].is_null() && has_text
    })
}

fn wrong(path: &str, expected: &str, found: &Value) -> ApiError {
    let found = clip(&found.to_string());
    ApiError::field(path, format!("{path} is {found}; it must be {expected}"))
}

/// The blocks of a content, which may be a text; nothing is none.
fn blocks(path: &str, content: &Value) -> Result<Vec<(String, Value)>, ApiError> {
    match content {
        Value::String(text) => Ok(vec![(path.to_owned(), json!({"type": "text", "text": text}))]),
        Value::Array(blocks) => {
            let entries = blocks.iter().enumerate();
            Ok(entries
                .map(|(index, block)| (format!("{path}[{index}]"), block.clone()))
                .collect())
        }
        other => Err(wrong(path, "a string or a list of blocks", other)),
    }
}

/// A string that a block must have.
fn field<'a>(path: &str, block: &'a Value, name: &str) -> Result<&'a str, ApiError> {
    let path = format!("{path}.{name}");
    block[name]
        .as_str()
        .ok_or_else(|| wrong(&path, "a string", &block[name]))
}

/// A block that belongs nowhere here.
fn unsupported(path: &str, block: &Value, served: &str) -> ApiError {
    match block["type"].as_str() {
        None => wrong(&format!("{path}.type"), served, &block["type"]),
        Some(kind) => {
            let message = format!(
                "{path} is a block of the type \"{}\"; here only {served} are served",
                clip(kind)
            );
            ApiError::field(path, message).with_code("unsupported_parameter")
        }
    }
}

fn system_text(path: &str, system: &Value) -> Result<String, ApiError> {
    if system.is_null() {
        return Ok(String::new());
    }
    let mut all = String::new();
    for (path, block) in blocks(path, system)? {
        if block["type"] != "text" {
            return Err(unsupported(&path, &block, "text"));
        }
        let text = field(&path, &block, "text")?;
        if !text.starts_with(BILLING_HEADER) {
            all.push_str(text);
        }
    }
    Ok(all)
}

/// One text, or several parts.
fn content(mut texts: Vec<String>) -> Value {
    match texts.len() {
        0 => Value::Null,
        1 => Value::from(texts.remove(0)),
        _ => texts
            .into_iter()
            .map(|text| json!({"type": "text", "text": text}))
            .collect(),
    }
}

/// A user's texts, and the results of tools, which are messages of their own in a chat.
fn add_user(path: &str, sent: &Value, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let mut texts = Vec::new();
    let mut is_empty = true;
    let flush = |texts: &mut Vec<String>, messages: &mut Vec<Value>| {
        if !texts.is_empty() {
            messages.push(json!({"role": "user", "content": content(mem::take(texts))}));
        }
    };
    for (path, block) in blocks(&format!("{path}.content"), sent)? {
        is_empty = false;
        match block["type"].as_str() {
            Some("text") => texts.push(field(&path, &block, "text")?.to_owned()),
            Some("tool_result") => {
                flush(&mut texts, messages);
                let id = field(&path, &block, "tool_use_id")?;
                let text = result_text(&format!("{path}.content"), &block["content"])?;
                messages.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
            }
            _ => return Err(unsupported(&path, &block, "text and tool_result")),
        }
    }
    if is_empty {
        texts.push(String::new());
    }
    flush(&mut texts, messages);
    Ok(())
}

fn result_text(path: &str, content: &Value) -> Result<String, ApiError> {
    if content.is_null() {
        return Ok(String::new());
    }
    let mut texts = Vec::new();
    for (path, block) in blocks(path, content)? {
        match block["type"].as_str() {
            Some("text") => texts.push(field(&path, &block, "text")?.to_owned()),
            _ => return Err(unsupported(&path, &block, "text")),
        }
    }
    Ok(texts.join("\n"))
}

/// A message of the assistant: text, reasoning and calls, each together.
fn assistant(path: &str, sent: &Value) -> Result<Value, ApiError> {
    let mut texts = Vec::new();
    let mut reasoning = String::new();
    let mut calls = Vec::new();
    for (path, block) in blocks(&format!("{path}.content"), sent)? {
        match block["type"].as_str() {
            Some("text") => texts.push(field(&path, &block, "text")?.to_owned()),
            Some("thinking") => reasoning.push_str(field(&path, &block, "thinking")?),
            // Encrypted by whoever wrote it: there is nothing to read.
            Some("redacted_thinking") => {}
            Some("tool_use") => {
                let (id, name) = (field(&path, &block, "id")?, field(&path, &block, "name")?);
                let input = &block["input"];
                if !input.is_object() {
                    return Err(wrong(&format!("{path}.input"), "an object", input));
                }
                let function = json!({"name": name, "arguments": input.to_string()});
                calls.push(json!({"id": id, "type": "function", "function": function}));
            }
            _ => return Err(unsupported(&path, &block, "text, thinking and tool_use")),
        }
    }
    texts.retain(|text| !text.is_empty());
    let mut message = Map::new();
    message.insert("role".to_owned(), Value::from("assistant"));
    let text = match content(texts) {
        Value::Null if calls.is_empty() => Value::from(""),
        text => text,
    };
    message.insert("content".to_owned(), text);
    if !reasoning.is_empty() {
        message.insert("reasoning".to_owned(), Value::from(reasoning));
    }
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), Value::from(calls));
    }
    Ok(Value::Object(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(system: Value, messages: Value) -> Result<Value, ApiError> {
        let messages = messages.as_array().expect("a list");
        chat_messages(&system, messages).map(Value::from)
    }

    #[test]
    fn blocks_become_messages_of_a_chat() {
        let text = |text: &str| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
        let system = json!([text("x-anthropic-billing-header: 5"), text("Be "), text("brief.")]);
        let messages = json!([
            {"role": "user", "content": "Rain?"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"}, text("I look."),
                {"type": "redacted_thinking", "data": "x"},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [text("4"), text("mm")]},
                {"type": "tool_result", "tool_use_id": "2", "is_error": true}, text("And?"), text("Well?")]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "2", "name": "g", "input": {}}]},
        ]);
        let part = |text: &str| json!({"type": "text", "text": text});
        let call = |id: &str, name: &str, arguments: &str| {
            let function = json!({"name": name, "arguments": arguments});
            json!([{"id": id, "type": "function", "function": function}])
        };
        let expected = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Rain?"},
            {"role": "assistant", "content": "I look.", "reasoning": "Hm.", "tool_calls": call("1", "f", "{\"a\":1}")},
            {"role": "tool", "tool_call_id": "1", "content": "4\nmm"},
            {"role": "tool", "tool_call_id": "2", "content": ""},
            {"role": "user", "content": [part("And?"), part("Well?")]},
            {"role": "assistant", "content": null, "tool_calls": call("2", "g", "{}")},
        ]);
        assert_eq!(of(system, messages).expect("taken"), expected);
    }

    #[test]
    fn an_answer_goes_on_in_the_text_of_a_last_message() {
        let begun = json!({"role": "assistant", "content": "Well"});
        for (message, expected) in [
            (begun.clone(), true),
            (json!({"role": "user", "content": "Well"}), false),
            (json!({"role": "assistant", "content": " "}), false),
            (json!({"role": "assistant", "content": null, "tool_calls": [1]}), false),
        ] {
            assert_eq!(continues(&[begun.clone(), message.clone()]), expected, "{message}");
        }
    }

    #[test]
    fn what_is_wrong_has_its_path() {
        for (message, path, words) in [
            (
                json!({"role": "tool", "content": "a"}),
                "messages[0].role",
                "user or assistant",
            ),
            (
                json!({"role": "user", "content": 5}),
                "messages[0].content",
                "a list of blocks",
            ),
            (
                json!({"role": "user", "content": [5]}),
                "messages[0].content[0].type",
                "tool_result",
            ),
            (
                json!({"role": "user", "content": [{"type": "image", "source": {}}]}),
                "messages[0].content[0]",
                "\"image\"; here only text and tool_result are served",
            ),
            (
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1",
                    "content": [{"type": "image"}]}]}),
                "messages[0].content[0].content[0]",
                "only text",
            ),
            (
                json!({"role": "user", "content": [{"type": "tool_result"}]}),
                "messages[0].content[0].tool_use_id",
                "a string",
            ),
            (
                json!({"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": "{}"}]}),
                "messages[0].content[0].input",
                "an object",
            ),
        ] {
            let error = of(Value::Null, json!([message])).expect_err(words);
            assert_eq!(error.param.as_deref(), Some(path), "{}", error.message);
            assert!(error.message.contains(words), "{}", error.message);
        }
        let error = of(json!([{"type": "image"}]), json!([])).expect_err("no text");
        assert!(error.message.starts_with("system[0] is a block"), "{}", error.message);
    }
}
