//! Answers of `/v1/messages`: blocks of text, thinking and tool use, whole or as events that have names; and errors in
//! Anthropic's form.

use std::mem;

use halyard_engine::{FinishReason, SubmitError};
use serde::Serialize;
use serde_json::{Map, Value};

use super::answer::{Answer, Format, Piece};
use super::blocks::{Block, Blocks, Step};
use super::context;
use super::events::{Events, to_json};
use super::parsed_text::Reading;
use crate::api_error::ApiError;

/// Stands where Anthropic signs what its models thought. Clients want a text; nobody checks it here.
const SIGNATURE: &str = "unsigned";
/// Holds arguments that are no JSON object, by the name that Anthropic proposes for them.
const INVALID_JSON: &str = "INVALID_JSON";

/// How an answer is written.
pub struct MessagesFormat {
    /// How the text is read; `None`: all of it is the answer.
    reading: Option<Reading>,
    blocks: Blocks,
}

/// A whole message, or the beginning of one.
#[derive(Serialize)]
struct Message<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Content<'a>>,
    #[serde(flatten)]
    ending: Ending<'a>,
    usage: Usage,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Content<'a> {
    Text { text: &'a str },
    Thinking { thinking: &'a str, signature: &'static str },
    ToolUse { id: &'a str, name: &'a str, input: Value },
}

/// Why the answer ended; all null until then.
#[derive(Default, Serialize)]
struct Ending<'a> {
    stop_reason: Option<&'static str>,
    stop_sequence: Option<&'a str>,
}

/// Tokens of the prompt that the cache had do not count as input.
#[derive(Serialize)]
struct Usage {
    input_tokens: u64,
    cache_creation_input_tokens: u64,
    cache_read_input_tokens: u64,
    output_tokens: u64,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event<'a> {
    MessageStart { message: Message<'a> },
    Ping {},
    ContentBlockStart { index: usize, content_block: Content<'a> },
    ContentBlockDelta { index: usize, delta: Delta<'a> },
    ContentBlockStop { index: usize },
    MessageDelta { delta: Ending<'a>, usage: Usage },
    MessageStop {},
}

#[derive(Serialize)]
#[serde(tag = "type")]
enum Delta<'a> {
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "signature_delta")]
    Signature { signature: &'static str },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: &'a str },
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    error: ErrorObject<'a>,
}

#[derive(Serialize)]
struct ErrorObject<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    message: &'a str,
}

/// An error as a body.
pub fn write_error(error: &ApiError) -> String {
    let kind = match error.status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    };
    let body = ErrorBody {
        kind: "error",
        error: ErrorObject {
            kind,
            message: &error.message,
        },
    };
    to_json(&body).unwrap_or_default()
}

impl Event<'_> {
    fn name(&self) -> &'static str {
        match self {
            Event::MessageStart { .. } => "message_start",
            Event::Ping {} => "ping",
            Event::ContentBlockStart { .. } => "content_block_start",
            Event::ContentBlockDelta { .. } => "content_block_delta",
            Event::ContentBlockStop { .. } => "content_block_stop",
            Event::MessageDelta { .. } => "message_delta",
            Event::MessageStop {} => "message_stop",
        }
    }

    fn push(&self, events: &mut Events) {
        events.push_named(self.name(), self);
    }
}

/// The input of a call; its arguments under one name if they are no JSON object.
fn input(arguments: &str) -> Value {
    match serde_json::from_str(arguments) {
        Ok(input @ Value::Object(_)) => input,
        _ => Value::Object(Map::from_iter([(INVALID_JSON.to_owned(), Value::from(arguments))])),
    }
}

impl<'a> From<&'a Block> for Content<'a> {
    fn from(block: &'a Block) -> Self {
        match block {
            Block::Text(text) => Content::Text { text },
            Block::Reasoning(thinking) => Content::Thinking {
                thinking,
                signature: SIGNATURE,
            },
            Block::Call { id, name, arguments } => Content::ToolUse {
                id,
                name,
                input: input(arguments),
            },
        }
    }
}

/// Writes what happens to a block.
fn write_step(index: usize, step: &Step<'_>, events: &mut Events) {
    let event = match step {
        Step::Start(block) => Event::ContentBlockStart {
            index,
            content_block: match block {
                Block::Text(_) => Content::Text { text: "" },
                Block::Reasoning(_) => Content::Thinking {
                    thinking: "",
                    signature: "",
                },
                Block::Call { id, name, .. } => Content::ToolUse {
                    id,
                    name,
                    input: Value::Object(Map::new()),
                },
            },
        },
        Step::Grow(block, text) => Event::ContentBlockDelta {
            index,
            delta: match block {
                Block::Text(_) => Delta::Text { text },
                Block::Reasoning(_) => Delta::Thinking { thinking: text },
                Block::Call { .. } => Delta::InputJson { partial_json: text },
            },
        },
        Step::Stop(block, _) => {
            if let Block::Reasoning(_) = block {
                let delta = Delta::Signature { signature: SIGNATURE };
                Event::ContentBlockDelta { index, delta }.push(events);
            }
            Event::ContentBlockStop { index }
        }
    };
    event.push(events);
}

