//! `/tokenize` and `/detokenize`: the model's tokenizer and template, without generation.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::body::Body;
use super::chat_prompt::{ChatPrompt, render};
use super::lenient::{Flag, Int, integers, is_set};
use super::model::ModelContext;
use super::prompt::Prompt;
use super::sampling::token_ids;
use super::tools;
use super::truncation::TruncationFields;
use crate::api_error::ApiError;

#[derive(Deserialize)]
struct TokenizeFields {
    prompt: Option<String>,
    messages: Option<Vec<Value>>,
    add_special_tokens: Option<Flag>,
    return_token_strs: Option<Flag>,
    add_generation_prompt: Option<Flag>,
    continue_final_message: Option<Flag>,
    chat_template_kwargs: Option<Map<String, Value>>,
    #[serde(default)]
    tools: Value,
}

/// The answer of `/tokenize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tokenized {
    count: usize,
    max_model_len: u32,
    tokens: Vec<u32>,
    /// null unless asked.
    token_strs: Option<Vec<String>>,
}

/// Answers `/tokenize` for a text (`prompt`) or a chat (`messages`).
///
/// # Errors
/// 400 unless exactly one of them is sent, and for messages that the template refuses.
pub fn tokenize(body: &mut Body, model: ModelContext<'_>) -> Result<Tokenized, ApiError> {
    let fields: TokenizeFields = body.take()?;
    let truncation = body.take::<TruncationFields>()?.read(None, model)?;
    let special = fields.add_special_tokens.map(|Flag(set)| set);
    let (text, special) = match (&fields.prompt, &fields.messages) {
        (Some(prompt), None) => (prompt.clone(), special.unwrap_or(true)),
        (None, Some(messages)) => {
            let tools = tools::definitions(&fields.tools, tools::CHAT, model.limits)?;
            let chat = ChatPrompt {
                messages,
                add_generation_prompt: fields.add_generation_prompt.map(|Flag(set)| set),
                continue_final_message: is_set(fields.continue_final_message),
                template_variables: fields.chat_template_kwargs.as_ref(),
                tools: tools.as_ref(),
                documents: None,
            };
            (render(&chat, model)?, special.unwrap_or(false))
        }
        (Some(_), Some(_)) => return Err(ApiError::field("prompt", "send either prompt or messages, not both")),
        (None, None) => return Err(ApiError::field("prompt", "send prompt (a text) or messages (a chat)")),
    };
    let field = if fields.messages.is_some() {
        "messages"
    } else {
        "prompt"
    };
    let token_ids = model.encode_text(field, &text, special)?;
    let mut prompt = Prompt { token_ids, text: None };
    if let Some(truncation) = truncation {
        truncation.apply(&mut prompt);
    }
    let ids = prompt.token_ids;
    let strings: Option<Vec<String>> = is_set(fields.return_token_strs).then(|| {
        ids.iter()
            .map(|id| model.tokenizer.id_to_token(*id).unwrap_or_default())
            .collect()
    });
    Ok(Tokenized {
        count: ids.len(),
        max_model_len: model.max_model_len,
        tokens: ids,
        token_strs: strings,
    })
}

#[derive(Deserialize)]
struct DetokenizeFields {
    tokens: Vec<Int>,
}

/// The answer of `/detokenize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Detokenized {
    prompt: String,
}

/// Answers `/detokenize`.
///
/// # Errors
/// 400 for ids without a token.
pub fn detokenize(body: &mut Body, model: ModelContext<'_>) -> Result<Detokenized, ApiError> {
    let fields: DetokenizeFields = body.take()?;
    let ids = token_ids(
        "tokens",
        &integers(&fields.tokens),
        u32::try_from(model.tokenizer.vocab_size()).unwrap_or(u32::MAX),
    )?;
    let prompt = model.tokenizer.decode(&ids, false)?;
    Ok(Detokenized { prompt })
}
