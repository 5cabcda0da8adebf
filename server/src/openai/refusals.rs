//! Maps errors of the engine, the tokenizer and the IO processors to API errors: status, field and code.

use axum::http::StatusCode;
use halyard_engine::{FinishReason, GrammarError, ParamError, SubmitError};
use halyard_request_hooks::ProcessorFailure;
use halyard_text::TextError;

use super::context;
use crate::api_error::ApiError;

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::Param(ParamError::NothingAllowed { .. }) => {
                ApiError::field("allowed_token_ids", message).with_code("no_token_allowed")
            }
            SubmitError::Param(param) => ApiError::field(param_name(&param), message),
            SubmitError::Grammar(error) => error.into(),
            SubmitError::EmptyPrompt => ApiError::field("prompt", message),
            SubmitError::HiddenState(_) => ApiError::new(StatusCode::BAD_REQUEST, message),
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
            SubmitError::ShuttingDown => ApiError::try_again(message).with_code("shutting_down"),
            SubmitError::Dead { .. } => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).with_code("engine_dead")
            }
        }
    }
}

impl From<GrammarError> for ApiError {
    fn from(error: GrammarError) -> Self {
        let message = error.to_string();
        match error {
            GrammarError::Busy { .. } => ApiError::try_again(message).with_code("queue_full"),
            GrammarError::TooLarge { .. }
            | GrammarError::Invalid { .. }
            | GrammarError::Late { .. }
            | GrammarError::Model(_) => ApiError::field("structured_outputs", message).with_code("invalid_grammar"),
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

impl From<ProcessorFailure> for ApiError {
    fn from(failure: ProcessorFailure) -> Self {
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
            TextError::TemplateUnavailable { .. } => ApiError::try_again(message),
            TextError::TooManyTokens { .. } | TextError::Uncuttable { .. } => ApiError::field("prompt", message),
            TextError::NoChatTemplate => ApiError::new(StatusCode::BAD_REQUEST, message).with_code("no_chat_template"),
            TextError::TokenOutOfVocabulary { .. } => ApiError::field("tokens", message),
            TextError::EmptyStopString { .. } => ApiError::field("stop", message),
            TextError::Encode { .. } | TextError::Decode { .. } => ApiError::new(StatusCode::BAD_REQUEST, message),
            _ => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message),
        }
    }
}

/// The error of an end that is no answer.
pub fn failure(finish: &FinishReason) -> Option<ApiError> {
    let internal = |message: &str| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message);
    match finish {
        FinishReason::Eos | FinishReason::StopToken(_) | FinishReason::StopString(_) | FinishReason::Length => None,
        FinishReason::Abort(reason) => {
            let message = format!("the request was aborted: {reason}");
            Some(ApiError::try_again(message).with_code("aborted"))
        }
        FinishReason::Paused => {
            let message = "the request was aborted: the operator paused this server";
            Some(ApiError::try_again(message).with_code("aborted"))
        }
        FinishReason::Error(reason) => {
            let message = format!("the engine failed on this request: {reason}");
            Some(internal(&message).with_code("engine_error"))
        }
        FinishReason::NotFinite(reason) => Some(internal(reason).with_code("nonfinite_logits")),
        FinishReason::NoTokenAllowed(reason) => {
            Some(ApiError::new(StatusCode::BAD_REQUEST, reason.as_str()).with_code("no_token_allowed"))
        }
    }
}

/// The error of an answer whose streams ended before it did.
pub fn incomplete() -> ApiError {
    ApiError::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "the engine ended before the answer was complete",
    )
    .with_code("engine_dead")
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::header;
    use axum::response::IntoResponse;

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
        assert_eq!(error.body().error.param, Some("temperature"));
        assert_eq!(error.body().error.kind, "invalid_request_error");
        assert!(error.message.contains("-1"), "{}", error.message);
    }
}
