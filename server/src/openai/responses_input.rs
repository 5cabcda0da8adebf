//! The items of `/v1/responses` as the messages of a chat: what the assistant thought, said and called, which are items
//! of their own there, are one message of it here.

use serde_json::{Map, Value, json};

use crate::api_error::{ApiError, clip};

/// The messages of a chat: `earlier` items of the conversation, then those of `input`.
///
/// # Errors
/// 400 with the path of an item that is wrong or not supported.
pub fn chat_messages(instructions: Option<&str>, earlier: &[Value], input: &Value) -> Result<Vec<Value>, ApiError> {
    let mut history = History::default();
    if let Some(text) = instructions.filter(|text| !text.is_empty()) {
        history.messages.push(json!({"role": "system", "content": text}));
    }
    for (index, item) in earlier.iter().enumerate() {
        history.add(&format!("previous_response_id: item {index}"), item)?;
    }
    match input {
        Value::String(text) => {
            history.flush();
            history.messages.push(json!({"role": "user", "content": text}));
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                history.add(&format!("input[{index}]"), item)?;
            }
        }
        Value::Array(_) => return Err(ApiError::field("input", "input is empty; send at least one item")),
        other => return Err(wrong("input", "a string or a list of items", other)),
    }
    history.flush();
    Ok(history.messages)
}

fn wrong(path: &str, expected: &str, found: &Value) -> ApiError {
    let found = clip(&found.to_string());
    ApiError::field(path, format!("{path} is {found}; it must be {expected}"))
}

/// A string that an item must have.
fn field<'a>(path: &str, item: &'a Value, name: &str) -> Result<&'a str, ApiError> {
    let path = format!("{path}.{name}");
    item[name].as_str().ok_or_else(|| wrong(&path, "a string", &item[name]))
}

/// A content: a text, or parts of the types `kinds`, which all hold a text.
fn content(path: &str, sent: &Value, kinds: &[&str]) -> Result<Value, ApiError> {
    let parts = match sent {
        Value::String(text) => return Ok(Value::from(text.as_str())),
        Value::Array(parts) => parts,
        other => return Err(wrong(path, "a string or a list of parts", other)),
    };
    let read = |(index, part): (usize, &Value)| {
        let path = format!("{path}[{index}]");
        let kind = part["type"].as_str().unwrap_or_default();
        if !kinds.contains(&kind) {
            let found = clip(&part["type"].to_string());
            let message = format!(
                "{path} is a part of the type {found}; here only {} is served",
                kinds.join(" or ")
            );
            return Err(ApiError::field(path, message).with_code("unsupported_parameter"));
        }
        let name = if kind == "refusal" { "refusal" } else { "text" };
        Ok(json!({"type": "text", "text": field(&path, part, name)?}))
    };
    let mut parts: Vec<Value> = parts.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    match parts.len() {
        1 => Ok(parts.remove(0)["text"].take()),
        _ => Ok(Value::from(parts)),
    }
}

const TEXTS: [&str; 4] = ["input_text", "output_text", "text", "refusal"];

/// Messages so far, and the assistant's that is not whole yet.
#[derive(Default)]
struct History {
    messages: Vec<Value>,
    open: Option<Map<String, Value>>,
}

impl History {
    fn flush(&mut self) {
        if let Some(mut message) = self.open.take() {
            message.entry("content").or_insert(Value::Null);
            self.messages.push(Value::Object(message));
        }
    }

    /// The assistant's message that is not whole; another one where it has a field of these already.
    fn assistant(&mut self, taken: &[&str]) -> &mut Map<String, Value> {
        let is_taken = |message: &Map<String, Value>| taken.iter().any(|name| message.contains_key(*name));
        if self.open.as_ref().is_some_and(is_taken) {
            self.flush();
        }
        let begin = || Map::from_iter([("role".to_owned(), Value::from("assistant"))]);
        self.open.get_or_insert_with(begin)
    }

