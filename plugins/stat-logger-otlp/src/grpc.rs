//! OTLP over gRPC. A call is one message there and one back: over HTTP/2 a POST whose body has five bytes before the
//! message, with the call's status in the trailers (gRPC's "PROTOCOL-HTTP2"). So the HTTP client is enough for it.

use http_body_util::{BodyExt as _, Limited};
use opentelemetry_http::{Bytes, HttpError, Request, Response};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE};
use reqwest::{Body, Client, StatusCode};

/// Bytes before a message: whether it is compressed, and its length, big-endian.
const PREFIX_BYTES: usize = 5;
/// The most that an answer may take, as the SDK bounds those over HTTP.
const MAX_ANSWER_BYTES: usize = 4 << 20;
/// Names of gRPC's status codes, by code.
const STATUS_NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// How a call failed after it had reached the collector.
#[derive(Debug, thiserror::Error)]
enum CallError {
    #[error("gRPC status {code}{}: {message}", name(code))]
    Status { code: String, message: String },
    #[error("HTTP status {0} without a gRPC status; is the endpoint one for HTTP (`protocol` \"http/protobuf\")?")]
    NotGrpc(StatusCode),
    #[error("the message of an answer is not whole, or is compressed")]
    Message,
    #[error("the call ended early; is the endpoint one for HTTP (`protocol` \"http/protobuf\")?")]
    Broken(#[source] reqwest::Error),
}

/// The path of the service that takes `signal`.
pub fn path(signal: &str) -> &'static str {
    match signal {
        "metrics" => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
        _ => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    }
}

/// Calls with the message that is `request`'s body; the answer's body is the message that came back.
///
/// # Errors
/// What failed on the way, and a status of the call that is not OK.
pub async fn call(client: &Client, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let (mut parts, message) = request.into_parts();
    let headers = &mut parts.headers;
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    let request = Request::from_parts(parts, framed(&message)?);
    let answer = client.execute(request.try_into()?).await.map_err(explained)?;
    let (parts, body) = Response::<Body>::from(answer).into_parts();
    let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await?;
    // A call that fails at once has its status among the headers.
    let trailers = body.trailers().cloned().unwrap_or_default();
    let status = [&trailers, &parts.headers].into_iter().find_map(status);
    match status {
        None => return Err(CallError::NotGrpc(parts.status).into()),
        Some((code, message)) if code != "0" => return Err(CallError::Status { code, message }.into()),
        Some(_) => {}
    }
    let message = unframed(body.to_bytes()).ok_or(CallError::Message)?;
    Ok(Response::new(message))
}

/// A peer of another protocol is the likeliest reason of a connection that was made and broke.
fn explained(error: reqwest::Error) -> HttpError {
    if error.is_connect() || error.is_timeout() {
        error.into()
    } else {
        CallError::Broken(error).into()
    }
}

/// A message with its prefix.
fn framed(message: &Bytes) -> Result<Bytes, HttpError> {
    let length = u32::try_from(message.len())?;
    let mut framed = Vec::with_capacity(PREFIX_BYTES + message.len());
    framed.push(0);
    framed.extend(length.to_be_bytes());
    framed.extend_from_slice(message);
    Ok(framed.into())
}

/// The message of a body that holds one; an empty body holds an empty message.
fn unframed(body: Bytes) -> Option<Bytes> {
    let Some((prefix, message)) = body.split_first_chunk::<PREFIX_BYTES>() else {
        return body.is_empty().then_some(body);
    };
    let [compressed, length @ ..] = *prefix;
    let is_whole = u32::from_be_bytes(length) as usize == message.len();
    (compressed == 0 && is_whole).then(|| body.slice(PREFIX_BYTES..))
}

/// The status of a call and its message.
fn status(headers: &HeaderMap) -> Option<(String, String)> {
    let text = |name| headers.get(name).map(HeaderValue::as_bytes);
    let code = String::from_utf8_lossy(text("grpc-status")?).into_owned();
    Some((code, decoded(text("grpc-message").unwrap_or_default())))
}

/// A percent-encoded text. What is not encoded well stays as it is.
fn decoded(text: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| first == b'%');
        let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// ` (NAME)` of a code that has one.
fn name(code: &str) -> String {
    let name = code.parse::<usize>().ok().and_then(|code| STATUS_NAMES.get(code));
    name.map_or_else(String::new, |name| format!(" ({name})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_goes_with_its_length_and_comes_back_only_whole() {
        let framed = framed(&Bytes::from_static(b"abc")).expect("short");
        assert_eq!(&framed[..], b"\0\0\0\0\x03abc");
        assert_eq!(unframed(framed).as_deref(), Some(&b"abc"[..]));
        assert_eq!(unframed(Bytes::new()).as_deref(), Some(&b""[..]));
        for broken in [
            &b"\0\0\0"[..],
            b"\0\0\0\0\x04abc",
            b"\0\0\0\0\x02abc",
            b"\x01\0\0\0\x03abc",
        ] {
            assert_eq!(unframed(Bytes::from_static(broken)), None, "{broken:?}");
        }
    }

    #[test]
    fn a_status_is_told_in_words() {
        let error = |code: &str, message: &[u8]| CallError::Status {
            code: code.to_owned(),
            message: decoded(message),
        };
        let full = error("8", b"no%20room%2C 100% full%");
        assert_eq!(
            full.to_string(),
            "gRPC status 8 (RESOURCE_EXHAUSTED): no room, 100% full%"
        );
        assert_eq!(error("99", b"\xff").to_string(), "gRPC status 99: \u{fffd}");
    }
}
