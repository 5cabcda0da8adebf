//! Flags for the defaults of requests, and for optional routes.

use std::num::NonZeroU32;
use std::time::Duration;

use clap::Args;

use super::model_flags::{JsonObject, parse_object};
use crate::openai::policy::ServingDefaults;

/// Defaults of requests, optional fields and routes.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Requests")]
pub struct ServingArgs {
    /// Most logprobs a token that a request may ask for; -1: the whole vocabulary
    #[arg(long, value_name = "COUNT", env = "HALYARD_MAX_LOGPROBS", default_value_t = 20, allow_negative_numbers = true,
        value_parser = clap::value_parser!(i32).range(-1..))]
    max_logprobs: i32,
    /// Keyword arguments of the chat template, as JSON: {"enable_thinking": false}; those of a request take precedence
    #[arg(long, value_name = "JSON", env = "HALYARD_DEFAULT_CHAT_TEMPLATE_KWARGS", value_parser = parse_object)]
    default_chat_template_kwargs: Option<JsonObject>,
    /// Role of answers to chat requests
    #[arg(
        long,
        value_name = "ROLE",
        env = "HALYARD_RESPONSE_ROLE",
        default_value = "assistant"
    )]
    response_role: String,
    /// Write tokens of logprobs as token_id:ID
    #[arg(long, value_name = "BOOL", env = "HALYARD_RETURN_TOKENS_AS_TOKEN_IDS", default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    return_tokens_as_token_ids: bool,
    /// End every stream with usage, asked for or not
    #[arg(long, value_name = "BOOL", env = "HALYARD_ENABLE_FORCE_INCLUDE_USAGE", default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    enable_force_include_usage: bool,
    /// Serve GET /tokenizer_info, which returns the chat template and the tokenizer's configuration
    #[arg(long, value_name = "BOOL", env = "HALYARD_ENABLE_TOKENIZER_INFO_ENDPOINT", default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    enable_tokenizer_info_endpoint: bool,
    /// Let GET /metrics answer without a key, for scrapers that have none
    #[arg(long, value_name = "BOOL", env = "HALYARD_METRICS_WITHOUT_KEY", default_value_t = false, num_args = 0..=1,
        require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    metrics_without_key: bool,
    /// Most characters of a prompt that --log-prompts writes (of a token list: ids); without it all
    #[arg(long, value_name = "COUNT", env = "HALYARD_MAX_LOG_LEN")]
    max_log_len: Option<usize>,
    /// Tokens that an event of a stream waits for, after the first token; the last event may have fewer. More than 1
    /// costs server and clients less, and streams come in steps
    #[arg(long, value_name = "TOKENS", env = "HALYARD_STREAM_INTERVAL", default_value = "1")]
    stream_interval: NonZeroU32,
    /// Seconds after which a silent stream gets a comment, which clients ignore: for proxies that end idle
    /// connections; 0: never
    #[arg(
        long,
        value_name = "SECONDS",
        env = "HALYARD_SSE_KEEP_ALIVE_INTERVAL",
        default_value_t = 0
    )]
    sse_keep_alive_interval: u32,
}

impl ServingArgs {
    /// The settings that the routes read.
    pub fn defaults(&self) -> ServingDefaults {
        ServingDefaults {
            max_logprobs: u32::try_from(self.max_logprobs).unwrap_or(u32::MAX),
            default_chat_template_kwargs: self
                .default_chat_template_kwargs
                .clone()
                .map(|object| object.0)
                .unwrap_or_default(),
            return_tokens_as_token_ids: self.return_tokens_as_token_ids,
            tokenizer_info: self.enable_tokenizer_info_endpoint,
            force_include_usage: self.enable_force_include_usage,
            response_role: self.response_role.clone(),
            metrics_without_key: self.metrics_without_key,
            max_log_len: self.max_log_len,
            stream_interval: self.stream_interval,
            sse_keep_alive: (self.sse_keep_alive_interval > 0)
                .then(|| Duration::from_secs(self.sse_keep_alive_interval.into())),
            ..ServingDefaults::default()
        }
    }
}
