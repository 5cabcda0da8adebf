//! One parser for the text that a model writes: text, reasoning and tool calls, as events, as they form.
//!
//! It looks at each byte a bounded number of times, holds back only what may still become a marker or the head of a
//! call, and gives the same events however the text is cut into pieces. What is no call after all is text.

mod arguments;
mod call;
mod element_calls;
mod event;
mod family;
mod formats;
mod harmony;
mod hf;
mod input;
mod json_calls;
mod json_span;
mod literal_calls;
mod message_marks;
mod messages;
mod named_calls;
mod newlines;
mod propose;
mod python_calls;
mod reasoning;
mod suffix;
mod types;
mod xml_calls;

use std::sync::Arc;

pub use event::{AnswerEvent, CallFault};
pub use formats::tool_formats;
pub use hf::ResponseTemplate;
pub use propose::propose_formats;
pub use reasoning::{ReasoningPhase, reasoning_formats};
pub use types::ToolTypes;

use crate::{Result, TextError, Tokenizer};

use call::Flow;
use event::Sink;
use family::{Family, Reader};
use formats::{ToolFormat, tool_format};
use harmony::HarmonyReader;
use hf::TemplateReader;
use input::{Input, Read, Stop};
use message_marks::Messages;
use messages::MessageReader;
use reasoning::{ReasoningFormat, reasoning_format};

/// How a model's answers are to be read: a format of tool calls, one of reasoning, both or none. What has no format is
/// text.
#[derive(Clone, Debug, Default)]
pub struct AnswerFormat {
    tools: Option<&'static ToolFormat>,
    reasoning: Option<&'static ReasoningFormat>,
    /// No call ends reasoning.
    calls_after: bool,
    template: Option<ByTemplate>,
}

/// What a response template is used for.
#[derive(Clone, Debug)]
struct ByTemplate {
    template: Arc<ResponseTemplate>,
    calls: bool,
    reasoning: bool,
}

impl AnswerFormat {
    /// The formats of these names; `hf` needs a model's template ([`AnswerFormat::by_template`]).
    ///
    /// # Errors
    /// [`TextError::UnknownParser`].
    pub fn new(tools: Option<&str>, reasoning: Option<&str>) -> Result<Self> {
        let unknown = |kind, name: &str, mut known: Vec<&str>| {
            known.push(hf::NAME);
            known.extend(hf::ALIASES);
            TextError::UnknownParser {
                kind,
                name: name.to_owned(),
                known: known.join(", "),
            }
        };
        let tools = match tools {
            Some(name) => Some(tool_format(name).ok_or_else(|| unknown("tool call", name, tool_formats().collect()))?),
            None => None,
        };
        let reasoning = match reasoning {
            Some(name) => {
                Some(reasoning_format(name).ok_or_else(|| unknown("reasoning", name, reasoning_formats().collect()))?)
            }
            None => None,
        };
        Ok(Self {
            tools,
            reasoning,
            calls_after: false,
            template: None,
        })
    }

    /// The format `hf`: calls, reasoning or both as a model's response template says.
    ///
    /// # Errors
    /// [`TextError::ResponseTemplate`]: it does not say how the model writes that.
    pub fn by_template(template: &Arc<ResponseTemplate>, calls: bool, reasoning: bool) -> Result<Self> {
        let missing = |field: &str| TextError::ResponseTemplate {
            reason: format!("it has no field {field}"),
        };
        if calls && !template.has_calls() {
            return Err(missing("tool_calls"));
        }
        if reasoning && !template.has_thinking() {
            return Err(missing("thinking"));
        }
        Ok(Self {
            template: (calls || reasoning).then(|| ByTemplate {
                template: Arc::clone(template),
                calls,
                reasoning,
            }),
            ..Self::default()
        })
    }

    /// The same with the markers that a model's tokenizer has: some add a suffix to each, such as `:opensource`.
    #[must_use]
    pub fn for_tokenizer(self, tokenizer: &Tokenizer) -> Self {
        let may = self.tools.is_some_and(|format| format.may_have_suffix)
            || self.reasoning.is_some_and(|format| format.may_have_suffix);
        match may.then(|| suffix::suffix_of(tokenizer)).flatten() {
            Some(suffix) => self.with_marker_suffix(&suffix),
            None => self,
        }
    }

