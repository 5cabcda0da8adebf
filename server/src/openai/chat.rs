//! `/v1/chat/completions`: messages become a prompt by the model's template, samples become messages or deltas.

use halyard_engine::{FinishReason, SubmitError, TokenLogprobs};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::answer::{Answer, Format, Piece};
use super::api::{Api, Generation};
use super::body::Body;
use super::chat_prompt::{ChatPrompt, render};
use super::context::{self, TokenLimit};
use super::envelope::{Chunk, StopReason, Whole, close};
use super::events::{Events, to_json};
use super::lenient::{Flag, Int, is_set};
use super::logprobs::{ChatLogprobs, PromptLogprobs, TokenNames};
use super::model::ModelContext;
use super::prompt::Prompt;
use super::sampling::num_logprobs;
use super::shared::Shared;
use super::tools::{self, ToolFields};
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

/// Reads and checks a body.
///
/// # Errors
/// 400 that names the first field that is wrong.
fn read(body: &mut Body, model: ModelContext<'_>) -> Result<Generation, ApiError> {
    unsupported::refuse(body)?;
    let tools = tools::read(&body.take::<ToolFields>()?)?;
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
    };
    let mut prompt = fields.prompt(tools.as_ref(), model)?;
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

/// How a chat's answer is written.
struct ChatFormat {
    /// The role of the answer.
    role: String,
    /// The text before that of each sample.
    echo: String,
    /// Alternatives a position when log-probabilities were asked.
    top_logprobs: Option<u32>,
    /// Tokens as `token_id:17`.
    tokens_as_ids: bool,
    /// Token ids together with the text.
    return_token_ids: bool,
}

/// A choice of a whole answer.
#[derive(Serialize)]
struct ChatChoice<'a> {
    index: usize,
    message: ChatMessage<'a>,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
}

#[derive(Serialize)]
struct ChatMessage<'a> {
    role: &'a str,
    content: String,
    /// OpenAI's place for a refusal: null.
    refusal: Option<()>,
}

/// A choice of a piece.
#[derive(Serialize)]
struct ChatChunkChoice<'a> {
    index: usize,
    delta: ChatDelta<'a>,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    /// Absent before the first text.
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<Option<StopReason>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
}

/// The new part of a message.
#[derive(Default, Serialize)]
struct ChatDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

const CHUNK: &str = "chat.completion.chunk";

impl ChatFormat {
    /// The parts before the text: the role, then the echo.
    fn open(&self, answer: &Answer, piece: &Piece<'_>, events: &mut Events) {
        let role = ChatDelta {
            role: Some(&self.role),
            content: Some(String::new()),
        };
        let echo = (!self.echo.is_empty()).then(|| ChatDelta {
            role: None,
            content: Some(self.echo.clone()),
        });
        let mut ids = self.return_token_ids.then_some(&piece.prompt.token_ids[..]);
        for delta in [Some(role), echo].into_iter().flatten() {
            let choice = ChatChunkChoice {
                index: piece.index,
                delta,
                logprobs: None,
                finish_reason: None,
                stop_reason: None,
                token_ids: None,
            };
            let mut chunk = Chunk::new(answer, CHUNK, &choice, false);
            chunk.prompt_token_ids = ids.take();
            events.push(&chunk);
        }
    }

    fn choice<'a>(&'a self, answer: &Answer, mut piece: Piece<'a>) -> ChatChoice<'a> {
        ChatChoice {
            index: piece.index,
            message: ChatMessage {
                role: &self.role,
                content: format!("{}{}", self.echo, piece.take_text()),
                refusal: None,
            },
            logprobs: self.logprobs(answer, piece.logprobs),
            finish_reason: piece.finish.map(FinishReason::as_openai),
            stop_reason: StopReason::of(piece.finish),
            token_ids: self.return_token_ids.then_some(piece.token_ids),
        }
    }

