//! The routes. A generation route is an API of `openai` and a line here; `generate.rs` serves them all.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::{Path as PathOf, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use halyard_engine::AdapterStatus;
use serde::Serialize;
use serde_json::{Value, json};

use super::abort::abort_requests;
use super::admin;
use super::conversion::{convert, read};
use super::docs;
use super::generate::generate;
use super::info;
use super::layers::{draining, with_layers};
use super::lora::{load_adapter, unload_adapter};
use super::pause;
use super::reload;
use super::response_store::ResponseStore;
use super::responses;
use super::sleep;
use super::state::AppState;
use super::ui;
use crate::api_error::ApiError;
use crate::kv_events::KvEventFigures;
use crate::metrics::sleep::SleepStates;
use crate::metrics::{self, text_format};
use crate::openai::api::Api;
use crate::openai::apis::APIS;
use crate::openai::body::Body;
use crate::openai::messages::count_tokens;
use crate::openai::model::ModelContext;
use crate::openai::models::{ModelCard, ModelList};
use crate::openai::tokenize::{detokenize, tokenize};

/// All routes over `state`.
pub fn router(state: Arc<AppState>) -> Router {
    let generations = APIS.into_iter();
    let routes = generations.fold(Router::new(), |routes, api| routes.route(api.path, generation(api)));
    let routes = routes
        .route("/v1/messages/count_tokens", text_route(count_tokens))
        .route(
            "/v1/responses/{id}",
            only(get(responses::response).delete(responses::delete)),
        )
        .route("/v1/responses/{id}/cancel", only(post(responses::cancel)))
        .route("/v1/responses/{id}/input_items", only(get(responses::input_items)))
        .route("/v1/models", only(get(models)))
        .route("/v1/models/{*model}", only(get(model)))
        .route("/v1/load_lora_adapter", only(post(load_adapter)))
        .route("/v1/unload_lora_adapter", only(post(unload_adapter)))
        .route("/tokenize", text_route(tokenize))
        .route("/detokenize", text_route(detokenize))
        .route("/health", only(get(health)))
        .route("/ping", only(get(health).post(health)))
        .route("/version", only(get(version)))
        .route("/tokenizer_info", only(get(info::tokenizer)))
        .route("/server_info", only(get(info::server)))
        .route("/get_server_info", only(get(info::server)))
        .route("/model_info", only(get(info::model)))
        .route("/get_model_info", only(get(info::model)))
        .route("/kv_event_sources", only(get(info::kv_event_sources)))
        .route("/load", only(get(load)))
        .route("/metrics", only(get(metrics_route)))
        .route("/admin/plugins", only(get(admin::plugins)))
        .route("/admin/plugins/reload", only(post(admin::reload)))
        .route(
            "/admin/log-level",
            only(get(reload::log_level).post(reload::set_log_level)),
        )
        .fallback(unknown_route);
    let routes = match state.ui {
        Some(_) => with_ui(routes),
        None => routes,
    };
    let routes = match state.has_docs {
        true => with_docs(routes),
        false => routes,
    };
    let routes = match state.dev_mode {
        true => with_development(routes),
        false => routes,
    };
    with_layers(routes, state)
}

/// Routes of vLLM's development mode.
fn with_development(routes: Router<Arc<AppState>>) -> Router<Arc<AppState>> {
    routes
        .route("/abort_requests", only(post(abort_requests)))
        .route("/pause", only(post(pause::pause)))
        .route("/resume", only(post(pause::resume)))
        .route("/is_paused", only(get(pause::is_paused)))
        .route("/reset_prefix_cache", only(post(pause::reset_prefix_cache)))
        .route("/sleep", only(post(sleep::sleep)))
        .route("/wake_up", only(post(sleep::wake_up)))
        .route("/is_sleeping", only(get(sleep::is_sleeping)))
        .route("/collective_rpc", only(post(sleep::collective_rpc)))
}

/// The page and its data.
fn with_ui(routes: Router<Arc<AppState>>) -> Router<Arc<AppState>> {
    routes
        .route("/ui", only(get(ui::to_page)))
        .route("/ui/", only(get(ui::page_file)))
        .route("/ui/{file}", only(get(ui::file)))
        .route("/ui/data", only(get(ui::data)))
        .route("/ui/system", only(get(ui::system)))
}

/// The OpenAPI document, and the page that shows it.
fn with_docs(routes: Router<Arc<AppState>>) -> Router<Arc<AppState>> {
    routes
        .route("/openapi.json", only(get(docs::document)))
        .route("/docs", only(get(docs::to_page)))
        .route("/docs/", only(get(docs::page_file)))
        .route("/docs/{file}", only(get(docs::file)))
}

fn only(routes: MethodRouter<Arc<AppState>>) -> MethodRouter<Arc<AppState>> {
    routes.fallback(wrong_method)
}

