//! The routes of the page: its files, which need no key, and its data, which do. Nothing here changes anything.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path as PathOf, RawQuery, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use halyard_engine::kv_dtype_name;
use halyard_plugin_host::Kind;
use serde_json::{Value, json};

use super::state::AppState;
use crate::api_error::{ApiError, clip};
use crate::clock::unix_seconds;
use crate::ui::assets::{Asset, asset};
use crate::ui::{Ui, plugin_facts};

/// What a browser may do with the page: run its own scripts and ask this server. Trusted types let no text become
/// markup.
const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// Headers of every file.
const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    // Asked for again each time: a newer server has newer files under the same names.
    (header::CACHE_CONTROL, "no-cache"),
];

/// `GET /ui`. The page's files are named relative to `/ui/`, so that it works below any path of a proxy.
pub async fn to_page() -> Response {
    let location = [(header::LOCATION, HeaderValue::from_static("ui/"))];
    (StatusCode::PERMANENT_REDIRECT, location).into_response()
}

/// `GET /ui/`.
///
/// # Errors
/// None: the page is there.
pub async fn page_file(headers: HeaderMap) -> Result<Response, ApiError> {
    file(headers, PathOf(String::new())).await
}

/// `GET /ui/FILE`.
///
/// # Errors
/// 404 for a name that is no file of the page.
pub async fn file(headers: HeaderMap, PathOf(name): PathOf<String>) -> Result<Response, ApiError> {
    let Some(file) = asset(&name) else {
        let message = format!("the page has no file `{}`", clip(&name));
        return Err(ApiError::new(StatusCode::NOT_FOUND, message).with_code("unknown_route"));
    };
    Ok(answer(&headers, file))
}

/// A file, or that the browser has it.
pub(super) fn answer(headers: &HeaderMap, file: &'static Asset) -> Response {
    let mut response = match is_known(headers, file) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(header::CONTENT_TYPE, file.content_type)], file.bytes).into_response(),
    };
    let answered = response.headers_mut();
    for (name, value) in HEADERS {
        answered.insert(name, HeaderValue::from_static(value));
    }
    if let Ok(etag) = HeaderValue::from_str(&file.etag) {
        answered.insert(header::ETAG, etag);
    }
    response
}

/// Whether the browser has these bytes.
fn is_known(headers: &HeaderMap, file: &Asset) -> bool {
    let sent = headers.get_all(header::IF_NONE_MATCH).iter();
    let tags = sent
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    let mut tags = tags.map(|tag| tag.trim().trim_start_matches("W/"));
    tags.any(|tag| tag == "*" || tag == file.etag)
}

/// The page of this server; its routes exist only where there is one.
fn page(state: &AppState) -> Result<&Arc<Ui>, ApiError> {
    state.ui.as_ref().ok_or_else(|| {
        ApiError::new(StatusCode::NOT_FOUND, "the page is off; serve without --no-ui").with_code("unknown_route")
    })
}

/// `GET /ui/data?after=SECOND&revision=NUMBER`: figures after a second, requests changed after a revision, gauges.
///
/// # Errors
/// 400 for a number that is none.
pub async fn data(State(state): State<Arc<AppState>>, RawQuery(query): RawQuery) -> Result<Response, ApiError> {
    let ui = page(&state)?;
    let query = query.unwrap_or_default();
    let after = number(&query, "after")?;
    let revision = number(&query, "revision")?.unwrap_or(0);
    let (engine, info) = (&state.engine, state.engine.info());
    let (revision, requests) = ui.requests.changed(revision);
    let shown = json!({
        "model": state.model_names[0],
        "version": env!("CARGO_PKG_VERSION"),
        "now": unix_seconds(),
        "started": state.created,
        "health": engine.health().err(),
        "draining": state.transport.is_draining(),
        "max_num_seqs": info.max_num_seqs,
        "stats": engine.stats(),
        "figures": ui.figures(after),
        "revision": revision,
        "requests": requests,
    });
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(shown)).into_response())
}

/// A number of the query.
fn number(query: &str, name: &str) -> Result<Option<u64>, ApiError> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let Some((_, value)) = pairs.find(|(found, _)| *found == name) else {
        return Ok(None);
    };
    value.parse().map(Some).map_err(|_| {
        let message = format!(
            "{name} must be a whole number that is not negative, not `{}`",
            clip(value)
        );
        ApiError::field(name, message)
    })
}

/// `GET /ui/system`: the model, the platform and its devices, plugins with their stages, stat loggers, adapters.
///
/// # Errors
/// None that a client can cause.
pub async fn system(State(state): State<Arc<AppState>>) -> Result<Response, ApiError> {
    let ui = Arc::clone(page(&state)?);
    let sinks = state.hooks.report().sinks;
    let mut used: Vec<(Kind, String)> = Vec::new();
    // The start record has the platform's name and version.
    let start = ui.start();
    let platform = start.as_ref().and_then(|start| start.platform.split(' ').next());
    used.extend(platform.map(|name| (Kind::Platform, name.to_owned())));
    used.extend(
        sinks
            .iter()
            .filter(|sink| sink.path.is_some())
            .map(|sink| (Kind::StatLogger, sink.name.clone())),
    );
    used.extend(state.io.names().map(|name| (Kind::IoProcessor, name.to_owned())));
    used.extend(
        state
            .logits
            .names()
            .map(|name| (Kind::LogitsProcessor, name.to_owned())),
    );
    let resolvers = state.lora.resolvers.as_ref();
    used.extend(
        resolvers
            .into_iter()
            .flat_map(|resolvers| resolvers.names())
            .map(|name| (Kind::LoraResolver, name)),
    );
    let asked = Arc::clone(&state);
    let shown = Arc::clone(&ui);
    // Reads every file on the search path.
    let plugins = tokio::task::spawn_blocking(move || plugin_facts(asked.hooks.search(), &used, &shown.rejected)).await;
    let plugins = plugins.map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let shown = json!({
        "model": model(&state, &ui),
        "devices": ui.devices,
        "plugins": plugins,
        "stat_loggers": sinks,
        "adapters": state.engine.adapters(),
    });
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(shown)).into_response())
}

/// The model and how it is served.
fn model(state: &AppState, ui: &Ui) -> Value {
    let info = state.engine.info();
    let start = ui.start().unwrap_or_default();
    json!({
        "names": state.model_names,
        "path": state.model_root,
        "architecture": info.architecture,
        "dtype": format!("{:?}", info.dtype),
        "kv_cache_dtype": kv_dtype_name(info.kv_cache_dtype),
        "attention_backend": info.attention_backend,
        "platform": &*start.platform,
        "tensor_parallel_size": info.tensor_parallel_size,
        "max_model_len": info.max_model_len,
        "max_num_seqs": info.max_num_seqs,
        "max_num_batched_tokens": info.max_num_batched_tokens,
        "async_depth": info.async_depth,
        "prefix_caching": start.prefix_caching != 0,
        "max_loras": start.max_loras,
        "block_size": info.block_size,
        "num_blocks": info.num_blocks,
        "kv_cache_bytes": u64::from(info.num_blocks) * info.block_bytes,
        "weight_bytes": info.weight_bytes,
        "notes": info.notes,
        "has_chat_template": state.engine.chat_template().is_some(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_query_are_read_or_refused() {
        assert_eq!(number("", "after").expect("none"), None);
        assert_eq!(number("revision=4&after=7", "after").expect("a number"), Some(7));
        for bad in ["after=", "after=-1", "after=1e3", "after=99999999999999999999"] {
            let error = number(bad, "after").expect_err(bad);
            assert_eq!(error.param.as_deref(), Some("after"));
        }
    }
}
