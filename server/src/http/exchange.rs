//! An answer while it is written: the engine's chunks become a body, whole or as a stream of events, and a stored
//! response. Dropping it drops the engine's streams, which cancels the request.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body as HttpBody;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures::stream::{self, BoxStream, SelectAll, Stream, StreamExt};
use halyard_engine::{OutputChunk, OutputStream};
use halyard_request_hooks::IoRun;

use super::abortable::AbortSeat;
use super::request_id::TokenCount;
use super::response_store::Keeper;
use super::state::InFlight;
use crate::api_error::ApiError;
use crate::openai::answer::{AnswerWriter, Stage};
use crate::ui::Ticket;

/// What the engine generates, by prompt.
pub(super) type Chunks = SelectAll<Pin<Box<dyn Stream<Item = (usize, OutputChunk)> + Send>>>;

/// The chunks of all prompts as they come.
pub(super) fn merge(streams: Vec<OutputStream>, seat: &AbortSeat, num_samples: u32) -> Chunks {
    let tagged = |(prompt, output): (usize, OutputStream)| {
        let chunks = stream::unfold(output, |mut output| async move {
            let chunk = output.next().await?;
            Some((chunk, output))
        });
        let chunks = seat.until_aborted(chunks.boxed(), num_samples);
        chunks.map(move |chunk| (prompt, chunk)).boxed()
    };
    streams.into_iter().enumerate().map(tagged).collect()
}

/// The state of an answer while it is written.
pub(super) struct Exchange {
    pub(super) writer: AnswerWriter,
    pub(super) io: IoRun,
    /// Where the answer is to be stored.
    pub(super) keeper: Option<Keeper>,
    /// For the log line at the end.
    pub(super) tokens: TokenCount,
    /// Its place in the request log, until the answer has ended.
    pub(super) _ticket: Option<Arc<Ticket>>,
    pub(super) _in_flight: InFlight,
    /// How the operator ends it.
    pub(super) seat: AbortSeat,
}

/// A whole answer, once its last chunk has come.
///
/// # Errors
/// Why it cannot go on.
pub(super) async fn whole_answer(exchange: Exchange, mut chunks: Chunks) -> Result<Response, ApiError> {
    let Exchange {
        mut writer,
        mut io,
        keeper,
        tokens,
        _ticket,
        _in_flight,
        seat,
    } = exchange;
    while let Some((prompt, chunk)) = chunks.next().await {
        if let Some(error) = seat.failure(&chunk) {
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
    let text = writer.whole()?;
    if let Some(keeper) = keeper {
        keeper.finish(text.clone());
    }
    Ok(json_answer(text))
}

/// An answer that is JSON.
pub(super) fn json_answer(text: impl Into<HttpBody>) -> Response {
    let mut response = Response::new(text.into());
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// An answer as its chunks come.
pub(super) fn stream_answer(exchange: Exchange, chunks: Chunks, keep_alive: Option<Duration>) -> Response {
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
            // Whoever has read the end may go on with it.
            exchange.keep_end();
            if !text.is_empty() {
                return Some((text, Some((exchange, chunks))));
            }
        }
    });
    event_stream(events.map(Bytes::from), keep_alive)
}

/// An answer that is a stream of events. One that is silent for `keep_alive` gets a comment each time.
pub(super) fn event_stream(
    events: impl Stream<Item = Bytes> + Send + 'static,
    keep_alive: Option<Duration>,
) -> Response {
    let events = match keep_alive {
        Some(interval) => with_comments(events.boxed(), interval).boxed(),
        None => events.boxed(),
    };
    let body = HttpBody::from_stream(events.map(Ok::<Bytes, Infallible>));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    let content_type = HeaderValue::from_static("text/event-stream; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Without it buffering reverse proxies would delay tokens.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The events, with a comment wherever nothing came for `interval`. The comment is the one of vLLM.
fn with_comments(events: BoxStream<'static, Bytes>, interval: Duration) -> impl Stream<Item = Bytes> + Send {
    stream::unfold(events, move |mut events| async move {
        // What is begun of the next event stays in the stream when the time is over.
        let next = tokio::time::timeout(interval, events.next()).await;
        let bytes = next.unwrap_or(Some(Bytes::from_static(b": keep-alive\n\n")))?;
        Some((bytes, events))
    })
}

impl Exchange {
    /// Stores the answer, once it has come to its end.
    pub(super) fn keep_end(&mut self) {
        if self.writer.has_ended()
            && let Some(keeper) = self.keeper.take()
            && let Some(response) = self.writer.snapshot(Stage::Over(None))
        {
            keeper.finish(response);
        }
    }

    /// The events of a chunk in a stream.
    pub(super) async fn events(&mut self, prompt: usize, mut chunk: OutputChunk) -> Result<String, ApiError> {
        let last = chunk.finish.is_some();
        if let Some(error) = self.seat.failure(&chunk) {
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
