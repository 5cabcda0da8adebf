//! `/v1/completions`: prompts as text or ids, samples as text, with OpenAI's legacy log-probabilities and `echo`.

use halyard_engine::{OutputChunk, SamplingParams, TokenLogprobs};
use halyard_text::Tokenizer;
use serde::Deserialize;
use serde_json::{Value, json};

use super::context::{TokenLimit, TruncationFields};
use super::lenient::{Flag, Int, is_set};
use super::logprobs::{CompletionLogprobs, TokenNames, prompt_logprobs};
use super::prompt::{Prompt, read_prompts};
use super::sampling::{SamplingFields, num_logprobs};
use super::usage::{StreamFields, Streaming};
use super::{ModelContext, unsupported};
use crate::http::body::parse;
use crate::http::error::ApiError;
use crate::http::generate::{Sample, finish_fields};

/// OpenAI's and vLLM's token limit when a body names none.
const DEFAULT_MAX_TOKENS: u32 = 16;

#[derive(Deserialize)]
struct CompletionFields {
    #[serde(default)]
    prompt: Value,
    max_tokens: Option<Int>,
    logprobs: Option<Int>,
    echo: Option<Flag>,
    add_special_tokens: Option<Flag>,
    return_token_ids: Option<Flag>,
    return_tokens_as_token_ids: Option<Flag>,
}

/// A checked completion request.
pub struct CompletionRequest {
    /// The prompts, in the body's order.
    pub prompts: Vec<Prompt>,
    /// For the engine, one for each prompt: the token limit depends on the prompt.
    pub params: Vec<SamplingParams>,
    /// Whole or in pieces.
    pub streaming: Streaming,
    /// How to write the answer.
    pub format: CompletionFormat,
}

/// How a completion's answer is written.
#[derive(Clone, Copy, Debug)]
pub struct CompletionFormat {
    /// Alternatives a position when log-probabilities were asked.
    pub logprobs: Option<u32>,
    /// The prompt comes before the text.
    pub echo: bool,
    /// `max_tokens` 0 with `echo`: the prompt alone, to score it.
    pub prompt_only: bool,
    /// Log-probabilities of the prompt were asked for themselves.
    pub prompt_logprobs: bool,
    /// Tokens as `token_id:17`.
    pub tokens_as_ids: bool,
    /// Token ids beside the text.
    pub return_token_ids: bool,
    /// Leave special tokens out of an echoed prompt that came as ids.
    pub skip_special_tokens: bool,
}

impl CompletionRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// 400 that names the first field that is wrong.
    pub fn read(body: &Value, model: ModelContext<'_>) -> Result<Self, ApiError> {
        unsupported::refuse(body)?;
        let fields: CompletionFields = parse(body)?;
        let streaming = parse::<StreamFields>(body)?.read(body, model.serving)?;
        let truncation = parse::<TruncationFields>(body)?.read(fields.max_tokens, model)?;
        let model = ModelContext {
            truncates: truncation.is_some(),
            ..model
        };
        let mut params = parse::<SamplingFields>(body)?.into_params(model)?;
        let stream = streaming.stream;
        let echo = is_set(fields.echo);
        let logprobs = fields.logprobs.map(|Int(n)| num_logprobs("logprobs", n, model));
        params.logprobs = logprobs.transpose()?;
        if stream && params.prompt_logprobs.is_some() {
            return Err(ApiError::field(
                "prompt_logprobs",
                "prompt_logprobs are not available in a stream; send stream false",
            ));
        }
        if stream && echo && params.logprobs.is_some() && params.n > 1 {
            return Err(ApiError::unsupported(
                "echo",
                "with logprobs and n above 1 send stream false",
            ));
        }
        let special = fields.add_special_tokens.is_none_or(|Flag(set)| set);
        let mut prompts = read_prompts(&fields.prompt, special, model)?;
        if let Some(truncation) = truncation {
            prompts.iter_mut().for_each(|prompt| truncation.apply(prompt));
        }
        let samples = prompts.len().saturating_mul(params.n as usize);
        if samples > model.limits.samples {
            let message = format!(
                "{} prompts times n {} are {samples} samples; at most {} are taken in one request",
                prompts.len(),
                params.n,
                model.limits.samples
            );
            return Err(ApiError::field("n", message));
        }
        let as_ids = fields.return_tokens_as_token_ids.map(|Flag(set)| set);
        let format = CompletionFormat {
            logprobs: params.logprobs,
            echo,
            prompt_only: echo && fields.max_tokens == Some(Int(0)),
            prompt_logprobs: params.prompt_logprobs.is_some(),
            tokens_as_ids: as_ids.unwrap_or(model.serving.return_tokens_as_token_ids),
            return_token_ids: is_set(fields.return_token_ids),
            skip_special_tokens: params.skip_special_tokens,
        };
        if echo && params.prompt_logprobs.is_none() {
            params.prompt_logprobs = params.logprobs;
        }
        // Scoring a prompt takes a step, and a step makes a token; it is dropped.
        let limit = TokenLimit {
            name: "max_tokens",
            asked: if format.prompt_only {
                Some(1)
            } else {
                fields.max_tokens.map(|Int(limit)| limit)
            },
            default: Some(DEFAULT_MAX_TOKENS),
            prompt_field: "prompt",
        };
        let with_limit = |prompt: &Prompt| {
            Ok(SamplingParams {
                max_tokens: limit.fit(prompt.token_ids.len(), model.max_model_len)?,
                ..params.clone()
            })
        };
        let params = prompts.iter().map(with_limit).collect::<Result<_, ApiError>>()?;
        Ok(CompletionRequest {
            prompts,
            params,
            streaming,
            format,
        })
    }
}

