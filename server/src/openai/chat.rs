//! `/v1/chat/completions`: messages become a prompt by the model's template. How samples become messages or deltas is
//! `chat_answer.rs`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::api::{Api, Generation};
use super::body::Body;
use super::chat_answer::ChatFormat;
use super::chat_prompt::{ChatPrompt, render};
use super::context::TokenLimit;
use super::lenient::{Flag, Int, is_set};
use super::model::ModelContext;
use super::parsed_text::{Reading, ReadingFields};
use super::prompt::Prompt;
use super::sampling::num_logprobs;
use super::shared::Shared;
use super::structured::Structured;
use super::tools::{self, ServedTools, ToolFields};
use super::unsupported;
use crate::api_error::ApiError;

/// The API.
pub const API: Api = Api {
    path: "/v1/chat/completions",
    id_prefix: "chatcmpl",
    has_prompts: false,
    read,
};

/// How much a model reasons before it answers, for templates that support it. The values are vLLM's.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum ReasoningEffort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

#[derive(Deserialize)]
struct ChatFields {
    messages: Vec<Value>,
    max_tokens: Option<Int>,
    max_completion_tokens: Option<Int>,
    logprobs: Option<Flag>,
    top_logprobs: Option<Int>,
    return_token_ids: Option<Flag>,
    return_tokens_as_token_ids: Option<Flag>,
    add_special_tokens: Option<Flag>,
    add_generation_prompt: Option<Flag>,
    continue_final_message: Option<Flag>,
    echo: Option<Flag>,
    chat_template_kwargs: Option<Map<String, Value>>,
    documents: Option<Vec<Map<String, Value>>>,
    reasoning_effort: Option<ReasoningEffort>,
    include_reasoning: Option<Flag>,
}

impl ChatFields {
    /// Alternatives a position when log-probabilities are asked.
    fn num_logprobs(&self, model: ModelContext<'_>) -> Result<Option<u32>, ApiError> {
        let asked = is_set(self.logprobs);
        let top_logprobs = match self.top_logprobs {
            Some(Int(n)) if n != 0 && !asked => {
                let message = format!("top_logprobs is {n}, which needs logprobs to be true");
                return Err(ApiError::field("top_logprobs", message));
            }
            Some(Int(n)) => num_logprobs("top_logprobs", n, model)?,
            None => 0,
        };
        Ok(asked.then_some(top_logprobs))
    }

    /// The rendered prompt.
    fn prompt(self, tools: Option<&Value>, model: ModelContext<'_>) -> Result<Prompt, ApiError> {
        let mut variables = self.chat_template_kwargs.unwrap_or_default();
        if let Some(effort) = self.reasoning_effort {
            variables.insert("reasoning_effort".to_owned(), json!(effort));
            // An effort also sets whether to reason at all, which some templates read.
            let thinks = effort != ReasoningEffort::None;
            variables
                .entry("enable_thinking")
                .or_insert_with(|| Value::from(thinks));
        }
        let documents = self.documents.map(Value::from);
        let text = render(
            &ChatPrompt {
                messages: &self.messages,
                add_generation_prompt: self.add_generation_prompt.map(|Flag(set)| set),
                continue_final_message: is_set(self.continue_final_message),
                template_variables: Some(&variables),
                tools,
                documents: documents.as_ref(),
            },
            model,
        )?;
        // The template writes the special tokens itself.
        let token_ids = model.encode_prompt("messages", &text, is_set(self.add_special_tokens))?;
        Ok(Prompt {
            text: Some(text),
            token_ids,
        })
    }

    /// The role of the answer: the operator's, or that of the message that the answer goes on with.
    fn role(&self, model: ModelContext<'_>) -> String {
        let generates = self.add_generation_prompt.is_none_or(|Flag(set)| set) && !is_set(self.continue_final_message);
        let last = self.messages.last().and_then(|message| message["role"].as_str());
        match last {
            Some(role) if !generates => role.to_owned(),
            _ => model.serving.response_role.clone(),
        }
    }

