//! `/v1/chat/completions`: messages become a prompt by the model's template. How samples become messages or deltas is
//! `chat_answer.rs`.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::api::{Api, Generation, openai_error};
use super::asked_chat::{AskedChat, ReasoningEffort, force_calls, text_of};
use super::body::Body;
use super::chat_answer::ChatFormat;
use super::lenient::{Flag, Int, is_set};
use super::model::ModelContext;
use super::sampling::num_logprobs;
use super::shared::Shared;
use super::tools::{self, ToolFields};
use super::unsupported;
use crate::api_error::ApiError;

/// The API.
pub const API: Api = Api {
    path: "/v1/chat/completions",
    id_prefix: "chatcmpl-",
    is_stored: false,
    says_abort: true,
    has_prompts: false,
    read,
    write_error: openai_error,
};

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
}

/// Reads and checks a body.
///
/// # Errors
/// 400 that names the first field that is wrong.
fn read(body: &mut Body, model: ModelContext<'_>) -> Result<Generation, ApiError> {
    unsupported::refuse(body)?;
    let tools = tools::read(&body.take::<ToolFields>()?, model.limits, model.served_tools())?;
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
    force_calls(&tools, &mut shared)?;
    shared.params.logprobs = fields.num_logprobs(model)?;
    shared.check_prompt_logprobs()?;
    let role = fields.role(model);
    let as_ids = fields.return_tokens_as_token_ids.map(|Flag(set)| set);
    let format = ChatFormat {
        echo: fields.echoed(&role),
        role,
        top_logprobs: shared.params.logprobs,
        tokens_as_ids: as_ids.unwrap_or(model.serving.return_tokens_as_token_ids),
        return_token_ids: is_set(fields.return_token_ids),
        ..ChatFormat::default()
    };
    let chat = AskedChat {
        messages: fields.messages,
        tools,
        variables: fields.chat_template_kwargs.unwrap_or_default(),
        reasoning_effort: fields.reasoning_effort,
        documents: fields.documents.map(Value::from),
        add_generation_prompt: fields.add_generation_prompt.map(|Flag(set)| set),
        continue_final_message: is_set(fields.continue_final_message),
        add_special_tokens: is_set(fields.add_special_tokens),
        shows_reasoning: fields.include_reasoning.is_none_or(|Flag(set)| set),
        max_tokens: asked_tokens.map(|Int(limit)| limit),
        max_tokens_field: name,
        messages_field: "messages",
    };
    chat.read(shared, model, |reading| Box::new(ChatFormat { reading, ..format }))
}
