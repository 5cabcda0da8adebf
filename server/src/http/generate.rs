//! One generation request's way through the server: submit, follow its chunks, answer whole or as a stream. Dropping the
//! answer (a client that went away) drops the engine's streams, which cancels the request.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream::{self, SelectAll, Stream, StreamExt};
use halyard_engine::{FinishReason, OutputChunk, OutputStream, Request, SubmitError, TokenLogprobs};
use halyard_request_hooks::{IoFailure, IoRun};
use serde_json::{Value, json};

use super::error::ApiError;
use super::info::fingerprint;
use super::request_id::TokenCount;
use super::state::{AppState, InFlight};
use crate::openai::chat::ChatFormat;
use crate::openai::completion::CompletionFormat;
use crate::openai::context;
use crate::openai::prompt::Prompt;
use crate::openai::usage::{Streaming, Usage};

/// A finished sample.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// The text.
    pub text: String,
    /// The ids.
    pub token_ids: Vec<u32>,
    /// One entry a token when asked.
    pub logprobs: Vec<TokenLogprobs>,
    /// In sample 0 when asked.
    pub prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    /// How it ended.
    pub finish: Option<FinishReason>,
}

impl Sample {
    fn push(&mut self, chunk: OutputChunk) {
        self.text.push_str(&chunk.text);
        self.token_ids.extend(chunk.token_ids);
        self.logprobs.extend(chunk.logprobs.into_iter().flatten());
        self.prompt_logprobs = self.prompt_logprobs.take().or(chunk.prompt_logprobs);
        self.finish = chunk.finish.or(self.finish.take());
    }
}

/// How the answer is written.
#[derive(Clone)]
pub enum Format {
    /// `/v1/chat/completions`.
    Chat(ChatFormat),
    /// `/v1/completions`.
    Completion(CompletionFormat),
}

/// A request, checked and ready to be submitted.
pub struct Job {
    /// The answer's id, such as `cmpl-…`.
    pub id: String,
    /// Name of the model in the answer.
    pub model: String,
    /// Seconds since 1970.
    pub created: u64,
    /// What was asked, by prompt.
    pub prompts: Vec<Prompt>,
    /// The engine's requests, one for each prompt.
    pub requests: Vec<Request>,
    /// How to write the answer.
    pub format: Format,
    /// Whole or in pieces.
    pub streaming: Streaming,
    /// What the texts have to pass.
    pub io: IoRun,
}

type Chunks = SelectAll<Pin<Box<dyn Stream<Item = (usize, OutputChunk)> + Send>>>;

/// Answers a request.
///
/// # Errors
/// What the engine refuses, before the first byte; later failures of a stream come as an event in it.
pub async fn answer(state: Arc<AppState>, mut job: Job) -> Result<Response, ApiError> {
    let in_flight = InFlight::enter(&state);
    let num_samples = job.requests.first().map_or(1, |request| request.params.n as usize);
    let follower = Follower {
        seen: vec![false; job.requests.len()],
        cached_tokens: 0,
        completion_tokens: 0,
    };
    let mut streams = Vec::with_capacity(job.requests.len());
    for request in std::mem::take(&mut job.requests) {
        let refused = |error| refusal(error, &job.format);
        streams.push(state.engine.submit(request).map_err(refused)?);
    }
    let chunks = merge(streams);
    if job.streaming.stream {
        Ok(stream_answer(state, job, num_samples, follower, chunks, in_flight))
    } else {
        whole_answer(&state, job, num_samples, follower, chunks).await
    }
}

/// What the engine refuses, by the names of the route's fields.
fn refusal(error: SubmitError, format: &Format) -> ApiError {
    match (error, format) {
        (SubmitError::PromptTooLong { found, limit }, Format::Chat(_)) => {
            context::prompt_too_long("messages", limit, found)
        }
        (error, _) => error.into(),
    }
}

fn merge(streams: Vec<OutputStream>) -> Chunks {
    let tagged = |(prompt, output): (usize, OutputStream)| {
        stream::unfold(output, move |mut output| async move {
            let chunk = output.next().await?;
            Some(((prompt, chunk), output))
        })
        .boxed()
    };
    streams.into_iter().enumerate().map(tagged).collect()
}

/// Counts the chunks of all prompts of one request.
struct Follower {
    /// By prompt, whether a chunk has come.
    seen: Vec<bool>,
    cached_tokens: u64,
    completion_tokens: u64,
}

