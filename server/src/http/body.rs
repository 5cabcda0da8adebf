//! Request bodies: bounded, and JSON objects. What their fields mean is for `openai` to say.

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, StatusCode, header};
use serde_json::Value;

use super::body_error::body_error;
use crate::api_error::ApiError;

/// Bodies above this many bytes are long: `text_work.rs` bounds what they take. Shorter ones are read where they
/// arrive.
pub const SHORT_BYTES: usize = 32 << 10;
/// Bytes from which a body is large. Work on it takes up to seconds: it comes at a pace, is worked on at the lowest
/// priority, and memory that the allocator keeps of it goes back to the system.
pub const LARGE_BYTES: usize = 1 << 20;

/// Reads a body of at most `limit` bytes as a JSON object. It is read and parsed on the thread that serves: long ones
/// do not come here.
///
/// # Errors
/// 413 past the limit, 415 for another content type, 400 for what is not JSON or not an object.
pub async fn read_object(headers: &HeaderMap, body: Body, limit: usize) -> Result<Value, ApiError> {
    check_content_type(headers)?;
    let too_large = |found: &str| {
        let remedy = if limit > SHORT_BYTES {
            " or serve with a larger --max-body-bytes"
        } else {
            ""
        };
        let message = format!("the body has {found}, the limit is {limit} bytes; send less{remedy}");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message).with_code("body_too_large")
    };
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if let Some(bytes) = announced.filter(|bytes| *bytes > limit as u64) {
        return Err(too_large(&format!("{bytes} bytes")));
    }
    let bytes = to_bytes(body, limit).await.map_err(|error| {
        if let Some(reason) = body_error(&error) {
            return reason.into();
        }
        let limited =
            std::error::Error::source(&error).is_some_and(|cause| cause.is::<http_body_util::LengthLimitError>());
        if limited {
            too_large("more bytes than that")
        } else {
            ApiError::new(StatusCode::BAD_REQUEST, format!("the body could not be read: {error}"))
        }
    })?;
    parse_object(&bytes)
}

/// Refuses other types than JSON.
///
/// # Errors
/// 415.
pub fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    // Browsers send JSON across origins only after asking; accepting text/plain would open a local server to any page.
    let content_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("");
    let essence = content_type.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    if essence != "application/json" && !(essence.starts_with("application/") && essence.ends_with("+json")) {
        let message =
            format!("content type `{content_type}` is not taken; send the header `Content-Type: application/json`");
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    Ok(())
}

/// Parses a body as a JSON object.
///
/// # Errors
/// 400 for what is not JSON or not an object.
pub fn parse_object(bytes: &[u8]) -> Result<Value, ApiError> {
    if bytes.is_empty() {
        let message = "the body is empty; send a JSON object";
        return Err(ApiError::new(StatusCode::BAD_REQUEST, message));
    }
    let value: Value = serde_json::from_slice(bytes).map_err(|error| {
        ApiError::new(StatusCode::BAD_REQUEST, format!("the body is not valid JSON: {error}")).with_code("invalid_json")
    })?;
    if !value.is_object() {
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "the body must be a JSON object"));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    async fn read(content_type: &str, body: impl Into<Body>, limit: usize) -> Result<Value, ApiError> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, content_type.parse().expect("a header value"));
        read_object(&headers, body.into(), limit).await
    }

    #[tokio::test]
    async fn refuses_bodies_with_the_right_status() {
        let cases: [(&str, &[u8], u16); 7] = [
            ("application/json", b"", 400),
            ("application/json", b"{\"a\":", 400),
            ("application/json", b"[1]", 400),
            ("application/json", b"{\"a\":\"\xff\xfe\"}", 400),
            ("application/json", b"{\"a\":\"0123456789\"}", 413),
            ("text/plain", b"{}", 415),
            ("application/x-www-form-urlencoded", b"{}", 415),
        ];
        for (content_type, body, status) in cases {
            let error = read(content_type, body.to_vec(), 16).await.expect_err("refused");
            assert_eq!(
                error.status.as_u16(),
                status,
                "{content_type} {body:?}: {}",
                error.message
            );
        }
        assert_eq!(
            read("application/json; charset=utf-8", "{}", 16).await.expect("taken"),
            json!({})
        );
    }
}