    /// The same with this suffix in the markers of the formats that may have one, `:opensource` for example. Formats
    /// are kept for good, one for each suffix.
    #[must_use]
    pub fn with_marker_suffix(mut self, suffix: &str) -> Self {
        self.tools = self.tools.map(|format| match format.may_have_suffix {
            true => suffix::tools(format, suffix),
            false => format,
        });
        self.reasoning = self.reasoning.map(|format| match format.may_have_suffix {
            true => suffix::reasoning(format, suffix),
            false => format,
        });
        self
    }

    /// The same for a request without tools, where calls are text.
    #[must_use]
    pub fn without_tools(mut self) -> Self {
        self.tools = None;
        if let Some(by) = &mut self.template {
            by.calls = false;
        }
        self.template = self.template.filter(|by| by.reasoning);
        self
    }

    /// The same where calls come after reasoning only: what looks like one in it is a thought, and only its closing
    /// marker ends it. For answers that a grammar binds once reasoning is over.
    #[must_use]
    pub fn with_calls_after_reasoning(mut self) -> Self {
        self.calls_after = true;
        self
    }

    /// Whether everything is text.
    pub fn is_plain(&self) -> bool {
        self.tools.is_none() && self.reasoning.is_none() && self.template.is_none()
    }

    /// The name of the format of tool calls.
    pub fn tools(&self) -> Option<&'static str> {
        let by_template = self.template.as_ref().filter(|by| by.calls).map(|_| hf::NAME);
        self.tools.map(ToolFormat::name).or(by_template)
    }

    /// The name of the format of reasoning.
    pub fn reasoning(&self) -> Option<&'static str> {
        let by_template = self.template.as_ref().filter(|by| by.reasoning).map(|_| hf::NAME);
        self.reasoning.map(ReasoningFormat::name).or(by_template)
    }

    /// The markers that begin reasoning, and those that end it. Messages have none: their headers say it. Nor do
    /// patterns of a response template.
    pub fn reasoning_markers(&self) -> (Vec<String>, Vec<String>) {
        let owned = |markers: &[&str]| markers.iter().map(|&marker| marker.to_owned()).collect();
        if let Some(by) = self.template.as_ref().filter(|by| by.reasoning) {
            let (open, close) = by.template.thinking_markers();
            return (open.to_vec(), close.to_vec());
        }
        self.reasoning
            .filter(|format| format.messages.is_none())
            .map_or_else(Default::default, |format| (owned(format.open), owned(format.close)))
    }

    /// Whether reasoning stays in the text, with its markers.
    pub fn keeps_reasoning(&self) -> bool {
        self.reasoning.is_some_and(|reasoning| reasoning.keep)
    }

    /// Whether each message of an answer says what it is.
    pub fn has_messages(&self) -> bool {
        self.is_harmony() || self.messages().is_some()
    }

    fn is_harmony(&self) -> bool {
        self.reasoning.is_some_and(|reasoning| reasoning.harmony)
            || self.tools.is_some_and(|tools| matches!(tools.family, Family::Harmony))
    }

    /// How messages are marked, and how calls are written in them.
    fn messages(&self) -> Option<(&'static Messages, Option<&'static Family>)> {
        match self.tools.map(|tools| &tools.family) {
            Some(&Family::Messages(messages, calls)) => Some((messages, Some(calls))),
            _ => Some((self.reasoning?.messages?, None)),
        }
    }

    /// Whether the parser has to see the special token `text`: it is a marker or a part of one. The text of other
    /// special tokens is not to be pushed. A caller asks once for each special token of the vocabulary.
    pub fn reads_special(&self, text: &str) -> bool {
        let mut markers = self.tools.map_or(Vec::new(), |format| format.family.markers());
        markers.extend(self.around_text());
        if let Some(format) = self.reasoning {
            markers.extend(format.open.iter().chain(format.close));
            markers.extend(if format.harmony { harmony::MARKERS } else { &[] });
            markers.extend(format.skip);
            markers.extend(format.messages.map_or_else(Vec::new, Messages::markers));
        }
        let by_template = self.template.as_ref().is_some_and(|by| by.template.may_hold(text));
        !text.is_empty() && (by_template || markers.iter().any(|marker| marker.contains(text)))
    }

    /// Markers around the text of an answer.
    fn around_text(&self) -> &'static [&'static str] {
        let of_tools = self.tools.map_or(&[][..], |tools| tools.around_text);
        self.reasoning
            .map(|reasoning| reasoning.around_text)
            .filter(|markers| !markers.is_empty())
            .unwrap_or(of_tools)
    }

    /// Whether answers are read by a response template.
    pub fn is_by_template(&self) -> bool {
        self.template.is_some()
    }

    /// Whether the answer to `prompt` begins within reasoning that the prompt has opened; `None` when the prompt says
    /// nothing about it. Only the end of the prompt counts. Where the prompt ends with the start of the answer itself
    /// (`continue_final_message`), push that start first and drop its events.
    pub fn opened_by(&self, prompt: &str) -> Option<bool> {
        if self.template.is_some() {
            return match AnswerParser::after(self, &Arc::default(), prompt).reasoning_phase() {
                ReasoningPhase::Open => Some(true),
                ReasoningPhase::MayBegin => None,
                ReasoningPhase::Over => Some(false),
            };
        }
        self.reasoning.and_then(|reasoning| reasoning.opened_by(prompt))
    }
}