    fn logprobs(&self, answer: &Answer, entries: &[TokenLogprobs]) -> Option<ChatLogprobs> {
        let names = TokenNames {
            tokenizer: &answer.tokenizer,
            as_ids: self.tokens_as_ids,
        };
        self.top_logprobs.map(|top| ChatLogprobs::new(entries, top, names))
    }
}

impl Format for ChatFormat {
    fn refusal(&self, error: SubmitError) -> ApiError {
        match error {
            SubmitError::PromptTooLong { found, limit } => context::prompt_too_long("messages", limit, found),
            error => error.into(),
        }
    }

    fn piece(&mut self, answer: &Answer, mut piece: Piece<'_>, events: &mut Events) {
        if piece.is_first {
            self.open(answer, &piece, events);
        }
        let shows_tokens = (self.top_logprobs.is_some() || self.return_token_ids) && !piece.token_ids.is_empty();
        if piece.deltas.is_empty() && piece.finish.is_none() && !shows_tokens {
            return;
        }
        let text = piece.take_text();
        let choice = ChatChunkChoice {
            index: piece.index,
            delta: ChatDelta {
                role: None,
                content: (!text.is_empty()).then_some(text),
            },
            logprobs: self.logprobs(answer, piece.logprobs),
            finish_reason: piece.finish.map(FinishReason::as_openai),
            stop_reason: Some(StopReason::of(piece.finish)),
            token_ids: self.return_token_ids.then_some(piece.token_ids),
        };
        events.push(&Chunk::new(answer, CHUNK, &choice, piece.finish.is_some()));
    }

    fn close(&mut self, answer: &Answer, events: &mut Events) {
        close(answer, CHUNK, events);
    }

