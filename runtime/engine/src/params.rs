//! What a request asks for: sampling parameters, checked against the model once, before anything is queued.

use std::collections::HashSet;

use halyard_grammar::StructuredOutputs;
use serde::{Deserialize, Serialize};

use crate::error::ParamError;
use crate::guide::GuideFactory;

pub use halyard_runner::row::{MAX_BAD_WORD_TOKENS, MAX_LOGIT_BIAS, MAX_LOGPROBS, MAX_STOP_TOKENS};

/// Least and most `repetition_penalty`. vLLM takes any above 0; far beyond these a repeated token's logit overflows.
pub const REPETITION_PENALTY: [f64; 2] = [0.01, 100.0];
/// Most samples of one request.
pub const MAX_N: u32 = 128;

/// Sampling parameters of a request. Defaults are vLLM's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingParams {
    /// Samples to draw, each a sequence of its own.
    pub n: u32,
    /// 0: greedy.
    pub temperature: f32,
    /// Keep the k most likely; 0: all.
    pub top_k: u32,
    /// Keep the smallest set that reaches this probability.
    pub top_p: f32,
    /// Drop tokens less likely than this times the most likely.
    pub min_p: f32,
    /// Random stream; `None`: drawn per request. Sample i uses seed + i.
    pub seed: Option<u64>,
    /// Subtracted from the logit of tokens already in the output.
    pub presence_penalty: f32,
    /// Subtracted per occurrence in the output.
    pub frequency_penalty: f32,
    /// Divides (positive) or multiplies (negative) logits of tokens in prompt and output.
    pub repetition_penalty: f32,
    /// Added to logits, by token id.
    pub logit_bias: Vec<(u32, f32)>,
    /// Only these tokens may come.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Token sequences that may not come; one begun in the prompt counts.
    pub bad_words_token_ids: Vec<Vec<u32>>,
    /// No stop token before this many tokens.
    pub min_tokens: u32,
    /// End after this many tokens; `None`: as many as the context holds.
    pub max_tokens: Option<u32>,
    /// End when the text contains one of these.
    pub stop: Vec<String>,
    /// End at one of these tokens.
    pub stop_token_ids: Vec<u32>,
    /// Keep the stop string in the text.
    pub include_stop_str_in_output: bool,
    /// Go on past the model's end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Leave special tokens out of the text.
    pub skip_special_tokens: bool,
    /// What the text must be; `None`: any text.
    pub structured_outputs: Option<StructuredOutputs>,
    /// Special tokens that are in the text in any case, such as the markers of tool calls.
    pub kept_special_tokens: Vec<u32>,
    /// Log-probabilities of each sampled token and of this many alternatives.
    pub logprobs: Option<u32>,
    /// The same for each prompt token after the first.
    pub prompt_logprobs: Option<u32>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            n: 1,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: None,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            allowed_token_ids: None,
            bad_words_token_ids: Vec::new(),
            min_tokens: 0,
            max_tokens: None,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            include_stop_str_in_output: false,
            ignore_eos: false,
            skip_special_tokens: true,
            structured_outputs: None,
            kept_special_tokens: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
        }
    }
}

impl SamplingParams {
    /// Greedy decoding of at most `max_tokens`.
    pub fn greedy(max_tokens: u32) -> Self {
        SamplingParams {
            temperature: 0.0,
            max_tokens: Some(max_tokens),
            ..SamplingParams::default()
        }
    }

    /// Checks every field against its range and the model's vocabulary.
    ///
    /// # Errors
    /// The first bad field, with its value, the range and what to send instead.
    pub fn check(&self, vocab_size: u32) -> Result<(), ParamError> {
        range("n", f64::from(self.n), 1.0, f64::from(MAX_N))?;
        range("temperature", f64::from(self.temperature), 0.0, 100.0)?;
        range("top_k", f64::from(self.top_k), 0.0, f64::from(i32::MAX))?;
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(ParamError::Range {
                name: "top_p",
                value: f64::from(self.top_p),
                limit: "above 0 and at most 1",
            });
        }
        range("min_p", f64::from(self.min_p), 0.0, 1.0)?;
        range("presence_penalty", f64::from(self.presence_penalty), -2.0, 2.0)?;
        range("frequency_penalty", f64::from(self.frequency_penalty), -2.0, 2.0)?;
        let [least, most] = REPETITION_PENALTY;
        // Bounds as the field holds them: 0.01 is no f32.
        if !(least as f32..=most as f32).contains(&self.repetition_penalty) {
            range("repetition_penalty", f64::from(self.repetition_penalty), least, most)?;
        }
        if self.max_tokens == Some(0) {
            return Err(ParamError::Range {
                name: "max_tokens",
                value: 0.0,
                limit: "at least 1",
            });
        }
        if let Some(max) = self.max_tokens
            && self.min_tokens > max
        {
            return Err(ParamError::Range {
                name: "min_tokens",
                value: f64::from(self.min_tokens),
                limit: "at most max_tokens",
            });
        }
        for (name, asked) in [("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)] {
            range(name, f64::from(asked.unwrap_or(0)), 0.0, f64::from(MAX_LOGPROBS))?;
        }
        self.check_lists(vocab_size)
    }

