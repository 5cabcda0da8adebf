//! `POST /abort_requests`, a route of vLLM's development mode: ends generation requests that run. Answers of chat and
//! completions end as they are, with the finish reason `abort`; those of other APIs, which have no word for it, with an
//! error.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Json;
use axum::extract::{Request, State};
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use halyard_engine::{FinishReason, OutputChunk};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::body::{SHORT_BYTES, read_object};
use super::state::AppState;
use crate::api_error::ApiError;
use crate::openai::api::Api;

/// Ids of one call.
const MAX_IDS: usize = 16_384;

/// The generation requests that run, by the ids that clients know.
#[derive(Debug, Default)]
pub struct Abortable {
    running: Mutex<Vec<Arc<Running>>>,
}

#[derive(Debug)]
struct Running {
    /// The answer's id, such as `chatcmpl-…`.
    id: String,
    /// Its beginning that the API adds to the request's id.
    prefix: &'static str,
    abort: watch::Sender<bool>,
}

impl Running {
    fn is(&self, asked: &str) -> bool {
        self.id == asked || self.id.strip_prefix(self.prefix) == Some(asked)
    }
}

impl Abortable {
    fn running(&self) -> MutexGuard<'_, Vec<Arc<Running>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the requests of these ids; without any, all of them. Returns how many it ended.
    fn abort(&self, ids: Option<&BTreeSet<&str>>) -> usize {
        let running = self.running();
        let asked = |known: &&Arc<Running>| ids.is_none_or(|ids| ids.iter().any(|id| known.is(id)));
        running
            .iter()
            .filter(asked)
            .filter(|known| !known.abort.send_replace(true))
            .count()
    }
}

/// A request's place among those that can be ended; left when dropped.
pub(super) struct AbortSeat {
    state: Arc<AppState>,
    running: Arc<Running>,
    says_abort: bool,
}

impl AbortSeat {
    pub(super) fn take(state: &Arc<AppState>, id: &str, api: &Api) -> AbortSeat {
        let running = Arc::new(Running {
            id: id.to_owned(),
            prefix: api.id_prefix,
            abort: watch::Sender::new(false),
        });
        state.abortable.running().push(Arc::clone(&running));
        AbortSeat {
            state: Arc::clone(state),
            running,
            says_abort: api.says_abort,
        }
    }

    /// Whether the answer ends as it is, without an error: it was ended, and its API has a word for that.
    pub(super) fn ends_as_it_is(&self) -> bool {
        self.says_abort && *self.running.abort.borrow()
    }

    /// The chunks of one prompt until the request is ended: then each of its `num_samples` that has not finished does.
    pub(super) fn until_aborted(
        &self,
        chunks: BoxStream<'static, OutputChunk>,
        num_samples: u32,
    ) -> BoxStream<'static, OutputChunk> {
        let start = UntilAborted {
            chunks: Some(chunks),
            abort: self.running.abort.subscribe(),
            unfinished: (0..num_samples).collect(),
        };
        stream::unfold(start, |mut state| async move { Some((state.next().await?, state)) }).boxed()
    }
}

impl Drop for AbortSeat {
    fn drop(&mut self) {
        self.state
            .abortable
            .running()
            .retain(|known| !Arc::ptr_eq(known, &self.running));
    }
}

struct UntilAborted {
    /// None once the request was ended: dropping them cancels it.
    chunks: Option<BoxStream<'static, OutputChunk>>,
    abort: watch::Receiver<bool>,
    unfinished: BTreeSet<u32>,
}

impl UntilAborted {
    async fn next(&mut self) -> Option<OutputChunk> {
        if let Some(chunks) = &mut self.chunks {
            tokio::select! {
                biased;
                // The sender stays as long as the answer.
                Ok(_) = self.abort.wait_for(|abort| *abort) => {}
                chunk = chunks.next() => {
                    let chunk = chunk?;
                    if chunk.finish.is_some() {
                        self.unfinished.remove(&chunk.index);
                    }
                    return Some(chunk);
                }
            }
            self.chunks = None;
        }
        let index = self.unfinished.pop_first()?;
        Some(OutputChunk {
            index,
            text: String::new(),
            token_ids: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
            hidden_state: None,
            num_cached_tokens: 0,
            finish: Some(FinishReason::Abort("by POST /abort_requests".to_owned())),
        })
    }
}

/// `POST /abort_requests` with `{"request_ids": […]}`; without ids every request ends. Unknown ids are no error: their
/// requests may have ended by themselves.
///
/// # Errors
/// 400 for ids that are no list of strings.
pub async fn abort_requests(State(state): State<Arc<AppState>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (parts, body) = request.into_parts();
    let body = read_object(&parts.headers, body, SHORT_BYTES).await?;
    let wrong = || {
        ApiError::field(
            "request_ids",
            format!("request_ids must be a list of at most {MAX_IDS} strings"),
        )
    };
    let aborted = match &body["request_ids"] {
        Value::Null => state.abortable.abort(None),
        Value::Array(ids) if ids.is_empty() => state.abortable.abort(None),
        Value::Array(ids) if ids.len() <= MAX_IDS => {
            let ids: Option<BTreeSet<&str>> = ids.iter().map(Value::as_str).collect();
            state.abortable.abort(Some(&ids.ok_or_else(wrong)?))
        }
        _ => return Err(wrong()),
    };
    tracing::info!(aborted, "requests were aborted by POST /abort_requests");
    Ok(Json(json!({ "status": "aborted", "aborted": aborted })))
}