    fn whole(&mut self, answer: &Answer, pieces: Vec<Piece<'_>>) -> Result<String, ApiError> {
        let entries = pieces.first().and_then(|first| first.prompt_logprobs);
        let choices = pieces.into_iter().map(|piece| self.choice(answer, piece));
        let mut whole = Whole::new(answer, "chat.completion", choices.collect());
        whole.prompt_logprobs = entries.map(|entries| PromptLogprobs::new(entries, &answer.tokenizer));
        whole.prompt_token_ids = self.return_token_ids.then_some(&answer.prompts[0].token_ids);
        to_json(&whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::answer::AnswerWriter;
    use crate::openai::shaper::{Delta, Shaper};
    use crate::openai::usage::{Streaming, Usage};
    use halyard_engine::OutputChunk;
    use halyard_text::Tokenizer;
    use std::path::Path;

    /// Drops the text between two tags, and holds back text that may be the beginning of a tag.
    #[derive(Default)]
    struct WithoutThoughts {
        held: String,
        thinks: bool,
    }

    impl Shaper for WithoutThoughts {
        fn push(&mut self, text: String, _: &[u32]) -> Vec<Delta> {
            self.held.push_str(&text);
            let mut deltas = Vec::new();
            loop {
                let tag = if self.thinks { "</t>" } else { "<t>" };
                let found = self.held.find(tag);
                let may_begin = |at: &usize| tag.starts_with(&self.held[*at..]);
                let end = found.or_else(|| (0..self.held.len()).find(may_begin));
                let rest = self.held.split_off(end.unwrap_or(self.held.len()));
                let known = std::mem::replace(&mut self.held, rest);
                if !self.thinks && !known.is_empty() {
                    deltas.push(Delta::Text(known));
                }
                if found.is_none() {
                    return deltas;
                }
                self.held.drain(..tag.len());
                self.thinks = !self.thinks;
            }
        }

        fn finish(&mut self) -> Vec<Delta> {
            let held = std::mem::take(&mut self.held);
            (!self.thinks && !held.is_empty())
                .then_some(Delta::Text(held))
                .into_iter()
                .collect()
        }
    }

    /// A chat whose choices have that shaper.
    struct Shaped(ChatFormat);

    impl Format for Shaped {
        fn shaper(&self) -> Box<dyn Shaper> {
            Box::<WithoutThoughts>::default()
        }

        fn piece(&mut self, answer: &Answer, piece: Piece<'_>, events: &mut Events) {
            self.0.piece(answer, piece, events);
        }

        fn close(&mut self, answer: &Answer, events: &mut Events) {
            self.0.close(answer, events);
        }

        fn whole(&mut self, answer: &Answer, pieces: Vec<Piece<'_>>) -> Result<String, ApiError> {
            self.0.whole(answer, pieces)
        }
    }

    fn writer() -> AnswerWriter {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let tokenizer = here.join("../tests/fixtures/models/llama/tokenizer.json");
        let answer = Answer {
            id: "1".to_owned(),
            model: "m".to_owned(),
            created: 0,
            fingerprint: "f".to_owned(),
            prompts: vec![Prompt {
                text: None,
                token_ids: vec![5],
            }],
            streaming: Streaming::default(),
            usage: Usage::default(),
            tokenizer: Tokenizer::from_file(&tokenizer).expect("the fixture"),
        };
        let format = ChatFormat {
            role: "assistant".to_owned(),
            echo: String::new(),
            top_logprobs: None,
            tokens_as_ids: false,
            return_token_ids: false,
        };
        AnswerWriter::new(answer, Box::new(Shaped(format)), 2)
    }

    /// Two samples whose chunks alternate; the second one ends within what may be a tag.
    fn chunks() -> Vec<OutputChunk> {
        let texts = ["a<", "x<t>y", "t>b<", "z</", "/t>c", "t>w<"];
        let chunk = |(position, text): (usize, &str)| OutputChunk {
            index: position as u32 % 2,
            text: text.to_owned(),
            token_ids: vec![7],
            logprobs: None,
            prompt_logprobs: None,
            hidden_state: None,
            num_cached_tokens: 0,
            finish: (position >= 4).then_some(FinishReason::Length),
        };
        texts.into_iter().enumerate().map(chunk).collect()
    }

    #[test]
    fn each_choice_has_a_shaper_of_its_own_that_may_hold_text_back() {
        let mut writer = writer();
        let events = chunks().into_iter().map(|chunk| writer.push(0, chunk));
        let read = |event: &str| serde_json::from_str::<Value>(event.strip_prefix("data: ")?).ok();
        let contents = |events: String| {
            let values: Vec<Value> = events.split("\n\n").filter_map(read).collect();
            let of = |value: &Value| value["choices"][0]["delta"]["content"].clone();
            values.iter().map(of).collect::<Vec<_>>()
        };
        let sent: Vec<Vec<Value>> = events.map(contents).collect();
        let expected = [
            json!(["", "a"]),
            json!(["", "x"]),
            json!([]),
            json!([]),
            json!(["c"]),
            json!(["w<"]),
        ];
        assert_eq!(json!(sent), json!(expected));
        assert_eq!(writer.close(), "data: [DONE]\n\n");
    }

    #[test]
    fn a_whole_answer_is_shaped_as_its_stream_is() {
        let mut writer = writer();
        for chunk in chunks() {
            writer.collect(0, chunk);
        }
        let whole: Value = serde_json::from_str(&writer.whole().expect("JSON")).expect("JSON");
        let contents = whole["choices"].as_array().expect("a list").iter();
        let contents: Vec<&Value> = contents.map(|choice| &choice["message"]["content"]).collect();
        assert_eq!(contents, [&json!("ac"), &json!("xw<")]);
        assert_eq!(whole["usage"]["completion_tokens"], 6);
    }

    #[test]
    fn an_answer_whose_choices_did_not_all_end_is_an_error() {
        let mut streamed = writer();
        let mut collected = writer();
        for chunk in chunks().into_iter().take(5) {
            streamed.push(0, chunk.clone());
            collected.collect(0, chunk);
        }
        assert!(streamed.close().contains("engine_dead"));
        let error = collected.collected_texts().err().expect("a choice has no end");
        assert_eq!(error.code, Some("engine_dead"));
    }
}