fn generation(api: &'static Api) -> MethodRouter<Arc<AppState>> {
    only(post(move |State(state): State<Arc<AppState>>, http: Request| {
        generate(state, http, api)
    }))
}

/// A route that answers from the tokenizer and the template alone.
fn text_route<T: Serialize + Send + 'static>(answer: TextAnswer<T>) -> MethodRouter<Arc<AppState>> {
    only(post(move |State(state): State<Arc<AppState>>, http: Request| {
        answer_text(state, http, answer)
    }))
}

type TextAnswer<T> = fn(&mut Body, ModelContext<'_>) -> Result<T, ApiError>;

async fn answer_text<T: Send + 'static>(
    state: Arc<AppState>,
    http: Request,
    answer: TextAnswer<T>,
) -> Result<Json<T>, ApiError> {
    let (body, lane, _) = read(&state, http).await?;
    let body = Body::new(body)?;
    state.find_model(&body).await?;
    let answered = convert(&state, lane, body, move |state, body, cancel| {
        answer(body, state.context(cancel))
    });
    answered.await.map(Json)
}

async fn unknown_route(method: Method, uri: Uri) -> ApiError {
    let message = format!(
        "there is no route {method} {}; the OpenAI routes begin with /v1",
        uri.path()
    );
    ApiError::new(StatusCode::NOT_FOUND, message).with_code("unknown_route")
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not take {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message).with_code("method_not_allowed")
}

fn model_card<'a>(state: &'a AppState, name: &'a str) -> ModelCard<'a> {
    let max_model_len = state.engine.info().max_model_len;
    ModelCard::new(
        name,
        Some(Path::new(&state.model_root)),
        None,
        state.created,
        max_model_len,
    )
}

/// An adapter's card: its folder as root, the base model as parent.
fn adapter_card<'a>(state: &'a AppState, adapter: &'a AdapterStatus) -> ModelCard<'a> {
    let parent = Some(state.model_names[0].as_str());
    let max_model_len = state.engine.info().max_model_len;
    ModelCard::new(
        &adapter.name,
        adapter.path.as_deref(),
        parent,
        state.created,
        max_model_len,
    )
}

async fn models(State(state): State<Arc<AppState>>) -> Response {
    let adapters = state.engine.adapters();
    let names = state.model_names.iter().map(|name| model_card(&state, name));
    let adapters = adapters.iter().map(|adapter| adapter_card(&state, adapter));
    Json(ModelList::new(names.chain(adapters).collect())).into_response()
}

async fn model(State(state): State<Arc<AppState>>, PathOf(name): PathOf<String>) -> Result<Response, ApiError> {
    let name = state.model_name(Some(&name))?;
    let adapters = state.adapter(&name).map_or_else(Vec::new, |_| state.engine.adapters());
    let card = match adapters.iter().find(|adapter| adapter.name == name) {
        Some(adapter) => adapter_card(&state, adapter),
        None => model_card(&state, &name),
    };
    Ok(Json(card).into_response())
}

async fn health(State(state): State<Arc<AppState>>) -> Response {
    if state.transport.is_draining() {
        return draining().into_response();
    }
    match state.engine.health() {
        Ok(()) => StatusCode::OK.into_response(),
        Err(reason) => {
            let message = format!("the engine is not healthy: {reason}");
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
                .with_code("unhealthy")
                .into_response()
        }
    }
}

async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

async fn load(State(state): State<Arc<AppState>>) -> Json<Value> {
    Json(json!({"server_load": state.in_flight.load(Ordering::Relaxed)}))
}

async fn metrics_route(State(state): State<Arc<AppState>>, headers: HeaderMap) -> Result<Response, ApiError> {
    // Sinks write their texts on their own threads.
    let asked = Arc::clone(&state);
    let shown = tokio::task::spawn_blocking(move || asked.hooks.expose()).await;
    let shown = shown.map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let text = metrics::openmetrics(
        state.engine.stats(),
        state.hooks.report(),
        (&state.io, &state.logits),
        state
            .kv_events
            .iter()
            .map(|publisher| publisher.figures())
            .reduce(KvEventFigures::plus),
        [
            state.transport.collector(),
            Box::new(SleepStates::of(&state.engine, &state.model_names[0], state.first_rank)),
        ],
        state.responses.as_ref().map(ResponseStore::figures),
        &shown,
    );
    let text = text.map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let (kind, text) = if text_format::wants_openmetrics(&headers) {
        (metrics::CONTENT_TYPE, text)
    } else {
        (text_format::CONTENT_TYPE, text_format::from_openmetrics(&text))
    };
    let headers = [(header::CONTENT_TYPE, kind), (header::VARY, "accept")];
    Ok((headers, text).into_response())
}
