//! OpenAI's error object, the only shape in which this server says no. Every refusal of a route passes through here, so
//! that a client finds status, message, field and code in the same place always. Never carries a prompt.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use halyard_engine::{ParamError, SubmitError};
use halyard_request_hooks::IoFailure;
use halyard_text::TextError;
use serde_json::{Value, json};

use crate::openai::context;

/// An answer that is an error.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// What was asked, what is allowed, what to do.
    pub message: String,
    /// The field of the body that it is about.
    pub param: Option<String>,
    /// A word for programs.
    pub code: Option<&'static str>,
    /// Seconds after which asking again makes sense.
    pub retry_after_s: Option<u32>,
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

    /// The body: `{"error": {"message", "type", "param", "code"}}`.
    pub fn to_json(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind(), "param": self.param, "code": self.code}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.to_json())).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::Param(ParamError::NothingAllowed { .. }) => {
                ApiError::field("allowed_token_ids", message).with_code("no_token_allowed")
            }
            SubmitError::Param(param) => ApiError::field(param_name(&param), message),
            SubmitError::EmptyPrompt => ApiError::field("prompt", message),
            SubmitError::PromptVocabulary { .. } => ApiError::field("prompt", message),
            SubmitError::PromptTooLong { found, limit } => context::prompt_too_long("prompt", limit, found),
            SubmitError::Adapter(_) => ApiError {
                param: Some("model".to_owned()),
                ..ApiError::new(StatusCode::NOT_FOUND, message).with_code("model_not_found")
            },
            SubmitError::QueueFull { retry_after_s, .. } => ApiError {
                retry_after_s: Some(retry_after_s.max(1)),
                ..ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).with_code("queue_full")
            },
            SubmitError::ShuttingDown => ApiError {
                retry_after_s: Some(1),
                ..ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).with_code("shutting_down")
            },
            SubmitError::Dead { .. } => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).with_code("engine_dead")
            }
        }
    }
}

impl From<IoFailure> for ApiError {
    fn from(failure: IoFailure) -> Self {
        let status = StatusCode::from_u16(failure.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        ApiError {
            retry_after_s: (status == StatusCode::SERVICE_UNAVAILABLE).then_some(1),
            ..ApiError::new(status, failure.to_string()).with_code(failure.code())
        }
    }
}

impl From<TextError> for ApiError {
    /// Errors of tokenizer and template that a request can cause; the rest are the server's own.
    fn from(error: TextError) -> Self {
        let message = error.to_string();
        match error {
            TextError::InvalidMessage { .. }
            | TextError::UnsupportedContentPart { .. }
            | TextError::TemplateRaised { .. }
            | TextError::TemplateRender { .. } => ApiError::field("messages", message),
            TextError::TemplateBound { .. } => ApiError::field("messages", message).with_code("chat_template_bound"),
            TextError::TooManyTokens { .. } | TextError::Uncuttable { .. } => ApiError::field("prompt", message),
            TextError::NoChatTemplate => ApiError::new(StatusCode::BAD_REQUEST, message).with_code("no_chat_template"),
            TextError::TokenOutOfVocabulary { .. } => ApiError::field("tokens", message),
            TextError::EmptyStopString { .. } => ApiError::field("stop", message),
            TextError::Encode { .. } | TextError::Decode { .. } => ApiError::new(StatusCode::BAD_REQUEST, message),
            _ => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message),
        }
    }
}

fn param_name(error: &ParamError) -> &'static str {
    match error {
        ParamError::Between { name, .. }
        | ParamError::Range { name, .. }
        | ParamError::Count { name, .. }
        | ParamError::Empty { name }
        | ParamError::Vocabulary { name, .. } => name,
        ParamError::NothingAllowed { .. } => "allowed_token_ids",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_asks_to_come_back() {
        let response = ApiError::from(SubmitError::QueueFull {
            waiting: 7,
            retry_after_s: 3,
        })
        .into_response();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[header::RETRY_AFTER], "3");
    }

    #[test]
    fn a_bad_parameter_names_its_field() {
        let bad = ParamError::Between {
            name: "temperature",
            value: -1.0,
            low: 0.0,
            high: 100.0,
        };
        let error = ApiError::from(SubmitError::Param(bad));
        assert_eq!(error.status, 400);
        assert_eq!(error.to_json()["error"]["param"], "temperature");
        assert_eq!(error.to_json()["error"]["type"], "invalid_request_error");
        assert!(error.message.contains("-1"), "{}", error.message);
    }
}
