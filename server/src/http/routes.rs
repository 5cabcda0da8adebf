//! The routes and the layers around them: request id, log line, key. Each handler reads, converts, asks the engine and
//! answers; work that would hold the runtime (tokenising a long text) goes to a blocking thread.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router, middleware};
use halyard_engine::AdapterStatus;
use halyard_request_hooks::IoRun;
use halyard_text::CancelFlag;
use serde_json::{Value, json};

use super::admin;
use super::auth::require_key;
use super::body::{check_content_type, parse_object, read_object};
use super::error::ApiError;
use super::generate::{Format, Job, answer};
use super::host_check::check_host;
use super::info;
use super::lora::{load_adapter, unload_adapter};
use super::panics::{catch_body_panics, catch_panics};
use super::reload;
use super::request_id::{RequestId, with_request_id};
use super::state::AppState;
use super::text_work::{Admitted, CancelOnDrop, Lane};
use super::transport::{draining, refuse_while_draining};
use crate::metrics::{self, text_format};
use crate::openai::ModelContext;
use crate::openai::chat::ChatRequest;
use crate::openai::completion::CompletionRequest;
use crate::openai::lenient::Int;
use crate::openai::tokenize::{detokenize, tokenize};

/// All routes over `state`.
pub fn router(state: Arc<AppState>) -> Router {
    let routes = Router::new()
        .route("/v1/completions", only(post(completions)))
        .route("/v1/chat/completions", only(post(chat_completions)))
        .route("/v1/models", only(get(models)))
        .route("/v1/models/{*model}", only(get(model)))
        .route("/v1/load_lora_adapter", only(post(load_adapter)))
        .route("/v1/unload_lora_adapter", only(post(unload_adapter)))
        .route("/tokenize", only(post(tokenize_route)))
        .route("/detokenize", only(post(detokenize_route)))
        .route("/health", only(get(health)))
        .route("/ping", only(get(health).post(health)))
        .route("/version", only(get(version)))
        .route("/tokenizer_info", only(get(info::tokenizer)))
        .route("/server_info", only(get(info::server)))
        .route("/get_server_info", only(get(info::server)))
        .route("/model_info", only(get(info::model)))
        .route("/get_model_info", only(get(info::model)))
        .route("/load", only(get(load)))
        .route("/metrics", only(get(metrics_route)))
        .route("/admin/plugins", only(get(admin::plugins)))
        .route("/admin/plugins/reload", only(post(admin::reload)))
        .route(
            "/admin/log-level",
            only(get(reload::log_level).post(reload::set_log_level)),
        )
        .fallback(unknown_route);
    with_layers(routes, state)
}

/// Routes with what stands around them, outermost first: id and log line, panics, host, CORS, draining, key.
pub fn with_layers(routes: Router<Arc<AppState>>, state: Arc<AppState>) -> Router {
    let mut routes = routes
        .layer(middleware::from_fn_with_state(Arc::clone(&state), require_key))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&state),
            refuse_while_draining,
        ));
    // Before the key: browsers send preflights without one.
    if let Some(cors) = &state.transport.cors {
        routes = routes.layer(cors.clone());
    }
    routes
        .layer(middleware::from_fn_with_state(Arc::clone(&state), check_host))
        .layer(catch_panics(&state.transport))
        .layer(middleware::from_fn_with_state(Arc::clone(&state), catch_body_panics))
        .layer(middleware::from_fn(with_request_id))
        .with_state(state)
}

fn only(routes: MethodRouter<Arc<AppState>>) -> MethodRouter<Arc<AppState>> {
    routes.fallback(wrong_method)
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

impl AppState {
    fn context<'a>(&'a self, cancel: &'a CancelFlag) -> ModelContext<'a> {
        let info = self.engine.info();
        ModelContext {
            tokenizer: self.engine.tokenizer(),
            chat_template: self.engine.chat_template(),
            defaults: self.engine.generation_defaults(),
            vocab_size: info.vocab_size,
            max_model_len: info.max_model_len,
            limits: self.limits,
            serving: &self.serving,
            truncates: false,
            cancel: Some(cancel),
        }
    }
}

/// Runs a conversion here, or on a blocking thread: a long body's, and one that renders a template. The work is given up
/// when the request is.
async fn convert<T, F>(state: &Arc<AppState>, lane: Lane, body: Value, convert: F) -> Result<T, ApiError>
where
    T: Send + 'static,
    F: FnOnce(&AppState, &Value, &CancelFlag) -> Result<T, ApiError> + Send + 'static,
{
    let cancel = CancelOnDrop::default();
    let flag = cancel.flag();
    let own = Arc::clone(state);
    match lane {
        Lane::Short if body["messages"].is_null() => convert(state, &body, &flag),
        Lane::Short => {
            let thread = state.text_work.chat().await?;
            let task = tokio::task::spawn_blocking(move || {
                let _held = thread;
                convert(&own, &body, &flag)
            });
            task.await
                .unwrap_or_else(|error| Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())))
        }
        Lane::Long(held) => {
            let work = move || {
                let converted = convert(&own, &body, &flag);
                // Until the body has gone: a request that was given up holds its part of the bounds meanwhile.
                drop(body);
                drop(held);
                converted
            };
            state.text_work.run(work).await?
        }
    }
}

