//! Fields that all generation APIs have: streaming, truncation, sampling, structured output, and the scheduler's
//! (priority).

use halyard_engine::SamplingParams;
use serde::Deserialize;
use serde_json::Value;

use super::body::Body;
use super::lenient::Int;
use super::model::ModelContext;
use super::sampling::SamplingFields;
use super::structured::{Structured, StructuredFields};
use super::truncation::{Truncation, TruncationFields};
use super::usage::{StreamFields, Streaming};
use crate::api_error::ApiError;

/// The checked fields.
pub struct Shared {
    /// Whole or in pieces.
    pub streaming: Streaming,
    /// How prompts are shortened.
    pub truncation: Option<Truncation>,
    /// Without log-probabilities of the answer and the token limit, whose fields differ between routes.
    pub params: SamplingParams,
    /// What the text must be, where something is asked for.
    pub structured: Option<Structured>,
}

impl Shared {
    /// Reads and checks the fields; `answer` is the token limit that the route was asked for.
    ///
    /// # Errors
    /// 400 that names the first field that is wrong.
    pub fn take(body: &mut Body, answer: Option<Int>, model: ModelContext<'_>) -> Result<Shared, ApiError> {
        let streaming = body.take::<StreamFields>()?.read(model.serving)?;
        let truncation = body.take::<TruncationFields>()?.read(answer, model)?;
        let params = body.take::<SamplingFields>()?.into_params(model)?;
        let structured = body.take::<StructuredFields>()?.read()?;
        Ok(Shared {
            streaming,
            truncation,
            params,
            structured,
        })
    }

    /// Refuses log-probabilities of the prompt where the answer is a stream.
    ///
    /// # Errors
    /// 400.
    pub fn check_prompt_logprobs(&self) -> Result<(), ApiError> {
        if self.streaming.stream && self.params.prompt_logprobs.is_some() {
            let message = "prompt_logprobs are not available in a stream; send stream false";
            return Err(ApiError::field("prompt_logprobs", message));
        }
        Ok(())
    }
}

/// The fields `priority` and `cache_salt` of a body.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct SchedulingFields {
    priority: Value,
    cache_salt: Value,
}

/// A request's fields for the scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scheduling {
    /// Smaller goes first.
    pub priority: i32,
    /// Prefixes are shared with requests of the same salt only.
    pub cache_salt: Option<String>,
}

impl SchedulingFields {
    /// Reads the fields; `has_priorities`: the server's policy uses priorities.
    ///
    /// # Errors
    /// 400 for values of a wrong type, and for a priority that would have no effect.
    pub fn read(self, has_priorities: bool) -> Result<Scheduling, ApiError> {
        let priority = match &self.priority {
            Value::Null => 0,
            sent => {
                let number = Int::of(sent).and_then(|number| i32::try_from(number).ok());
                let wrong = || format!("priority is {sent}; it must be an integer of 32 bits");
                number.ok_or_else(|| ApiError::field("priority", wrong()))?
            }
        };
        if priority != 0 && !has_priorities {
            let message = format!(
                "priority is {priority}, but this server runs first come, first served; \
                 serve with --scheduling-policy priority"
            );
            return Err(ApiError::field("priority", message));
        }
        let cache_salt = match self.cache_salt {
            Value::Null => None,
            Value::String(salt) if !salt.is_empty() => Some(salt),
            _ => {
                return Err(ApiError::field(
                    "cache_salt",
                    "cache_salt must be a string that is not empty",
                ));
            }
        };
        Ok(Scheduling { priority, cache_salt })
    }
}
