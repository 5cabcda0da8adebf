//! The routes of the OpenAPI document: the document, which needs a key as other routes do, and the files of the page
//! that shows it, which need none.

use std::sync::Arc;

use axum::extract::{Path as PathOf, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::exchange::json_answer;
use super::state::AppState;
use super::ui::answer;
use crate::api_error::{ApiError, clip};
use crate::openapi::{self, Served, page};

/// `GET /openapi.json`.
pub async fn document(State(state): State<Arc<AppState>>) -> Response {
    let info = state.engine.info();
    let document = openapi::document(&Served {
        model: &state.model_names[0],
        max_model_len: info.max_model_len,
        vocab_size: info.vocab_size,
        root_path: state.transport.root_path.as_str(),
        has_ui: state.ui.is_some(),
        dev_mode: state.dev_mode,
    });
    json_answer(document.to_string())
}

/// `GET /docs`. The page's files are named relative to `/docs/`, so that it works below any path of a proxy.
pub async fn to_page() -> Response {
    let location = [(header::LOCATION, HeaderValue::from_static("docs/"))];
    (StatusCode::PERMANENT_REDIRECT, location).into_response()
}

/// `GET /docs/`.
///
/// # Errors
/// None: the page is there.
pub async fn page_file(headers: HeaderMap) -> Result<Response, ApiError> {
    file(headers, PathOf(String::new())).await
}

/// `GET /docs/FILE`.
///
/// # Errors
/// 404 for a name that is no file of the page.
pub async fn file(headers: HeaderMap, PathOf(name): PathOf<String>) -> Result<Response, ApiError> {
    match page::file(&name) {
        Some(file) => Ok(answer(&headers, file)),
        None => {
            let message = format!("the page has no file `{}`", clip(&name));
            Err(ApiError::new(StatusCode::NOT_FOUND, message).with_code("unknown_route"))
        }
    }
}
