//! Guides of requests with a structured output: those that were compiled before are there at once, a new one is waited
//! for on a blocking thread, as many as a bound allows.

use std::sync::Arc;

use axum::http::StatusCode;
use halyard_engine::Request;
use tokio::sync::Semaphore;

use super::state::AppState;
use crate::api_error::ApiError;
use crate::openai::structured::refusal;

/// Requests that wait for new constraints at the same time; each holds a thread, which sleeps.
static WAITS: Semaphore = Semaphore::const_new(64);

/// Gives a job's requests their guide, all the same one. `path`: the field that asks for it.
///
/// # Errors
/// What is wrong with the constraint, and 503 where too many are compiled.
pub async fn add(state: &Arc<AppState>, requests: &mut [Request], path: &'static str) -> Result<(), ApiError> {
    let Some(first) = requests
        .first()
        .filter(|first| first.params.structured_outputs.is_some())
    else {
        return Ok(());
    };
    let guide = match state.engine.kept_guide(&first.params) {
        Some(kept) => kept,
        None => {
            // Never closed.
            let _wait = WAITS.acquire().await;
            let (engine, params) = (state.engine.clone(), first.params.clone());
            let compiled = tokio::task::spawn_blocking(move || engine.guide(&params)).await;
            compiled.map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?
        }
    };
    let guide = guide.map_err(|error| refusal(error, path))?;
    for request in requests {
        request.guide.clone_from(&guide);
    }
    Ok(())
}