impl CompletionFormat {
    /// The choice of a finished sample; `first` is the prompt's sample 0, which carries the prompt's log-probabilities.
    pub fn choice(
        &self,
        index: usize,
        sample: &Sample,
        prompt: &Prompt,
        first: &Sample,
        tokenizer: &Tokenizer,
    ) -> Value {
        let mut text = if self.echo {
            self.echoed(prompt, tokenizer)
        } else {
            String::new()
        };
        let mut written = CompletionLogprobs::default();
        let mut offset = 0;
        if self.echo {
            self.push_prompt(
                &mut written,
                prompt,
                first.prompt_logprobs.as_deref(),
                &mut offset,
                tokenizer,
            );
        }
        if !self.prompt_only {
            text.push_str(&sample.text);
            self.push_tokens(
                &mut written,
                &sample.token_ids,
                &sample.logprobs,
                &mut offset,
                tokenizer,
            );
        }
        let logprobs = if self.logprobs.is_some() {
            written.into_json()
        } else {
            Value::Null
        };
        let mut choice = json!({"index": index, "text": text, "logprobs": logprobs});
        finish_fields(&mut choice, sample.finish.as_ref());
        if self.prompt_logprobs {
            choice["prompt_logprobs"] = first
                .prompt_logprobs
                .as_deref()
                .map_or(Value::Null, |entries| prompt_logprobs(entries, tokenizer));
        }
        if self.return_token_ids {
            choice["prompt_token_ids"] = json!(prompt.token_ids);
            choice["token_ids"] = if self.prompt_only {
                json!([])
            } else {
                json!(sample.token_ids)
            };
        }
        choice
    }

    /// The choice of one piece of a stream; `None` when there is nothing to tell yet. `offset` counts the sample's
    /// characters so far; `first` says that nothing of the sample was sent yet.
    pub fn piece(
        &self,
        index: usize,
        chunk: &OutputChunk,
        prompt: &Prompt,
        first: bool,
        offset: &mut usize,
        tokenizer: &Tokenizer,
    ) -> Option<Value> {
        let shows_tokens = (self.logprobs.is_some() || self.return_token_ids) && !chunk.token_ids.is_empty();
        let opens = first && (self.echo || self.return_token_ids);
        if chunk.text.is_empty() && chunk.finish.is_none() && !opens && !shows_tokens {
            return None;
        }
        let mut text = String::new();
        let mut written = CompletionLogprobs::default();
        if first && self.echo {
            text = self.echoed(prompt, tokenizer);
            self.push_prompt(
                &mut written,
                prompt,
                chunk.prompt_logprobs.as_deref(),
                offset,
                tokenizer,
            );
        }
        if !self.prompt_only {
            text.push_str(&chunk.text);
            let entries = chunk.logprobs.as_deref().unwrap_or_default();
            self.push_tokens(&mut written, &chunk.token_ids, entries, offset, tokenizer);
        }
        let logprobs = if self.logprobs.is_some() {
            written.into_json()
        } else {
            Value::Null
        };
        let mut choice = json!({"index": index, "text": text, "logprobs": logprobs});
        finish_fields(&mut choice, chunk.finish.as_ref());
        if self.return_token_ids {
            if first {
                choice["prompt_token_ids"] = json!(prompt.token_ids);
            }
            choice["token_ids"] = if self.prompt_only {
                json!([])
            } else {
                json!(chunk.token_ids)
            };
        }
        Some(choice)
    }

    fn echoed(&self, prompt: &Prompt, tokenizer: &Tokenizer) -> String {
        let decoded = || {
            tokenizer
                .decode(&prompt.token_ids, self.skip_special_tokens)
                .unwrap_or_default()
        };
        prompt.text.clone().unwrap_or_else(decoded)
    }

    fn push_prompt(
        &self,
        written: &mut CompletionLogprobs,
        prompt: &Prompt,
        entries: Option<&[Option<TokenLogprobs>]>,
        offset: &mut usize,
        tokenizer: &Tokenizer,
    ) {
        let Some(top) = self.logprobs else { return };
        let names = TokenNames {
            tokenizer,
            as_ids: self.tokens_as_ids,
        };
        for (position, token) in prompt.token_ids.iter().enumerate() {
            let entry = entries.and_then(|entries| entries.get(position)?.as_ref());
            written.push(*token, entry, top as usize, offset, names);
        }
    }

    fn push_tokens(
        &self,
        written: &mut CompletionLogprobs,
        tokens: &[u32],
        entries: &[TokenLogprobs],
        offset: &mut usize,
        tokenizer: &Tokenizer,
    ) {
        let Some(top) = self.logprobs else { return };
        let names = TokenNames {
            tokenizer,
            as_ids: self.tokens_as_ids,
        };
        for (position, token) in tokens.iter().enumerate() {
            written.push(*token, entries.get(position), top as usize, offset, names);
        }
    }
}
