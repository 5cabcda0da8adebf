//! A choice's text as its parser understands it: reasoning, text and tool calls as deltas. What a request asks of that
//! is a [`Reading`]; the deltas know no API.

use std::sync::Arc;

use halyard_text::{AnswerEvent, AnswerParser, CallFault, ReasoningPhase, ToolTypes};
use rand::Rng;
use rand::distr::Alphanumeric;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::parsers::{AnswerWay, Parsers};
use super::shaper::{Delta, Shaper};
use super::thoughts::Thoughts;
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
    /// What a grammar makes of the text behind reasoning.
    forced: Option<Forced>,
    thoughts: Option<Thoughts>,
    /// The model's own format of calls, whose templates may want ids of a form.
    calls: Option<&'static str>,
    num_earlier_calls: usize,
}

/// Calls that the model did not choose.
#[derive(Clone, Debug)]
enum Forced {
    /// One or more.
    Calls,
    /// The arguments of one, of the function of this name.
    Arguments(String),
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
    /// Whether a grammar binds the answer.
    pub is_bound: bool,
}

impl Reading {
    /// The reading that a request asks for; `None`: all text is the answer's.
    pub fn new(asked: ReadingFields<'_>, parsers: &Parsers) -> Option<Reading> {
        let forced = match &asked.tools.choice {
            ToolChoice::None | ToolChoice::Auto => None,
            ToolChoice::Required => Some(Forced::Calls),
            ToolChoice::Named(name) => Some(Forced::Arguments(name.clone())),
        };
        let may_call = asked.tools.choice != ToolChoice::None;
        let way = match forced {
            Some(_) => parsers.forced()?,
            None => parsers.way(may_call)?,
        };
        let reasons_before = asked.is_bound && parsers.reasons_before_grammars();
        let mut format = way.format.clone();
        if matches!(forced, Some(Forced::Arguments(_))) {
            format = format.without_tools();
        }
        if reasons_before {
            format = format.with_calls_after_reasoning();
        }
        let definitions = asked.tools.definitions.as_ref().and_then(Value::as_array);
        let types = Arc::new(ToolTypes::new(
            definitions.filter(|_| may_call).map_or(&[], Vec::as_slice),
        ));
        let opened_by = |prompt: &str| match forced.is_some() && !reasons_before {
            true => Some(false),
            false => format.opened_by(prompt),
        };
        let parser = |prompt: &str| match forced.is_some() && !reasons_before {
            true => AnswerParser::new(&format, &types, Some(false)),
            false => AnswerParser::after(&format, &types, prompt),
        };
        // Forced calls are all of a text, whatever stands before it, but for reasoning that is open.
        let is_read_on = |parser: &AnswerParser| forced.is_none() || parser.reasoning_phase() == ReasoningPhase::Open;
        let begun = parser_of_begun(&parser, asked.prompt, asked.begun).filter(is_read_on);
        let is_closed = begun.is_none() && opened_by(asked.prompt) == Some(false);
        let parser = begun.unwrap_or_else(|| parser(asked.prompt));
        let may_reason = reasons_before && !is_closed;
        Some(Reading {
            thoughts: may_reason.then(|| Thoughts::new(way, &parser, asked.begun)).flatten(),
            parser,
            shows_reasoning: asked.shows_reasoning,
            has_reasoning: parsers.has_reasoning(),
            is_parallel: asked.tools.is_parallel,
            forced,
            calls: parsers.calls(),
            num_earlier_calls: asked.num_earlier_calls,
            way: Arc::clone(way),
        })
    }

    /// What the model may think before a grammar binds its answer; `None`: it binds from the first token on.
    pub fn take_thoughts(&mut self) -> Option<Thoughts> {
        self.thoughts.take()
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
        matches!(self.forced, Some(Forced::Arguments(_)))
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
            arguments: String::new(),
            num_calls: 0,
            num_reasoning_tokens: 0,
        })
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
    /// Those of the one call that was named.
    arguments: String,
    num_calls: usize,
    num_reasoning_tokens: u64,
}

impl ParsedText {
    fn deltas(&mut self) -> Vec<Delta> {
        let events = std::mem::take(&mut self.events);
        match self.reading.forced.clone() {
            Some(Forced::Arguments(name)) => events
                .into_iter()
                .flat_map(|event| self.argument(&name, event))
                .collect(),
            _ => events.into_iter().filter_map(|event| self.delta(event)).collect(),
        }
    }

    /// The deltas of an event where all text is the arguments of one call.
    fn argument(&mut self, name: &str, event: AnswerEvent) -> Vec<Delta> {
        let AnswerEvent::Text(text) = event else {
            return self.delta(event).into_iter().collect();
        };
        let start = self.arguments.is_empty().then(|| Delta::CallStart {
            index: 0,
            id: self.reading.call_id(name, 0),
            name: name.to_owned(),
        });
        self.arguments.push_str(&text);
        start.into_iter().chain([Delta::Arguments { index: 0, text }]).collect()
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
        let was_reasoning = self.parser.in_reasoning();
        self.parser.finish(&mut self.events);
        let mut deltas = self.deltas();
        match self.reading.forced {
            // Text behind reasoning is the head of a call that was cut off.
            Some(Forced::Calls) if !was_reasoning => deltas.retain(|delta| !matches!(delta, Delta::Text(_))),
            Some(Forced::Arguments(_)) if !self.arguments.is_empty() => {
                let is_whole = serde_json::from_str::<IgnoredAny>(&self.arguments).is_ok();
                let fault = (!is_whole).then_some(CallFault::CutOff);
                deltas.push(Delta::CallEnd { index: 0, fault });
            }
            _ => {}
        }
        deltas
    }

    fn num_reasoning_tokens(&self) -> u64 {
        self.num_reasoning_tokens
    }
}