    /// The text before the answer's: with `echo`, the text of a last message of the same role.
    fn echoed(&self, role: &str) -> String {
        match self.messages.last() {
            Some(last) if is_set(self.echo) && last["role"] == role => text_of(last),
            _ => String::new(),
        }
    }

    /// Calls of the history.
    fn num_calls(&self) -> usize {
        let calls = |message: &Value| message["tool_calls"].as_array().map_or(0, Vec::len);
        self.messages.iter().map(calls).sum()
    }

    /// The beginning of the answer that stands in the prompt.
    fn begun(&self) -> String {
        match self.messages.last() {
            Some(last) if is_set(self.continue_final_message) => text_of(last),
            _ => String::new(),
        }
    }
}

/// The text of a message.
fn text_of(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

/// Reads and checks a body.
///
/// # Errors
/// 400 that names the first field that is wrong.
fn read(body: &mut Body, model: ModelContext<'_>) -> Result<Generation, ApiError> {
    unsupported::refuse(body)?;
    let serves = ServedTools {
        calls: model.parsers.has_calls(),
        excludes_uncalled: model.serving.exclude_tools_when_tool_choice_none,
    };
    let tools = tools::read(&body.take::<ToolFields>()?, model.limits, serves)?;
    let fields: ChatFields = body.take()?;
    let (name, asked_tokens) = match fields.max_completion_tokens {
        Some(limit) => ("max_completion_tokens", Some(limit)),
        None => ("max_tokens", fields.max_tokens),
    };
    let mut shared = Shared::take(body, asked_tokens, model)?;
    let model = ModelContext {
        truncates: shared.truncation.is_some(),
        ..model
    };
    if let Some(constraint) = tools.forced()? {
        if let Some(Structured { path, .. }) = shared.structured {
            let message = format!("{path} asks for a text and tool_choice for a call; send one of them");
            return Err(ApiError::field(path, message));
        }
        shared.structured = Some(Structured {
            outputs: constraint.into(),
            path: tools::FORCED_BY,
        });
    }
    shared.params.logprobs = fields.num_logprobs(model)?;
    shared.check_prompt_logprobs()?;
    let role = fields.role(model);
    let as_ids = fields.return_tokens_as_token_ids.map(|Flag(set)| set);
    let mut format = ChatFormat {
        echo: fields.echoed(&role),
        role,
        top_logprobs: shared.params.logprobs,
        tokens_as_ids: as_ids.unwrap_or(model.serving.return_tokens_as_token_ids),
        return_token_ids: is_set(fields.return_token_ids),
        ..ChatFormat::default()
    };
    let shows_reasoning = fields.include_reasoning.is_none_or(|Flag(set)| set);
    let begun = fields.begun();
    let num_earlier_calls = fields.num_calls();
    let mut prompt = fields.prompt(tools.definitions.as_ref(), model)?;
    let asked = ReadingFields {
        tools: &tools,
        shows_reasoning,
        prompt: prompt.text.as_deref().unwrap_or_default(),
        begun: &begun,
        num_earlier_calls,
    };
    if let Some(reading) = Reading::new(asked, model.parsers) {
        shared.params.kept_special_tokens = reading.special_tokens().to_vec();
        format.reading = Some(reading);
    }
    if let Some(truncation) = shared.truncation {
        truncation.apply(&mut prompt);
    }
    let default = model.defaults.max_new_tokens;
    let limit = TokenLimit {
        name,
        asked: asked_tokens.map(|Int(limit)| limit),
        default: default.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX)),
        prompt_field: "messages",
    };
    shared.params.max_tokens = limit.fit(prompt.token_ids.len(), model.max_model_len)?;
    Ok(Generation {
        prompts: vec![prompt],
        params: vec![shared.params],
        structured: shared.structured,
        streaming: shared.streaming,
        format: Box::new(format),
    })
}
