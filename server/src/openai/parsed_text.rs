//! A choice's text as its parser understands it: reasoning, text and tool calls as deltas. What a request asks of that
//! is a [`Reading`]; the deltas know no API.

use std::sync::Arc;

use halyard_text::{AnswerEvent, AnswerParser, ToolTypes};
use rand::Rng;
use rand::distr::Alphanumeric;
use serde_json::Value;

use super::parsers::{AnswerWay, Parsers};
use super::shaper::{Delta, Shaper};
use super::tools::{AskedTools, ToolChoice};

/// How a request's answers are read.
#[derive(Clone, Debug)]
pub struct Reading {
    way: Arc<AnswerWay>,
    /// At the start of the answer.
    parser: AnswerParser,
    shows_reasoning: bool,
    /// Whether calls after the first one are given.
    is_parallel: bool,
}

/// What a request says about its answers' reading.
#[derive(Clone, Copy, Debug)]
pub struct ReadingFields<'a> {
    /// Its tools.
    pub tools: &'a AskedTools,
    /// Whether reasoning is given.
    pub shows_reasoning: bool,
    /// The prompt, as the template made it.
    pub prompt: &'a str,
    /// The beginning of the answer that stands at the prompt's end already; mostly nothing.
    pub begun: &'a str,
}

impl Reading {
    /// The reading that a request asks for; `None`: all text is the answer's.
    pub fn new(asked: ReadingFields<'_>, parsers: &Parsers) -> Option<Reading> {
        let may_call = asked.tools.choice != ToolChoice::None;
        let way = parsers.way(may_call)?;
        let definitions = asked.tools.definitions.as_ref().and_then(Value::as_array);
        let types = Arc::new(ToolTypes::new(
            definitions.filter(|_| may_call).map_or(&[], Vec::as_slice),
        ));
        let parser = |prompt: &str| AnswerParser::new(&way.format, &types, way.format.opened_by(prompt));
        let begun = parser_of_begun(&parser, asked.prompt, asked.begun);
        Some(Reading {
            parser: begun.unwrap_or_else(|| parser(asked.prompt)),
            way: Arc::clone(way),
            shows_reasoning: asked.shows_reasoning,
            is_parallel: asked.tools.is_parallel,
        })
    }

    /// Special tokens whose text the shapers have to get.
    pub fn special_tokens(&self) -> &[u32] {
        &self.way.special_tokens
    }

    /// Whether answers have reasoning of their own, shown or not.
    pub fn has_reasoning(&self) -> bool {
        self.way.format.reasoning().is_some()
    }

    /// Whether reasoning is left out of the answer; its tokens are to be left out as well then.
    pub fn hides_reasoning(&self) -> bool {
        self.has_reasoning() && !self.shows_reasoning
    }

    /// A shaper for one choice.
    pub fn shaper(&self) -> Box<dyn Shaper> {
        Box::new(ParsedText {
            parser: self.parser.clone(),
            reading: self.clone(),
            events: Vec::new(),
            num_calls: 0,
            num_reasoning_tokens: 0,
        })
    }

    /// An id for a call whose format has none. Mistral's templates take nine letters and digits and nothing else.
    fn call_id(&self) -> String {
        let random = |len| {
            rand::rng()
                .sample_iter(Alphanumeric)
                .take(len)
                .map(char::from)
                .collect::<String>()
        };
        match self.way.format.tools() {
            Some("mistral") => random(9),
            _ => format!("call_{}", random(24)),
        }
    }
}

/// A parser that has read the beginning of the answer, if the prompt ends with it and no call begins in it.
fn parser_of_begun(parser: &impl Fn(&str) -> AnswerParser, prompt: &str, begun: &str) -> Option<AnswerParser> {
    let begun = begun.trim_end();
    let before = prompt.trim_end().strip_suffix(begun).filter(|_| !begun.is_empty())?;
    let mut parser = parser(before);
    let mut events = Vec::new();
    parser.push(&prompt[before.len()..], &mut events);
    let calls = events
        .iter()
        .any(|event| matches!(event, AnswerEvent::CallStart { .. }));
    (!calls).then_some(parser)
}

struct ParsedText {
    reading: Reading,
    parser: AnswerParser,
    events: Vec<AnswerEvent>,
    num_calls: usize,
    num_reasoning_tokens: u64,
}

impl ParsedText {
    fn deltas(&mut self) -> Vec<Delta> {
        let events = std::mem::take(&mut self.events);
        events.into_iter().filter_map(|event| self.delta(event)).collect()
    }

    fn delta(&mut self, event: AnswerEvent) -> Option<Delta> {
        let is_given = |index: usize| index == 0 || self.reading.is_parallel;
        let index = self.num_calls.saturating_sub(1);
        match event {
            AnswerEvent::Text(text) => Some(Delta::Text(text)),
            AnswerEvent::Reasoning(text) => self.reading.shows_reasoning.then_some(Delta::Reasoning(text)),
            AnswerEvent::CallStart { name, id } => {
                let index = self.num_calls;
                self.num_calls += 1;
                is_given(index).then(|| Delta::CallStart {
                    index,
                    id: id.unwrap_or_else(|| self.reading.call_id()),
                    name,
                })
            }
            AnswerEvent::Arguments(text) => is_given(index).then_some(Delta::Arguments { index, text }),
            AnswerEvent::CallEnd { fault } => {
                if let Some(fault) = fault {
                    tracing::debug!(index, "a tool call is faulty: {fault}");
                }
                is_given(index).then_some(Delta::CallEnd { index, fault })
            }
        }
    }
}

impl Shaper for ParsedText {
    fn push(&mut self, text: String, token_ids: &[u32]) -> Vec<Delta> {
        let was_reasoning = self.parser.in_reasoning();
        self.parser.push(&text, &mut self.events);
        // Markers at either end are none of it.
        if was_reasoning && self.parser.in_reasoning() {
            self.num_reasoning_tokens += token_ids.len() as u64;
        }
        self.deltas()
    }

    fn finish(&mut self) -> Vec<Delta> {
        self.parser.finish(&mut self.events);
        self.deltas()
    }

    fn num_reasoning_tokens(&self) -> u64 {
        self.num_reasoning_tokens
    }
}