/// Reads one answer.
#[derive(Clone, Debug)]
pub struct AnswerParser {
    format: AnswerFormat,
    types: Arc<ToolTypes>,
    input: Input,
    sink: Sink,
    at: At,
    /// What is looked for at the start of a text, within it, and in reasoning.
    at_start: Signs,
    in_text: Signs,
    in_reasoning: Signs,
}

/// Where the parser is.
#[derive(Clone, Debug)]
enum At {
    /// At the start of the answer, or after reasoning or a call: nothing but white space has come.
    Start {
        /// Reasoning came last: another closing marker says nothing.
        after_reasoning: bool,
    },
    /// In text.
    Text,
    /// At the start of reasoning: another opening marker says nothing.
    ReasoningStart,
    /// In reasoning.
    Reasoning,
    /// In a group of calls.
    Calls {
        reader: Reader,
        /// It began within reasoning.
        in_reasoning: bool,
        /// Calls before it.
        before: usize,
    },
    /// In an answer of which each message says what it is.
    Harmony(HarmonyReader),
    /// The same in a form of another family.
    Messages(Box<MessageReader>),
    /// In an answer that a response template describes.
    Template(Box<TemplateReader>),
}

/// What a marker begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    Calls,
    Think,
    EndThink,
    /// It stands around text and is none.
    Nothing,
}

/// Markers and what each means.
#[derive(Clone, Debug, Default)]
struct Signs {
    markers: Vec<&'static str>,
    signs: Vec<Sign>,
}

impl Signs {
    fn with(mut self, markers: &[&'static str], sign: Sign) -> Self {
        self.markers.extend(markers);
        self.signs.extend(markers.iter().map(|_| sign));
        self
    }
}

impl AnswerParser {
    /// A parser for one answer. `types` are those of the request's tools. `in_reasoning` says whether the prompt has
    /// opened reasoning ([`AnswerFormat::opened_by`]); `None` leaves it to the format.
    pub fn new(format: &AnswerFormat, types: &Arc<ToolTypes>, in_reasoning: Option<bool>) -> Self {
        let calls = Signs::default().with(format.tools.map_or(&[], |tools| tools.family.open()), Sign::Calls);
        let mut parser = Self {
            format: format.clone(),
            types: Arc::clone(types),
            input: Input::default(),
            sink: Sink::default(),
            at: At::Start { after_reasoning: false },
            at_start: calls.clone(),
            in_text: calls.clone(),
            in_reasoning: Signs::default(),
        };
        let around_text = format.around_text();
        parser.in_text = parser.in_text.with(around_text, Sign::Nothing);
        parser.at_start = parser.at_start.with(around_text, Sign::Nothing);
        if let Some(by) = &format.template {
            let reads = (by.calls, by.reasoning);
            let reader = TemplateReader::new(&by.template, types, reads, in_reasoning);
            parser.at = At::Template(Box::new(reader));
        } else if format.is_harmony() {
            parser.at = At::Harmony(HarmonyReader::new(format.tools.is_some()));
        } else if let Some((messages, calls)) = format.messages() {
            let reader = MessageReader::new(messages, calls, types, in_reasoning == Some(true));
            parser.at = At::Messages(Box::new(reader));
        } else if let Some(reasoning) = format.reasoning {
            if reasoning.escaped_newlines {
                parser.sink = Sink::with_newlines();
            }
            parser.in_text = parser.in_text.with(reasoning.skip, Sign::Nothing);
            parser.at_start = calls
                .clone()
                .with(reasoning.open, Sign::Think)
                .with(reasoning.close, Sign::EndThink)
                .with(around_text, Sign::Nothing)
                .with(reasoning.skip, Sign::Nothing);
            if reasoning.anywhere {
                parser.in_text = parser.in_text.with(reasoning.open, Sign::Think);
            }
            parser.in_reasoning = if reasoning.ends_at_call && !format.calls_after {
                calls
            } else {
                Signs::default()
            };
            parser.in_reasoning = parser
                .in_reasoning
                .with(reasoning.close, Sign::EndThink)
                .with(reasoning.skip, Sign::Nothing);
            if in_reasoning.unwrap_or(reasoning.first) {
                parser.begin_reasoning(reasoning.open[0]);
            }
        }
        parser
    }

