//! OpenAI's error object, the shape of this server's errors but for APIs that have one of their own
//! (`Api::write_error`). Every error of a route passes through here, so a client always finds status, message, field
//! and code in the same place. Never carries a prompt.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// An answer that is an error.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// The request, the limit, and the remedy, in words.
    pub message: String,
    /// The field of the body that it is about.
    pub param: Option<String>,
    /// A word for programs.
    pub code: Option<&'static str>,
    /// Seconds after which asking again makes sense.
    pub retry_after_s: Option<u32>,
}

/// The body of an error.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ErrorBody<'a> {
    /// The only field, so that no other answer looks like it.
    pub error: ErrorObject<'a>,
}

/// The error object that a client gets.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ErrorObject<'a> {
    /// Text of the error.
    pub message: &'a str,
    /// OpenAI's type for the status.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The field of the body.
    pub param: Option<&'a str>,
    /// For programs.
    pub code: Option<&'static str>,
}

impl ApiError {
    /// An error of `status` about no field in particular.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        ApiError {
            status,
            message: message.into(),
            param: None,
            code: None,
            retry_after_s: None,
        }
    }

    /// Something that passes: 503, and asking again makes sense after a second.
    pub fn try_again(message: impl Into<String>) -> Self {
        ApiError {
            retry_after_s: Some(1),
            ..ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
        }
    }

    /// A field with a value that cannot be served: 400.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        ApiError {
            param: Some(param.into()),
            ..ApiError::new(StatusCode::BAD_REQUEST, message)
        }
    }

    /// A field that would change the output and that this server does not act on yet: 400, since ignoring it would be
    /// answering another question.
    pub fn unsupported(param: &str, remedy: &str) -> Self {
        ApiError::field(param, format!("{param} is not supported yet; {remedy}")).with_code("unsupported_parameter")
    }

    /// The same error with a word for programs.
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// OpenAI's type for the status.
    pub fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            404 => "not_found_error",
            503 => "service_unavailable_error",
            400..=499 => "invalid_request_error",
            _ => "server_error",
        }
    }

    /// The error's message.
    pub fn body(&self) -> ErrorBody<'_> {
        ErrorBody {
            error: ErrorObject {
                message: &self.message,
                kind: self.kind(),
                param: self.param.as_deref(),
                code: self.code,
            },
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // Some APIs write it otherwise.
        response.extensions_mut().insert(self);
        response
    }
}

/// The first characters of a value that came from outside, for an error message.
pub fn clip(text: &str) -> String {
    const SHOWN: usize = 80;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
