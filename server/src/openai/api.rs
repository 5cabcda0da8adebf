//! A generation API: its route, the reader of its bodies, the writer of its answers.

use halyard_engine::SamplingParams;

use super::answer::Format;
use super::body::Body;
use super::model::ModelContext;
use super::prompt::Prompt;
use super::structured::Structured;
use super::usage::Streaming;
use crate::api_error::ApiError;

/// An API of generation.
pub struct Api {
    /// Its route.
    pub path: &'static str,
    /// The prefix of its answers' ids.
    pub id_prefix: &'static str,
    /// Whether a body may hold several prompts; their requests have numbers behind the answer's id.
    pub has_prompts: bool,
    /// Reads and checks a body, but for [`super::shared::SchedulingFields`].
    pub read: fn(&mut Body, ModelContext<'_>) -> Result<Generation, ApiError>,
}

/// A checked body.
pub struct Generation {
    /// The prompts, never empty.
    pub prompts: Vec<Prompt>,
    /// For the engine, one for each prompt.
    pub params: Vec<SamplingParams>,
    /// What the text of every sample must be, where something is asked for.
    pub structured: Option<Structured>,
    /// Whole or in pieces.
    pub streaming: Streaming,
    /// How to write the answer.
    pub format: Box<dyn Format>,
}