impl Follower {
    fn see(&mut self, prompt: usize, chunk: &OutputChunk) {
        if !std::mem::replace(&mut self.seen[prompt], true) {
            self.cached_tokens += u64::from(chunk.num_cached_tokens);
        }
        self.completion_tokens += chunk.token_ids.len() as u64;
    }

    fn usage(&self, prompts: &[Prompt]) -> Usage {
        let prompt_tokens = prompts.iter().map(|prompt| prompt.token_ids.len() as u64).sum();
        Usage::new(prompt_tokens, self.completion_tokens, self.cached_tokens)
    }
}

async fn whole_answer(
    state: &AppState,
    mut job: Job,
    num_samples: usize,
    mut follower: Follower,
    mut chunks: Chunks,
) -> Result<Response, ApiError> {
    let mut samples = vec![Sample::default(); job.prompts.len() * num_samples];
    while let Some((prompt, chunk)) = chunks.next().await {
        follower.see(prompt, &chunk);
        if let Some(error) = chunk.finish.as_ref().and_then(failure) {
            return Err(error);
        }
        samples[prompt * num_samples + chunk.index as usize].push(chunk);
    }
    if samples.iter().any(|sample| sample.finish.is_none()) {
        return Err(incomplete());
    }
    if !job.io.is_passive() {
        for (index, sample) in (0..).zip(&mut samples) {
            sample.text = job.io.output(index, std::mem::take(&mut sample.text), true).await?;
        }
    }
    let tokenizer = state.engine.tokenizer();
    let choice = |(index, sample): (usize, &Sample)| {
        let prompt = index / num_samples;
        let first = &samples[prompt * num_samples];
        match &job.format {
            Format::Chat(format) => format.choice(index, sample, tokenizer),
            Format::Completion(format) => format.choice(index, sample, &job.prompts[prompt], first, tokenizer),
        }
    };
    let choices: Vec<Value> = samples.iter().enumerate().map(choice).collect();
    let usage = follower.usage(&job.prompts);
    let mut answer = json!({"id": job.id, "object": job.object(), "created": job.created, "model": job.model, "choices": choices, "service_tier": null,
        "system_fingerprint": fingerprint(state), "usage": usage});
    if let Format::Chat(format) = &job.format {
        format.extras(&mut answer, &job.prompts[0], &samples[0], tokenizer);
    }
    let mut response = Json(answer).into_response();
    let tokens = TokenCount::of_prompts(&job.prompts);
    tokens.set_completion(follower.completion_tokens);
    response.extensions_mut().insert(tokens);
    Ok(response)
}

