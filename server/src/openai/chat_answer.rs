//! Answers of `/v1/chat/completions`: reasoning, text and tool calls as messages, or as the deltas that OpenAI's
//! clients add up.

use std::collections::HashSet;

use halyard_engine::{FinishReason, SubmitError, TokenLogprobs};
use serde::Serialize;

use super::answer::{Answer, Format, Piece};
use super::context;
use super::envelope::{Chunk, StopReason, Whole, close};
use super::events::{Events, to_json};
use super::logprobs::{ChatLogprobs, PromptLogprobs, TokenNames};
use super::parsed_text::Reading;
use super::shaper::Delta;
use crate::api_error::ApiError;

/// How a chat's answer is written.
#[derive(Default)]
pub struct ChatFormat {
    /// The role of the answer.
    pub role: String,
    /// The text before that of each sample.
    pub echo: String,
    /// Alternatives a position when log-probabilities were asked.
    pub top_logprobs: Option<u32>,
    /// Tokens as `token_id:17`.
    pub tokens_as_ids: bool,
    /// Token ids together with the text.
    pub return_token_ids: bool,
    /// How the text is read; `None`: all of it is content.
    pub reading: Option<Reading>,
    /// Choices of a stream that have called a tool.
    pub callers: HashSet<usize>,
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
    /// null where a parser found none.
    content: Option<String>,
    /// OpenAI's place for a refusal: null.
    refusal: Option<()>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
    /// Absent where reasoning is not kept apart; null where there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<Option<String>>,
}

/// A call, whole.
#[derive(Serialize)]
struct ToolCall {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    function: FunctionCall,
}

#[derive(Serialize)]
struct FunctionCall {
    name: String,
    arguments: String,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[ToolCallDelta; 1]>,
}

/// The new part of a call: first id and name, then pieces of its arguments.
#[derive(Serialize)]
struct ToolCallDelta {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: FunctionDelta,
}

#[derive(Serialize)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

const CHUNK: &str = "chat.completion.chunk";
const FUNCTION: &str = "function";

/// A delta on the wire; the end of a call is none.
fn written(delta: Delta) -> Option<ChatDelta<'static>> {
    let call = |index, id, name, arguments| ChatDelta {
        tool_calls: Some([ToolCallDelta {
            index,
            kind: Option::is_some(&id).then_some(FUNCTION),
            id,
            function: FunctionDelta { name, arguments },
        }]),
        ..ChatDelta::default()
    };
    match delta {
        Delta::Text(text) => Some(ChatDelta {
            content: Some(text),
            ..ChatDelta::default()
        }),
        Delta::Reasoning(text) => Some(ChatDelta {
            reasoning: Some(text),
            ..ChatDelta::default()
        }),
        Delta::CallStart { index, id, name } => Some(call(index, Some(id), Some(name), String::new())),
        Delta::Arguments { index, text } => Some(call(index, None, None, text)),
        Delta::CallEnd { .. } => None,
    }
}

/// A choice whose model ended by itself, after calls that it chose, waits for their results. One that was cut says so.
fn finish_reason(finish: Option<&FinishReason>, has_called: bool) -> Option<&'static str> {
    match finish.map(FinishReason::as_openai) {
        Some("stop") if has_called => Some("tool_calls"),
        reason => reason,
    }
}

