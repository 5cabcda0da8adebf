//! `/v1/chat/completions`: messages become a prompt by the model's template, samples become messages or deltas.

use halyard_engine::{OutputChunk, SamplingParams};
use halyard_text::{ChatInput, LocalTime};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::context::{TokenLimit, TruncationFields};
use super::lenient::{Flag, Int, is_set};
use super::logprobs::{TokenNames, chat_entry, prompt_logprobs};
use super::prompt::Prompt;
use super::sampling::{SamplingFields, num_logprobs};
use super::usage::{StreamFields, Streaming};
use super::{ModelContext, tools, unsupported};
use crate::http::body::parse;
use crate::http::error::ApiError;
use crate::http::generate::{Sample, finish_fields};

/// A chat to be rendered.
pub struct ChatPrompt<'a> {
    /// OpenAI messages, in order.
    pub messages: &'a [Value],
    /// Whether the prompt ends with the start of an assistant turn; `None`: unless the last message is continued.
    pub add_generation_prompt: Option<bool>,
    /// Leaves the last message open, so that the answer goes on in it.
    pub continue_final_message: bool,
    /// `chat_template_kwargs`; they go before the operator's.
    pub template_variables: Option<&'a Map<String, Value>>,
    /// Tools, as [`tools::definitions`] writes them.
    pub tools: Option<&'a Value>,
    /// `documents`.
    pub documents: Option<&'a Value>,
}

/// Renders messages with the model's template.
///
/// # Errors
/// 400 for no messages, contradicting flags, and what the template refuses.
pub fn render(chat: &ChatPrompt<'_>, model: ModelContext<'_>) -> Result<String, ApiError> {
    if chat.messages.is_empty() {
        return Err(ApiError::field(
            "messages",
            "messages is empty; send at least one message",
        ));
    }
    if chat.continue_final_message && chat.add_generation_prompt == Some(true) {
        let message = "continue_final_message and add_generation_prompt contradict each other; send one of them";
        return Err(ApiError::field("continue_final_message", message));
    }
    let template = model.chat_template.ok_or(halyard_text::TextError::NoChatTemplate)?;
    let unix_seconds = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |elapsed| i64::try_from(elapsed.as_secs()).unwrap_or(i64::MAX));
    // It would be moved to the front.
    let moves = |message: &Value| message["role"] == "developer" && !template.knows_developer();
    if chat.continue_final_message && chat.messages.len() > 1 && chat.messages.last().is_some_and(moves) {
        return Err(cannot_continue());
    }
    let tagged = if chat.continue_final_message {
        tag_final_message(chat.messages)?
    } else {
        Vec::new()
    };
    let mut variables = model.serving.default_chat_template_kwargs.clone();
    for (name, value) in chat.template_variables.into_iter().flatten() {
        variables.insert(name.clone(), value.clone());
    }
    let text = template.render(&ChatInput {
        messages: if chat.continue_final_message {
            &tagged
        } else {
            chat.messages
        },
        add_generation_prompt: chat.add_generation_prompt.unwrap_or(!chat.continue_final_message),
        tools: chat.tools,
        documents: chat.documents,
        extra: Some(&variables),
        now: Some(LocalTime {
            unix_seconds,
            utc_offset_seconds: 0,
        }),
    })?;
    if chat.continue_final_message {
        open_final_message(text)
    } else {
        Ok(text)
    }
}

/// Stands for the end of the last message while the template runs. Ends with a blank, which tells whether the template trims.
const FINAL_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

fn cannot_continue() -> ApiError {
    let message = "continue_final_message needs a last message with text that the template keeps as it is";
    ApiError::field("continue_final_message", message)
}

/// The messages with the tag at the end of the last one's text (transformers' way in `apply_chat_template`).
fn tag_final_message(messages: &[Value]) -> Result<Vec<Value>, ApiError> {
    let mut messages = messages.to_vec();
    let content = messages
        .last_mut()
        .and_then(|message| message.get_mut("content"))
        .ok_or_else(cannot_continue)?;
    let slot = match content {
        Value::Array(parts) => parts
            .iter_mut()
            .rev()
            .find_map(|part| part.get_mut("text"))
            .ok_or_else(cannot_continue)?,
        whole => whole,
    };
    let text = slot
        .as_str()
        .filter(|text| !text.trim().is_empty())
        .ok_or_else(cannot_continue)?;
    *slot = Value::from(format!("{text}{FINAL_TAG}"));
    Ok(messages)
}

/// Cuts the tag and what the template writes after it; the text is trimmed where the template trims.
fn open_final_message(mut text: String) -> Result<String, ApiError> {
    let at = text.rfind(FINAL_TAG.trim_end()).ok_or_else(cannot_continue)?;
    let keeps_blanks = text[at..].starts_with(FINAL_TAG);
    text.truncate(at);
    if !keeps_blanks {
        text.truncate(text.trim_end().len());
    }
    Ok(text)
}

