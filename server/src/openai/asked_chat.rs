//! A chat as any API asks for it: messages in the form of chats, tools, and how the answer goes on. Becomes a prompt,
//! the engine's parameters and the reading of the answer.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::answer::Format;
use super::api::Generation;
use super::chat_prompt::{ChatPrompt, render};
use super::context::TokenLimit;
use super::model::ModelContext;
use super::parsed_text::{Reading, ReadingFields};
use super::prompt::Prompt;
use super::shared::Shared;
use super::structured::Structured;
use super::tools::{self, AskedTools};
use crate::api_error::ApiError;

/// How much a model reasons before it answers, for templates that support it. The values are vLLM's.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReasoningEffort {
    /// Not at all.
    None,
    /// Hardly.
    Minimal,
    /// Little.
    Low,
    /// Some.
    Medium,
    /// Much.
    High,
    /// More.
    Xhigh,
    /// As much as it can.
    Max,
}

/// A chat.
pub struct AskedChat {
    /// Messages as chats have them.
    pub messages: Vec<Value>,
    /// Its tools.
    pub tools: AskedTools,
    /// Variables for the template.
    pub variables: Map<String, Value>,
    /// Two more of them.
    pub reasoning_effort: Option<ReasoningEffort>,
    /// Documents for the template.
    pub documents: Option<Value>,
    /// As in [`ChatPrompt`].
    pub add_generation_prompt: Option<bool>,
    /// As in [`ChatPrompt`].
    pub continue_final_message: bool,
    /// Templates mostly write the special tokens themselves.
    pub add_special_tokens: bool,
    /// Whether reasoning is given.
    pub shows_reasoning: bool,
    /// Most tokens of the answer.
    pub max_tokens: Option<i64>,
    /// The body's field for that.
    pub max_tokens_field: &'static str,
    /// The body's field for the messages.
    pub messages_field: &'static str,
}

/// Makes the answer the calls that `tools` asks for.
///
/// # Errors
/// 400 where the body asks for a text as well.
pub fn force_calls(tools: &AskedTools, shared: &mut Shared) -> Result<(), ApiError> {
    let Some(constraint) = tools.forced()? else {
        return Ok(());
    };
    if let Some(Structured { path, .. }) = shared.structured {
        let message = format!("{path} asks for a text and tool_choice for a call; send one of them");
        return Err(ApiError::field(path, message));
    }
    shared.structured = Some(Structured {
        outputs: constraint.into(),
        path: tools::FORCED_BY,
    });
    Ok(())
}

/// The text of a message.
pub fn text_of(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

impl AskedChat {
    /// Calls of the history.
    fn num_calls(&self) -> usize {
        let calls = |message: &Value| message["tool_calls"].as_array().map_or(0, Vec::len);
        self.messages.iter().map(calls).sum()
    }

    /// The beginning of the answer that stands in the prompt.
    fn begun(&self) -> String {
        match self.messages.last() {
            Some(last) if self.continue_final_message => text_of(last),
            _ => String::new(),
        }
    }

    /// The rendered prompt.
    ///
    /// # Errors
    /// 400 for what the template refuses, and a text that does not fit.
    pub fn prompt(&mut self, model: ModelContext<'_>) -> Result<Prompt, ApiError> {
        if let Some(effort) = self.reasoning_effort {
            self.variables.insert("reasoning_effort".to_owned(), json!(effort));
            // An effort also sets whether to reason at all, which some templates read.
            let thinks = effort != ReasoningEffort::None;
            self.variables
                .entry("enable_thinking")
                .or_insert_with(|| Value::from(thinks));
        }
        let text = render(
            &ChatPrompt {
                messages: &self.messages,
                add_generation_prompt: self.add_generation_prompt,
                continue_final_message: self.continue_final_message,
                template_variables: Some(&self.variables),
                tools: self.tools.definitions.as_ref(),
                documents: self.documents.as_ref(),
            },
            model,
        )?;
        let token_ids = model.encode_prompt(self.messages_field, &text, self.add_special_tokens)?;
        Ok(Prompt {
            text: Some(text),
            token_ids,
        })
    }

    /// What to generate; `format` writes the answer, whose text is read so.
    ///
    /// # Errors
    /// As [`AskedChat::prompt`], and 400 for an answer that does not fit behind it.
    pub fn read(
        mut self,
        mut shared: Shared,
        model: ModelContext<'_>,
        format: impl FnOnce(Option<Reading>) -> Box<dyn Format>,
    ) -> Result<Generation, ApiError> {
        let mut prompt = self.prompt(model)?;
        let asked = ReadingFields {
            tools: &self.tools,
            shows_reasoning: self.shows_reasoning,
            prompt: prompt.text.as_deref().unwrap_or_default(),
            begun: &self.begun(),
            num_earlier_calls: self.num_calls(),
            is_bound: shared.structured.is_some(),
        };
        let mut reading = Reading::new(asked, model.parsers);
        let thoughts = reading.as_mut().and_then(Reading::take_thoughts);
        if let Some(reading) = &reading {
            shared.params.kept_special_tokens = reading.special_tokens().to_vec();
        }
        if let Some(truncation) = shared.truncation {
            truncation.apply(&mut prompt);
        }
        let default = model.defaults.max_new_tokens;
        let limit = TokenLimit {
            name: self.max_tokens_field,
            asked: self.max_tokens,
            default: default.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX)),
            prompt_field: self.messages_field,
        };
        shared.params.max_tokens = limit.fit(prompt.token_ids.len(), model.max_model_len)?;
        Ok(Generation {
            prompts: vec![prompt],
            params: vec![shared.params],
            structured: shared.structured,
            thoughts,
            kept: None,
            streaming: shared.streaming,
            format: format(reading),
        })
    }
}