impl ChatFormat {
    /// The parts before the text: the role, then the echo.
    fn open(&self, answer: &Answer, piece: &Piece<'_>, events: &mut Events) {
        let role = ChatDelta {
            role: Some(&self.role),
            content: Some(String::new()),
            ..ChatDelta::default()
        };
        let echo = (!self.echo.is_empty()).then(|| ChatDelta {
            content: Some(self.echo.clone()),
            ..ChatDelta::default()
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

    fn choice<'a>(&'a self, answer: &Answer, piece: Piece<'a>) -> ChatChoice<'a> {
        let mut content = self.echo.clone();
        let mut reasoning = String::new();
        let mut tool_calls: Vec<ToolCall> = Vec::new();
        for delta in piece.deltas {
            match delta {
                Delta::Text(text) => content.push_str(&text),
                Delta::Reasoning(text) => reasoning.push_str(&text),
                Delta::CallStart { id, name, .. } => tool_calls.push(ToolCall {
                    id,
                    kind: FUNCTION,
                    function: FunctionCall {
                        name,
                        arguments: String::new(),
                    },
                }),
                Delta::Arguments { text, .. } => {
                    if let Some(call) = tool_calls.last_mut() {
                        call.function.arguments.push_str(&text);
                    }
                }
                Delta::CallEnd { .. } => {}
            }
        }
        let reasoning = (!reasoning.is_empty()).then_some(reasoning);
        let is_apart = self.reading.as_ref().is_some_and(Reading::has_reasoning);
        ChatChoice {
            index: piece.index,
            finish_reason: finish_reason(piece.finish, self.chooses() && !tool_calls.is_empty()),
            message: ChatMessage {
                role: &self.role,
                content: (!content.is_empty() || self.reading.is_none()).then_some(content),
                refusal: None,
                tool_calls,
                reasoning: (is_apart || reasoning.is_some()).then_some(reasoning),
            },
            logprobs: self.logprobs(answer, piece.logprobs),
            stop_reason: StopReason::of(piece.finish),
            token_ids: self.shows_ids().then_some(piece.token_ids),
        }
    }

    fn logprobs(&self, answer: &Answer, entries: &[TokenLogprobs]) -> Option<ChatLogprobs> {
        let names = TokenNames {
            tokenizer: &answer.tokenizer,
            as_ids: self.tokens_as_ids,
        };
        let top = self.top_logprobs.filter(|_| !self.hides_reasoning());
        top.map(|top| ChatLogprobs::new(entries, top, names))
    }

    /// Whether the model chose what it called.
    fn chooses(&self) -> bool {
        !self.reading.as_ref().is_some_and(Reading::is_named)
    }

    fn shows_ids(&self) -> bool {
        self.return_token_ids && !self.hides_reasoning()
    }

    /// Tokens would tell what is hidden.
    fn hides_reasoning(&self) -> bool {
        self.reading.as_ref().is_some_and(Reading::hides_reasoning)
    }
}

impl Format for ChatFormat {
    fn refusal(&self, error: SubmitError) -> ApiError {
        context::refusal("messages", error)
    }

    fn reading(&self) -> Option<&Reading> {
        self.reading.as_ref()
    }

    fn counts_reasoning(&self) -> bool {
        self.reading.as_ref().is_some_and(Reading::has_reasoning)
    }

    /// An event for each delta. The last one has the tokens and the end.
    fn piece(&mut self, answer: &Answer, mut piece: Piece<'_>, events: &mut Events) {
        if piece.is_first {
            self.open(answer, &piece, events);
        }
        let deltas = std::mem::take(&mut piece.deltas);
        if deltas.iter().any(|delta| matches!(delta, Delta::CallStart { .. })) {
            self.callers.insert(piece.index);
        }
        let mut deltas: Vec<ChatDelta<'_>> = deltas.into_iter().filter_map(written).collect();
        let logprobs = self.logprobs(answer, piece.logprobs);
        let shows_tokens = (logprobs.is_some() || self.shows_ids()) && !piece.token_ids.is_empty();
        if deltas.is_empty() && piece.finish.is_none() && !shows_tokens {
            return;
        }
        let last = deltas.pop().unwrap_or_default();
        for delta in deltas {
            let choice = ChatChunkChoice {
                index: piece.index,
                delta,
                logprobs: None,
                finish_reason: None,
                stop_reason: Some(None),
                token_ids: None,
            };
            events.push(&Chunk::new(answer, CHUNK, &choice, false));
        }
        let choice = ChatChunkChoice {
            index: piece.index,
            delta: last,
            logprobs,
            finish_reason: finish_reason(piece.finish, self.chooses() && self.callers.contains(&piece.index)),
            stop_reason: Some(StopReason::of(piece.finish)),
            token_ids: self.shows_ids().then_some(piece.token_ids),
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
    use crate::openai::prompt::Prompt;
    use crate::openai::shaper::Shaper;
    use crate::openai::usage::{Streaming, Usage};
    use halyard_engine::OutputChunk;
    use halyard_text::Tokenizer;
    use serde_json::{Value, json};
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
            ..ChatFormat::default()
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