impl Usage {
    fn of(answer: &Answer) -> Usage {
        let usage = &answer.usage;
        let cached = usage.prompt_tokens_details.cached_tokens;
        Usage {
            input_tokens: usage.prompt_tokens.saturating_sub(cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            output_tokens: usage.completion_tokens,
        }
    }
}

impl MessagesFormat {
    /// A format for one answer.
    pub fn new(reading: Option<Reading>) -> Self {
        let blocks = Blocks::default();
        MessagesFormat { reading, blocks }
    }

    fn ending<'a>(&self, finish: Option<&'a FinishReason>) -> Ending<'a> {
        let call = self.blocks.last_call_is_whole();
        let (reason, sequence) = match finish {
            None => return Ending::default(),
            Some(FinishReason::Length) => ("max_tokens", None),
            // A stop string may also end a call.
            Some(FinishReason::StopString(text)) if call != Some(true) => ("stop_sequence", Some(text.as_str())),
            Some(_) if call.is_some() => ("tool_use", None),
            Some(_) => ("end_turn", None),
        };
        Ending {
            stop_reason: Some(reason),
            stop_sequence: sequence,
        }
    }
}

impl Format for MessagesFormat {
    fn refusal(&self, error: SubmitError) -> ApiError {
        context::refusal("messages", error)
    }

    fn reading(&self) -> Option<&Reading> {
        self.reading.as_ref()
    }

    fn piece(&mut self, answer: &Answer, mut piece: Piece<'_>, events: &mut Events) {
        if piece.is_first {
            let message = Message {
                usage: Usage {
                    output_tokens: 0,
                    ..Usage::of(answer)
                },
                ..message(answer, Vec::new(), Ending::default())
            };
            Event::MessageStart { message }.push(events);
            Event::Ping {}.push(events);
        }
        let mut write = |index, step: Step<'_>| write_step(index, &step, events);
        for delta in mem::take(&mut piece.deltas) {
            self.blocks.push(delta, &mut write);
        }
        if piece.finish.is_some() {
            self.blocks.fill(&mut write);
            self.blocks.end(true, &mut write);
            let event = Event::MessageDelta {
                delta: self.ending(piece.finish),
                usage: Usage::of(answer),
            };
            event.push(events);
        }
    }

    fn close(&mut self, _: &Answer, events: &mut Events) {
        Event::MessageStop {}.push(events);
    }

    fn failure(&mut self, _: &Answer, error: &ApiError) -> String {
        format!("event: error\ndata: {}\n\n", write_error(error))
    }

    fn whole(&mut self, answer: &Answer, pieces: Vec<Piece<'_>>) -> Result<String, ApiError> {
        let Some(mut piece) = pieces.into_iter().next() else {
            return Err(super::refusals::incomplete());
        };
        let mut blocks = self.blocks.collect(mem::take(&mut piece.deltas));
        if blocks.is_empty() {
            blocks.push(Block::Text(String::new()));
        }
        let content = blocks.iter().map(Content::from).collect();
        to_json(&message(answer, content, self.ending(piece.finish)))
    }
}

fn message<'a>(answer: &'a Answer, content: Vec<Content<'a>>, ending: Ending<'a>) -> Message<'a> {
    Message {
        id: &answer.id,
        kind: "message",
        role: "assistant",
        model: &answer.model,
        content,
        ending,
        usage: Usage::of(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;

    #[test]
    fn errors_have_anthropic_s_words() {
        for (status, expected) in [
            (400, "invalid_request_error"),
            (401, "authentication_error"),
            (404, "not_found_error"),
            (405, "invalid_request_error"),
            (413, "request_too_large"),
            (429, "rate_limit_error"),
            (500, "api_error"),
            (503, "overloaded_error"),
        ] {
            let status = StatusCode::from_u16(status).expect("a status");
            let text = write_error(&ApiError::new(status, "m"));
            let expected = format!(r#"{{"type":"error","error":{{"type":"{expected}","message":"m"}}}}"#);
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn arguments_that_are_no_object_keep_their_text() {
        assert_eq!(input(r#"{"b": 1, "a": 2.50}"#).to_string(), r#"{"b":1,"a":2.5}"#);
        for text in ["{\"city\": \"Be", "", "[]", "5"] {
            assert_eq!(input(text)[INVALID_JSON], text);
        }
    }
}