    /// A parser for the answer to a prompt, which may have begun it: opened reasoning, or with a response template any
    /// region.
    pub fn after(format: &AnswerFormat, types: &Arc<ToolTypes>, prompt: &str) -> Self {
        if format.template.is_none() {
            return Self::new(format, types, format.opened_by(prompt));
        }
        let mut parser = Self::new(format, types, None);
        if let At::Template(reader) = parser.at {
            let reader = reader.after(prompt, &mut parser.input);
            parser.at = At::Template(Box::new(reader));
        }
        parser
    }

    /// Takes the next piece of the answer, and adds to `out` what is certain now.
    pub fn push(&mut self, text: &str, out: &mut Vec<AnswerEvent>) {
        self.input.push(text);
        self.run();
        self.input.compact();
        self.sink.take(out);
    }

    /// Says that the answer is over, and adds the rest to `out`: nothing is held back after it. A call that is open
    /// ends, with a fault if its arguments are not complete.
    pub fn finish(&mut self, out: &mut Vec<AnswerEvent>) {
        self.input.end();
        self.run();
        self.sink.call_break(CallFault::CutOff);
        self.hand_back();
        self.sink.end();
        self.input.compact();
        self.sink.take(out);
    }

    /// Bytes that were compared or moved so far: what reading has cost, apart from writing the events.
    pub fn num_bytes_looked_at(&self) -> usize {
        self.input.looked_at
    }

    /// Whether what was understood so far ends within reasoning.
    pub fn in_reasoning(&self) -> bool {
        match &self.at {
            At::ReasoningStart | At::Reasoning => true,
            At::Calls {
                in_reasoning, before, ..
            } => *in_reasoning && self.sink.num_calls() == *before,
            At::Harmony(reader) => reader.in_reasoning(),
            At::Messages(reader) => reader.in_reasoning(),
            At::Template(reader) => reader.phase() == ReasoningPhase::Open,
            At::Start { .. } | At::Text => false,
        }
    }

    /// Where the answer is with its reasoning, by what was understood so far.
    pub fn reasoning_phase(&self) -> ReasoningPhase {
        match &self.at {
            At::Template(reader) => reader.phase(),
            _ if self.format.reasoning.is_none() => ReasoningPhase::Over,
            At::Start { after_reasoning: false } => ReasoningPhase::MayBegin,
            At::Harmony(reader) if !reader.is_in_answer() => ReasoningPhase::Open,
            At::Messages(reader) if !reader.is_in_answer() => ReasoningPhase::Open,
            _ if self.in_reasoning() => ReasoningPhase::Open,
            _ => ReasoningPhase::Over,
        }
    }

    fn run(&mut self) {
        while self.step().is_ok() {}
    }

