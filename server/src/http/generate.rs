//! One generation request of any API: reads and submits it, formats its chunks with the API's writer, and sends the
//! answer whole or as a stream. Dropping the answer (a client that went away) drops the engine's streams, which cancels
//! the request.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body as HttpBody;
use axum::extract::Request as HttpRequest;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures::stream::{self, SelectAll, Stream, StreamExt};
use halyard_engine::{OutputChunk, OutputStream, Request};
use halyard_request_hooks::IoRun;
use serde_json::Value;

use super::conversion::{convert, read};
use super::guides;
use super::info::fingerprint;
use super::request_id::TokenCount;
use super::state::{AppState, InFlight};
use crate::api_error::ApiError;
use crate::clock::unix_seconds;
use crate::openai::answer::{Answer, AnswerWriter, Format};
use crate::openai::api::Api;
use crate::openai::body::Body;
use crate::openai::refusals::failure;
use crate::openai::shared::SchedulingFields;
use crate::openai::structured::Structured;
use crate::openai::thoughts::Thoughts;
use crate::openai::usage::Usage;

/// A request, checked and ready to be submitted.
struct Job {
    answer: Answer,
    format: Box<dyn Format>,
    /// One for each prompt.
    requests: Vec<Request>,
    /// What the text of every sample must be.
    structured: Option<Structured>,
    /// What the model may think before.
    thoughts: Option<Thoughts>,
    /// The IO processors for the answer's texts.
    io: IoRun,
}

/// Answers a request to `api`.
///
/// # Errors
/// Failures before the first byte of an answer; a later failure of a stream is an event in it.
pub async fn generate(state: Arc<AppState>, http: HttpRequest, api: &'static Api) -> Result<Response, ApiError> {
    let trace_parent = trace_parent(&http);
    let (body, lane, request_id) = read(&state, http).await?;
    let id = format!("{}{request_id}", api.id_prefix);
    let (body, io) = pass_io(&state, api.path, &id, body).await?;
    let body = Body::new(body)?;
    let model = state.find_model(&body).await?;
    let job = convert(&state, lane, body, move |state, body, cancel| {
        let asked = (api.read)(body, state.context(cancel))?;
        let scheduling = body.take::<SchedulingFields>()?.read(state.priority_scheduling)?;
        let prompts = asked.prompts.iter().zip(asked.params).enumerate();
        let requests = prompts.map(|(index, (prompt, params))| {
            let id = if api.has_prompts {
                format!("{id}-{index}")
            } else {
                id.clone()
            };
            let mut request = Request::new(id, prompt.token_ids.clone(), params);
            request.lora = state.adapter(&model);
            request.priority = scheduling.priority;
            request.cache_salt.clone_from(&scheduling.cache_salt);
            request.trace_parent.clone_from(&trace_parent);
            request
        });
        Ok(Job {
            requests: requests.collect(),
            structured: asked.structured,
            thoughts: asked.thoughts,
            answer: Answer {
                id,
                model,
                created: unix_seconds(),
                fingerprint: fingerprint(state),
                streaming: asked.streaming,
                usage: Usage::of_prompts(&asked.prompts),
                tokenizer: state.engine.tokenizer().clone(),
                prompts: asked.prompts,
            },
            format: asked.format,
            io,
        })
    });
    let mut job = job.await?;
    if let Some(structured) = job.structured.take() {
        guides::add(&state, &mut job.requests, structured, job.thoughts.take()).await?;
    }
    if state.log_prompts {
        log_prompts(&state, &job.answer);
    }
    let mut response = answer(state, job).await?;
    // The answer's header has the id of the answer's body.
    response.extensions_mut().insert(request_id);
    Ok(response)
}

/// The request's `traceparent` header (W3C Trace Context), for stat records. A value over 128 bytes is invalid and is
/// ignored.
fn trace_parent(request: &HttpRequest) -> Option<String> {
    let value = request.headers().get("traceparent")?.to_str().ok()?;
    (value.len() <= 128).then(|| value.to_owned())
}

/// The body after the IO processors, and the processors for its answer.
async fn pass_io(state: &AppState, route: &'static str, id: &str, body: Value) -> Result<(Value, IoRun), ApiError> {
    if state.io.is_empty() {
        return Ok((body, IoRun::default()));
    }
    Ok(state.io.open(route, id, body).await?)
}

fn log_prompts(state: &AppState, answer: &Answer) {
    for prompt in &answer.prompts {
        let most = state.serving.max_log_len.unwrap_or(usize::MAX);
        let text = prompt.text.as_deref().map(|text| beginning(text, most));
        let token_ids = &prompt.token_ids[..prompt.token_ids.len().min(most)];
        tracing::info!(id = %answer.id, prompt = text, ?token_ids, "prompt");
    }
}

