//! OpenAI batch files: each line of one is a request, each line of the other its answer. The requests pass through the
//! routes of the server, so a body means what it means over HTTP. Knows no flag and starts no engine.

mod input;
mod output;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use futures::StreamExt as _;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;

pub use input::URLS;
use input::{Asked, Input, Line};
pub use output::{Output, OutputError};

/// Between two tries of a request that the engine had no place for.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// Tries of such a request while no other runs: then it will never fit.
const TRIES_ALONE: u32 = 5;

/// How a batch is answered.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits {
    /// Requests at the same time.
    pub in_flight: usize,
    /// Bytes of a line.
    pub line_bytes: usize,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines with an answer of status 200.
    pub answered: u64,
    /// Lines with an error.
    pub failed: u64,
}

/// Why a batch ended before its last line.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// The file of requests.
    #[error("reading the requests: {0}")]
    Read(std::io::Error),
    /// The file of answers.
    #[error(transparent)]
    Write(#[from] OutputError),
}

/// Answers each line of `input` on `router` and writes the answers as they come, in any order. Lines that are no
/// requests get an error of their own. `progress` hears of each line that was written.
///
/// Dropping the future ends it: running requests are cancelled, and no line is left half written.
///
/// # Errors
/// [`BatchError`].
pub async fn run(
    router: &Router,
    input: impl tokio::io::AsyncRead + Unpin,
    output: &mut Output,
    limits: BatchLimits,
    mut progress: impl FnMut(Counts),
) -> Result<Counts, BatchError> {
    let mut input = Input::new(input, limits.line_bytes);
    let running = Arc::new(AtomicUsize::new(0));
    let mut answers = futures::stream::FuturesUnordered::new();
    let mut counts = Counts::default();
    let mut is_over = false;
    loop {
        while !is_over && answers.len() < limits.in_flight.max(1) {
            match input.next().await.map_err(BatchError::Read)? {
                Some(line) => answers.push(answer(router.clone(), line, Arc::clone(&running))),
                None => is_over = true,
            }
        }
        let Some(answered) = answers.next().await else {
            return Ok(counts);
        };
        output.write(&answered)?;
        match answered["response"]["status_code"] == 200 {
            true => counts.answered += 1,
            false => counts.failed += 1,
        }
        progress(counts);
    }
}

/// The line of the answer.
async fn answer(router: Router, line: Line, running: Arc<AtomicUsize>) -> Value {
    match line.asked {
        Ok(asked) => {
            running.fetch_add(1, Ordering::Relaxed);
            let (status, request_id, body) = send(&router, &asked, &running).await;
            running.fetch_sub(1, Ordering::Relaxed);
            written(Some(asked.custom_id), status, &request_id, body)
        }
        Err(reason) => {
            let place = format!("line {}: {reason}", line.number);
            let error =
                json!({"message": place, "type": "BadRequestError", "param": null, "code": "invalid_batch_line"});
            written(
                line.custom_id,
                StatusCode::BAD_REQUEST,
                &id("batch-"),
                json!({ "error": error }),
            )
        }
    }
}

fn written(custom_id: Option<String>, status: StatusCode, request_id: &str, body: Value) -> Value {
    // OpenAI keeps a refused request's error in the answer's body, vLLM beside it: readers of both find it.
    let error = if status.is_success() {
        Value::Null
    } else {
        body["error"].clone()
    };
    json!({
        "id": id("batch_req_"),
        "custom_id": custom_id,
        "response": {"status_code": status.as_u16(), "request_id": request_id, "body": body},
        "error": error,
    })
}

fn id(prefix: &str) -> String {
    format!("{prefix}{}", uuid::Uuid::new_v4().simple())
}

/// The status, the request's id and the body of an answer. A request that finds no place waits for others to end.
async fn send(router: &Router, asked: &Asked, running: &AtomicUsize) -> (StatusCode, String, Value) {
    let mut tries_alone = 0;
    loop {
        let answered = send_once(router, asked).await;
        let is_alone = running.load(Ordering::Relaxed) <= 1;
        tries_alone += u32::from(is_alone);
        if answered.0 != StatusCode::SERVICE_UNAVAILABLE || tries_alone >= TRIES_ALONE {
            return answered;
        }
        tokio::time::sleep(RETRY_AFTER).await;
    }
}

async fn send_once(router: &Router, asked: &Asked) -> (StatusCode, String, Value) {
    let broken = |message: String| {
        let error = json!({"message": message, "type": "InternalServerError", "param": null, "code": "internal_error"});
        (
            StatusCode::INTERNAL_SERVER_ERROR,
            id("batch-"),
            json!({ "error": error }),
        )
    };
    let request = Request::post(&asked.url).header(header::CONTENT_TYPE, "application/json");
    let request = match request.body(Body::from(asked.body.to_string())) {
        Ok(request) => request,
        Err(error) => return broken(error.to_string()),
    };
    let Ok(response) = router.clone().oneshot(request).await;
    let (parts, body) = response.into_parts();
    let request_id = parts.headers.get("x-request-id").and_then(|id| id.to_str().ok());
    let request_id = request_id.map_or_else(|| id("batch-"), str::to_owned);
    let bytes = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return broken(error.to_string()),
    };
    match serde_json::from_slice(&bytes) {
        Ok(body) => (parts.status, request_id, body),
        Err(error) => broken(format!("the answer is no JSON: {error}")),
    }
}
