//! The routes of stored responses: to read them, their events and what they were asked with, to end and to forget them.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::auth::KeyDigest;
use super::background::events_of;
use super::exchange::json_answer;
use super::response_store::ResponseStore;
use super::state::AppState;
use crate::api_error::{ApiError, clip};

/// Items of a page of [`input_items`], unless more are asked for, and at most.
const PAGE: usize = 20;
const MAX_PAGE: usize = 100;

/// The query of [`response`].
#[derive(Debug, Default, Deserialize)]
pub(super) struct ReadQuery {
    stream: Option<bool>,
    starting_after: Option<usize>,
}

/// The query of [`input_items`].
#[derive(Debug, Default, Deserialize)]
pub(super) struct ItemsQuery {
    limit: Option<usize>,
    order: Option<String>,
    after: Option<String>,
}

type Shared = State<Arc<AppState>>;

fn store(state: &AppState) -> Result<&ResponseStore, ApiError> {
    state.responses.as_ref().ok_or_else(|| {
        let message = "responses are not stored; serve with --enable-responses-store";
        ApiError::new(StatusCode::NOT_FOUND, message).with_code("responses_not_stored")
    })
}

fn key(request: &Request) -> Option<KeyDigest> {
    request.extensions().get::<KeyDigest>().copied()
}

/// The fields of a query.
pub(super) fn query<T: for<'a> Deserialize<'a>>(request: &Request) -> Result<T, ApiError> {
    let read = Query::try_from_uri(request.uri()).map(|Query(fields)| fields);
    read.map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, error.body_text()))
}

/// A response as it is now, or its events.
pub(super) async fn response(
    State(state): Shared,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let (store, key, query) = (store(&state)?, key(&request), query::<ReadQuery>(&request)?);
    if query.stream != Some(true) {
        return store.response(key, &id).map(json_answer);
    }
    let first = query.starting_after.map_or(0, |number| number.saturating_add(1));
    let events = store.events(key, &id, first)?;
    Ok(events_of(events, state.serving.sse_keep_alive))
}

/// Ends a response in the background.
pub(super) async fn cancel(
    State(state): Shared,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    store(&state)?.cancel(key(&request), &id).map(json_answer)
}

/// Forgets a response.
pub(super) async fn delete(
    State(state): Shared,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    store(&state)?.delete(key(&request), &id)?;
    Ok(Json(json!({"id": id, "object": "response", "deleted": true})))
}

/// The items that a response was asked with, page by page; the newest first, unless asked otherwise.
pub(super) async fn input_items(
    State(state): Shared,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (store, key, query) = (store(&state)?, key(&request), query::<ItemsQuery>(&request)?);
    let limit = query.limit.unwrap_or(PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        let message = format!("limit is {limit}; it must be 1 to {MAX_PAGE}");
        return Err(ApiError::field("limit", message));
    }
    let items: Value = serde_json::from_slice(&store.input(key, &id)?).unwrap_or_default();
    let Value::Array(mut items) = items else {
        return Err(ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the items are no list",
        ));
    };
    match query.order.as_deref() {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(other) => {
            let message = format!("order is \"{}\"; it must be asc or desc", clip(other));
            return Err(ApiError::field("order", message));
        }
    }
    if let Some(after) = query.after {
        let Some(at) = items.iter().position(|item| item["id"] == after.as_str()) else {
            let message = format!("after is `{}`, which is no item of this response", clip(&after));
            return Err(ApiError::field("after", message));
        };
        items.drain(..=at);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    let id_of = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    let (first_id, last_id) = (id_of(items.first()), id_of(items.last()));
    Ok(Json(
        json!({"object": "list", "data": items, "first_id": first_id, "last_id": last_id, "has_more": has_more}),
    ))
}
