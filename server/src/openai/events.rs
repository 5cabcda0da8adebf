//! JSON and server-sent events as text.

use axum::http::StatusCode;
use serde::Serialize;

use crate::api_error::ApiError;

/// The end of a stream.
const DONE: &str = "data: [DONE]\n\n";

/// A body as text.
///
/// # Errors
/// 500 for a value that JSON cannot hold; no body of this crate has one.
pub fn to_json(body: &impl Serialize) -> Result<String, ApiError> {
    serde_json::to_string(body).map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

/// Events of a stream, one behind the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events(String);

impl Events {
    /// Adds an event that has a name.
    pub fn push_named(&mut self, name: &str, data: &impl Serialize) {
        self.0.push_str("event: ");
        self.0.push_str(name);
        self.0.push('\n');
        self.push(data);
    }

    /// Adds an event.
    pub fn push(&mut self, data: &impl Serialize) {
        let text = to_json(data).or_else(|error| to_json(&error.body()));
        self.0.push_str("data: ");
        self.0.push_str(&text.unwrap_or_default());
        self.0.push_str("\n\n");
    }

    /// Adds the end of the stream.
    pub fn done(&mut self) {
        self.0.push_str(DONE);
    }

    /// The end of a stream that fails.
    pub fn failure(error: &ApiError) -> String {
        let mut events = Events::default();
        events.push(&error.body());
        events.done();
        events.0
    }

    /// All of them as text.
    pub fn into_text(self) -> String {
        self.0
    }
}
