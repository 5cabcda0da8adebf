//! The logits processors of a request: which take part, and how the engine runs them.

use std::sync::Arc;
use std::time::Duration;

use halyard_engine::{EngineHandle, GuideFactory, GuideWatch, LogitChanges, Request, TokenGuide};
use halyard_platform_api::logits_processor::{LogitsModel, LogitsRequest};
use halyard_platform_api::{Error, Result};
use halyard_request_hooks::{OpenedLogits, SampleLogits};
use halyard_text::Tokenizer;

use super::state::AppState;
use crate::api_error::ApiError;

/// Shows a job's requests to the processors. Those that take part work after the request's grammar.
///
/// # Errors
/// A processor that refuses a request or fails.
pub async fn add(state: &AppState, requests: &mut [Request], args: &str) -> std::result::Result<(), ApiError> {
    if state.logits.is_empty() {
        return Ok(());
    }
    let max_model_len = state.engine.info().max_model_len;
    for request in requests {
        let left = max_model_len.saturating_sub(request.prompt.len() as u32);
        let opened = state.logits.open(LogitsRequest {
            id: &request.id,
            prompt: &request.prompt,
            max_tokens: request.params.max_tokens.map_or(left, |most| most.min(left)),
            args,
        });
        for logits in opened.await? {
            let guide = GuideFactory::new(move |sample| Box::new(Guide(logits.sample(sample))));
            request.guide = Some(match request.guide.take() {
                Some(before) => before.then(guide),
                None => guide,
            });
        }
    }
    Ok(())
}

/// A processor's part in one sample, as the engine runs it.
struct Guide(SampleLogits);

impl TokenGuide for Guide {
    fn next(&mut self, tokens: &[u32], changes: &mut LogitChanges) -> std::result::Result<(), String> {
        self.0.process(tokens, &mut changes.mask, &mut changes.biases)
    }

    fn watch(&self) -> Arc<dyn GuideWatch> {
        Arc::new(Watch(self.0.opened().clone()))
    }
}

struct Watch(OpenedLogits);

impl GuideWatch for Watch {
    fn constraint(&self) -> String {
        self.0.name()
    }

    fn limit(&self) -> Option<Duration> {
        Some(self.0.timeout())
    }

    fn give_up(&self, _: Duration) -> String {
        self.0.give_up()
    }
}

/// The served model, as processors see it.
pub struct ServedModel {
    tokenizer: Tokenizer,
    vocab_size: u32,
    end_tokens: Vec<u32>,
}

impl ServedModel {
    /// The model of `engine`.
    pub fn of(engine: &EngineHandle) -> ServedModel {
        let info = engine.info();
        let ends = info.eos_token_ids.iter().copied();
        ServedModel {
            tokenizer: engine.tokenizer().clone(),
            vocab_size: info.vocab_size,
            end_tokens: ends.filter(|&id| id < info.vocab_size).collect(),
        }
    }
}

impl LogitsModel for ServedModel {
    fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.tokenizer
            .encode(text, false)
            .map_err(|error| Error::invalid(error.to_string()))
    }

    fn token_bytes(&self, token: u32) -> Result<Vec<u8>> {
        if !self.tokenizer.contains(token) {
            return Ok(Vec::new());
        }
        self.tokenizer
            .token_bytes(token)
            .map_err(|error| Error::invalid(error.to_string()))
    }
}
