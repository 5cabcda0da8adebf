//! `/v1/completions`: prompts as text or ids, samples as text, with OpenAI's legacy log-probabilities and `echo`.

use std::collections::HashMap;

use halyard_engine::{FinishReason, SamplingParams, TokenLogprobs};
use halyard_text::Tokenizer;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answer::{Answer, Format, Piece};
use super::api::{Api, Generation, openai_error};
use super::body::Body;
use super::context::TokenLimit;
use super::envelope::{Chunk, StopReason, Whole, close};
use super::events::{Events, to_json};
use super::lenient::{Flag, Int, is_set};
use super::logprobs::{CompletionLogprobs, PromptLogprobs, TokenNames};
use super::model::ModelContext;
use super::prompt::{Prompt, read_prompts};
use super::sampling::num_logprobs;
use super::shared::Shared;
use super::unsupported;
use crate::api_error::ApiError;

/// The API.
pub const API: Api = Api {
    path: "/v1/completions",
    id_prefix: "cmpl-",
    is_stored: false,
    says_abort: true,
    has_prompts: true,
    read,
    write_error: openai_error,
};

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

/// Reads and checks a body.
///
/// # Errors
/// 400 that names the first field that is wrong.
fn read(body: &mut Body, model: ModelContext<'_>) -> Result<Generation, ApiError> {
    unsupported::refuse(body)?;
    let fields: CompletionFields = body.take()?;
    let mut shared = Shared::take(body, fields.max_tokens, model)?;
    let model = ModelContext {
        truncates: shared.truncation.is_some(),
        ..model
    };
    let echo = is_set(fields.echo);
    let logprobs = fields.logprobs.map(|Int(n)| num_logprobs("logprobs", n, model));
    shared.params.logprobs = logprobs.transpose()?;
    shared.check_prompt_logprobs()?;
    let mut params = shared.params;
    if shared.streaming.stream && echo && params.logprobs.is_some() && params.n > 1 {
        return Err(ApiError::unsupported(
            "echo",
            "with logprobs and n above 1 send stream false",
        ));
    }
    let special = fields.add_special_tokens.is_none_or(|Flag(set)| set);
    let mut prompts = read_prompts(&fields.prompt, special, model)?;
    if let Some(truncation) = shared.truncation {
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
        offsets: HashMap::new(),
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
    Ok(Generation {
        prompts,
        params,
        structured: shared.structured,
        thoughts: None,
        kept: None,
        streaming: shared.streaming,
        format: Box::new(format),
    })
}

/// How a completion's answer is written.
struct CompletionFormat {
    /// Alternatives a position when log-probabilities were asked.
    logprobs: Option<u32>,
    /// The prompt comes before the text.
    echo: bool,
    /// `max_tokens` 0 with `echo`: the prompt alone, to score it.
    prompt_only: bool,
    /// Log-probabilities of the prompt were asked for themselves.
    prompt_logprobs: bool,
    /// Tokens as `token_id:17`.
    tokens_as_ids: bool,
    /// Token ids together with the text.
    return_token_ids: bool,
    /// Leave special tokens out of an echoed prompt that came as ids.
    skip_special_tokens: bool,
    /// Characters so far, by choice, for `text_offset`.
    offsets: HashMap<usize, usize>,
}

/// A choice of an answer or of a piece.
#[derive(Serialize)]
struct CompletionChoice<'a> {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopReason>,
    /// Absent unless asked; null where the engine gave none.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<Option<PromptLogprobs>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
}

const OBJECT: &str = "text_completion";

impl CompletionFormat {
    fn choice<'a>(&mut self, mut piece: Piece<'a>, tokenizer: &Tokenizer) -> CompletionChoice<'a> {
        let mut text = String::new();
        let token_ids = if self.prompt_only { &[] } else { piece.token_ids };
        let mut logprobs = self.logprobs.map(|top| LogprobWriter {
            written: CompletionLogprobs::default(),
            top,
            offset: self.offsets.entry(piece.index).or_default(),
            names: TokenNames {
                tokenizer,
                as_ids: self.tokens_as_ids,
            },
        });
        if piece.is_first && self.echo {
            text = echoed(piece.prompt, self.skip_special_tokens, tokenizer);
            let entry = |position: usize| piece.prompt_logprobs?.get(position)?.as_ref();
            if let Some(logprobs) = &mut logprobs {
                logprobs.push_all(&piece.prompt.token_ids, entry);
            }
        }
        if !self.prompt_only {
            text.push_str(&piece.take_text());
        }
        if let Some(logprobs) = &mut logprobs {
            logprobs.push_all(token_ids, |position| piece.logprobs.get(position));
        }
        let prompt_logprobs = || {
            let entries = piece.prompt_logprobs;
            entries.map(|entries| PromptLogprobs::new(entries, tokenizer))
        };
        CompletionChoice {
            index: piece.index,
            text,
            logprobs: logprobs.map(|logprobs| logprobs.written),
            finish_reason: piece.finish.map(FinishReason::as_openai),
            stop_reason: StopReason::of(piece.finish),
            prompt_logprobs: self.prompt_logprobs.then(prompt_logprobs),
            prompt_token_ids: (self.return_token_ids && piece.is_first).then_some(&piece.prompt.token_ids),
            token_ids: self.return_token_ids.then_some(token_ids),
        }
    }
}

/// The prompt, to put before the answer's text.
fn echoed(prompt: &Prompt, skip_special_tokens: bool, tokenizer: &Tokenizer) -> String {
    let decoded = || tokenizer.decode(&prompt.token_ids, skip_special_tokens);
    prompt.text.clone().unwrap_or_else(|| decoded().unwrap_or_default())
}

/// Adds tokens to the log-probabilities of a choice.
struct LogprobWriter<'a> {
    written: CompletionLogprobs,
    top: u32,
    offset: &'a mut usize,
    names: TokenNames<'a>,
}

impl LogprobWriter<'_> {
    fn push_all<'e>(&mut self, tokens: &[u32], entry: impl Fn(usize) -> Option<&'e TokenLogprobs>) {
        for (position, token) in tokens.iter().enumerate() {
            self.written
                .push(*token, entry(position), self.top, self.offset, self.names);
        }
    }
}

impl Format for CompletionFormat {
    fn piece(&mut self, answer: &Answer, piece: Piece<'_>, events: &mut Events) {
        let shows_tokens = (self.logprobs.is_some() || self.return_token_ids) && !piece.token_ids.is_empty();
        let opens = piece.is_first && (self.echo || self.return_token_ids);
        if piece.deltas.is_empty() && piece.finish.is_none() && !opens && !shows_tokens {
            return;
        }
        let is_last = piece.finish.is_some();
        let choice = self.choice(piece, &answer.tokenizer);
        events.push(&Chunk::new(answer, OBJECT, &choice, is_last));
    }

    fn close(&mut self, answer: &Answer, events: &mut Events) {
        close(answer, OBJECT, events);
    }

    fn whole(&mut self, answer: &Answer, pieces: Vec<Piece<'_>>) -> Result<String, ApiError> {
        let choices = pieces.into_iter().map(|piece| self.choice(piece, &answer.tokenizer));
        to_json(&Whole::new(answer, OBJECT, choices.collect()))
    }
}