async fn read(state: &AppState, request: Request) -> Result<(Value, Lane, RequestId), ApiError> {
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
            let value = state.text_work.run(move || parse_object(&bytes)).await??;
            (value, Lane::Long(held))
        }
    };
    let id = id.or_of_body(&parts.headers, &value["request_id"])?;
    Ok((value, lane, id))
}

/// The client's place in its trace (W3C Trace Context), for records. One that is too long to be any is left out.
fn trace_parent(request: &Request) -> Option<String> {
    let value = request.headers().get("traceparent")?.to_str().ok()?;
    (value.len() <= 128).then(|| value.to_owned())
}

/// The body as the IO processors leave it, and what its answer has to pass.
async fn pass_io(state: &AppState, route: &'static str, id: &str, body: Value) -> Result<(Value, IoRun), ApiError> {
    if state.io.is_empty() {
        return Ok((body, IoRun::default()));
    }
    Ok(state.io.open(route, id, body).await?)
}

/// Fields of a body that are about the request and not about its text.
fn request(
    state: &AppState,
    id: String,
    model: &str,
    body: &Value,
    prompt: Vec<u32>,
    params: halyard_engine::SamplingParams,
) -> Result<halyard_engine::Request, ApiError> {
    let mut request = halyard_engine::Request::new(id, prompt, params);
    request.lora = state.adapter(model);
    match &body["priority"] {
        Value::Null => {}
        value => {
            let number = Int::of(value).and_then(|number| i32::try_from(number).ok());
            request.priority = number.ok_or_else(|| {
                ApiError::field(
                    "priority",
                    format!("priority is {value}; it must be an integer of 32 bits"),
                )
            })?;
        }
    }
    if request.priority != 0 && !state.priority_scheduling {
        let message = format!(
            "priority is {}, but this server runs first come, first served; serve with --scheduling-policy priority",
            request.priority
        );
        return Err(ApiError::field("priority", message));
    }
    match &body["cache_salt"] {
        Value::Null => {}
        Value::String(salt) if !salt.is_empty() => request.cache_salt = Some(salt.clone()),
        _ => {
            return Err(ApiError::field(
                "cache_salt",
                "cache_salt must be a string that is not empty",
            ));
        }
    }
    Ok(request)
}

async fn completions(State(state): State<Arc<AppState>>, http: Request) -> Result<Response, ApiError> {
    let trace_parent = trace_parent(&http);
    let (body, lane, request_id) = read(&state, http).await?;
    let id = format!("cmpl-{request_id}");
    let (body, io) = pass_io(&state, "/v1/completions", &id, body).await?;
    state.find_adapter(&body).await?;
    let job = convert(&state, lane, body, move |state, body, cancel| {
        let model = state.model_name(model_field(body)?)?;
        let asked = CompletionRequest::read(body, state.context(cancel))?;
        let requests = asked
            .prompts
            .iter()
            .zip(asked.params)
            .enumerate()
            .map(|(index, (prompt, params))| {
                let id = format!("{id}-{index}");
                request(state, id, &model, body, prompt.token_ids.clone(), params)
            });
        let requests = requests.collect::<Result<_, _>>()?;
        Ok(Job {
            id,
            model,
            created: unix_seconds(),
            prompts: asked.prompts,
            requests,
            format: Format::Completion(asked.format),
            streaming: asked.streaming,
            io,
        })
    });
    start(state.clone(), job.await?, trace_parent, request_id).await
}

