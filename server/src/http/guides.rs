//! Guides of requests with a structured output: those that were compiled before are there at once, a new one is waited
//! for on a blocking thread, as many as a bound allows.

use std::sync::Arc;

use axum::http::StatusCode;
use halyard_engine::Request;
use tokio::sync::Semaphore;

use super::state::AppState;
use crate::api_error::ApiError;
use crate::openai::structured::{Structured, refusal};
use crate::openai::thoughts::Thoughts;

/// Requests that wait for new constraints at the same time; each holds a thread, which sleeps.
static WAITS: Semaphore = Semaphore::const_new(64);

/// Gives a job's requests their guide, all the same one, which binds what comes behind `thoughts`.
///
/// # Errors
/// What is wrong with the constraint, and 503 where too many are compiled.
pub async fn add(
    state: &Arc<AppState>,
    requests: &mut [Request],
    structured: Structured,
    thoughts: Option<Thoughts>,
) -> Result<(), ApiError> {
    let Structured { outputs, path } = structured;
    // Requests of one body have the same parameters, but for their length.
    let stops = requests.first().map(|request| request.params.stop_token_ids.clone());
    let stops = stops.unwrap_or_default();
    let guide = match state.engine.kept_guide(&outputs, &stops) {
        Some(kept) => kept,
        None => {
            // Never closed.
            let _wait = WAITS.acquire().await;
            let (engine, stops) = (state.engine.clone(), stops.clone());
            let compiled = tokio::task::spawn_blocking(move || engine.guide(&outputs, &stops)).await;
            compiled.map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?
        }
    };
    let guide = guide.map_err(|error| refusal(error, path))?;
    let engine = &state.engine;
    let guide = match thoughts {
        Some(thoughts) => thoughts.before(guide, engine.tokenizer().clone(), &engine.info().eos_token_ids, &stops),
        None => guide,
    };
    for request in requests {
        request.guide = Some(guide.clone());
    }
    Ok(())
}