    fn step(&mut self) -> Read<()> {
        match self.at {
            At::Start { after_reasoning } => self.start(after_reasoning),
            At::Text => {
                let (len, found) = self.input.find(&self.in_text.markers);
                self.sink.text(self.input.take(len));
                let sign = self.in_text.signs[found.ok_or(Stop::Wait)?];
                self.input.mark();
                let marker = self.in_text.markers[found.ok_or(Stop::Wait)?];
                self.input.take(marker.len());
                self.follow(sign, marker, false);
                Ok(())
            }
            At::ReasoningStart => {
                let blank = self.input.whitespace().to_owned();
                self.think(&blank);
                let open = self.format.reasoning.map_or(&[][..], |reasoning| reasoning.open);
                self.input.accept_any(open)?;
                self.at = At::Reasoning;
                Ok(())
            }
            At::Reasoning => {
                let (len, found) = self.input.find(&self.in_reasoning.markers);
                let text = self.input.take(len).to_owned();
                self.think(&text);
                let index = found.ok_or(Stop::Wait)?;
                let (sign, marker) = (self.in_reasoning.signs[index], self.in_reasoning.markers[index]);
                self.input.mark();
                self.input.take(marker.len());
                self.follow(sign, marker, true);
                Ok(())
            }
            At::Harmony(ref mut reader) => match reader.step(&mut self.input, &mut self.sink) {
                Err(Stop::Fail) => {
                    reader.fail();
                    self.hand_back();
                    Ok(())
                }
                other => other,
            },
            At::Messages(ref mut reader) => reader.step(&mut self.input, &mut self.sink),
            At::Template(ref mut reader) => reader.step(&mut self.input, &mut self.sink),
            At::Calls { ref mut reader, .. } => {
                match reader.step(&mut self.input, &mut self.sink) {
                    Ok(Flow::More) => {}
                    Ok(Flow::Done) => {
                        self.input.release();
                        self.leave_calls();
                    }
                    Err(Stop::Wait) => return Err(Stop::Wait),
                    Err(Stop::Fail) => {
                        self.sink.call_break(self.input.fault());
                        self.hand_back();
                        self.leave_calls();
                    }
                }
                Ok(())
            }
        }
    }

    /// Reads white space and what may come only at the start of a text.
    fn start(&mut self, after_reasoning: bool) -> Read<()> {
        self.sink.text(self.input.whitespace());
        let first = self.input.peek()?;
        self.input.mark();
        if let Some(index) = self.input.accept_any(&self.at_start.markers)? {
            let (sign, marker) = (self.at_start.signs[index], self.at_start.markers[index]);
            if sign == Sign::Nothing {
                self.input.release();
            } else if sign != Sign::EndThink {
                self.follow(sign, marker, false);
            } else if after_reasoning || self.format.reasoning.is_some_and(|reasoning| reasoning.drops_close) {
                self.input.release();
            } else {
                self.at = At::Text;
                self.hand_back();
            }
        } else if self.format.tools.is_some_and(|tools| tools.family.begins_bare(first)) {
            self.follow(Sign::Calls, "", false);
        } else {
            self.input.release();
            self.at = At::Text;
        }
        Ok(())
    }

    /// Goes where a marker leads, which was read and is kept since the mark.
    fn follow(&mut self, sign: Sign, marker: &'static str, in_reasoning: bool) {
        match (sign, self.format.tools) {
            (Sign::Calls, tools) => {
                let reader = tools.and_then(|tools| tools.family.reader(marker, &self.types));
                let before = self.sink.num_calls();
                match reader {
                    Some(reader) => {
                        self.at = At::Calls {
                            reader,
                            in_reasoning,
                            before,
                        };
                    }
                    None => self.hand_back(),
                }
            }
            (Sign::Nothing, _) => self.input.release(),
            (Sign::Think, _) => {
                self.input.release();
                self.begin_reasoning(marker);
            }
            (Sign::EndThink, _) => {
                self.input.release();
                if self.format.keeps_reasoning() {
                    self.sink.text(marker);
                } else {
                    self.sink.turn();
                }
                self.at = At::Start { after_reasoning: true };
            }
        }
    }

    fn begin_reasoning(&mut self, marker: &str) {
        self.at = At::ReasoningStart;
        if self.format.keeps_reasoning() {
            self.sink.text(marker);
        } else {
            self.sink.turn();
        }
    }

    fn think(&mut self, text: &str) {
        if self.format.keeps_reasoning() {
            self.sink.text(text);
        } else {
            self.sink.reasoning(text);
        }
    }

    /// A group of calls is over; what was no part of it is handed back already.
    fn leave_calls(&mut self) {
        if let At::Calls {
            in_reasoning, before, ..
        } = self.at
        {
            self.at = if self.sink.num_calls() > before && !self.sink.is_visible() {
                At::Start { after_reasoning: false }
            } else if self.sink.num_calls() == before && in_reasoning {
                At::Reasoning
            } else {
                At::Text
            };
        }
    }

    /// Text since the mark says nothing but itself.
    fn hand_back(&mut self) {
        if let At::Messages(reader) = &self.at {
            return reader.finish(&mut self.input, &mut self.sink);
        }
        let held = self.input.take_held();
        // A message of harmony that is none is text.
        if self.in_reasoning() && !matches!(self.at, At::Harmony(_)) {
            self.think(&held);
        } else {
            self.sink.text(&held);
        }
    }
}
