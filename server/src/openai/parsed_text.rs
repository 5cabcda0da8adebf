//! A choice's text as its parser understands it: reasoning, text and tool calls as deltas. What a request asks of that
//! is a [`Reading`]; the deltas know no API.

use std::sync::Arc;

use halyard_text::{AnswerEvent, AnswerFormat, AnswerParser, CallFault, ToolTypes};
use rand::Rng;
use rand::distr::Alphanumeric;
use serde::de::IgnoredAny;
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
    has_reasoning: bool,
    /// Whether calls after the first one are given.
    is_parallel: bool,
    /// The function whose arguments are all of the text.
    named: Option<String>,
    /// The model's own format of calls, whose templates may want ids of a form.
    calls: Option<&'static str>,
    num_earlier_calls: usize,
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
    /// Calls in the messages before the answer.
    pub num_earlier_calls: usize,
}

/// The format in which a grammar writes calls that are forced: a list of names and parameters.
const FORCED: &str = "xlam";

impl Reading {
    /// The reading that a request asks for; `None`: all text is the answer's.
    pub fn new(asked: ReadingFields<'_>, parsers: &Parsers) -> Option<Reading> {
        let (is_forced, named) = match &asked.tools.choice {
            ToolChoice::None | ToolChoice::Auto => (false, None),
            ToolChoice::Required => (true, None),
            ToolChoice::Named(name) => (true, Some(name.clone())),
        };
        let may_call = asked.tools.choice != ToolChoice::None;
        let way = match is_forced {
            // All of the text is calls, so that no special token says anything.
            true => Arc::new(AnswerWay {
                format: AnswerFormat::new(Some(FORCED), None).ok()?,
                special_tokens: Vec::new(),
            }),
            false => Arc::clone(parsers.way(may_call)?),
        };
        let definitions = asked.tools.definitions.as_ref().and_then(Value::as_array);
        let types = Arc::new(ToolTypes::new(
            definitions.filter(|_| may_call).map_or(&[], Vec::as_slice),
        ));
        let parser = |prompt: &str| AnswerParser::new(&way.format, &types, way.format.opened_by(prompt));
        let begun = match is_forced {
            true => None,
            false => parser_of_begun(&parser, asked.prompt, asked.begun),
        };
        Some(Reading {
            parser: begun.unwrap_or_else(|| parser(asked.prompt)),
            shows_reasoning: asked.shows_reasoning,
            has_reasoning: parsers.has_reasoning(),
            is_parallel: asked.tools.is_parallel,
            named,
            calls: parsers.calls(),
            num_earlier_calls: asked.num_earlier_calls,
            way,
        })
    }

    /// Special tokens whose text the shapers have to get.
    pub fn special_tokens(&self) -> &[u32] {
        &self.way.special_tokens
    }

    /// Whether answers have reasoning of their own, shown or not.
    pub fn has_reasoning(&self) -> bool {
        self.has_reasoning
    }

    /// Whether all of the text is one call that was named: the model did not choose it.
    pub fn is_named(&self) -> bool {
        self.named.is_some()
    }

    /// Whether reasoning is left out of the answer; its tokens are to be left out as well then.
    pub fn hides_reasoning(&self) -> bool {
        self.has_reasoning() && !self.shows_reasoning
    }

    /// A shaper for one choice.
    pub fn shaper(&self) -> Box<dyn Shaper> {
        match &self.named {
            Some(name) => Box::new(NamedCall {
                name: name.clone(),
                id: self.call_id(name, 0),
                arguments: String::new(),
            }),
            None => Box::new(ParsedText {
                parser: self.parser.clone(),
                reading: self.clone(),
                events: Vec::new(),
                num_calls: 0,
                num_reasoning_tokens: 0,
            }),
        }
    }

    /// An id for a call of which the model wrote none. Mistral's templates take nine letters and digits and nothing
    /// else; Kimi's are told by name and number.
    fn call_id(&self, name: &str, index: usize) -> String {
        let random = |len| {
            let letters = rand::rng().sample_iter(Alphanumeric).take(len);
            letters.map(char::from).collect::<String>()
        };
        match self.calls {
            Some("mistral") => random(9),
            Some("kimi_k2") => format!("functions.{name}:{}", self.num_earlier_calls + index),
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
                    id: id.unwrap_or_else(|| self.reading.call_id(&name, index)),
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

/// The arguments of one call, which are all of the text.
struct NamedCall {
    name: String,
    id: String,
    arguments: String,
}

impl Shaper for NamedCall {
    fn push(&mut self, text: String, _: &[u32]) -> Vec<Delta> {
        if text.is_empty() {
            return Vec::new();
        }
        let start = self.arguments.is_empty().then(|| Delta::CallStart {
            index: 0,
            id: self.id.clone(),
            name: self.name.clone(),
        });
        self.arguments.push_str(&text);
        start.into_iter().chain([Delta::Arguments { index: 0, text }]).collect()
    }

    fn finish(&mut self) -> Vec<Delta> {
        let is_whole = serde_json::from_str::<IgnoredAny>(&self.arguments).is_ok();
        let end = Delta::CallEnd {
            index: 0,
            fault: (!is_whole).then_some(CallFault::CutOff),
        };
        (!self.arguments.is_empty()).then_some(end).into_iter().collect()
    }
}