/// How much a model thinks before it answers, for templates that know it. The words are vLLM's.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
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
}

impl ChatFields {
    /// The variables of the template that the request sets. An effort also says whether to think at all, which some templates ask.
    fn variables(&self, body: &Value) -> Map<String, Value> {
        let mut variables = self.chat_template_kwargs.clone().unwrap_or_default();
        if let Some(effort) = self.reasoning_effort {
            variables.insert("reasoning_effort".to_owned(), body["reasoning_effort"].clone());
            let thinks = effort != ReasoningEffort::None;
            variables
                .entry("enable_thinking")
                .or_insert_with(|| Value::from(thinks));
        }
        variables
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

    /// What stands before the answer's text: with `echo`, the text of a last message of the same role.
    fn echoed(&self, role: &str) -> String {
        let last = self
            .messages
            .last()
            .filter(|last| is_set(self.echo) && last["role"] == role);
        match last.map(|last| &last["content"]) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(parts)) => {
                let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
                texts.join("\n")
            }
            _ => String::new(),
        }
    }
}

/// A checked chat request.
pub struct ChatRequest {
    /// The rendered prompt.
    pub prompt: Prompt,
    /// For the engine.
    pub params: SamplingParams,
    /// Whole or in pieces.
    pub streaming: Streaming,
    /// How to write the answer.
    pub format: ChatFormat,
}

/// How a chat's answer is written.
#[derive(Clone, Debug)]
pub struct ChatFormat {
    /// Who answers.
    pub role: String,
    /// Stands before the text of each sample.
    pub echo: String,
    /// Alternatives a position when log-probabilities were asked.
    pub top_logprobs: Option<u32>,
    /// Tokens as `token_id:17`.
    pub tokens_as_ids: bool,
    /// Token ids beside the text.
    pub return_token_ids: bool,
}

impl ChatRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// 400 that names the first field that is wrong.
    pub fn read(body: &Value, model: ModelContext<'_>) -> Result<Self, ApiError> {
        unsupported::refuse(body)?;
        let tools = tools::read(body)?;
        let fields: ChatFields = parse(body)?;
        let streaming = parse::<StreamFields>(body)?.read(body, model.serving)?;
        let (name, asked_tokens) = match fields.max_completion_tokens {
            Some(limit) => ("max_completion_tokens", Some(limit)),
            None => ("max_tokens", fields.max_tokens),
        };
        let truncation = parse::<TruncationFields>(body)?.read(asked_tokens, model)?;
        let model = ModelContext {
            truncates: truncation.is_some(),
            ..model
        };
        let mut params = parse::<SamplingFields>(body)?.into_params(model)?;
        let asked = is_set(fields.logprobs);
        let top_logprobs = match fields.top_logprobs {
            Some(Int(n)) if n != 0 && !asked => {
                return Err(ApiError::field(
                    "top_logprobs",
                    format!("top_logprobs is {n}, which needs logprobs to be true"),
                ));
            }
            Some(Int(n)) => num_logprobs("top_logprobs", n, model)?,
            None => 0,
        };
        params.logprobs = asked.then_some(top_logprobs);
        if streaming.stream && params.prompt_logprobs.is_some() {
            return Err(ApiError::field(
                "prompt_logprobs",
                "prompt_logprobs are not available in a stream; send stream false",
            ));
        }
        let variables = fields.variables(body);
        let documents = fields.documents.as_ref().map(|_| &body["documents"]);
        let text = render(
            &ChatPrompt {
                messages: &fields.messages,
                add_generation_prompt: fields.add_generation_prompt.map(|Flag(set)| set),
                continue_final_message: is_set(fields.continue_final_message),
                template_variables: Some(&variables),
                tools: tools.as_ref(),
                documents,
            },
            model,
        )?;
        // The template writes the special tokens itself.
        let token_ids = model.encode_prompt("messages", &text, is_set(fields.add_special_tokens))?;
        let mut prompt = Prompt {
            text: Some(text),
            token_ids,
        };
        if let Some(truncation) = truncation {
            truncation.apply(&mut prompt);
        }
        let default = model
            .defaults
            .max_new_tokens
            .map(|limit| u32::try_from(limit).unwrap_or(u32::MAX));
        let limit = TokenLimit {
            name,
            asked: asked_tokens.map(|Int(limit)| limit),
            default,
            prompt_field: "messages",
        };
        params.max_tokens = limit.fit(prompt.token_ids.len(), model.max_model_len)?;
        let role = fields.role(model);
        let as_ids = fields.return_tokens_as_token_ids.map(|Flag(set)| set);
        let format = ChatFormat {
            echo: fields.echoed(&role),
            role,
            top_logprobs: params.logprobs,
            tokens_as_ids: as_ids.unwrap_or(model.serving.return_tokens_as_token_ids),
            return_token_ids: is_set(fields.return_token_ids),
        };
        Ok(ChatRequest {
            prompt,
            params,
            streaming,
            format,
        })
    }
}

