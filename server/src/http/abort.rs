//! `POST /abort_requests`, a route of vLLM's development mode: ends generation requests that run.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use serde_json::{Value, json};

use super::body::{SHORT_BYTES, read_object};
use super::state::AppState;
use crate::api_error::ApiError;

/// Ids of one call.
const MAX_IDS: usize = 16_384;

/// `POST /abort_requests` with `{"request_ids": […]}`; without ids every request ends. Unknown ids are no error: their
/// requests may have ended by themselves.
///
/// # Errors
/// 400 for ids that are no list of strings.
pub async fn abort_requests(State(state): State<Arc<AppState>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (parts, body) = request.into_parts();
    let body = read_object(&parts.headers, body, SHORT_BYTES).await?;
    let wrong = || {
        ApiError::field(
            "request_ids",
            format!("request_ids must be a list of at most {MAX_IDS} strings"),
        )
    };
    let aborted = match &body["request_ids"] {
        Value::Null => state.abortable.abort(None),
        Value::Array(ids) if ids.is_empty() => state.abortable.abort(None),
        Value::Array(ids) if ids.len() <= MAX_IDS => {
            let ids: Option<BTreeSet<&str>> = ids.iter().map(Value::as_str).collect();
            state.abortable.abort(Some(&ids.ok_or_else(wrong)?))
        }
        _ => return Err(wrong()),
    };
    tracing::info!(aborted, "requests were aborted by POST /abort_requests");
    Ok(Json(json!({ "status": "aborted", "aborted": aborted })))
}
