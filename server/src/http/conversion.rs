//! Reads a request's body and chooses the thread that converts it: a long body must not delay other requests.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::StatusCode;
use halyard_text::CancelFlag;
use serde_json::Value;

use super::body::{check_content_type, parse_object, read_object};
use super::request_id::RequestId;
use super::state::AppState;
use super::text_work::{Admitted, CancelOnDrop, Lane};
use crate::api_error::ApiError;
use crate::openai::body::Body;
use crate::openai::model::ModelContext;

impl AppState {
    /// The facts for conversions; `cancel` ends them.
    pub fn context<'a>(&'a self, cancel: &'a CancelFlag) -> ModelContext<'a> {
        let info = self.engine.info();
        ModelContext {
            tokenizer: self.engine.tokenizer(),
            chat_template: self.engine.chat_template(),
            defaults: self.engine.generation_defaults(),
            vocab_size: info.vocab_size,
            max_model_len: info.max_model_len,
            limits: self.limits,
            serving: &self.serving,
            parsers: &self.parsers,
            truncates: false,
            conversation: None,
            cancel: Some(cancel),
        }
    }
}

/// Reads a body, and the id that it or the request's header gives.
///
/// # Errors
/// Errors of `body.rs` and `text_work.rs`, and 400 for an id that no header could carry.
pub async fn read(state: &AppState, request: Request) -> Result<(Value, Lane, RequestId), ApiError> {
    let (parts, body) = request.into_parts();
    let id = parts.extensions.get::<RequestId>().cloned().unwrap_or_default();
    check_content_type(&parts.headers)?;
    let admitted = state.text_work.admit(&parts.headers, body).await?;
    let (value, lane) = match admitted {
        Admitted::Short(body) => {
            let value = read_object(&parts.headers, body, state.limits.body_bytes).await?;
            (value, Lane::Short)
        }
        Admitted::Long(bytes, held) => {
            let value = state.text_work.run(bytes.len(), move || parse_object(&bytes)).await??;
            (value, Lane::Long(held))
        }
    };
    let id = id.or_of_body(&parts.headers, &value["request_id"])?;
    Ok((value, lane, id))
}

/// Runs a conversion here, or on a blocking thread: a long body's, and one that renders a template. The work is given
/// up when the request is.
pub async fn convert<T, F>(state: &Arc<AppState>, lane: Lane, mut body: Body, convert: F) -> Result<T, ApiError>
where
    T: Send + 'static,
    F: FnOnce(&AppState, &mut Body, &CancelFlag) -> Result<T, ApiError> + Send + 'static,
{
    let cancel = CancelOnDrop::default();
    let flag = cancel.flag();
    let own = Arc::clone(state);
    match lane {
        Lane::Short if ["messages", "input"].iter().all(|name| body.get(name).is_null()) => {
            convert(state, &mut body, &flag)
        }
        Lane::Short => {
            let thread = state.text_work.chat().await?;
            let task = tokio::task::spawn_blocking(move || {
                let _held = thread;
                convert(&own, &mut body, &flag)
            });
            task.await
                .unwrap_or_else(|error| Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())))
        }
        Lane::Long(held) => {
            let bytes = held.bytes();
            let work = move || {
                let converted = convert(&own, &mut body, &flag);
                // Held until the body is dropped: until then a cancelled request counts against the bounds.
                drop(body);
                (converted, held)
            };
            // What is held is given back here, where no other thread waits long for the locks of it.
            let (converted, _held) = state.text_work.run(bytes, work).await?;
            converted
        }
    }
}
