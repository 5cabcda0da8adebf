//! Messages from a request, brought into the shape that a template reads. Changes no text.

use serde_json::{Map, Value};

use crate::{Result, TextError};

/// Which shapes of `content` a template can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContentShapes {
    pub(crate) string: bool,
    pub(crate) parts: bool,
}

/// OpenAI's newer name for `system`.
const DEVELOPER: &str = "developer";

/// Whether a template's source treats the role `developer` as one of its own: it names it (vLLM's rule). A template
/// that prints every role as it comes does not know it, although it renders.
pub(crate) fn names_developer(source: &str) -> bool {
    source.contains("\"developer\"") || source.contains("'developer'")
}

/// Prepares all messages: a content the template cannot read as it is becomes the other shape (text parts joined by a
/// line break, as vLLM does), a missing one becomes an empty one, and tool-call arguments become objects. Without
/// `knows_developer`, developer messages become part of the system message.
///
/// # Errors
/// A message that is not an object with a role, a content of another type, a part that is not text, arguments that are
/// not JSON.
pub(crate) fn prepare(messages: &[Value], shapes: ContentShapes, knows_developer: bool) -> Result<Vec<Value>> {
    let prepared: Vec<Value> = messages
        .iter()
        .enumerate()
        .map(|(index, message)| prepare_one(index, message, shapes))
        .collect::<Result<_>>()?;
    let is = |message: &Value, role: &str| message["role"] == role;
    if knows_developer || !prepared.iter().any(|message| is(message, DEVELOPER)) {
        return Ok(prepared);
    }
    Ok(one_system_message(prepared, shapes))
}

/// Makes one system message of all system and developer messages, at the front, as vLLM does: templates without the
/// role often take a system message in the first place only. A single one at the front keeps its other fields.
fn one_system_message(mut messages: Vec<Value>, shapes: ContentShapes) -> Vec<Value> {
    let is_system = |message: &Value| message["role"] == "system" || message["role"] == DEVELOPER;
    if let [Value::Object(first), others @ ..] = messages.as_mut_slice()
        && !others.iter().any(is_system)
    {
        first.insert("role".to_owned(), Value::from("system"));
        // Tools of a developer message alone; a system message has none.
        first.shift_remove("tools");
        return messages;
    }
    let (system, others): (Vec<Value>, Vec<Value>) = messages.into_iter().partition(is_system);
    let texts: Vec<String> = system.iter().map(|message| plain_text(&message["content"])).collect();
    let texts: Vec<&str> = texts
        .iter()
        .map(String::as_str)
        .filter(|text| !text.is_empty())
        .collect();
    let text = texts.join("\n\n");
    let content = if shapes.string {
        Value::from(text)
    } else {
        Value::Array(vec![text_part(&text)])
    };
    let mut merged = Map::new();
    merged.insert("role".to_owned(), Value::from("system"));
    merged.insert("content".to_owned(), content);
    std::iter::once(Value::Object(merged)).chain(others).collect()
}

/// The text of a prepared content.
fn plain_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
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
    let shapes = match message["role"].as_str() {
        // Templates print what a tool returned; few look into its parts.
        Some("tool") => ContentShapes {
            string: true,
            parts: false,
        },
        _ => shapes,
    };
    let content = prepare_content(index, message.get("content").unwrap_or(&Value::Null), shapes)?;
    message.insert("content".to_owned(), content);
    if message["role"] == "assistant" {
        prepare_reasoning(index, &mut message)?;
    }
    if let Some(calls) = message.get_mut("tool_calls") {
        prepare_tool_calls(index, calls)?;
        // Templates ask whether there is such a field.
        if calls.as_array().is_none_or(Vec::is_empty) {
            message.shift_remove("tool_calls");
        }
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

/// The text of a part that the chat API has; `input_text` and `output_text` are the Responses API's.
fn text_of_part(index: usize, part: usize, value: &Value) -> Result<&str> {
    let path = |field: &str| format!(".content[{part}]{field}");
    if !value.is_object() {
        return Err(invalid(index, &path(""), "an object with type and text", value));
    }
    let Some(kind) = value["type"].as_str() else {
        return Err(invalid(index, &path(".type"), "\"text\"", &value["type"]));
    };
    let field = match kind {
        "text" => "text",
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
        .ok_or_else(|| invalid(index, &path(&format!(".{field}")), "a string", text))
}

/// Reasoning has two names, and templates read either one.
fn prepare_reasoning(index: usize, message: &mut Map<String, Value>) -> Result<()> {
    const NAMES: [&str; 2] = ["reasoning", "reasoning_content"];
    let sent = NAMES
        .iter()
        .find_map(|name| message.get(*name).filter(|value| !value.is_null()));
    let Some(sent) = sent.cloned() else { return Ok(()) };
    if !sent.is_string() {
        return Err(invalid(index, ".reasoning", "a string", &sent));
    }
    for name in NAMES {
        message.insert(name.to_owned(), sent.clone());
    }
    Ok(())
}

/// OpenAI's API carries arguments as JSON text; templates print them as objects. A text that is no object stays one:
/// it is what the model wrote, and without it the conversation could not go on.
fn prepare_tool_calls(index: usize, calls: &mut Value) -> Result<()> {
    if calls.is_null() {
        return Ok(());
    }
    let Value::Array(calls) = calls else {
        return Err(invalid(index, ".tool_calls", "a list", calls));
    };
    for (call_index, call) in calls.iter_mut().enumerate() {
        let path = |field: &str| format!(".tool_calls[{call_index}]{field}");
        if call.get("type").is_some_and(|kind| kind != "function") {
            return Err(invalid(index, &path(".type"), "\"function\"", &call["type"]));
        }
        let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else {
            return Err(invalid(
                index,
                &path(".function"),
                "an object with name and arguments",
                call,
            ));
        };
        let sent = function.get("arguments").unwrap_or(&Value::Null);
        let arguments = match sent {
            Value::Object(_) => continue,
            Value::Null => Value::Object(Map::new()),
            Value::String(text) if text.trim().is_empty() => Value::Object(Map::new()),
            Value::String(text) => match serde_json::from_str(text) {
                Ok(Value::Object(arguments)) => Value::Object(arguments),
                _ => continue,
            },
            other => return Err(invalid(index, &path(".function.arguments"), "JSON text", other)),
        };
        function.insert("arguments".to_owned(), arguments);
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
