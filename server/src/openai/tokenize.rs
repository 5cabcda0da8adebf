//! `/tokenize` and `/detokenize`: the model's tokenizer and template, without generation.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::ModelContext;
use super::chat::{ChatPrompt, render};
use super::sampling::token_ids;
use crate::http::body::parse;
use crate::http::error::ApiError;

#[derive(Deserialize)]
struct TokenizeFields {
    prompt: Option<String>,
    messages: Option<Vec<Value>>,
    add_special_tokens: Option<bool>,
    #[serde(default, deserialize_with = "super::usage::null_is_false")]
    return_token_strs: bool,
    add_generation_prompt: Option<bool>,
    #[serde(default, deserialize_with = "super::usage::null_is_false")]
    continue_final_message: bool,
    chat_template_kwargs: Option<Map<String, Value>>,
}

/// Answers `/tokenize` for a text (`prompt`) or a chat (`messages`).
///
/// # Errors
/// 400 unless exactly one of them is sent, and for messages that the template refuses.
pub fn tokenize(body: &Value, model: ModelContext<'_>) -> Result<Value, ApiError> {
    let fields: TokenizeFields = parse(body)?;
    let (text, special) = match (&fields.prompt, &fields.messages) {
        (Some(prompt), None) => (prompt.clone(), fields.add_special_tokens.unwrap_or(true)),
        (None, Some(messages)) => {
            let chat = ChatPrompt {
                messages,
                add_generation_prompt: fields.add_generation_prompt,
                continue_final_message: fields.continue_final_message,
                template_variables: fields.chat_template_kwargs.as_ref(),
            };
            (render(&chat, model)?, fields.add_special_tokens.unwrap_or(false))
        }
        (Some(_), Some(_)) => return Err(ApiError::field("prompt", "send either prompt or messages, not both")),
        (None, None) => return Err(ApiError::field("prompt", "send prompt (a text) or messages (a chat)")),
    };
    let ids = model.tokenizer.encode(&text, special)?;
    let strings: Option<Vec<String>> = fields.return_token_strs.then(|| {
        ids.iter()
            .map(|id| model.tokenizer.id_to_token(*id).unwrap_or_default())
            .collect()
    });
    Ok(json!({"count": ids.len(), "max_model_len": model.max_model_len, "tokens": ids, "token_strs": strings}))
}

#[derive(Deserialize)]
struct DetokenizeFields {
    tokens: Vec<i64>,
}

/// Answers `/detokenize`.
///
/// # Errors
/// 400 for ids without a token.
pub fn detokenize(body: &Value, model: ModelContext<'_>) -> Result<Value, ApiError> {
    let fields: DetokenizeFields = parse(body)?;
    let ids = token_ids(
        "tokens",
        &fields.tokens,
        u32::try_from(model.tokenizer.vocab_size()).unwrap_or(u32::MAX),
    )?;
    Ok(json!({"prompt": model.tokenizer.decode(&ids, false)?}))
}
