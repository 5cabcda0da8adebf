//! The output of a request, in chunks: text, tokens, log-probabilities, and the finish reason.

use serde::Serialize;

pub use halyard_runner::{Logprob, TokenLogprobs};

/// Why a sequence ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end-of-sequence token.
    Eos,
    /// A token of `stop_token_ids`.
    StopToken(u32),
    /// A stop string.
    StopString(String),
    /// `max_tokens` or the context's end.
    Length,
    /// Cancelled, with the reason.
    Abort(String),
    /// The operator paused the engine and ended what was there: the output is complete as far as it goes.
    Paused,
    /// The engine failed, with the reason.
    Error(String),
    /// The model's logits are no numbers to choose from (NaN or +∞), with the place and what to do.
    NotFinite(String),
    /// The request's own constraints left no token, with their names.
    NoTokenAllowed(String),
}

impl FinishReason {
    /// OpenAI's word for it.
    pub fn as_openai(&self) -> &'static str {
        match self {
            FinishReason::Eos | FinishReason::StopToken(_) | FinishReason::StopString(_) => "stop",
            FinishReason::Length => "length",
            FinishReason::Abort(_) | FinishReason::Paused => "abort",
            FinishReason::Error(_) | FinishReason::NotFinite(_) | FinishReason::NoTokenAllowed(_) => "error",
        }
    }
}

/// A piece of one sample of a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OutputChunk {
    /// Which of the `n` samples.
    pub index: u32,
    /// New text; may be empty while a character or a possible stop string is incomplete.
    pub text: String,
    /// New token ids, end-of-sequence included.
    pub token_ids: Vec<u32>,
    /// One entry per token of `token_ids` when asked.
    pub logprobs: Option<Vec<TokenLogprobs>>,
    /// In the first chunk of sample 0 when asked: one entry per prompt token, none for the first.
    pub prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    /// The prompt's last hidden state when asked, with the sample's end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_state: Option<Vec<f32>>,
    /// Prompt tokens taken from the prefix cache.
    pub num_cached_tokens: u32,
    /// Set in the sample's last chunk.
    pub finish: Option<FinishReason>,
}

impl OutputChunk {
    /// A chunk of sample `index` with nothing in it.
    pub fn empty(index: u32) -> OutputChunk {
        OutputChunk {
            index,
            text: String::new(),
            token_ids: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
            hidden_state: None,
            num_cached_tokens: 0,
            finish: None,
        }
    }
}

/// A finished sample.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CompletionOutput {
    /// Which of the `n` samples.
    pub index: u32,
    /// The text.
    pub text: String,
    /// The token ids.
    pub token_ids: Vec<u32>,
    /// One entry per token when asked.
    pub logprobs: Option<Vec<TokenLogprobs>>,
    /// The prompt's last hidden state when asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_state: Option<Vec<f32>>,
    /// How it ended.
    pub finish: FinishReason,
}

/// A finished request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RequestOutput {
    /// The caller's name.
    pub id: String,
    /// Prompt token ids.
    pub prompt_token_ids: Vec<u32>,
    /// Log-probabilities of the prompt when asked.
    pub prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    /// Prompt tokens taken from the prefix cache.
    pub num_cached_tokens: u32,
    /// The samples, by index.
    pub outputs: Vec<CompletionOutput>,
}