    fn add(&mut self, path: &str, item: &Value) -> Result<(), ApiError> {
        match (item["type"].as_str(), item["role"].as_str()) {
            (None | Some("message"), Some("assistant")) => {
                let text = content(&format!("{path}.content"), &item["content"], &TEXTS)?;
                let message = self.assistant(&["content", "tool_calls"]);
                message.insert("content".to_owned(), text);
            }
            (None | Some("message"), Some(role @ ("user" | "system" | "developer"))) => {
                let text = content(&format!("{path}.content"), &item["content"], &TEXTS)?;
                self.flush();
                self.messages.push(json!({"role": role, "content": text}));
            }
            (None | Some("message"), _) => {
                let roles = "user, system, developer or assistant";
                return Err(wrong(&format!("{path}.role"), roles, &item["role"]));
            }
            (Some("reasoning"), _) => {
                let text = reasoning(path, item)?;
                let message = self.assistant(&["reasoning", "content", "tool_calls"]);
                if !text.is_empty() {
                    message.insert("reasoning".to_owned(), Value::from(text));
                }
            }
            (Some("function_call"), _) => {
                let (id, name) = (field(path, item, "call_id")?, field(path, item, "name")?);
                let function = json!({"name": name, "arguments": field(path, item, "arguments")?});
                let call = json!({"id": id, "type": "function", "function": function});
                let calls = self.assistant(&[]).entry("tool_calls").or_insert_with(|| json!([]));
                if let Value::Array(calls) = calls {
                    calls.push(call);
                }
            }
            (Some("function_call_output"), _) => {
                let id = field(path, item, "call_id")?;
                let text = content(&format!("{path}.output"), &item["output"], &TEXTS)?;
                self.flush();
                self.messages
                    .push(json!({"role": "tool", "tool_call_id": id, "content": text}));
            }
            (Some("item_reference"), _) => {
                let message =
                    format!("{path} refers to an item of an earlier answer; answers are not stored: send the item");
                return Err(ApiError::field(path, message).with_code("unsupported_parameter"));
            }
            (Some(kind), _) => {
                let message = format!(
                    "{path} is an item of the type \"{}\"; here only message, reasoning, function_call and \
                     function_call_output are served",
                    clip(kind)
                );
                return Err(ApiError::field(path, message).with_code("unsupported_parameter"));
            }
        }
        Ok(())
    }
}

/// The text of an item of reasoning, or its summary. What is encrypted cannot be read.
fn reasoning(path: &str, item: &Value) -> Result<String, ApiError> {
    for (name, kind) in [("content", "reasoning_text"), ("summary", "summary_text")] {
        let parts = item[name].as_array().map_or(&[][..], Vec::as_slice);
        let mut all = String::new();
        for (index, part) in parts.iter().enumerate() {
            let path = format!("{path}.{name}[{index}]");
            if part["type"] != kind {
                return Err(wrong(&format!("{path}.type"), &format!("\"{kind}\""), &part["type"]));
            }
            all.push_str(field(&path, part, "text")?);
        }
        if !all.is_empty() {
            return Ok(all);
        }
    }
    Ok(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_become_messages_of_a_chat() {
        let thought = json!({"type": "reasoning", "id": "rs_1", "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm."}]});
        let said = json!({"type": "message", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}]});
        let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{\"a\": 1}"});
        let items = json!([
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": [
                {"type": "input_text", "text": "Rain?"}, {"type": "input_text", "text": "Snow?"}]},
            thought, said, call("1"), call("2"),
            {"type": "function_call_output", "call_id": "1", "output": "4 mm"},
            {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "0 mm"}]},
            call("3"),
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "So."}], "encrypted_content": "x"},
            {"role": "assistant", "content": "Yes."},
        ]);
        let of = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}});
        let part = |text: &str| json!({"type": "text", "text": text});
        let expected = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": [part("Rain?"), part("Snow?")]},
            {"role": "assistant", "reasoning": "Hm.", "content": "I look.", "tool_calls": [of("1"), of("2")]},
            {"role": "tool", "tool_call_id": "1", "content": "4 mm"},
            {"role": "tool", "tool_call_id": "2", "content": "0 mm"},
            {"role": "assistant", "tool_calls": [of("3")], "content": null},
            {"role": "assistant", "reasoning": "So.", "content": "Yes."},
        ]);
        let messages = chat_messages(Some("Be brief."), &[], &items).expect("taken");
        assert_eq!(Value::from(messages), expected);
    }

    #[test]
    fn what_is_wrong_has_its_path() {
        for (item, path, words) in [
            (json!(5), "input[0].role", "assistant"),
            (json!({"role": "tool", "content": "a"}), "input[0].role", "assistant"),
            (
                json!({"role": "user", "content": 5}),
                "input[0].content",
                "a list of parts",
            ),
            (
                json!({"role": "user", "content": [{"type": "input_image"}]}),
                "input[0].content[0]",
                "\"input_image\"; here only input_text",
            ),
            (json!({"type": "item_reference", "id": "x"}), "input[0]", "not stored"),
            (json!({"type": "web_search_call"}), "input[0]", "\"web_search_call\""),
            (
                json!({"type": "function_call", "name": "f"}),
                "input[0].call_id",
                "a string",
            ),
            (
                json!({"type": "reasoning", "content": [{"type": "text"}]}),
                "input[0].content[0].type",
                "reasoning_text",
            ),
        ] {
            let error = chat_messages(None, &[], &json!([item])).expect_err(words);
            assert_eq!(error.param.as_deref(), Some(path), "{}", error.message);
            assert!(error.message.contains(words), "{}", error.message);
        }
        for (input, words) in [(json!([]), "at least one"), (json!(null), "a string or a list")] {
            let error = chat_messages(None, &[], &input).expect_err(words);
            assert!(error.message.contains(words), "{}", error.message);
        }
    }
}
