//! Settings that a running server can change: its keys and certificates (SIGHUP reads their files again, and
//! `--enable-ssl-refresh` those of certificates when they change) and its log level (`/admin/log-level`).

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;

use super::auth::{ApiKeys, KeySources};
use super::body::{SHORT_BYTES, read_object};
use super::state::AppState;
use super::tls::{Tls, Turn};
use crate::api_error::ApiError;
use crate::logging;

/// Handles SIGHUP, which would end the process otherwise. Must be called inside a runtime.
///
/// # Errors
/// When the system refuses signal handlers.
pub fn hangup_signal() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}

/// Between two looks at the files of certificates.
const REFRESH_EVERY: Duration = Duration::from_secs(2);

/// Longest that files are read.
const READ_PATIENCE: Duration = Duration::from_secs(10);

/// Reads keys and certificates again at each SIGHUP. What cannot be read changes nothing: the server goes on with what
/// it has.
pub async fn reload_at_hangup(mut hangup: Signal, sources: KeySources, keys: ApiKeys, tls: Option<Arc<Tls>>) {
    let turn = Turn::default();
    while hangup.recv().await.is_some() {
        if sources.file.is_none() && tls.is_none() {
            tracing::info!(
                "SIGHUP: nothing to reload (keys are read again from --api-key-file and certificates from \
                 --ssl-certfile, and none was given)"
            );
        }
        if let Some(path) = &sources.file {
            let reading = sources.clone();
            match read_apart(&turn, READ_PATIENCE, move || reading.read()).await {
                Ok((read, _turn)) => {
                    keys.replace(&read);
                    tracing::info!(path = %path.display(), keys = read.len(), "SIGHUP: keys reloaded");
                }
                Err(error) => tracing::error!("SIGHUP: the keys stay as they were: {error}"),
            }
        }
        if let Some(tls) = &tls {
            match reload_certificates(tls).await {
                Ok(true) => tracing::info!("SIGHUP: certificates reloaded"),
                Ok(false) => tracing::info!("SIGHUP: the files of certificates are as they were"),
                Err(error) => tracing::error!("SIGHUP: the certificates stay as they were: {error}"),
            }
        }
    }
}

/// Says whether the files had changed.
async fn reload_certificates(tls: &Arc<Tls>) -> Result<bool, String> {
    let reading = Arc::clone(tls);
    let (renewed, _turn) = read_apart(&tls.turn, READ_PATIENCE, move || reading.read_again()).await?;
    Ok(renewed.map(|renewed| tls.renew(renewed)).is_some())
}

/// Reads on a thread of its own: a file system may hang, and a pipe that nobody writes to gives nothing. One reader at
/// a time has the turn, until what it read is in use. One that hangs keeps it: so it holds one thread, however often
/// the files are asked for again. What is read too late is dropped.
async fn read_apart<T, E>(
    turn: &Turn,
    patience: Duration,
    read: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<(T, OwnedMutexGuard<()>), String>
where
    T: Send + 'static,
    E: Display + Send + 'static,
{
    let reading = async {
        let turn = Arc::clone(turn).lock_owned().await;
        let read = move || read().map(|read| (read, turn)).map_err(|error| error.to_string());
        tokio::task::spawn_blocking(read).await
    };
    let reading = timeout(patience, reading).await;
    let reading = reading.map_err(|_| format!("they could not be read within {} s", patience.as_secs_f64()))?;
    reading.unwrap_or_else(|error| Err(error.to_string()))
}

/// Looks at the files of certificates again and again. A certificate and its key change one after the other: what does
/// not fit yet is looked at again, and told once.
pub async fn refresh_certificates(tls: Arc<Tls>) {
    let mut told = None;
    loop {
        tokio::time::sleep(REFRESH_EVERY).await;
        match reload_certificates(&tls).await {
            Ok(changed) => {
                if changed {
                    tracing::info!("certificates reloaded: their files changed");
                }
                told = None;
            }
            Err(error) => {
                if told.as_ref() != Some(&error) {
                    tracing::error!("the certificates stay as they were: {error}");
                    told = Some(error);
                }
            }
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
    // An empty one would end the log.
    let Some(level) = body["level"].as_str().filter(|level| !level.trim().is_empty()) else {
        let message = "level must be a string: error, warn, info, debug, trace, or target=level pairs";
        return Err(ApiError::field("level", message));
    };
    let before = logging::set_level(level).map_err(|reason| ApiError::field("level", reason))?;
    tracing::warn!(before, level, "log level changed");
    Ok(Json(json!({ "level": level, "before": before })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn what_cannot_be_read_in_time_is_told_and_not_waited_for() {
        let turn = Turn::default();
        let (read, _) = read_apart(&turn, READ_PATIENCE, || Ok::<_, io::Error>(1))
            .await
            .expect("reads");
        assert_eq!(read, 1);
        let (end, ended) = mpsc::channel::<()>();
        let hangs = move || ended.recv().map_err(|_| "the pipe was closed");
        let patience = Duration::from_millis(20);
        let late = "they could not be read within 0.02 s";
        assert_eq!(
            read_apart(&turn, patience, hangs).await.map(|_| ()),
            Err(late.to_owned())
        );
        // No second thread hangs, and once the first one is through all is as before.
        let second = read_apart(&turn, patience, || -> Result<(), io::Error> {
            panic!("it has no turn")
        });
        assert_eq!(second.await.map(|_| ()), Err(late.to_owned()));
        drop(end);
        assert!(read_apart(&turn, READ_PATIENCE, || Ok::<_, io::Error>(2)).await.is_ok());
    }
}
