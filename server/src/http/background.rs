//! Responses in the background: a task of its own computes the answer and stores how far it is. It counts among the
//! running requests; when the server ends, it ends as they do.

use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream;

use super::exchange::{Chunks, Exchange, event_stream, json_answer};
use super::response_store::{EventReader, Keeper};
use crate::api_error::ApiError;
use crate::openai::answer::Stage;
use crate::openai::refusals::incomplete;

/// Starts the work for an answer. The client gets the response as it is at the start, or its events as they come.
///
/// # Errors
/// 503 where the store has no room.
pub(super) fn start(
    mut exchange: Exchange,
    chunks: Chunks,
    is_stream: bool,
    keep_alive: Option<Duration>,
) -> Result<Response, ApiError> {
    let keeper = exchange.keeper.take().ok_or_else(incomplete)?;
    let queued = exchange.writer.snapshot(Stage::Queued).map(Bytes::from);
    let queued = queued.ok_or_else(incomplete)?;
    let begun = keeper.begin(queued.clone(), is_stream)?;
    let events = is_stream.then(|| begun.events()).transpose()?;
    let work = tokio::spawn(run(exchange, chunks, keeper));
    begun.set_work(work.abort_handle());
    Ok(match events {
        Some(events) => events_of(events, keep_alive),
        None => json_answer(queued),
    })
}

/// The events of a stored response as an answer.
pub(super) fn events_of(reader: EventReader, keep_alive: Option<Duration>) -> Response {
    let events = stream::unfold(reader, |mut reader| async move {
        let events = reader.next().await?;
        Some((events, reader))
    });
    event_stream(events, keep_alive)
}

/// Computes an answer to its end. Aborting it cancels the request, as a client that goes away does.
async fn run(mut exchange: Exchange, mut chunks: Chunks, keeper: Keeper) {
    let mut in_progress = exchange.writer.snapshot(Stage::InProgress);
    loop {
        let went_on = match chunks.next().await {
            Some((prompt, chunk)) => exchange.events(prompt, chunk).await,
            None => Err(incomplete()),
        };
        let kept = match went_on {
            Ok(events) if exchange.writer.has_ended() => {
                let events = events + &exchange.writer.close();
                let response = exchange.writer.snapshot(Stage::Over(None)).unwrap_or_default();
                log_end(&exchange, None);
                return keeper.finish_with(response, &events);
            }
            Ok(events) => keeper.goes_on(in_progress.take(), &events),
            Err(error) => Err(error),
        };
        if let Err(error) = kept {
            let events = exchange.writer.failure(&error);
            let response = exchange.writer.snapshot(Stage::Over(Some(&error))).unwrap_or_default();
            log_end(&exchange, Some(&error));
            return keeper.finish_with(response, &events);
        }
    }
}

/// The line of the request said how it began.
fn log_end(exchange: &Exchange, error: Option<&ApiError>) {
    let (id, completion_tokens) = (exchange.writer.id(), exchange.writer.completion_tokens());
    let error = error.map(|error| error.message.as_str());
    tracing::info!(id, completion_tokens, error, "a response in the background has ended");
}
