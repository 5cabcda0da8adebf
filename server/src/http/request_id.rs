//! `X-Request-Id`: the caller's, when it is one that fits a header and a log line, or a fresh one. Also writes the one
//! log line of a request, which never holds its text.

use std::fmt;
use std::time::Instant;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::Value;

use super::error::ApiError;

/// The header.
pub const HEADER: HeaderName = HeaderName::from_static("x-request-id");
/// Longer ids are replaced: they would go into every log line.
const MAX_BYTES: usize = 128;

/// Routes whose requests are logged at the level debug.
const PROBES: [&str; 4] = ["/health", "/ping", "/metrics", "/load"];

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

/// Gives every request an id, every answer the same one, and logs how it went.
pub async fn with_request_id(mut request: Request, next: Next) -> Response {
    let id = RequestId::from_headers(request.headers());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    request.extensions_mut().insert(id.clone());
    let start = Instant::now();
    let mut response = next.run(request).await;
    // A body may name the request, too; its handler says so.
    let id = response.extensions_mut().remove::<RequestId>().unwrap_or(id);
    let status = response.status().as_u16();
    let elapsed_ms = start.elapsed().as_millis() as u64;
    // Probes come every second; what they would say is in the metrics.
    if PROBES.contains(&path.as_str()) {
        tracing::debug!(%id, %method, path, status, elapsed_ms, "request");
    } else {
        tracing::info!(%id, %method, path, status, elapsed_ms, "request");
    }
    if let Ok(value) = HeaderValue::from_str(&id.0) {
        response.headers_mut().insert(HEADER, value);
    }
    response
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