    /// Checks that the fields together allow a token. `stops`: what may not come before `min_tokens`. Bad words of
    /// several tokens depend on what is generated and are not looked at.
    ///
    /// # Errors
    /// The fields that rule out all of `allowed_token_ids`.
    pub(crate) fn check_allowed(&self, stops: impl Iterator<Item = u32>) -> Result<(), ParamError> {
        let Some(allowed) = &self.allowed_token_ids else {
            return Ok(());
        };
        let bad: HashSet<u32> = self
            .bad_words_token_ids
            .iter()
            .filter_map(|word| single(word))
            .collect();
        let waiting: HashSet<u32> = stops.filter(|_| self.min_tokens > 0).collect();
        let (mut is_bad, mut is_waiting) = (false, false);
        for id in allowed {
            match (bad.contains(id), waiting.contains(id)) {
                (true, _) => is_bad = true,
                (_, true) => is_waiting = true,
                _ => return Ok(()),
            }
        }
        let mut others = Vec::new();
        if is_bad {
            others.push("a word of bad_words".to_string());
        }
        if is_waiting {
            others.push(format!(
                "an end or stop token, which min_tokens {} keeps back",
                self.min_tokens
            ));
        }
        Err(ParamError::NothingAllowed {
            allowed: allowed.len(),
            others: others.join(" or "),
        })
    }

    fn check_lists(&self, vocab_size: u32) -> Result<(), ParamError> {
        count("logit_bias", self.logit_bias.len(), MAX_LOGIT_BIAS)?;
        count("stop_token_ids", self.stop_token_ids.len(), MAX_STOP_TOKENS / 2)?;
        count(
            "bad_words",
            self.bad_words_token_ids.iter().map(|w| w.len() + 1).sum(),
            MAX_BAD_WORD_TOKENS,
        )?;
        if let Some((id, bias)) = self
            .logit_bias
            .iter()
            .find(|(_, bias)| !(-100.0..=100.0).contains(bias))
        {
            let _ = id;
            return Err(ParamError::Range {
                name: "logit_bias",
                value: f64::from(*bias),
                limit: "-100 to 100",
            });
        }
        if self.bad_words_token_ids.iter().any(Vec::is_empty) || self.stop.iter().any(String::is_empty) {
            return Err(ParamError::Empty {
                name: "stop or bad_words",
            });
        }
        if self.allowed_token_ids.as_ref().is_some_and(Vec::is_empty) {
            return Err(ParamError::Empty {
                name: "allowed_token_ids",
            });
        }
        let ids = self
            .logit_bias
            .iter()
            .map(|(id, _)| ("logit_bias", id))
            .chain(
                self.allowed_token_ids
                    .iter()
                    .flatten()
                    .map(|id| ("allowed_token_ids", id)),
            )
            .chain(self.bad_words_token_ids.iter().flatten().map(|id| ("bad_words", id)))
            .chain(self.stop_token_ids.iter().map(|id| ("stop_token_ids", id)));
        for (name, &id) in ids {
            if id >= vocab_size {
                return Err(ParamError::Vocabulary { name, id, vocab_size });
            }
        }
        Ok(())
    }
}

/// The token of a word of one.
fn single(word: &[u32]) -> Option<u32> {
    match word {
        [token] => Some(*token),
        _ => None,
    }
}

fn range(name: &'static str, value: f64, low: f64, high: f64) -> Result<(), ParamError> {
    if (low..=high).contains(&value) {
        Ok(())
    } else {
        Err(ParamError::Between { name, value, low, high })
    }
}

fn count(name: &'static str, found: usize, limit: usize) -> Result<(), ParamError> {
    if found <= limit {
        Ok(())
    } else {
        Err(ParamError::Count { name, found, limit })
    }
}

/// A request as the engine takes it: token ids and parameters.
#[derive(Clone, Debug)]
pub struct Request {
    /// The caller's name for it, for logs.
    pub id: String,
    /// Prompt token ids, not empty.
    pub prompt: Vec<u32>,
    /// Parameters.
    pub params: SamplingParams,
    /// Lower runs first under the priority policy.
    pub priority: i32,
    /// Requests share cached prefixes only within one salt.
    pub cache_salt: Option<String>,
    /// The client's `traceparent` header, for records.
    pub trace_parent: Option<String>,
    /// The client's `tracestate` header, for records; it means nothing without `trace_parent`.
    pub trace_state: Option<String>,
    /// Name of a LoRA adapter; `None`: the model as it is.
    pub lora: Option<String>,
    /// Says after each token which may come next; `None`: as [`SamplingParams::structured_outputs`] says.
    pub guide: Option<GuideFactory>,
    /// Gives the hidden state of the prompt's last token, behind the last layer and the final norm \[hidden\], and no
    /// tokens. It ends with [`crate::FinishReason::Length`]. Only where [`crate::EngineConfig::hidden_states`] is set.
    pub hidden_state: bool,
}

impl Request {
    /// A request of default priority.
    pub fn new(id: impl Into<String>, prompt: Vec<u32>, params: SamplingParams) -> Self {
        Request {
            id: id.into(),
            prompt,
            params,
            priority: 0,
            cache_salt: None,
            trace_parent: None,
            trace_state: None,
            lora: None,
            guide: None,
            hidden_state: false,
        }
    }
}
