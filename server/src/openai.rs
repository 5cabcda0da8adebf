//! OpenAI's wire types with vLLM's extra fields, and their conversions to and from the engine's types. No I/O and no
//! waiting: a body's JSON comes in, a checked request or an answer's JSON goes out.

pub mod chat;
pub mod completion;
pub mod context;
pub mod lenient;
pub mod logprobs;
pub mod prompt;
pub mod sampling;
pub mod tokenize;
pub mod tools;
pub mod unsupported;
pub mod usage;

use halyard_models::GenerationDefaults;
use halyard_text::{CancelFlag, ChatTemplate, EncodeLimits, Tokenizer};

use crate::http::error::ApiError;
use crate::http::state::{Limits, ServingDefaults};

/// What conversions need to know of the model.
#[derive(Clone, Copy)]
pub struct ModelContext<'a> {
    /// Its tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Its chat template, if it has one.
    pub chat_template: Option<&'a ChatTemplate>,
    /// Sampling defaults that its authors ship.
    pub defaults: &'a GenerationDefaults,
    /// Ids run from 0 to one less.
    pub vocab_size: u32,
    /// Context in tokens.
    pub max_model_len: u32,
    /// Bounds of a request.
    pub limits: Limits,
    /// What the operator chose for requests.
    pub serving: &'a ServingDefaults,
    /// Set when nobody waits for the conversion any more.
    pub cancel: Option<&'a CancelFlag>,
}

impl ModelContext<'_> {
    /// Token ids of a prompt from `field` of the body, which must fit into the context.
    ///
    /// # Errors
    /// 400 with the code `context_length_exceeded` for a longer text, found out before all of it is encoded.
    pub fn encode_prompt(&self, field: &str, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, ApiError> {
        let limit = self.max_model_len as usize;
        self.encode_up_to(text, add_special_tokens, limit)
            .map_err(|error| ApiError {
                param: Some(field.to_owned()),
                ..error
            })
    }

    /// Token ids of a text of at most `max_tokens`.
    ///
    /// # Errors
    /// As [`ModelContext::encode_prompt`].
    pub fn encode_up_to(&self, text: &str, add_special_tokens: bool, max_tokens: usize) -> Result<Vec<u32>, ApiError> {
        let limits = EncodeLimits {
            max_tokens: Some(max_tokens),
            cancel: self.cancel,
        };
        Ok(self.tokenizer.encode_within(text, add_special_tokens, limits)?)
    }
}
