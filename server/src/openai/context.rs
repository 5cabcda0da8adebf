//! The context's length: the errors of a request that does not fit, in the words that clients look for, and `truncate_prompt_tokens`, which
//! shortens a prompt where the client asked for it. Nothing is ever shortened unasked.

use serde::Deserialize;

use super::ModelContext;
use super::lenient::Int;
use super::prompt::Prompt;
use crate::http::error::ApiError;

/// OpenAI's word for a request that is too long; LangChain asks for it.
pub const CODE: &str = "context_length_exceeded";

/// A prompt that leaves no room for a token of an answer. `field` is `messages` or `prompt`. LiteLLM looks for the first sentence's beginning.
pub fn prompt_too_long(field: &str, max_model_len: u32, prompt_tokens: usize) -> ApiError {
    let message = format!(
        "This model's maximum context length is {max_model_len} tokens. However, your request has {prompt_tokens} input tokens, \
         which leaves no room for an answer. Please reduce the length of the {field}, or serve with a larger --max-model-len."
    );
    ApiError::field(field, message).with_code(CODE)
}

/// A text that is known not to fit before all of its tokens are counted.
pub fn prompt_much_too_long(field: &str, max_model_len: u32, at_least: usize) -> ApiError {
    let message = format!(
        "This model's maximum context length is {max_model_len} tokens. However, your request has at least {at_least} input tokens. \
         Please reduce the length of the {field}, or serve with a larger --max-model-len."
    );
    ApiError::field(field, message).with_code(CODE)
}

/// A prompt and an answer that do not fit together, as OpenAI says it.
fn too_many_tokens(field: &str, max_model_len: u32, prompt_tokens: usize, asked: u32) -> ApiError {
    let sum = prompt_tokens as u64 + u64::from(asked);
    let message = format!(
        "This model's maximum context length is {max_model_len} tokens. However, you requested {sum} tokens ({prompt_tokens} in the \
         {field}, {asked} in the completion). Please reduce the length of the {field} or completion."
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
    /// What was asked, if the context holds it after the prompt, or what is left of the default.
    ///
    /// # Errors
    /// 400 when prompt and answer do not fit: an answer is never shortened silently.
    pub fn fit(&self, prompt_tokens: usize, max_model_len: u32) -> Result<Option<u32>, ApiError> {
        let asked = self
            .asked
            .map(|asked| super::sampling::ranged(self.name, asked, 1, i64::from(u32::MAX)))
            .transpose()?;
        let room = max_model_len.saturating_sub(u32::try_from(prompt_tokens).unwrap_or(u32::MAX));
        // Without any room the engine refuses it, which also tells the stat loggers.
        match asked {
            Some(asked) if asked > room && room > 0 => {
                Err(too_many_tokens(self.prompt_field, max_model_len, prompt_tokens, asked))
            }
            Some(asked) => Ok(Some(asked)),
            None => Ok(self.default.map(|limit| limit.min(room.max(1)))),
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Side {
    Left,
    Right,
}

/// The fields `truncate_prompt_tokens` and `truncation_side` of a body.
#[derive(Debug, Deserialize)]
pub struct TruncationFields {
    truncate_prompt_tokens: Option<Int>,
    truncation_side: Option<Side>,
}

/// How many tokens of a prompt are kept, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    keep: usize,
    side: Side,
}

impl TruncationFields {
    /// The truncation that was asked for. -1 keeps what the context holds beside `answer` tokens, at least one (vLLM keeps all but one, and shortens the
    /// answer); without a side the last tokens stay, as in vLLM.
    ///
    /// # Errors
    /// 400 for a number below -1, 0 (nothing would be left) and a number above the context.
    pub fn read(&self, answer: Option<Int>, model: ModelContext<'_>) -> Result<Option<Truncation>, ApiError> {
        let Some(Int(asked)) = self.truncate_prompt_tokens else {
            return Ok(None);
        };
        let context = i64::from(model.max_model_len);
        let keep = match asked {
            // An answer that does not fit at all is refused later.
            -1 => (context - answer.map_or(1, |Int(answer)| answer.max(1))).max(1),
            1.. if asked <= context => asked,
            _ => {
                let message = format!(
                    "truncate_prompt_tokens is {asked}; it must be between 1 and {context} (the context), or -1 to keep what fits"
                );
                return Err(ApiError::field("truncate_prompt_tokens", message));
            }
        };
        Ok(Some(Truncation {
            keep: usize::try_from(keep).unwrap_or(usize::MAX),
            side: self.truncation_side.unwrap_or(Side::Left),
        }))
    }
}

impl Truncation {
    /// Shortens the prompt. Its text goes when tokens went: it says more than the ids then.
    pub fn apply(self, prompt: &mut Prompt) {
        let surplus = prompt.token_ids.len().saturating_sub(self.keep);
        if surplus == 0 {
            return;
        }
        match self.side {
            Side::Left => drop(prompt.token_ids.drain(..surplus)),
            Side::Right => prompt.token_ids.truncate(self.keep),
        }
        prompt.text = None;
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
            "This model's maximum context length is 100 tokens. However, you requested 101 tokens (10 in the messages, 91 in the completion). \
             Please reduce the length of the messages or completion."
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

    #[test]
    fn a_truncated_prompt_keeps_the_tokens_of_its_side() {
        let keep = |keep, side| {
            let mut prompt = Prompt {
                text: Some("a b c d".to_owned()),
                token_ids: vec![1, 2, 3, 4],
            };
            Truncation { keep, side }.apply(&mut prompt);
            (prompt.token_ids, prompt.text.is_some())
        };
        assert_eq!(keep(2, Side::Left), (vec![3, 4], false));
        assert_eq!(keep(2, Side::Right), (vec![1, 2], false));
        assert_eq!(keep(4, Side::Left), (vec![1, 2, 3, 4], true));
        assert_eq!(keep(9, Side::Right), (vec![1, 2, 3, 4], true));
    }
}
