//! `POST /sleep`, `POST /wake_up`, `GET /is_sleeping` and `POST /collective_rpc`, routes of vLLM's development mode:
//! they give the device's memory to somebody else for a while, and load other weights without a restart.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use halyard_engine::{SleepLevel, SleepState, WakeTags};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::body::{SHORT_BYTES, read_object};
use super::pause::{Mode, without_fields};
use super::responses::query;
use super::state::AppState;
use crate::api_error::{ApiError, clip};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SleepQuery {
    level: u32,
    mode: Mode,
}

impl Default for SleepQuery {
    fn default() -> SleepQuery {
        SleepQuery {
            level: 1,
            mode: Mode::Abort,
        }
    }
}

type Shared = State<Arc<AppState>>;

/// `POST /sleep?level=1|2&mode=abort|wait|keep`. The answer comes when the device's memory was given back.
///
/// # Errors
/// 400 for another query or a body; 409 without `--enable-sleep-mode`, and when a resume or a wake came first; 503 when
/// the engine has ended.
pub async fn sleep(State(state): Shared, request: Request) -> Result<StatusCode, ApiError> {
    let asked: SleepQuery = query(&request)?;
    without_fields(request).await?;
    let level = match asked.level {
        1 => SleepLevel::One,
        2 => SleepLevel::Two,
        0 => {
            let message = "level 0 gives no memory back; POST /pause holds generation";
            return Err(ApiError::field("level", message));
        }
        level => {
            let message =
                format!("level is {level}; it must be 1 (weights come back from host memory) or 2 (from disk)");
            return Err(ApiError::field("level", message));
        }
    };
    state.engine.sleep(level, asked.mode.into()).await?;
    Ok(StatusCode::OK)
}

/// `POST /wake_up?tags=weights&tags=kv_cache`; without tags everything. The answer comes when that is there.
///
/// # Errors
/// 400 for another query or a body, 409 for the KV cache before the weights, 503 when loading failed (the engine sleeps
/// on, and the route may be asked again) or the engine has ended.
pub async fn wake_up(State(state): Shared, request: Request) -> Result<StatusCode, ApiError> {
    let fields: Vec<(String, String)> = query(&request)?;
    without_fields(request).await?;
    let tags = wake_tags(&fields)?;
    state.engine.wake_up(tags).await?;
    Ok(StatusCode::OK)
}

fn wake_tags(fields: &[(String, String)]) -> Result<WakeTags, ApiError> {
    if fields.is_empty() {
        return Ok(WakeTags::ALL);
    }
    let mut tags = WakeTags {
        weights: false,
        kv_cache: false,
    };
    for (name, tag) in fields {
        match (name.as_str(), tag.as_str()) {
            ("tags", "weights") => tags.weights = true,
            ("tags", "kv_cache") => tags.kv_cache = true,
            ("tags", other) => {
                let message = format!("tags is `{}`; it must be weights or kv_cache", clip(other));
                return Err(ApiError::field("tags", message));
            }
            (other, _) => {
                let message = format!("unknown field `{}`; this route takes tags", clip(other));
                return Err(ApiError::field(clip(other), message));
            }
        }
    }
    Ok(tags)
}

/// `GET /is_sleeping`.
pub async fn is_sleeping(State(state): Shared) -> Json<Value> {
    Json(json!({ "is_sleeping": state.engine.sleep_state() != SleepState::Awake }))
}

/// `POST /collective_rpc` with `{"method": "reload_weights", "kwargs": {"weights_path": "…"}}`, the one method of
/// vLLM's workers that is here: the weights in a folder of the same architecture take the place of those that are
/// served.
///
/// # Errors
/// 400 for another method, for other fields, and for a folder that does not fit; 503 when loading failed.
pub async fn collective_rpc(State(state): Shared, request: Request) -> Result<Json<Value>, ApiError> {
    let (parts, body) = request.into_parts();
    let body = read_object(&parts.headers, body, SHORT_BYTES).await?;
    let path = weights_path(&body)?;
    let engines = state.engine.clone();
    let copies = engines.engines().len();
    let loading = tokio::task::spawn_blocking(move || engines.reload_weights(&path));
    let loaded = loading.await;
    loaded.map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))??;
    // vLLM answers with what the method returned on each worker: nothing.
    Ok(Json(json!({ "results": vec![Value::Null; copies] })))
}

fn weights_path(body: &Value) -> Result<PathBuf, ApiError> {
    let fields = body.as_object().cloned().unwrap_or_default();
    if let Some(name) = fields
        .keys()
        .find(|name| !["method", "args", "kwargs", "timeout"].contains(&name.as_str()))
    {
        let message = format!("unknown field `{}`; this route takes method and kwargs", clip(name));
        return Err(ApiError::field(clip(name), message));
    }
    match fields.get("method").and_then(Value::as_str) {
        Some("reload_weights") => {}
        Some(other) => {
            let message = format!(
                "method `{}` is not known; reload_weights is the one that is here",
                clip(other)
            );
            return Err(ApiError::field("method", message));
        }
        None => return Err(ApiError::field("method", "method must be a string: reload_weights")),
    }
    for (name, is_empty) in [
        (
            "args",
            fields
                .get("args")
                .is_none_or(|args| args.as_array().is_some_and(Vec::is_empty)),
        ),
        ("timeout", fields.get("timeout").is_none_or(Value::is_null)),
    ] {
        if !is_empty {
            let message = format!("{name} is not taken with reload_weights; leave it out and give kwargs.weights_path");
            return Err(ApiError::field(name, message));
        }
    }
    let none = Map::new();
    let kwargs = fields.get("kwargs").and_then(Value::as_object).unwrap_or(&none);
    if let Some(name) = kwargs.keys().find(|name| *name != "weights_path") {
        let message = format!("kwargs has `{}`; reload_weights takes weights_path here", clip(name));
        return Err(ApiError::field("kwargs", message));
    }
    let path = kwargs.get("weights_path").and_then(Value::as_str);
    let path = path.filter(|path| !path.is_empty() && !path.contains('\0'));
    path.map(PathBuf::from).ok_or_else(|| {
        let message = "kwargs.weights_path must be the path of a folder, or of a .gguf file, on the server";
        ApiError::field("kwargs", message)
    })
}
