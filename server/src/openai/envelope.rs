//! The objects around the choices of `/v1/completions` and `/v1/chat/completions`, and why a choice stopped.

use halyard_engine::FinishReason;
use serde::Serialize;

use super::answer::Answer;
use super::events::Events;
use super::logprobs::PromptLogprobs;
use super::usage::Usage;

/// A whole answer with choices of type `C`.
#[derive(Serialize)]
pub struct Whole<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<C>,
    /// OpenAI's price classes; this server has none: null.
    service_tier: Option<()>,
    system_fingerprint: &'a str,
    usage: &'a Usage,
    /// Chat, when asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// Chat, when asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<&'a [u32]>,
}

impl<'a, C> Whole<'a, C> {
    /// An answer of the kind `object`.
    pub fn new(answer: &'a Answer, object: &'static str, choices: Vec<C>) -> Self {
        Whole {
            id: &answer.id,
            object,
            created: answer.created,
            model: &answer.model,
            choices,
            service_tier: None,
            system_fingerprint: &answer.fingerprint,
            usage: &answer.usage,
            prompt_logprobs: None,
            prompt_token_ids: None,
        }
    }
}

/// A piece of a stream, with at most one choice, of type `C`.
#[derive(Serialize)]
pub struct Chunk<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [C],
    /// Absent unless usage was asked; null where this piece has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<&'a Usage>>,
    /// Chat, in the first piece of a choice, when asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_fingerprint: Option<&'a str>,
}

impl<'a, C> Chunk<'a, C> {
    /// A piece of a choice; `is_last` says whether the choice ends with it.
    pub fn new(answer: &'a Answer, object: &'static str, choice: &'a C, is_last: bool) -> Self {
        let options = answer.streaming;
        let so_far = options.continuous_usage_stats.then_some(&answer.usage);
        Chunk {
            id: &answer.id,
            object,
            created: answer.created,
            model: &answer.model,
            choices: std::slice::from_ref(choice),
            usage: options.include_usage.then_some(so_far),
            prompt_token_ids: None,
            system_fingerprint: is_last.then_some(&answer.fingerprint),
        }
    }
}

/// Ends a stream, with the usage when it was asked.
pub fn close(answer: &Answer, object: &'static str, events: &mut Events) {
    if answer.streaming.include_usage {
        events.push(&Chunk::<()> {
            id: &answer.id,
            object,
            created: answer.created,
            model: &answer.model,
            choices: &[],
            usage: Some(Some(&answer.usage)),
            prompt_token_ids: None,
            system_fingerprint: None,
        });
    }
    events.done();
}

/// vLLM's `stop_reason`: what ended a choice, where it was a stop of the request's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StopReason {
    /// A token of `stop_token_ids`.
    Token(u32),
    /// A stop string.
    Text(String),
}

impl StopReason {
    /// Of an end.
    pub fn of(finish: Option<&FinishReason>) -> Option<StopReason> {
        match finish {
            Some(FinishReason::StopToken(id)) => Some(StopReason::Token(*id)),
            Some(FinishReason::StopString(text)) => Some(StopReason::Text(text.clone())),
            _ => None,
        }
    }
}
