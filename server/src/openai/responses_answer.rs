//! Answers of `/v1/responses`: reasoning, messages and calls as items, whole or as numbered events.

use std::mem;

use halyard_engine::{FinishReason, SubmitError};
use serde::Serialize;
use serde_json::{Map, Value};

use super::answer::{Answer, Format, Piece, Stage};
use super::blocks::{Block, Blocks, OnStep, Step};
use super::context;
use super::events::{Events, to_json};
use super::parsed_text::Reading;
use super::refusals::incomplete;
use super::shaper::Delta;
use crate::api_error::ApiError;

/// What an answer repeats of its request.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Echo {
    /// As sent.
    pub instructions: Option<String>,
    /// As sent.
    pub max_output_tokens: Option<i64>,
    /// As sent.
    pub metadata: Map<String, Value>,
    /// As understood.
    pub parallel_tool_calls: bool,
    /// As sent.
    pub prompt_cache_key: Value,
    /// The effort.
    pub reasoning: Value,
    /// As sent.
    pub safety_identifier: Value,
    /// As used.
    pub temperature: f32,
    /// The format.
    pub text: Value,
    /// As sent, or "auto".
    pub tool_choice: Value,
    /// As sent.
    pub tools: Value,
    /// As used.
    pub top_p: f32,
    /// As sent.
    pub user: Value,
    /// What has to do with stored responses.
    #[serde(skip)]
    pub stored: Stored,
}

/// What an answer says about the store.
#[derive(Clone, Debug, Default)]
pub struct Stored {
    /// Whether the client does not wait for it.
    pub background: bool,
    /// The response that it goes on from.
    pub previous_response_id: Option<String>,
    /// Whether it is stored.
    pub store: bool,
}

/// What has to do with the store, and fields that are the same in each answer: what is not served.
#[derive(Serialize)]
struct Rest<'a> {
    background: bool,
    max_tool_calls: Option<u32>,
    previous_response_id: Option<&'a str>,
    service_tier: &'static str,
    store: bool,
    top_logprobs: u32,
    truncation: &'static str,
}

impl Rest<'_> {
    fn of(stored: &Stored) -> Rest<'_> {
        Rest {
            background: stored.background,
            max_tool_calls: None,
            previous_response_id: stored.previous_response_id.as_deref(),
            service_tier: "default",
            store: stored.store,
            top_logprobs: 0,
            truncation: "disabled",
        }
    }
}

/// How an answer is written.
pub struct ResponsesFormat {
    echo: Echo,
    /// How the text is read; `None`: all of it is the answer.
    reading: Option<Reading>,
    blocks: Blocks,
    /// Items of a stream that have ended, and whether they are whole.
    ended: Vec<(Block, bool)>,
    /// Events of a stream.
    num_events: u64,
    /// How the answer has ended.
    status: Option<Status>,
}

/// An answer as it is now.
#[derive(Serialize)]
struct Response<'a> {
    id: &'a str,
    object: &'static str,
    created_at: u64,
    status: Status,
    error: Option<Failure<'a>>,
    incomplete_details: Option<Incomplete>,
    model: &'a str,
    output: Vec<Item<'a>>,
    #[serde(flatten)]
    echo: &'a Echo,
    #[serde(flatten)]
    rest: Rest<'a>,
    usage: Option<Usage>,
}

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    Queued,
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

#[derive(Serialize)]
struct Failure<'a> {
    code: &'static str,
    message: &'a str,
}

#[derive(Serialize)]
struct Incomplete {
    reason: &'static str,
}

#[derive(Serialize)]
struct Usage {
    input_tokens: u64,
    input_tokens_details: InputDetails,
    output_tokens: u64,
    output_tokens_details: OutputDetails,
    total_tokens: u64,
}

#[derive(Serialize)]
struct InputDetails {
    cached_tokens: u64,
}

#[derive(Serialize)]
struct OutputDetails {
    reasoning_tokens: u64,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Item<'a> {
    Message {
        id: String,
        status: Status,
        role: &'static str,
        content: Vec<Part<'a>>,
    },
    Reasoning {
        id: String,
        status: Status,
        summary: [(); 0],
        content: Vec<Part<'a>>,
        encrypted_content: Option<()>,
    },
    FunctionCall {
        id: String,
        status: Status,
        call_id: &'a str,
        name: &'a str,
        arguments: &'a str,
    },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part<'a> {
    OutputText {
        text: &'a str,
        annotations: [(); 0],
        logprobs: [(); 0],
    },
    ReasoningText {
        text: &'a str,
    },
}

/// An event on the wire.
#[derive(Serialize)]
struct Numbered<'a, T> {
    #[serde(rename = "type")]
    kind: &'static str,
    sequence_number: u64,
    #[serde(flatten)]
    event: &'a T,
}

#[derive(Serialize)]
struct OfResponse<'a> {
    response: Response<'a>,
}

#[derive(Serialize)]
struct OfItem<'a> {
    output_index: usize,
    item: Item<'a>,
}

