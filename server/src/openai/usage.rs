//! Token counts of an answer, and which of them a stream reports.

use serde::{Deserialize, Serialize};

use super::lenient::{Flag, Object, is_set};
use super::policy::ServingDefaults;
use super::prompt::Prompt;
use crate::api_error::ApiError;

/// OpenAI's `usage`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Usage {
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Both together.
    pub total_tokens: u64,
    /// Tokens generated in all samples.
    pub completion_tokens: u64,
    /// Where prompt tokens came from.
    pub prompt_tokens_details: PromptTokensDetails,
    /// What generated tokens are for, where reasoning is kept apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
}

/// Part of [`Usage`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CompletionTokensDetails {
    /// Tokens of reasoning, without its markers.
    pub reasoning_tokens: u64,
}

/// Part of [`Usage`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PromptTokensDetails {
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: u64,
}

impl Usage {
    /// Nothing is generated yet.
    pub fn of_prompts(prompts: &[Prompt]) -> Self {
        let prompt_tokens = prompts.iter().map(|prompt| prompt.token_ids.len() as u64).sum();
        Usage {
            prompt_tokens,
            total_tokens: prompt_tokens,
            ..Usage::default()
        }
    }

    /// Counts more generated tokens, and tokens of prompts that the prefix cache had.
    pub fn add(&mut self, completion_tokens: u64, cached_tokens: u64) {
        self.completion_tokens += completion_tokens;
        self.total_tokens += completion_tokens;
        self.prompt_tokens_details.cached_tokens += cached_tokens;
    }

    /// Counts tokens of reasoning, which are among the generated ones.
    pub fn add_reasoning(&mut self, tokens: u64) {
        if let Some(details) = &mut self.completion_tokens_details {
            details.reasoning_tokens += tokens;
        }
    }
}

/// `stream_options` of a body.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
struct StreamOptionFields {
    include_usage: Option<Flag>,
    continuous_usage_stats: Option<Flag>,
}

/// The fields `stream` and `stream_options` of a body.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct StreamFields {
    stream: Option<Flag>,
    stream_options: Option<Object<StreamOptionFields>>,
}

/// Whether an answer comes in pieces, and what they carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streaming {
    /// Answer in pieces.
    pub stream: bool,
    /// One more piece at the end, without choices, carries the usage.
    pub include_usage: bool,
    /// vLLM: with `include_usage`, every piece carries the usage so far.
    pub continuous_usage_stats: bool,
    /// Tokens of a choice's piece, but for the first and the last; less than 2: each token is one.
    pub interval: u32,
}

impl StreamFields {
    /// The request's option, or the operator's if that is forced.
    ///
    /// # Errors
    /// 400 for options without a stream, which would have no effect. An empty object asks for nothing.
    pub fn read(&self, serving: &ServingDefaults) -> Result<Streaming, ApiError> {
        let stream = is_set(self.stream);
        if !stream && self.stream_options.is_some_and(|options| !options.is_empty) {
            let message = "stream_options has no effect without a stream; send stream true or leave it out";
            return Err(ApiError::field("stream_options", message));
        }
        let options = self.stream_options.map(|options| options.fields).unwrap_or_default();
        let forced = serving.force_include_usage;
        Ok(Streaming {
            stream,
            include_usage: forced || is_set(options.include_usage),
            continuous_usage_stats: forced || is_set(options.continuous_usage_stats),
            interval: serving.stream_interval.get(),
        })
    }
}

/// The fields of `stream_options`.
#[cfg(test)]
pub(super) fn stream_option_shapes() -> super::fields_read::Shapes {
    super::fields_read::shapes::<StreamOptionFields>().1
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn options_need_a_stream_unless_there_are_none() {
        let read = |options| {
            let fields: StreamFields = serde_json::from_value(json!({ "stream_options": options })).expect("an object");
            fields.read(&ServingDefaults::default()).is_ok()
        };
        assert!(read(json!({})) && read(json!(null)));
        for sent in [
            json!({"include_usage": null}),
            json!({"include_usage": false}),
            json!({"unknown": 1}),
        ] {
            assert!(!read(sent.clone()), "{sent}");
        }
    }
}
