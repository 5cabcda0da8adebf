//! Messages from a request, brought into the shape that a template reads. Changes no text.

use serde_json::{Map, Value};

use crate::{Result, TextError};

/// Which shapes of `content` a template can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContentShapes {
    pub(crate) string: bool,
    pub(crate) parts: bool,
}

/// Prepares all messages: a content the template cannot read as it is becomes the other shape (text parts joined by a
/// line break, as vLLM does), a missing one becomes an empty one, and tool-call arguments become objects.
///
/// # Errors
/// A message that is not an object with a role, a content of another type, a part that is not text, arguments that are
/// not JSON.
pub(crate) fn prepare(messages: &[Value], shapes: ContentShapes) -> Result<Vec<Value>> {
    messages
        .iter()
        .enumerate()
        .map(|(index, message)| prepare_one(index, message, shapes))
        .collect()
}

fn prepare_one(index: usize, message: &Value, shapes: ContentShapes) -> Result<Value> {
    let Value::Object(message) = message else {
        return Err(invalid(index, "", "an object with role and content", message));
    };
    if !message.get("role").is_some_and(Value::is_string) {
        return Err(invalid(
            index,
            ".role",
            "a string",
            message.get("role").unwrap_or(&Value::Null),
        ));
    }
    let mut message = message.clone();
    let content = prepare_content(index, message.get("content").unwrap_or(&Value::Null), shapes)?;
    message.insert("content".to_owned(), content);
    if let Some(calls) = message.get_mut("tool_calls") {
        prepare_tool_calls(index, calls)?;
    }
    Ok(Value::Object(message))
}

fn prepare_content(index: usize, content: &Value, shapes: ContentShapes) -> Result<Value> {
    match content {
        Value::Null if shapes.string => Ok(Value::from("")),
        Value::Null => Ok(Value::Array(Vec::new())),
        Value::String(_) if shapes.string => Ok(content.clone()),
        Value::String(text) => Ok(Value::Array(vec![text_part(text)])),
        Value::Array(parts) => {
            let texts = parts
                .iter()
                .enumerate()
                .map(|(part, value)| text_of_part(index, part, value))
                .collect::<Result<Vec<&str>>>()?;
            if shapes.parts {
                Ok(texts.into_iter().map(text_part).collect())
            } else {
                Ok(Value::from(texts.join("\n")))
            }
        }
        other => Err(invalid(index, ".content", "a string or a list of parts", other)),
    }
}

fn text_part(text: &str) -> Value {
    let mut part = Map::new();
    part.insert("type".to_owned(), Value::from("text"));
    part.insert("text".to_owned(), Value::from(text));
    Value::Object(part)
}

fn text_of_part(index: usize, part: usize, value: &Value) -> Result<&str> {
    if let Value::String(text) = value {
        return Ok(text);
    }
    if !value.is_object() {
        return Err(invalid(
            index,
            &format!(".content[{part}]"),
            "an object with type and text",
            value,
        ));
    }
    let kind = value["type"].as_str().unwrap_or("text");
    let field = match kind {
        "text" | "input_text" | "output_text" => "text",
        "refusal" => "refusal",
        _ => {
            return Err(TextError::UnsupportedContentPart {
                index,
                part,
                kind: kind.to_owned(),
            });
        }
    };
    let text = &value[field];
    text.as_str()
        .ok_or_else(|| invalid(index, &format!(".content[{part}].{field}"), "a string", text))
}

/// OpenAI's API carries arguments as JSON text; templates print them as objects.
fn prepare_tool_calls(index: usize, calls: &mut Value) -> Result<()> {
    if calls.is_null() {
        return Ok(());
    }
    let Value::Array(calls) = calls else {
        return Err(invalid(index, ".tool_calls", "a list", calls));
    };
    for (call_index, call) in calls.iter_mut().enumerate() {
        let Some(arguments) = call
            .get_mut("function")
            .and_then(|function| function.get_mut("arguments"))
        else {
            continue;
        };
        if let Value::String(text) = arguments {
            let parsed: Value = if text.trim().is_empty() {
                Value::Object(Map::new())
            } else {
                serde_json::from_str(text).map_err(|error| TextError::InvalidMessage {
                    index,
                    field: format!(".tool_calls[{call_index}].function.arguments"),
                    expected: "JSON text",
                    found: error.to_string(),
                })?
            };
            *arguments = parsed;
        }
    }
    Ok(())
}

fn invalid(index: usize, field: &str, expected: &'static str, found: &Value) -> TextError {
    let found = match found {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    TextError::InvalidMessage {
        index,
        field: field.to_owned(),
        expected,
        found: found.to_owned(),
    }
}
