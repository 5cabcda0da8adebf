//! The context length: how many tokens an answer may have, and the errors of a request that does not fit. Clients
//! search these errors for known words. An answer is never shortened silently.

use halyard_engine::SubmitError;

use super::lenient::ranged;
use crate::api_error::ApiError;

/// OpenAI's word for a request that is too long; LangChain asks for it.
pub const CODE: &str = "context_length_exceeded";

/// A prompt after which not one token of an answer fits into the context. `field` is `messages` or `prompt`. LiteLLM
/// looks for the first sentence's beginning.
pub fn prompt_too_long(field: &str, max_model_len: u32, prompt_tokens: usize) -> ApiError {
    let message = format!(
        "This model's maximum context length is {max_model_len} tokens. However, your request has {prompt_tokens} \
         input tokens, which leaves no room for an answer. Please reduce the length of the {field}, \
         or serve with a larger --max-model-len."
    );
    ApiError::field(field, message).with_code(CODE)
}

/// The engine's refusal, by the name of the body's field for the prompt.
pub fn refusal(field: &str, error: SubmitError) -> ApiError {
    match error {
        SubmitError::PromptTooLong { found, limit } => prompt_too_long(field, limit, found),
        error => error.into(),
    }
}

/// A text that is known not to fit before all of its tokens are counted.
pub fn prompt_much_too_long(field: &str, max_model_len: u32, at_least: usize) -> ApiError {
    let message = format!(
        "This model's maximum context length is {max_model_len} tokens. However, your request has at least {at_least} \
         input tokens. Please reduce the length of the {field}, or serve with a larger --max-model-len."
    );
    ApiError::field(field, message).with_code(CODE)
}

/// A prompt and an answer that do not fit together, as OpenAI says it.
fn too_many_tokens(field: &str, max_model_len: u32, prompt_tokens: usize, asked: u32) -> ApiError {
    let sum = prompt_tokens as u64 + u64::from(asked);
    let message = format!(
        "This model's maximum context length is {max_model_len} tokens. However, you requested {sum} tokens \
         ({prompt_tokens} in the {field}, {asked} in the completion). \
         Please reduce the length of the {field} or completion."
    );
    ApiError::field(field, message).with_code(CODE)
}

/// The token limit of an answer.
pub struct TokenLimit<'a> {
    /// The body's field for it.
    pub name: &'a str,
    /// What it says.
    pub asked: Option<i64>,
    /// Where it says nothing; `None`: all that is left.
    pub default: Option<u32>,
    /// `messages` or `prompt`.
    pub prompt_field: &'a str,
}

impl TokenLimit<'_> {
    /// The limit that was asked for, if the context holds it after the prompt; otherwise the default, at most what
    /// still fits.
    ///
    /// # Errors
    /// 400 when prompt and answer do not fit: an answer is never shortened silently.
    pub fn fit(&self, prompt_tokens: usize, max_model_len: u32) -> Result<Option<u32>, ApiError> {
        let asked = self
            .asked
            .map(|asked| ranged(self.name, asked, 1, i64::from(u32::MAX)))
            .transpose()?;
        let remaining = max_model_len.saturating_sub(u32::try_from(prompt_tokens).unwrap_or(u32::MAX));
        // If no token fits, the engine refuses the request, which also tells the stat loggers.
        match asked {
            Some(asked) if asked > remaining && remaining > 0 => {
                Err(too_many_tokens(self.prompt_field, max_model_len, prompt_tokens, asked))
            }
            Some(asked) => Ok(Some(asked)),
            None => Ok(self.default.map(|limit| limit.min(remaining.max(1)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(asked: Option<i64>, default: Option<u32>) -> TokenLimit<'static> {
        TokenLimit {
            name: "max_tokens",
            asked,
            default,
            prompt_field: "messages",
        }
    }

    #[test]
    fn asked_tokens_must_fit_and_defaults_shrink() {
        let error = limit(Some(91), None).fit(10, 100).expect_err("90 are left");
        assert_eq!((error.code, error.param.as_deref()), (Some(CODE), Some("messages")));
        assert_eq!(
            error.message,
            "This model's maximum context length is 100 tokens. However, you requested 101 tokens (10 in the messages, \
             91 in the completion). Please reduce the length of the messages or completion."
        );
        assert_eq!(limit(Some(90), None).fit(10, 100).expect("fits"), Some(90));
        assert_eq!(limit(None, Some(16)).fit(95, 100).expect("default"), Some(5));
        assert_eq!(limit(None, None).fit(95, 100).expect("all that is left"), None);
        for bad in [0, -1, 1 << 40] {
            let error = limit(Some(bad), None).fit(10, 100).expect_err("out of range");
            assert_eq!(error.param.as_deref(), Some("max_tokens"), "{bad}");
        }
        // A prompt that fills the context is the engine's to refuse.
        for full in [100, 101, usize::MAX] {
            assert_eq!(limit(Some(1), None).fit(full, 100).expect("passed on"), Some(1));
            assert_eq!(limit(None, Some(16)).fit(full, 100).expect("passed on"), Some(1));
        }
    }
}
