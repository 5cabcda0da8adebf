//! Why a request's body was not read to its end. It comes as an error of the body; `body.rs` turns it into an answer.

use axum::http::StatusCode;

use crate::api_error::ApiError;

/// Why a body was not read to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// It comes too slowly, or not at all.
    #[error(
        "the body did not come in time: {received} bytes in {elapsed_s} s; a body has {timeout_s} s and one more \
         for each {rate} bytes (--request-body-timeout, --request-body-min-rate)"
    )]
    Late {
        /// Bytes that came.
        received: u64,
        /// Waited for.
        elapsed_s: u64,
        /// `--request-body-timeout`.
        timeout_s: u64,
        /// `--request-body-min-rate`.
        rate: u64,
    },
    /// Long bodies hold all the memory that they may.
    #[error(
        "the long request bodies together hold {limit} bytes, the limit (--max-pending-body-bytes), and this one \
         kept the server waiting longest or did not fit; try again"
    )]
    NoMemory {
        /// `--max-pending-body-bytes`.
        limit: usize,
    },
}

impl From<&BodyError> for ApiError {
    fn from(error: &BodyError) -> Self {
        let message = error.to_string();
        match error {
            BodyError::Late { .. } => ApiError::new(StatusCode::REQUEST_TIMEOUT, message).with_code("body_timeout"),
            BodyError::NoMemory { .. } => ApiError::try_again(message).with_code("too_many_bodies"),
        }
    }
}

/// The reason in an error's chain, if a body was not read.
pub(super) fn body_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a BodyError> {
    std::iter::successors(Some(error), |error| error.source()).find_map(|error| error.downcast_ref())
}
