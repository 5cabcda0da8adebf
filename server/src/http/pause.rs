//! `POST /pause`, `POST /resume`, `GET /is_paused` and `POST /reset_prefix_cache`, routes of vLLM's development mode:
//! they hold generation while something else is done, such as a trainer's step, and forget what was cached.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use halyard_engine::{ControlError, PauseMode};
use http_body::Body as _;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::{SHORT_BYTES, check_content_type, read_object};
use super::responses::query;
use super::state::AppState;
use crate::api_error::ApiError;
use crate::openai::lenient::Flag;

/// vLLM's names of the modes.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    #[default]
    Abort,
    Wait,
    Keep,
}

impl From<Mode> for PauseMode {
    fn from(mode: Mode) -> PauseMode {
        match mode {
            Mode::Abort => PauseMode::Abort,
            Mode::Wait => PauseMode::Wait,
            Mode::Keep => PauseMode::Keep,
        }
    }
}

/// A name that is none of these is an error: `moed=keep` must not end every request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PauseQuery {
    mode: Mode,
    wait_for_inflight_requests: Flag,
    clear_cache: Flag,
}

impl Default for PauseQuery {
    fn default() -> PauseQuery {
        PauseQuery {
            mode: Mode::Abort,
            wait_for_inflight_requests: Flag(false),
            clear_cache: Flag(true),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ResetQuery {
    reset_running_requests: Flag,
    reset_external: Flag,
}

type Shared = State<Arc<AppState>>;

/// `POST /pause?mode=abort|wait|keep&clear_cache=true`. The answer comes when the pause is complete: with `wait`, when
/// the last request that ran has ended.
///
/// # Errors
/// 400 for another query or a body, 409 when a resume came first, 503 when the engine has ended.
pub async fn pause(State(state): Shared, request: Request) -> Result<Json<Value>, ApiError> {
    let asked: PauseQuery = query(&request)?;
    without_fields(request).await?;
    // vLLM's older name goes before the newer one.
    let mode = match asked.wait_for_inflight_requests.0 {
        true => PauseMode::Wait,
        false => asked.mode.into(),
    };
    state.engine.pause(mode, asked.clear_cache.0).await?;
    Ok(Json(json!({ "status": "paused" })))
}

/// `POST /resume`. Without a pause it does nothing.
///
/// # Errors
/// 400 for a body, 409 for an engine that sleeps, 503 when the engine has ended.
pub async fn resume(State(state): Shared, request: Request) -> Result<Json<Value>, ApiError> {
    without_fields(request).await?;
    state.engine.resume().await?;
    Ok(Json(json!({ "status": "resumed" })))
}

/// `GET /is_paused`.
pub async fn is_paused(State(state): Shared) -> Json<Value> {
    Json(json!({ "is_paused": state.engine.is_paused() }))
}

/// `POST /reset_prefix_cache?reset_running_requests=false`: whether the cache was forgotten, and why not.
///
/// # Errors
/// 400 for another query or a body, 503 when the engine has ended.
pub async fn reset_prefix_cache(State(state): Shared, request: Request) -> Result<Json<Value>, ApiError> {
    let asked: ResetQuery = query(&request)?;
    without_fields(request).await?;
    let was_reset = state.engine.reset_prefix_cache(asked.reset_running_requests.0);
    let reason = match was_reset.await? {
        false => {
            "requests that run use blocks, so nothing was forgotten; ask again when they have ended, or with \
                  reset_running_requests=true"
        }
        // As vLLM without a KV connector.
        true if asked.reset_external.0 => {
            "this server's cache was forgotten; it has no external one: leave out \
                                           reset_external"
        }
        true => return Ok(Json(json!({ "success": true }))),
    };
    Ok(Json(json!({ "success": false, "reason": reason })))
}

/// These routes take their fields in the query. A body with other ones would go unheard.
pub(super) async fn without_fields(request: Request) -> Result<(), ApiError> {
    let (parts, body) = request.into_parts();
    // A page of another origin may send a POST without asking, unless it is JSON.
    if parts.headers.contains_key(header::ORIGIN) {
        check_content_type(&parts.headers)?;
    }
    if body.is_end_stream() {
        return Ok(());
    }
    let body = read_object(&parts.headers, body, SHORT_BYTES).await?;
    match body.as_object().and_then(|fields| fields.keys().next()) {
        None => Ok(()),
        Some(name) => Err(ApiError::field(
            name,
            format!("this route takes its fields in the query, such as ?{name}=…, and none in a body"),
        )),
    }
}

impl From<ControlError> for ApiError {
    fn from(error: ControlError) -> ApiError {
        let (status, code) = match &error {
            ControlError::Resumed => (StatusCode::CONFLICT, "resumed"),
            ControlError::CacheInUse => (StatusCode::CONFLICT, "cache_in_use"),
            ControlError::SleepModeOff => (StatusCode::CONFLICT, "sleep_mode_off"),
            ControlError::Asleep => (StatusCode::CONFLICT, "asleep"),
            ControlError::WeightsFirst => (StatusCode::CONFLICT, "weights_first"),
            ControlError::CannotOpen { .. } => (StatusCode::BAD_REQUEST, "weights_unreadable"),
            ControlError::OtherModel { .. } => (StatusCode::BAD_REQUEST, "other_model"),
            ControlError::WakeFailed { .. } => (StatusCode::SERVICE_UNAVAILABLE, "wake_failed"),
            ControlError::ReloadFailed { .. } => (StatusCode::SERVICE_UNAVAILABLE, "reload_failed"),
            ControlError::Dead { .. } => (StatusCode::SERVICE_UNAVAILABLE, "engine_dead"),
        };
        ApiError::new(status, error.to_string()).with_code(code)
    }
}