/// The parts of an item; there is one part at most.
#[derive(Serialize)]
struct OfPart<'a> {
    item_id: String,
    output_index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<Part<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a str>,
    /// Those of a text: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<[(); 0]>,
}

/// An item's id: that of its answer with another beginning, and the item's number.
fn item_id(answer: &Answer, index: usize, block: &Block) -> String {
    let prefix = match block {
        Block::Text(_) => "msg",
        Block::Reasoning(_) => "rs",
        Block::Call { .. } => "fc",
    };
    let own = answer.id.strip_prefix("resp_").unwrap_or(&answer.id);
    format!("{prefix}_{own}_{index}")
}

/// The part of a block with this text; a call has none.
fn part<'a>(block: &Block, text: &'a str) -> Option<Part<'a>> {
    match block {
        Block::Text(_) => Some(Part::OutputText {
            text,
            annotations: [],
            logprobs: [],
        }),
        Block::Reasoning(_) => Some(Part::ReasoningText { text }),
        Block::Call { .. } => None,
    }
}

/// An item; `None`: it begins.
fn item<'a>(answer: &Answer, index: usize, block: &'a Block, is_whole: Option<bool>) -> Item<'a> {
    let id = item_id(answer, index, block);
    let status = match is_whole {
        None => Status::InProgress,
        Some(true) => Status::Completed,
        Some(false) => Status::Incomplete,
    };
    let parts = |text| is_whole.and(part(block, text)).into_iter().collect();
    match block {
        Block::Text(text) => Item::Message {
            id,
            status,
            role: "assistant",
            content: parts(text),
        },
        Block::Reasoning(text) => Item::Reasoning {
            id,
            status,
            summary: [],
            content: parts(text),
            encrypted_content: None,
        },
        Block::Call {
            id: call_id,
            name,
            arguments,
        } => Item::FunctionCall {
            id,
            status,
            call_id,
            name,
            arguments,
        },
    }
}

impl Failure<'_> {
    fn of(error: &ApiError) -> Failure<'_> {
        Failure {
            code: "server_error",
            message: &error.message,
        }
    }
}

impl Usage {
    fn of(answer: &Answer) -> Usage {
        let usage = &answer.usage;
        let details = usage.completion_tokens_details.as_ref();
        Usage {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputDetails {
                cached_tokens: usage.prompt_tokens_details.cached_tokens,
            },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputDetails {
                reasoning_tokens: details.map_or(0, |details| details.reasoning_tokens),
            },
            total_tokens: usage.total_tokens,
        }
    }
}

/// Numbers events.
struct Writer<'a> {
    events: &'a mut Events,
    num_events: &'a mut u64,
}

impl Writer<'_> {
    fn push(&mut self, kind: &'static str, event: &impl Serialize) {
        let sequence_number = *self.num_events;
        *self.num_events += 1;
        let numbered = Numbered {
            kind,
            sequence_number,
            event,
        };
        self.events.push_named(kind, &numbered);
    }

    /// What happens to an item.
    fn step(&mut self, answer: &Answer, index: usize, step: &Step<'_>) {
        let of_item = |block, is_whole| OfItem {
            output_index: index,
            item: item(answer, index, block, is_whole),
        };
        let of_part = |block: &Block| OfPart {
            item_id: item_id(answer, index, block),
            output_index: index,
            content_index: (!matches!(block, Block::Call { .. })).then_some(0),
            part: None,
            delta: None,
            text: None,
            name: None,
            arguments: None,
            logprobs: matches!(block, Block::Text(_)).then_some([]),
        };
        let with_part = |block: &Block, text| OfPart {
            part: part(block, text),
            logprobs: None,
            ..of_part(block)
        };
        match *step {
            Step::Start(block) => {
                self.push("response.output_item.added", &of_item(block, None));
                if !matches!(block, Block::Call { .. }) {
                    self.push("response.content_part.added", &with_part(block, ""));
                }
            }
            Step::Grow(block, text) => {
                let kind = match block {
                    Block::Text(_) => "response.output_text.delta",
                    Block::Reasoning(_) => "response.reasoning_text.delta",
                    Block::Call { .. } => "response.function_call_arguments.delta",
                };
                let delta = Some(text);
                self.push(
                    kind,
                    &OfPart {
                        delta,
                        ..of_part(block)
                    },
                );
            }
            Step::Stop(block, is_whole) => {
                match block {
                    Block::Text(text) | Block::Reasoning(text) => {
                        let kind = match block {
                            Block::Text(_) => "response.output_text.done",
                            _ => "response.reasoning_text.done",
                        };
                        let done = OfPart {
                            text: Some(text),
                            ..of_part(block)
                        };
                        self.push(kind, &done);
                        self.push("response.content_part.done", &with_part(block, text));
                    }
                    Block::Call { name, arguments, .. } => {
                        let done = OfPart {
                            name: Some(name),
                            arguments: Some(arguments),
                            ..of_part(block)
                        };
                        self.push("response.function_call_arguments.done", &done);
                    }
                }
                self.push("response.output_item.done", &of_item(block, Some(is_whole)));
            }
        }
    }
}

