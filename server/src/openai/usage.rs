//! Token counts of an answer, and which of them a stream reports.

use serde::{Deserialize, Serialize};

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
}

/// Part of [`Usage`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PromptTokensDetails {
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: u64,
}

impl Usage {
    /// Counts of one request.
    pub fn new(prompt_tokens: u64, completion_tokens: u64, cached_tokens: u64) -> Self {
        Usage {
            prompt_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
        }
    }
}

/// `stream_options` of a body.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct StreamOptions {
    /// One more piece at the end, without choices, carries the usage.
    #[serde(deserialize_with = "null_is_false")]
    pub include_usage: bool,
    /// vLLM: with `include_usage`, every piece carries the usage so far.
    #[serde(deserialize_with = "null_is_false")]
    pub continuous_usage_stats: bool,
}

/// A flag that clients may send as `null`, which is absent.
pub fn null_is_false<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::<bool>::deserialize(deserializer)?.unwrap_or(false))
}