fn stream_answer(
    state: Arc<AppState>,
    job: Job,
    num_samples: usize,
    follower: Follower,
    chunks: Chunks,
    in_flight: InFlight,
) -> Response {
    let tokens = TokenCount::of_prompts(&job.prompts);
    let writer = StreamWriter {
        tokens: tokens.clone(),
        state,
        job,
        num_samples,
        follower,
        started: HashMap::new(),
        num_finished: 0,
        _in_flight: in_flight,
    };
    let events = stream::unfold(Some((writer, chunks)), |position| async move {
        let (mut writer, mut chunks) = position?;
        loop {
            let Some((prompt, mut chunk)) = chunks.next().await else {
                return Some((writer.ending(), None));
            };
            let mut error = chunk.finish.as_ref().and_then(failure);
            if error.is_none() {
                error = writer.pass_io(prompt, &mut chunk).await.err().map(ApiError::from);
            }
            if let Some(error) = error {
                writer.follower.see(prompt, &chunk);
                let mut text = event(&error.to_json());
                text.push_str(DONE);
                return Some((text, None));
            }
            let text = writer.piece(prompt, &chunk);
            if !text.is_empty() {
                return Some((text, Some((writer, chunks))));
            }
        }
    });
    let body = Body::from_stream(events.map(|text| Ok::<Bytes, std::convert::Infallible>(Bytes::from(text))));
    let mut response = Response::new(body);
    response.extensions_mut().insert(tokens);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Reverse proxies that buffer would hold tokens back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

const DONE: &str = "data: [DONE]\n\n";

fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// Writes the events of one streamed answer.
struct StreamWriter {
    state: Arc<AppState>,
    job: Job,
    num_samples: usize,
    follower: Follower,
    /// Characters sent so far, by choice that has begun.
    started: HashMap<usize, usize>,
    num_finished: usize,
    /// For the log line at the end.
    tokens: TokenCount,
    _in_flight: InFlight,
}

impl StreamWriter {
    /// Leaves in the chunk what the IO processors show of its text.
    async fn pass_io(&mut self, prompt: usize, chunk: &mut OutputChunk) -> Result<(), IoFailure> {
        let last = chunk.finish.is_some();
        if self.job.io.is_passive() || (chunk.text.is_empty() && !last) {
            return Ok(());
        }
        let index = u32::try_from(prompt * self.num_samples)
            .unwrap_or(u32::MAX)
            .saturating_add(chunk.index);
        chunk.text = self.job.io.output(index, std::mem::take(&mut chunk.text), last).await?;
        Ok(())
    }

    fn piece(&mut self, prompt: usize, chunk: &OutputChunk) -> String {
        self.follower.see(prompt, chunk);
        self.tokens.set_completion(self.follower.completion_tokens);
        self.num_finished += usize::from(chunk.finish.is_some());
        let index = prompt * self.num_samples + chunk.index as usize;
        let first = !self.started.contains_key(&index);
        let offset = self.started.entry(index).or_insert(0);
        let tokenizer = self.state.engine.tokenizer();
        let mut choices = Vec::with_capacity(2);
        match &self.job.format {
            Format::Chat(format) => {
                choices.extend(first.then(|| format.opening(index)).into_iter().flatten());
                choices.extend(format.piece(index, chunk, tokenizer));
            }
            Format::Completion(format) => {
                choices.extend(format.piece(index, chunk, &self.job.prompts[prompt], first, offset, tokenizer));
            }
        }
        let mut text = String::new();
        for (position, choice) in choices.into_iter().enumerate() {
            let mut value = self.frame(json!([choice]));
            let options = self.job.streaming;
            if options.include_usage {
                let so_far = options
                    .continuous_usage_stats
                    .then(|| self.follower.usage(&self.job.prompts));
                value["usage"] = json!(so_far);
            }
            if let Format::Chat(format) = &self.job.format
                && format.return_token_ids
                && first
                && position == 0
            {
                value["prompt_token_ids"] = json!(self.job.prompts[prompt].token_ids);
            }
            if value["choices"][0]["finish_reason"].is_string() {
                value["system_fingerprint"] = Value::from(fingerprint(&self.state));
            }
            text.push_str(&event(&value));
        }
        text
    }

    fn ending(&self) -> String {
        let mut text = String::new();
        if self.num_finished < self.job.prompts.len() * self.num_samples {
            text.push_str(&event(&incomplete().to_json()));
            text.push_str(DONE);
            return text;
        }
        if self.job.streaming.include_usage {
            let mut value = self.frame(json!([]));
            value["usage"] = json!(self.follower.usage(&self.job.prompts));
            text.push_str(&event(&value));
        }
        text.push_str(DONE);
        text
    }

    fn frame(&self, choices: Value) -> Value {
        let job = &self.job;
        json!({"id": job.id, "object": job.object(), "created": job.created, "model": job.model, "choices": choices})
    }
}

impl Job {
    fn object(&self) -> &'static str {
        match (&self.format, self.streaming.stream) {
            (Format::Completion(_), _) => "text_completion",
            (Format::Chat(_), false) => "chat.completion",
            (Format::Chat(_), true) => "chat.completion.chunk",
        }
    }
}

fn incomplete() -> ApiError {
    ApiError::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "the engine ended before the answer was complete",
    )
    .with_code("engine_dead")
}

/// Ends that are no answer.
fn failure(finish: &FinishReason) -> Option<ApiError> {
    match finish {
        FinishReason::Abort(reason) => {
            let message = format!("the request was aborted: {reason}");
            let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).with_code("aborted");
            Some(ApiError {
                retry_after_s: Some(1),
                ..error
            })
        }
        FinishReason::Error(reason) => {
            let message = format!("the engine failed on this request: {reason}");
            Some(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message).with_code("engine_error"))
        }
        FinishReason::NotFinite(reason) => {
            Some(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, reason.as_str()).with_code("nonfinite_logits"))
        }
        FinishReason::NoTokenAllowed(reason) => {
            Some(ApiError::new(StatusCode::BAD_REQUEST, reason.as_str()).with_code("no_token_allowed"))
        }
        _ => None,
    }
}

/// Adds `finish_reason` and vLLM's `stop_reason` to a choice.
pub fn finish_fields(choice: &mut Value, finish: Option<&FinishReason>) {
    choice["finish_reason"] = finish.map_or(Value::Null, |finish| Value::from(finish.as_openai()));
    choice["stop_reason"] = match finish {
        Some(FinishReason::StopToken(id)) => Value::from(*id),
        Some(FinishReason::StopString(text)) => Value::from(text.as_str()),
        _ => Value::Null,
    };
}
