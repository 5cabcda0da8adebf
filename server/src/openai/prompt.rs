//! The `prompt` of a completion request: a text, token ids, or a list of either. Becomes token ids here; nothing else
//! of the request is looked at.

use serde_json::Value;

use super::lenient::Int;
use super::model::ModelContext;
use super::sampling::token_ids;
use crate::api_error::ApiError;

/// One prompt, ready for the engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// The text, where one was sent.
    pub text: Option<String>,
    /// Its ids, never empty.
    pub token_ids: Vec<u32>,
}

/// Reads the field `prompt`. Of several prompts one that does not fit into the context is the only one.
///
/// # Errors
/// 400 for a missing, empty or mixed prompt, ids outside the vocabulary, and more prompts than the limit.
pub fn read_prompts(sent: &Value, add_special_tokens: bool, model: ModelContext<'_>) -> Result<Vec<Prompt>, ApiError> {
    let wrong = || {
        ApiError::field(
            "prompt",
            "prompt must be a string, a list of strings, a list of token ids or a list of such lists",
        )
    };
    let prompts = match sent {
        Value::Null => {
            return Err(ApiError::field(
                "prompt",
                "prompt is missing; send a string or token ids",
            ));
        }
        Value::String(text) => vec![from_text(text, add_special_tokens, model)?],
        Value::Array(entries) => match entries.first() {
            None => {
                return Err(ApiError::field(
                    "prompt",
                    "prompt is an empty list; send at least one prompt",
                ));
            }
            Some(Value::Number(_)) => vec![from_ids(sent, "prompt", model).transpose().ok_or_else(wrong)??],
            Some(_) => {
                if entries.len() > model.limits.prompts {
                    let limit = model.limits.prompts;
                    let message = format!(
                        "prompt holds {} prompts; at most {limit} are taken in one request",
                        entries.len()
                    );
                    return Err(ApiError::field("prompt", message));
                }
                let mut prompts = Vec::with_capacity(entries.len());
                for (index, entry) in entries.iter().enumerate() {
                    let prompt = match entry {
                        Value::String(text) => from_text(text, add_special_tokens, model)?,
                        _ => from_ids(entry, &format!("prompt[{index}]"), model)?.ok_or_else(wrong)?,
                    };
                    // The engine refuses it, and tells the stat loggers. The others are not read for that.
                    if !model.truncates && prompt.token_ids.len() >= model.max_model_len as usize {
                        return Ok(vec![prompt]);
                    }
                    prompts.push(prompt);
                }
                prompts
            }
        },
        _ => return Err(wrong()),
    };
    match prompts.iter().position(|prompt| prompt.token_ids.is_empty()) {
        None => Ok(prompts),
        Some(index) => {
            let which = if prompts.len() == 1 {
                "the prompt".to_owned()
            } else {
                format!("prompt[{index}]")
            };
            Err(ApiError::field(
                "prompt",
                format!("{which} is empty; send at least one token"),
            ))
        }
    }
}

fn from_text(text: &str, add_special_tokens: bool, model: ModelContext<'_>) -> Result<Prompt, ApiError> {
    let token_ids = if text.is_empty() {
        Vec::new()
    } else {
        model.encode_prompt("prompt", text, add_special_tokens)?
    };
    Ok(Prompt {
        text: Some(text.to_owned()),
        token_ids,
    })
}

/// `None` when the entry is no list of integers.
fn from_ids(entry: &Value, name: &str, model: ModelContext<'_>) -> Result<Option<Prompt>, ApiError> {
    let Some(ids) = entry
        .as_array()
        .and_then(|ids| ids.iter().map(integer).collect::<Option<Vec<i64>>>())
    else {
        return Ok(None);
    };
    let token_ids = token_ids(name, &ids, model.vocab_size).map_err(|error| ApiError {
        param: Some("prompt".to_owned()),
        ..error
    })?;
    Ok(Some(Prompt { text: None, token_ids }))
}

/// Integers past i64 are out of any vocabulary too; they are reported as the largest one. A flag or a text is no id.
fn integer(value: &Value) -> Option<i64> {
    let number = value.is_number().then_some(value)?;
    Int::of(number).or_else(|| number.as_u64().map(|_| i64::MAX))
}