impl ChatFormat {
    /// The choice of a finished sample.
    pub fn choice(&self, index: usize, sample: &Sample, tokenizer: &halyard_text::Tokenizer) -> Value {
        let mut choice = json!({
            "index": index,
            "message": {"role": self.role, "content": format!("{}{}", self.echo, sample.text), "refusal": null},
            "logprobs": self.logprobs(&sample.logprobs, tokenizer),
        });
        finish_fields(&mut choice, sample.finish.as_ref());
        if self.return_token_ids {
            choice["token_ids"] = json!(sample.token_ids);
        }
        choice
    }

    /// What a finished answer carries beside its choices.
    pub fn extras(&self, answer: &mut Value, prompt: &Prompt, first: &Sample, tokenizer: &halyard_text::Tokenizer) {
        if let Some(entries) = &first.prompt_logprobs {
            answer["prompt_logprobs"] = prompt_logprobs(entries, tokenizer);
        }
        if self.return_token_ids {
            answer["prompt_token_ids"] = json!(prompt.token_ids);
        }
    }

    /// The choices that open a sample in a stream.
    pub fn opening(&self, index: usize) -> impl Iterator<Item = Value> {
        let choice = |delta: Value| json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null});
        let echo = (!self.echo.is_empty()).then(|| choice(json!({"content": self.echo})));
        std::iter::once(choice(json!({"role": self.role, "content": ""}))).chain(echo)
    }

    /// The choice of one piece of a stream; `None` when there is nothing to tell yet.
    pub fn piece(&self, index: usize, chunk: &OutputChunk, tokenizer: &halyard_text::Tokenizer) -> Option<Value> {
        let shows_tokens = (self.top_logprobs.is_some() || self.return_token_ids) && !chunk.token_ids.is_empty();
        if chunk.text.is_empty() && chunk.finish.is_none() && !shows_tokens {
            return None;
        }
        let delta = if chunk.text.is_empty() {
            json!({})
        } else {
            json!({"content": chunk.text})
        };
        let entries = chunk.logprobs.as_deref().unwrap_or_default();
        let mut choice = json!({"index": index, "delta": delta, "logprobs": self.logprobs(entries, tokenizer)});
        finish_fields(&mut choice, chunk.finish.as_ref());
        if self.return_token_ids {
            choice["token_ids"] = json!(chunk.token_ids);
        }
        Some(choice)
    }

    fn logprobs(&self, entries: &[halyard_engine::TokenLogprobs], tokenizer: &halyard_text::Tokenizer) -> Value {
        let Some(top) = self.top_logprobs else {
            return Value::Null;
        };
        let names = TokenNames {
            tokenizer,
            as_ids: self.tokens_as_ids,
        };
        let content: Vec<Value> = entries
            .iter()
            .map(|entry| chat_entry(entry, top as usize, names))
            .collect();
        json!({"content": content, "refusal": null})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continued_message_is_left_open() {
        let tagged = |content: Value| {
            let messages = [
                json!({"role": "user", "content": "Hi"}),
                json!({"role": "assistant", "content": content}),
            ];
            let messages = tag_final_message(&messages)?;
            let content = &messages[1]["content"];
            let text = content
                .as_str()
                .or_else(|| content[0]["text"].as_str())
                .expect("a text")
                .to_owned();
            Ok::<String, ApiError>(text)
        };
        // Its text also stands in the end-of-turn token behind it.
        let whole = format!(
            "<|im_start|>assistant\n{}<|im_end|>\n",
            tagged(json!("<")).expect("tagged")
        );
        assert_eq!(open_final_message(whole).expect("found"), "<|im_start|>assistant\n<");
        let whole = format!(
            "{}<|im_end|>",
            tagged(json!([{"type": "text", "text": "It is "}])).expect("tagged")
        );
        assert_eq!(
            open_final_message(whole).expect("found"),
            "It is ",
            "blanks stay where the template keeps them"
        );
        let whole = format!("{}<|im_end|>", tagged(json!("Sure, ")).expect("tagged").trim());
        assert_eq!(
            open_final_message(whole).expect("found"),
            "Sure,",
            "and go where it trims"
        );
        for lost in [
            open_final_message("not here".to_owned()),
            tagged(json!(" ")),
            tagged(json!(7)),
        ] {
            assert_eq!(lost.expect_err("lost").param.as_deref(), Some("continue_final_message"));
        }
    }
}