async fn chat_completions(State(state): State<Arc<AppState>>, http: Request) -> Result<Response, ApiError> {
    let trace_parent = trace_parent(&http);
    let (body, lane, request_id) = read(&state, http).await?;
    let id = format!("chatcmpl-{request_id}");
    let (body, io) = pass_io(&state, "/v1/chat/completions", &id, body).await?;
    state.find_adapter(&body).await?;
    let job = convert(&state, lane, body, move |state, body, cancel| {
        let model = state.model_name(model_field(body)?)?;
        let asked = ChatRequest::read(body, state.context(cancel))?;
        let requests = vec![request(
            state,
            id.clone(),
            &model,
            body,
            asked.prompt.token_ids.clone(),
            asked.params,
        )?];
        Ok(Job {
            id,
            model,
            created: unix_seconds(),
            prompts: vec![asked.prompt],
            requests,
            format: Format::Chat(asked.format),
            streaming: asked.streaming,
            io,
        })
    });
    start(state.clone(), job.await?, trace_parent, request_id).await
}

async fn start(
    state: Arc<AppState>,
    mut job: Job,
    trace_parent: Option<String>,
    request_id: RequestId,
) -> Result<Response, ApiError> {
    for request in &mut job.requests {
        request.trace_parent.clone_from(&trace_parent);
    }
    for prompt in job.prompts.iter().filter(|_| state.log_prompts) {
        let most = state.serving.max_log_len.unwrap_or(usize::MAX);
        let text = prompt.text.as_deref().map(|text| beginning(text, most));
        let token_ids = &prompt.token_ids[..prompt.token_ids.len().min(most)];
        tracing::info!(id = %job.id, prompt = text, ?token_ids, "prompt");
    }
    let mut response = answer(state, job).await?;
    // The answer's header has the id of the answer's body.
    response.extensions_mut().insert(request_id);
    Ok(response)
}

/// The first `most` characters.
fn beginning(text: &str, most: usize) -> &str {
    text.char_indices().nth(most).map_or(text, |(end, _)| &text[..end])
}

fn model_field(body: &Value) -> Result<Option<&str>, ApiError> {
    match &body["model"] {
        Value::Null => Ok(None),
        Value::String(name) => Ok(Some(name)),
        _ => Err(ApiError::field("model", "model must be a string")),
    }
}

async fn tokenize_route(State(state): State<Arc<AppState>>, http: Request) -> Result<Json<Value>, ApiError> {
    let (body, lane, _) = read(&state, http).await?;
    state.find_adapter(&body).await?;
    convert(&state, lane, body, |state, body, cancel| {
        state.model_name(model_field(body)?)?;
        tokenize(body, state.context(cancel)).map(Json)
    })
    .await
}

async fn detokenize_route(State(state): State<Arc<AppState>>, http: Request) -> Result<Json<Value>, ApiError> {
    let (body, lane, _) = read(&state, http).await?;
    state.find_adapter(&body).await?;
    convert(&state, lane, body, |state, body, cancel| {
        state.model_name(model_field(body)?)?;
        detokenize(body, state.context(cancel)).map(Json)
    })
    .await
}

fn model_card(state: &AppState, name: &str) -> Value {
    let root = &state.model_root;
    json!({"id": name, "object": "model", "created": state.created, "owned_by": "halyard", "root": root, "parent": null,
        "max_model_len": state.engine.info().max_model_len})
}

/// An adapter's card: its folder as root, the base model as parent.
fn adapter_card(state: &AppState, adapter: &AdapterStatus) -> Value {
    let mut card = model_card(state, &adapter.name);
    card["root"] = json!(adapter.path);
    card["parent"] = json!(state.model_names[0]);
    card
}

async fn models(State(state): State<Arc<AppState>>) -> Json<Value> {
    let mut data: Vec<Value> = state.model_names.iter().map(|name| model_card(&state, name)).collect();
    data.extend(
        state
            .engine
            .adapters()
            .iter()
            .map(|adapter| adapter_card(&state, adapter)),
    );
    Json(json!({"object": "list", "data": data}))
}

async fn model(State(state): State<Arc<AppState>>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    let name = state.model_name(Some(&name))?;
    let adapter = state.adapter(&name);
    let adapters = adapter.map_or_else(Vec::new, |_| state.engine.adapters());
    Ok(Json(match adapters.iter().find(|adapter| adapter.name == name) {
        Some(adapter) => adapter_card(&state, adapter),
        None => model_card(&state, &name),
    }))
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
        &state.io,
        &state.transport,
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

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    use super::beginning;

    #[test]
    fn the_log_shows_whole_characters() {
        assert_eq!(beginning("äöü", 2), "äö");
        assert_eq!(beginning("äöü", 3), "äöü");
        assert_eq!(beginning("äöü", 0), "");
        assert_eq!(beginning("äöü", usize::MAX), "äöü");
    }
}
