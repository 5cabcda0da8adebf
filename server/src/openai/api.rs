//! A generation API: its route, the reader of its bodies, the writer of its answers.

use halyard_engine::SamplingParams;

use super::answer::Format;
use super::body::Body;
use super::events::to_json;
use super::kept::Kept;
use super::model::ModelContext;
use super::prompt::Prompt;
use super::structured::Structured;
use super::thoughts::Thoughts;
use super::usage::Streaming;
use crate::api_error::ApiError;

/// An API of generation.
pub struct Api {
    /// Its route.
    pub path: &'static str,
    /// The beginning of its answers' ids.
    pub id_prefix: &'static str,
    /// Whether a body may hold several prompts; their requests have numbers behind the answer's id.
    pub has_prompts: bool,
    /// Whether its answers can be stored.
    pub is_stored: bool,
    /// An answer that the operator ends can say so (finish reason `abort`); others become an error.
    pub says_abort: bool,
    /// Reads and checks a body, but for [`super::shared::SchedulingFields`].
    pub read: fn(&mut Body, ModelContext<'_>) -> Result<Generation, ApiError>,
    /// The body of an answer that is an error, for this route and those below it.
    pub write_error: fn(&ApiError) -> String,
}

impl Api {
    /// Whether a path is its route or one below.
    pub fn has(&self, path: &str) -> bool {
        let below = path.strip_prefix(self.path);
        below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// OpenAI's error object as a body.
pub fn openai_error(error: &ApiError) -> String {
    to_json(&error.body()).unwrap_or_default()
}

/// A checked body.
pub struct Generation {
    /// The prompts, never empty.
    pub prompts: Vec<Prompt>,
    /// For the engine, one for each prompt.
    pub params: Vec<SamplingParams>,
    /// What the text of every sample must be, where something is asked for.
    pub structured: Option<Structured>,
    /// What the model may think before.
    pub thoughts: Option<Thoughts>,
    /// What is to be kept of the request, where the answer is.
    pub kept: Option<Kept>,
    /// Whole or in pieces.
    pub streaming: Streaming,
    /// How to write the answer.
    pub format: Box<dyn Format>,
}