/// The first `most` characters.
fn beginning(text: &str, most: usize) -> &str {
    text.char_indices().nth(most).map_or(text, |(end, _)| &text[..end])
}

type Chunks = SelectAll<Pin<Box<dyn Stream<Item = (usize, OutputChunk)> + Send>>>;

/// Submits a request and answers it.
async fn answer(state: Arc<AppState>, job: Job) -> Result<Response, ApiError> {
    let Job {
        answer,
        format,
        requests,
        io,
        ..
    } = job;
    let in_flight = InFlight::enter(&state);
    let num_samples = requests.first().map_or(1, |request| request.params.n as usize);
    let mut streams = Vec::with_capacity(requests.len());
    for request in requests {
        let submitted = state.engine.submit(request);
        streams.push(submitted.map_err(|error| format.refusal(error))?);
    }
    let tokens = TokenCount::of_prompts(&answer.prompts);
    let is_stream = answer.streaming.stream;
    let chunks = merge(streams);
    let exchange = Exchange {
        writer: AnswerWriter::new(answer, format, num_samples),
        io,
        tokens: tokens.clone(),
        _in_flight: in_flight,
    };
    let mut response = if is_stream {
        stream_answer(exchange, chunks)
    } else {
        whole_answer(exchange, chunks).await?
    };
    response.extensions_mut().insert(tokens);
    Ok(response)
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

/// The state of an answer while it is written.
struct Exchange {
    writer: AnswerWriter,
    io: IoRun,
    /// For the log line at the end.
    tokens: TokenCount,
    _in_flight: InFlight,
}

async fn whole_answer(exchange: Exchange, mut chunks: Chunks) -> Result<Response, ApiError> {
    let Exchange {
        mut writer,
        mut io,
        tokens,
        _in_flight,
    } = exchange;
    while let Some((prompt, chunk)) = chunks.next().await {
        if let Some(error) = chunk.finish.as_ref().and_then(failure) {
            return Err(error);
        }
        writer.collect(prompt, chunk);
    }
    for (index, text) in (0..).zip(writer.collected_texts()?) {
        if !io.is_passive() {
            *text = io.output(index, std::mem::take(text), true).await?;
        }
    }
    tokens.set_completion(writer.completion_tokens());
    let mut response = Response::new(HttpBody::from(writer.whole()?));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    Ok(response)
}

fn stream_answer(exchange: Exchange, chunks: Chunks) -> Response {
    // Chunks that are ready are sent together: with n above 1, those of one step.
    let num_choices = exchange.writer.num_choices().max(1);
    let start = (exchange, chunks.ready_chunks(num_choices));
    let events = stream::unfold(Some(start), |position| async move {
        let (mut exchange, mut chunks) = position?;
        loop {
            let Some(ready) = chunks.next().await else {
                return Some((exchange.writer.close(), None));
            };
            let mut text = String::new();
            for (prompt, chunk) in ready {
                match exchange.events(prompt, chunk).await {
                    Ok(events) => text.push_str(&events),
                    Err(error) => {
                        text.push_str(&exchange.writer.failure(&error));
                        return Some((text, None));
                    }
                }
            }
            if !text.is_empty() {
                return Some((text, Some((exchange, chunks))));
            }
        }
    });
    let body = HttpBody::from_stream(events.map(|text| Ok::<Bytes, Infallible>(Bytes::from(text))));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    let content_type = HeaderValue::from_static("text/event-stream; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Without it buffering reverse proxies would delay tokens.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl Exchange {
    /// The events of a chunk in a stream.
    async fn events(&mut self, prompt: usize, mut chunk: OutputChunk) -> Result<String, ApiError> {
        let last = chunk.finish.is_some();
        if let Some(error) = chunk.finish.as_ref().and_then(failure) {
            return Err(error);
        }
        if !self.io.is_passive() && (last || !chunk.text.is_empty()) {
            let index = u32::try_from(self.writer.choice_index(prompt, &chunk)).unwrap_or(u32::MAX);
            chunk.text = self.io.output(index, std::mem::take(&mut chunk.text), last).await?;
        }
        let text = self.writer.push(prompt, chunk);
        self.tokens.set_completion(self.writer.completion_tokens());
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::beginning;

    #[test]
    fn the_log_shows_whole_characters() {
        assert_eq!(beginning("äöü", 2), "äö");
        assert_eq!(beginning("äöü", 3), "äöü");
        assert_eq!(beginning("äöü", 0), "");
        assert_eq!(beginning("äöü", usize::MAX), "äöü");
    }
}
