//! Settings that a running server can change: its keys (SIGHUP reads `--api-key-file` again) and its log level
//! (`/admin/log-level`). There are no certificates yet.

use std::io;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::auth::{ApiKeys, KeySources};
use super::body::{SHORT_BYTES, read_object};
use super::state::AppState;
use crate::api_error::ApiError;
use crate::logging;

/// Handles SIGHUP, which would end the process otherwise. Must be called inside a runtime.
///
/// # Errors
/// When the system refuses signal handlers.
pub fn hangup_signal() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}

/// Reads the keys again at each SIGHUP. What cannot be read changes nothing: the server goes on with the keys it has.
pub async fn reload_at_hangup(mut hangup: Signal, sources: KeySources, keys: ApiKeys) {
    while hangup.recv().await.is_some() {
        let Some(path) = &sources.file else {
            tracing::info!("SIGHUP: nothing to reload (keys are read again from --api-key-file, and none was given)");
            continue;
        };
        let reading = sources.clone();
        // A file system may hang.
        match tokio::task::spawn_blocking(move || reading.read()).await {
            Ok(Ok(read)) => {
                keys.replace(&read);
                tracing::info!(path = %path.display(), keys = read.len(), "SIGHUP: keys reloaded");
            }
            Ok(Err(error)) => tracing::error!("SIGHUP: the keys stay as they were: {error}"),
            Err(error) => tracing::error!("SIGHUP: the keys stay as they were: {error}"),
        }
    }
}

/// `GET /admin/log-level`.
pub async fn log_level() -> Json<Value> {
    Json(json!({ "level": logging::level() }))
}

/// `POST /admin/log-level` with `{"level": "debug"}`, or any other value of `--log-level`.
///
/// # Errors
/// 403 on a server without keys: at the finest levels a log holds what clients send, and fills disks. 400 for what is
/// no level.
pub async fn set_log_level(State(state): State<Arc<AppState>>, request: Request) -> Result<Json<Value>, ApiError> {
    if state.api_keys.is_empty() {
        let message = "the log level can be changed on a server with keys only; serve with --api-key-file";
        return Err(ApiError::new(StatusCode::FORBIDDEN, message).with_code("keys_required"));
    }
    let (parts, body) = request.into_parts();
    let body = read_object(&parts.headers, body, SHORT_BYTES).await?;
    let Some(level) = body["level"].as_str() else {
        let message = "level must be a string: error, warn, info, debug, trace, or target=level pairs";
        return Err(ApiError::field("level", message));
    };
    let before = logging::set_level(level).map_err(|reason| ApiError::field("level", reason))?;
    tracing::warn!(before, level, "log level changed");
    Ok(Json(json!({ "level": level, "before": before })))
}
