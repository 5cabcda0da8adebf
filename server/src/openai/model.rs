//! The facts about the model that conversions need, and the token ids of a body's texts.

use halyard_models::GenerationDefaults;
use halyard_text::{CancelFlag, ChatTemplate, EncodeLimits, TextError, Tokenizer};

use super::context;
use super::kept::Conversation;
use super::parsers::Parsers;
use super::policy::{Limits, ServingDefaults};
use super::tools::ServedTools;
use crate::api_error::ApiError;

/// The facts about the model that conversions need.
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
    /// The operator's limits and defaults for requests.
    pub serving: &'a ServingDefaults,
    /// How answers are read.
    pub parsers: &'a Parsers,
    /// Whether prompts are shortened afterwards, and may be longer than the context until then.
    pub truncates: bool,
    /// What a request to `/v1/responses` goes on with; `None`: responses are not stored.
    pub conversation: Option<&'a Conversation>,
    /// Set when the conversion's result is no longer wanted.
    pub cancel: Option<&'a CancelFlag>,
}

/// Tokens of a text that need not fit into the context, at most, or the context where that is more: each takes memory.
const MAX_TEXT_TOKENS: usize = 1 << 18;
/// Texts up to this many bytes are counted exactly, whatever the limit.
const COUNTED_BYTES: usize = 64 << 10;

impl ModelContext<'_> {
    /// What this server does with tools.
    pub fn served_tools(&self) -> ServedTools {
        ServedTools {
            calls: self.parsers.has_calls(),
            excludes_uncalled: self.serving.exclude_tools_when_tool_choice_none,
        }
    }

    /// Token ids of a prompt from `field` of the body. Those of a short text come also when they do not fit into the
    /// context; the exact count is the caller's to judge.
    ///
    /// # Errors
    /// 400 with the code `context_length_exceeded` for a long text that does not fit, found out before all of it is
    /// encoded.
    pub fn encode_prompt(&self, field: &str, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, ApiError> {
        if self.truncates {
            return self.encode_text(field, text, add_special_tokens);
        }
        self.encode_up_to(self.max_model_len as usize, text, add_special_tokens)
            .map_err(|error| match error {
                TextError::TooManyTokens { at_least, .. } => {
                    context::prompt_much_too_long(field, self.max_model_len, at_least)
                }
                error => ApiError {
                    param: Some(field.to_owned()),
                    ..error.into()
                },
            })
    }

    /// Token ids of a text from `field` that need not fit into the context.
    ///
    /// # Errors
    /// 400 with the limit for a text of more tokens.
    pub fn encode_text(&self, field: &str, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, ApiError> {
        let limit = MAX_TEXT_TOKENS.max(self.max_model_len as usize);
        self.encode_up_to(limit, text, add_special_tokens)
            .map_err(|error| ApiError {
                param: Some(field.to_owned()),
                ..error.into()
            })
    }

    fn encode_up_to(&self, max_tokens: usize, text: &str, special: bool) -> Result<Vec<u32>, TextError> {
        let limits = EncodeLimits {
            max_tokens: Some(max_tokens).filter(|_| text.len() > COUNTED_BYTES),
            cancel: self.cancel,
        };
        self.tokenizer.encode_within(text, special, limits)
    }
}
