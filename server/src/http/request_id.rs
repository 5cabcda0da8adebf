//! `X-Request-Id`: the client's, if it fits into a header and a log line, or a new one. Also writes a request's log
//! line when its answer was sent. The line never holds the request's text.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use http_body::Body as HttpBody;
use serde_json::Value;

use super::peer::Peer;
use super::wrapped_body::{PolledFrame, WrappedBody, Wrapper};
use crate::api_error::ApiError;
use crate::openai::prompt::Prompt;

/// The header.
pub const HEADER: HeaderName = HeaderName::from_static("x-request-id");
/// Longer ids are replaced: they would go into every log line.
const MAX_BYTES: usize = 128;

/// Routes whose requests are logged at the level debug.
const PROBES: [&str; 5] = ["/health", "/ping", "/metrics", "/load", "/ui/data"];

/// A request's id, in its extensions.
#[derive(Clone, Debug)]
pub struct RequestId(String);

impl Default for RequestId {
    fn default() -> Self {
        RequestId(uuid::Uuid::new_v4().simple().to_string())
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl RequestId {
    /// The caller's id if it is usable.
    pub fn from_headers(headers: &HeaderMap) -> Self {
        let sent = headers.get(&HEADER).and_then(|value| value.to_str().ok());
        sent.and_then(RequestId::usable).unwrap_or_default()
    }

    fn usable(id: &str) -> Option<Self> {
        let fits = (1..=MAX_BYTES).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then(|| RequestId(id.to_owned()))
    }

    /// The body's `request_id`, unless the caller sent a header too, which goes first, as in vLLM.
    ///
    /// # Errors
    /// 400 for one that no header could carry.
    pub fn or_of_body(self, headers: &HeaderMap, sent: &Value) -> Result<Self, ApiError> {
        if sent.is_null() {
            return Ok(self);
        }
        let of_body = sent.as_str().and_then(RequestId::usable).ok_or_else(|| {
            let message =
                format!("request_id must be a text of 1 to {MAX_BYTES} visible ASCII characters without blanks");
            ApiError::field("request_id", message)
        })?;
        let by_header = headers
            .get(&HEADER)
            .is_some_and(|value| value.as_bytes() == self.0.as_bytes());
        Ok(if by_header { self } else { of_body })
    }
}

/// Tokens of an answer for its log line. A handler leaves it in the answer's extensions and goes on counting.
#[derive(Clone, Debug)]
pub struct TokenCount {
    prompt: u64,
    completion: Arc<AtomicU64>,
}

impl TokenCount {
    /// Nothing is generated yet.
    pub fn of_prompts(prompts: &[Prompt]) -> Self {
        TokenCount {
            prompt: prompts.iter().map(|prompt| prompt.token_ids.len() as u64).sum(),
            completion: Arc::default(),
        }
    }

    /// Tokens of the prompts.
    pub fn prompt(&self) -> u64 {
        self.prompt
    }

    /// Where tokens are counted.
    pub fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.completion)
    }

    /// Tokens generated so far.
    pub fn set_completion(&self, tokens: u64) {
        self.completion.store(tokens, Ordering::Relaxed);
    }
}

/// Gives every request an id, every answer the same one, and logs how it went.
pub async fn with_request_id(mut request: Request, next: Next) -> Response {
    let id = RequestId::from_headers(request.headers());
    let client = request.extensions().get::<ConnectInfo<Peer>>().map(|info| info.0);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    request.extensions_mut().insert(id.clone());
    let start = Instant::now();
    let mut line = LogLine {
        id,
        method,
        path,
        client,
        status: 0,
        start,
        first_byte: None,
        tokens: None,
        is_complete: false,
    };
    // The client may leave before there is an answer: then the line is written while `line` is dropped.
    let mut response = next.run(request).await;
    // A body may name the request, too; its handler says so.
    if let Some(id) = response.extensions_mut().remove::<RequestId>() {
        line.id = id;
    }
    line.status = response.status().as_u16();
    line.tokens = response.extensions().get::<TokenCount>().cloned();
    if let Ok(value) = HeaderValue::from_str(&line.id.0) {
        response.headers_mut().insert(HEADER, value);
    }
    response.map(|inner| {
        // hyper does not ask for what it knows to be nothing.
        line.is_complete = inner.is_end_stream();
        Body::new(WrappedBody::new(inner, line))
    })
}

/// A request's log line; written when dropped.
struct LogLine {
    id: RequestId,
    method: Method,
    path: String,
    client: Option<Peer>,
    /// 0: there was no answer.
    status: u16,
    start: Instant,
    first_byte: Option<Duration>,
    tokens: Option<TokenCount>,
    is_complete: bool,
}

impl Drop for LogLine {
    fn drop(&mut self) {
        let LogLine {
            id,
            method,
            path,
            status,
            ..
        } = self;
        let client = self.client.map(tracing::field::display);
        let elapsed_ms = self.start.elapsed().as_millis() as u64;
        let first_byte_ms = self.first_byte.map(|time| time.as_millis() as u64);
        let prompt_tokens = self.tokens.as_ref().map(|tokens| tokens.prompt);
        let completion_tokens = self
            .tokens
            .as_ref()
            .map(|tokens| tokens.completion.load(Ordering::Relaxed));
        let client_left = (!self.is_complete).then_some(true);
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    %id, %method, path, status, client, first_byte_ms, elapsed_ms, prompt_tokens, completion_tokens,
                    client_left, "request"
                )
            };
        }
        // Probes come every second; what they would say is in the metrics.
        if PROBES.contains(&path.as_str()) {
            line!(debug);
        } else {
            line!(info);
        }
    }
}

/// Notes when the first and the last byte of an answer are handed over.
impl Wrapper for LogLine {
    fn poll_frame(&mut self, inner: &mut Body, cx: &mut Context<'_>) -> PolledFrame {
        let polled = Pin::new(&mut *inner).poll_frame(cx);
        if matches!(polled, Poll::Ready(Some(Ok(_)))) {
            self.first_byte.get_or_insert(self.start.elapsed());
        }
        self.is_complete |= matches!(polled, Poll::Ready(None)) || inner.is_end_stream();
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_names_the_request_where_no_header_does() {
        let mut headers = HeaderMap::new();
        let own = RequestId::from_headers(&headers);
        let named = |headers: &HeaderMap, sent: Value| {
            let id = RequestId::from_headers(headers);
            id.or_of_body(headers, &sent).map(|id| id.to_string())
        };
        assert_eq!(
            own.clone()
                .or_of_body(&headers, &Value::Null)
                .expect("absent")
                .to_string(),
            own.to_string()
        );
        assert_eq!(named(&headers, Value::from("job-1")).expect("usable"), "job-1");
        for bad in [
            Value::from(""),
            Value::from("two words"),
            Value::from("x".repeat(129)),
            Value::from(5),
        ] {
            assert_eq!(
                named(&headers, bad).expect_err("unusable").param.as_deref(),
                Some("request_id")
            );
        }
        headers.insert(HEADER, HeaderValue::from_static("by-header"));
        assert_eq!(named(&headers, Value::from("job-1")).expect("usable"), "by-header");
    }

    #[test]
    fn keeps_a_usable_id_and_replaces_the_rest() {
        let with = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HEADER, HeaderValue::from_str(value).expect("a header value"));
            RequestId::from_headers(&headers).to_string()
        };
        assert_eq!(with("job-17/a"), "job-17/a");
        for bad in ["", "two words", &"x".repeat(129)] {
            let id = with(bad);
            assert_ne!(id, bad);
            assert_eq!(id.len(), 32);
        }
    }
}
