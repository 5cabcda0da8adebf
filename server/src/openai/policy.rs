//! The operator's limits and defaults for requests.

use std::num::NonZeroU32;
use std::time::Duration;

use serde_json::{Map, Value};

/// Limits of a request; beyond them the answer is 400 or 413 with the limit.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Prompts of one completion request.
    pub prompts: usize,
    /// Samples of one request: prompts times n.
    pub samples: usize,
    /// Stop strings of one request.
    pub stop_strings: usize,
    /// Bytes of one stop string.
    pub stop_string_bytes: usize,
    /// Tools of one request.
    pub tools: usize,
    /// Bytes of their definitions as JSON.
    pub tool_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body_bytes: 16 << 20,
            prompts: 256,
            samples: 1024,
            // OpenAI takes 4 and vLLM sets no bound; 16 is enough for agents and bounds the work for each character.
            stop_strings: 16,
            stop_string_bytes: 1024,
            // OpenAI takes 128 and vLLM sets no bound; agents with many servers of tools have hundreds.
            tools: 1024,
            tool_bytes: 1 << 20,
        }
    }
}

impl Limits {
    /// The same where so many requests may wait: one that asks for more would be told to come back, and only luck would
    /// help it then.
    #[must_use]
    pub fn within(self, max_waiting: u32) -> Limits {
        Limits {
            samples: self.samples.min(max_waiting as usize),
            ..self
        }
    }
}

/// The operator's defaults for requests, and the optional routes and fields. Defaults are vLLM's.
#[derive(Clone, Debug, PartialEq)]
pub struct ServingDefaults {
    /// Most logprobs (and prompt logprobs) a token that a request may ask for; `u32::MAX`: the whole vocabulary, also
    /// by -1.
    pub max_logprobs: u32,
    /// Keyword arguments of the chat template; those of a request go before them, key by key.
    pub default_chat_template_kwargs: Map<String, Value>,
    /// Tokens in logprobs are written as `token_id:ID`, also where a request does not ask for it.
    pub return_tokens_as_token_ids: bool,
    /// `GET /tokenizer_info` is there.
    pub tokenizer_info: bool,
    /// Streams end with usage, also where a request does not ask for it.
    pub force_include_usage: bool,
    /// Role of answers to chat requests.
    pub response_role: String,
    /// Tools stay out of the prompt when none is to be called.
    pub exclude_tools_when_tool_choice_none: bool,
    /// `GET /metrics` answers without a key.
    pub metrics_without_key: bool,
    /// Characters (of a text) or ids (of a token list) of a prompt that the log shows; `None`: all.
    pub max_log_len: Option<usize>,
    /// Tokens of a stream's event, but for the first and the last of a choice.
    pub stream_interval: NonZeroU32,
    /// A stream that has been silent for so long gets a comment; `None`: never.
    pub sse_keep_alive: Option<Duration>,
}

impl Default for ServingDefaults {
    fn default() -> Self {
        ServingDefaults {
            max_logprobs: 20,
            default_chat_template_kwargs: Map::new(),
            return_tokens_as_token_ids: false,
            tokenizer_info: false,
            force_include_usage: false,
            response_role: "assistant".to_owned(),
            exclude_tools_when_tool_choice_none: false,
            metrics_without_key: false,
            max_log_len: None,
            stream_interval: NonZeroU32::MIN,
            sse_keep_alive: None,
        }
    }
}
