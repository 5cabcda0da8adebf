//! The layers around every route, outermost first: id and log line, the form of errors, panics, host, CORS, draining,
//! key.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Router, middleware};

use super::auth::OPEN_ROUTES;
use super::connections::Connection;
use super::panics::{catch_body_panics, catch_panics};
use super::peer::Peer;
use super::request_id::with_request_id;
use super::state::AppState;
use crate::api_error::{ApiError, clip};
use crate::openai::apis::APIS;
use crate::openapi::page;
use crate::ui::assets;

/// Routes with their layers.
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
        .layer(middleware::from_fn(write_errors))
        .layer(middleware::from_fn(with_request_id))
        .with_state(state)
}

/// Writes an error in the form of the route's API, whichever layer it comes from.
async fn write_errors(request: Request, next: Next) -> Response {
    let api = APIS.into_iter().find(|api| api.has(request.uri().path()));
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions_mut().remove::<ApiError>()
        && let Some(api) = api
    {
        response.headers_mut().remove(header::CONTENT_LENGTH);
        *response.body_mut() = Body::from((api.write_error)(&error));
    }
    response
}

/// Refuses requests without an accepted key, for unknown paths too: without a key a client does not learn which routes
/// exist.
async fn require_key(State(state): State<Arc<AppState>>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let open = OPEN_ROUTES.contains(&path)
        || (path == "/metrics" && state.serving.metrics_without_key)
        // A browser can send no key with the address of a page; the files tell nothing of this server.
        || (state.ui.is_some() && assets::has(path))
        || (state.has_docs && page::has(path));
    if !open {
        match state.api_keys.check(request.headers()) {
            Ok(Some(key)) => drop(request.extensions_mut().insert(key)),
            Ok(None) => {}
            Err(error) => return error.into_response(),
        }
        // Its connection is given up after those of strangers.
        if !state.api_keys.is_empty()
            && let Some(connection) = request.extensions().get::<Arc<Connection>>()
        {
            connection.trust();
        }
    }
    next.run(request).await
}

/// Refuses requests for a host that is not this server's. One without a host is no browser's and passes.
async fn check_host(State(state): State<Arc<AppState>>, request: Request, next: Next) -> Response {
    // The check is against web pages, and no browser reaches a Unix socket.
    let connection = request.extensions().get::<Arc<Connection>>();
    if connection.is_some_and(|connection| connection.peer == Peer::Unix) {
        return next.run(request).await;
    }
    let rules = &state.transport.hosts;
    let target = request.uri().authority().map(Authority::as_str);
    let sent = request.headers().get_all(header::HOST).iter();
    let hosts = sent.map(|value| value.to_str().unwrap_or("?")).chain(target);
    for host in hosts {
        if !rules.allows(host) {
            let message = format!(
                "this server does not answer for the host `{}`; serve with --allowed-hosts and that name, \
                 or ask by address",
                clip(host)
            );
            return ApiError::new(StatusCode::MISDIRECTED_REQUEST, message)
                .with_code("host_not_allowed")
                .into_response();
        }
    }
    next.run(request).await
}

/// The answer of a server that is ending.
pub fn draining() -> ApiError {
    ApiError::try_again("the server is shutting down; ask another one").with_code("shutting_down")
}

/// Refuses new generation requests once the server is ending; what runs goes on.
async fn refuse_while_draining(State(state): State<Arc<AppState>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let generates = request.method() == Method::POST && path.starts_with("/v1/") && !path.ends_with("/cancel");
    if generates && state.transport.is_draining() {
        return draining().into_response();
    }
    next.run(request).await
}
