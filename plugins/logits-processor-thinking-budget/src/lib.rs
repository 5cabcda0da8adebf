//! A logits processor that bounds thinking: after so many tokens between the markers of thinking, it forces the tokens
//! that end it. The bound is the request's `thinking_token_budget`, or the operator's `budget`.
//!
//! Markers are compared as the tokens that the tokenizer spells them with, as in vLLM. Docs: docs/logits-processors.md.

mod thinking;

use std::sync::Arc;

use halyard_platform_api::logits_processor::{
    LogitsModel, LogitsProcessor, LogitsProcessorFactory, LogitsRequest, LogitsRow, RequestLogits, SequenceLogits,
};
use halyard_platform_api::{Error, Result};
use serde::Deserialize;
use serde_json::Value;

use crate::thinking::{Markers, Thinking};

halyard_platform_api::export_logits_processor! {
    name: "thinking-budget", version: env!("CARGO_PKG_VERSION"),
    about: "ends thinking after a budget of tokens", factory: ThinkingBudgetFactory,
}

/// The request's field.
const FIELD: &str = "thinking_token_budget";

/// Makes [`ThinkingBudget`].
pub struct ThinkingBudgetFactory;

/// The operator's configuration.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    start: String,
    end: String,
    end_text: Option<String>,
    budget: Value,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            start: "<think>".to_owned(),
            end: "</think>".to_owned(),
            end_text: None,
            budget: Value::Null,
        }
    }
}

/// A processor.
struct ThinkingBudget {
    markers: Arc<Markers>,
    /// Of requests that name none; `None`: no limit.
    budget: Option<u64>,
}

impl LogitsProcessorFactory for ThinkingBudgetFactory {
    fn create(&self, config: &str, model: Arc<dyn LogitsModel>) -> Result<Arc<dyn LogitsProcessor>> {
        let config: Config =
            serde_json::from_str(config).map_err(|error| Error::invalid(format!("configuration: {error}")))?;
        let tokens = |key: &str, text: &str| {
            let tokens = model.encode(text)?;
            match tokens.iter().find(|&&token| token >= model.vocab_size()) {
                _ if tokens.is_empty() => Err(Error::invalid(format!("{key}: the text {text:?} has no tokens"))),
                Some(token) => Err(Error::invalid(format!("{key}: the model does not have token {token}"))),
                None => Ok(tokens),
            }
        };
        let end_text = config.end_text.unwrap_or_else(|| config.end.clone());
        if !end_text.ends_with(&config.end) {
            let end = &config.end;
            return Err(Error::invalid(format!(
                "end_text: {end_text:?} does not end with {end:?} (end)"
            )));
        }
        let markers = Markers {
            start: tokens("start", &config.start)?,
            end: tokens("end", &config.end)?,
            forced: tokens("end_text", &end_text)?,
        };
        Ok(Arc::new(ThinkingBudget {
            markers: Arc::new(markers),
            budget: budget_of("budget", &config.budget)?,
        }))
    }
}

/// A number of tokens, also as text; null and -1: no limit.
fn budget_of(key: &str, value: &Value) -> Result<Option<u64>> {
    let number = match value {
        Value::Null => return Ok(None),
        Value::String(text) => text.parse::<i64>().ok(),
        value => value.as_i64(),
    };
    match number {
        Some(-1) => Ok(None),
        Some(number @ 0..) => Ok(Some(number as u64)),
        _ => Err(Error::invalid(format!(
            "{key}: {value} is not a whole number from -1 (no limit)"
        ))),
    }
}

impl LogitsProcessor for ThinkingBudget {
    fn open(&self, request: &LogitsRequest<'_>) -> Result<Option<Box<dyn RequestLogits>>> {
        let args: Value =
            serde_json::from_str(request.args).map_err(|error| Error::invalid(format!("arguments: {error}")))?;
        let budget = match args.get(FIELD) {
            Some(asked) => budget_of(FIELD, asked)?,
            None => self.budget,
        };
        let begin = |budget| Box::new(Thinking::begin(Arc::clone(&self.markers), budget, request.prompt));
        Ok(budget.map(|budget| begin(budget) as Box<dyn RequestLogits>))
    }

    fn reads(&self, field: &str) -> bool {
        field == FIELD
    }
}

impl RequestLogits for Thinking {
    fn start(&self, _: u32) -> Result<Box<dyn SequenceLogits>> {
        Ok(Box::new(self.clone()))
    }
}

impl SequenceLogits for Thinking {
    fn process(&mut self, tokens: &[u32], row: &mut LogitsRow<'_>) -> Result<()> {
        tokens.iter().for_each(|&token| self.push(token));
        let Some(token) = self.forced() else {
            return Ok(());
        };
        if !row.allows(token) {
            return Err(Error::invalid(format!(
                "thinking has used up its budget, and token {token}, which ends it, may not come here"
            )));
        }
        row.allow_only(&[token])
    }
}
