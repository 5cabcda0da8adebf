//! Routes for the operator: the running plugins with their state, and reloading one. They need the key, as all others
//! do.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use halyard_hooks::HookError;
use serde_json::{Value, json};

use super::body::{SHORT_BYTES, read_object};
use super::state::AppState;
use crate::api_error::ApiError;
use crate::hooks::StatLoggerError;

/// `GET /admin/plugins`.
pub async fn plugins(State(state): State<Arc<AppState>>) -> Json<Value> {
    let report = state.hooks.report();
    Json(json!({ "engine_waits": report.engine_waits, "stat_loggers": report.sinks }))
}

/// `POST /admin/plugins/reload` with `{"name": "…"}`.
///
/// # Errors
/// 400 without a name, 404 for a name that does not run, 409 when it cannot be replaced now, 422 for a library that
/// does not load.
pub async fn reload(State(state): State<Arc<AppState>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (parts, body) = request.into_parts();
    let body = read_object(&parts.headers, body, SHORT_BYTES).await?;
    let Some(name) = body["name"].as_str().map(str::to_owned) else {
        return Err(ApiError::field(
            "name",
            "name must be a string: the stat logger to reload",
        ));
    };
    // Loading a library and draining the old one blocks.
    let reloading = tokio::task::spawn_blocking(move || state.hooks.reload(&name));
    let reloaded = reloading
        .await
        .map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    reloaded.map(|reloaded| Json(json!(reloaded))).map_err(|error| {
        let status = match &error {
            StatLoggerError::Hook(HookError::Unknown { .. }) => StatusCode::NOT_FOUND,
            StatLoggerError::Hook(HookError::Stuck(_) | HookError::Reloading(_) | HookError::TooSlow { .. }) => {
                StatusCode::CONFLICT
            }
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        ApiError::new(status, error.to_string()).with_code("reload_failed")
    })
}
