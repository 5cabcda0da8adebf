//! Which fields of a request are text, and which requests cannot be redacted at all.

use serde_json::Value;

/// Redacts every text of a request's body in place; returns whether anything changed. Names, ids and parameters stay as
/// they are.
///
/// # Errors
/// Why the request cannot be redacted, for the client.
pub fn redact_request(route: &str, body: &mut Value, redact: &dyn Fn(&str) -> String) -> Result<bool, String> {
    refuse_raw(body)?;
    let before = body.clone();
    if route.ends_with("/chat/completions") {
        if let Some(messages) = body.get_mut("messages").and_then(Value::as_array_mut) {
            messages.iter_mut().for_each(|message| redact_message(message, redact));
        }
        if let Some(variables) = body.get_mut("chat_template_kwargs") {
            redact_strings(variables, redact);
        }
    } else {
        for field in ["prompt", "suffix", "system", "messages", "instructions", "input"] {
            if let Some(value) = body.get_mut(field) {
                redact_strings(value, redact);
            }
        }
    }
    Ok(*body != before)
}

/// What would show tokens as the model made or read them, past the redaction.
fn refuse_raw(body: &Value) -> Result<(), String> {
    for field in ["logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids"] {
        let value = &body[field];
        // OpenAI's legacy `logprobs: 0` asks for them too.
        let absent = match field {
            "top_logprobs" => value.is_null() || *value == 0,
            _ => value.is_null() || *value == false,
        };
        if !absent {
            return Err(format!(
                "{field} shows tokens that redaction would have to hide, so it is not served here; leave {field} out"
            ));
        }
    }
    let has_ids = |value: &Value| match value {
        Value::Array(entries) => entries.iter().any(|entry| entry.is_number() || entry.is_array()),
        _ => false,
    };
    if has_ids(&body["prompt"]) {
        return Err("a prompt of token ids cannot be redacted; send its text".to_owned());
    }
    Ok(())
}

fn redact_message(message: &mut Value, redact: &dyn Fn(&str) -> String) {
    for field in ["content", "refusal", "reasoning", "reasoning_content"] {
        match message.get_mut(field) {
            Some(Value::Array(parts)) => {
                for part in parts {
                    for text in ["text", "refusal"] {
                        redact_field(part, text, redact);
                    }
                }
            }
            Some(_) => redact_field(message, field, redact),
            None => {}
        }
    }
    if let Some(call) = message.get_mut("function_call") {
        redact_arguments(call, redact);
    }
    if let Some(Value::Array(calls)) = message.get_mut("tool_calls") {
        for call in calls {
            if let Some(function) = call.get_mut("function") {
                redact_arguments(function, redact);
            }
        }
    }
}

fn redact_field(object: &mut Value, field: &str, redact: &dyn Fn(&str) -> String) {
    if let Some(Value::String(text)) = object.get_mut(field) {
        *text = redact(text);
    }
}

/// Arguments are JSON in a text: their strings are redacted and the rest stays JSON. What is no JSON is redacted as
/// text.
fn redact_arguments(call: &mut Value, redact: &dyn Fn(&str) -> String) {
    match call.get_mut("arguments") {
        Some(Value::String(text)) => match serde_json::from_str::<Value>(text) {
            Ok(before) => {
                let mut after = before.clone();
                redact_strings(&mut after, redact);
                // Untouched arguments keep their blanks.
                if after != before {
                    *text = after.to_string();
                }
            }
            Err(_) => *text = redact(text),
        },
        Some(arguments) => redact_strings(arguments, redact),
        None => {}
    }
}

/// Every string value, however deep; keys stay.
fn redact_strings(value: &mut Value, redact: &dyn Fn(&str) -> String) {
    match value {
        Value::String(text) => *text = redact(text),
        Value::Array(entries) => entries.iter_mut().for_each(|entry| redact_strings(entry, redact)),
        Value::Object(fields) => fields.values_mut().for_each(|field| redact_strings(field, redact)),
        _ => {}
    }
}