impl ResponsesFormat {
    /// A format for one answer.
    pub fn new(echo: Echo, reading: Option<Reading>) -> Self {
        ResponsesFormat {
            echo,
            reading,
            blocks: Blocks::default(),
            ended: Vec::new(),
            num_events: 0,
            status: None,
        }
    }

    /// The answer with the items that have ended.
    fn response<'a>(&'a self, answer: &'a Answer, status: Status) -> Response<'a> {
        let items = self.ended.iter().enumerate();
        let incomplete_details = matches!(status, Status::Incomplete).then_some(Incomplete {
            reason: "max_output_tokens",
        });
        Response {
            id: &answer.id,
            object: "response",
            created_at: answer.created,
            status,
            error: None,
            incomplete_details,
            model: &answer.model,
            output: items
                .map(|(index, (block, is_whole))| item(answer, index, block, Some(*is_whole)))
                .collect(),
            echo: &self.echo,
            rest: Rest::of(&self.echo.stored),
            usage: (!matches!(status, Status::Queued | Status::InProgress)).then(|| Usage::of(answer)),
        }
    }

    /// Adds an event about the whole answer.
    fn tell(
        &mut self,
        kind: &'static str,
        answer: &Answer,
        (status, error): (Status, Option<&ApiError>),
        to: &mut Events,
    ) {
        let mut num_events = self.num_events;
        let mut response = self.response(answer, status);
        response.error = error.map(Failure::of);
        let mut writer = Writer {
            events: to,
            num_events: &mut num_events,
        };
        writer.push(kind, &OfResponse { response });
        self.num_events = num_events;
    }

    fn begin(&mut self, answer: &Answer, events: &mut Events) {
        for kind in ["response.created", "response.in_progress"] {
            self.tell(kind, answer, (Status::InProgress, None), events);
        }
    }

    /// Puts deltas together; `finish`: they are the last ones.
    fn take(&mut self, deltas: Vec<Delta>, finish: Option<&FinishReason>, on_step: OnStep<'_>) {
        let ended = &mut self.ended;
        let mut keep = |index: usize, step: Step<'_>| {
            if let Step::Stop(block, is_whole) = step {
                ended.push((block.clone(), is_whole));
            }
            on_step(index, step);
        };
        for delta in deltas {
            self.blocks.push(delta, &mut keep);
        }
        if let Some(finish) = finish {
            self.blocks.fill(&mut keep);
            self.blocks.end(*finish != FinishReason::Length, &mut keep);
            self.status = Some(status(Some(finish)));
        }
    }
}

fn status(finish: Option<&FinishReason>) -> Status {
    match finish {
        Some(FinishReason::Length) => Status::Incomplete,
        _ => Status::Completed,
    }
}

impl Format for ResponsesFormat {
    fn refusal(&self, error: SubmitError) -> ApiError {
        context::refusal("input", error)
    }

    fn reading(&self) -> Option<&Reading> {
        self.reading.as_ref()
    }

    fn counts_reasoning(&self) -> bool {
        self.reading.as_ref().is_some_and(Reading::has_reasoning)
    }

    fn piece(&mut self, answer: &Answer, mut piece: Piece<'_>, events: &mut Events) {
        if piece.is_first {
            self.begin(answer, events);
        }
        let mut num_events = self.num_events;
        let mut writer = Writer {
            events: &mut *events,
            num_events: &mut num_events,
        };
        let deltas = mem::take(&mut piece.deltas);
        self.take(deltas, piece.finish, &mut |index, step| {
            writer.step(answer, index, &step)
        });
        self.num_events = num_events;
        if piece.finish.is_some() {
            let status = status(piece.finish);
            let kind = match status {
                Status::Incomplete => "response.incomplete",
                _ => "response.completed",
            };
            self.tell(kind, answer, (status, None), events);
        }
    }

    /// The last piece has told the end.
    fn close(&mut self, _: &Answer, _: &mut Events) {}

    fn failure(&mut self, answer: &Answer, error: &ApiError) -> String {
        let mut events = Events::default();
        if self.num_events == 0 {
            self.begin(answer, &mut events);
        }
        self.tell("response.failed", answer, (Status::Failed, Some(error)), &mut events);
        events.into_text()
    }

    fn snapshot(&self, answer: &Answer, stage: Stage<'_>) -> Option<String> {
        let (status, error) = match stage {
            Stage::Queued => (Status::Queued, None),
            Stage::InProgress => (Status::InProgress, None),
            Stage::Over(Some(error)) => (Status::Failed, Some(error)),
            Stage::Over(None) => (self.status?, None),
        };
        let mut response = self.response(answer, status);
        response.error = error.map(Failure::of);
        to_json(&response).ok()
    }

    fn whole(&mut self, answer: &Answer, pieces: Vec<Piece<'_>>) -> Result<String, ApiError> {
        let mut piece = pieces.into_iter().next().ok_or_else(incomplete)?;
        self.take(mem::take(&mut piece.deltas), piece.finish, &mut |_, _| {});
        to_json(&self.response(answer, status(piece.finish)))
    }
}
