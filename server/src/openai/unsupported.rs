//! Request fields that this server knows but does not support. A field that would change the answer is refused by name.
//! A field that vLLM 0.32 accepts and ignores is ignored here too, with a log line at the level debug.

use serde_json::Value;

use super::body::Body;
use super::lenient::Int;
use crate::api_error::{ApiError, clip};

/// Fields that would change the answer, with what to do instead.
const REFUSED: [(&str, &str); 10] = [
    ("use_beam_search", "leave it out to sample"),
    ("logits_processors", "leave it out"),
    ("prompt_embeds", "send text or token ids"),
    ("guided_json", "send structured_outputs with json"),
    ("guided_regex", "send structured_outputs with regex"),
    ("guided_choice", "send structured_outputs with choice"),
    ("guided_grammar", "send structured_outputs with grammar"),
    ("logprob_token_ids", "send logprobs or top_logprobs"),
    ("repetition_detection", "leave it out"),
    (
        "chat_template",
        "render the prompt yourself and send it to /v1/completions",
    ),
];

/// Fields without effect here and in vLLM 0.32. Most are OpenAI's, and clients send them to every server.
const IGNORED: [&str; 6] = [
    "best_of",
    "functions",
    "function_call",
    "audio",
    "prediction",
    "guided_decoding_backend",
];

/// Refuses the fields of the first list, and values of others that cannot be served. Values that ask for nothing
/// (null, false, an empty list or text) pass.
///
/// # Errors
/// 400 that names the field.
pub fn refuse(body: &Body) -> Result<(), ApiError> {
    for (name, remedy) in REFUSED {
        let asks_for_nothing = match body.get(name) {
            Value::Null | Value::Bool(false) => true,
            Value::Array(entries) => entries.is_empty(),
            Value::String(text) => text.is_empty(),
            _ => false,
        };
        if !asks_for_nothing {
            return Err(ApiError::unsupported(name, remedy));
        }
    }
    refuse_suffix(body.get("suffix"))?;
    refuse_modalities(body.get("modalities"))?;
    let best_of = body.get("best_of");
    if !best_of.is_null() && Int::of(best_of).is_none() {
        let message = format!("best_of is {}; it must be an integer", shown(best_of));
        return Err(ApiError::field("best_of", message));
    }
    for name in IGNORED {
        if !body.get(name).is_null() {
            tracing::debug!(field = name, "a field without effect was sent");
        }
    }
    Ok(())
}

/// A value for an error message.
fn shown(value: &Value) -> String {
    clip(&value.to_string())
}

/// Even an empty one asks for a text that leads to it, so it needs a model that was trained to fill in the middle.
fn refuse_suffix(suffix: &Value) -> Result<(), ApiError> {
    match suffix {
        Value::Null => Ok(()),
        _ => Err(ApiError::unsupported("suffix", "leave it out")),
    }
}

fn refuse_modalities(modalities: &Value) -> Result<(), ApiError> {
    let wrong = || {
        let message = format!(
            "modalities is {}; it must be a list, such as [\"text\"]",
            shown(modalities)
        );
        ApiError::field("modalities", message)
    };
    let list = match modalities {
        Value::Null => return Ok(()),
        Value::Array(list) => list,
        _ => return Err(wrong()),
    };
    match list.iter().find(|entry| *entry != "text") {
        None => Ok(()),
        Some(Value::String(other)) => {
            let remedy = format!("\"{}\" was asked, only \"text\" is served", clip(other));
            Err(ApiError::unsupported("modalities", &remedy))
        }
        Some(_) => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refuse(body: Value) -> Result<(), ApiError> {
        super::refuse(&Body::new(body)?)
    }

    #[test]
    fn refuses_what_would_change_the_answer() {
        for (field, value) in [
            ("guided_json", json!({})),
            ("guided_choice", json!(["a"])),
            ("use_beam_search", json!(true)),
            ("suffix", json!("end")),
            ("suffix", json!("")),
            ("modalities", json!(["text", "audio"])),
            ("logprob_token_ids", json!([5])),
            ("repetition_detection", json!({"max_pattern_size": 4})),
        ] {
            let error = refuse(json!({field: value})).expect_err(field);
            assert_eq!(error.param.as_deref(), Some(field));
            assert!(error.message.contains("not supported yet"), "{}", error.message);
        }
    }

    #[test]
    fn names_values_of_the_wrong_type() {
        for (field, value) in [
            ("modalities", json!("audio")),
            ("modalities", json!([5])),
            ("best_of", json!("")),
            ("best_of", json!([2])),
        ] {
            let error = refuse(json!({field: value})).expect_err(field);
            assert_eq!(error.param.as_deref(), Some(field));
            assert!(error.message.contains("must be"), "{}", error.message);
        }
    }

    #[test]
    fn passes_what_asks_for_nothing_and_what_vllm_ignores() {
        let body = json!({"response_format": {"type": "text"}, "best_of": 4, "use_beam_search": false,
            "guided_json": null, "suffix": null, "modalities": ["text"], "functions": [{"name": "f"}],
                "function_call": "auto",
            "audio": {"voice": "alloy"}, "prediction": {"type": "content", "content": "x"},
            "guided_decoding_backend": "xgrammar", "unheard_of": 1});
        refuse(body).expect("nothing here changes the answer");
    }
}
