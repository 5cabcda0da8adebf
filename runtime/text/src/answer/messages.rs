//! Answers as a row of messages, each with a header that says what it is or whom it is for:
//! `<|start|>assistant to=self<|message|>…<|eom|>` or `<|message_model|><|content_text|>…<|end_message|>`.

use std::sync::Arc;

use super::call::{Flow, MAX_NAME_BYTES, is_name};
use super::event::Sink;
use super::family::{Family, Reader};
use super::input::{Input, Read, Stop};
use super::message_marks::{Kind, Messages, Recipients};
use super::types::ToolTypes;

/// The longest header. A longer one is text.
const MAX_HEADER_BYTES: usize = 128;
/// The role that a header may name.
const ROLE: &str = "assistant";

/// Reads an answer.
#[derive(Clone, Debug)]
pub(super) struct MessageReader {
    format: &'static Messages,
    /// How calls are written, where calls are told from text.
    calls: Option<&'static Family>,
    types: Arc<ToolTypes>,
    at: At,
    /// The header or the recipient that is being read.
    head: String,
    /// Whether a header came.
    framed: bool,
}

#[derive(Clone, Debug)]
enum At {
    /// Before the first header, or between messages.
    Start,
    /// In a header, which is kept since the mark.
    Header,
    /// In a message.
    Body(Body),
    /// In a message, at what may be a recipient's name of another one, which is kept since the mark.
    Recipient(Body),
    /// In calls of a message.
    Calls { reader: Reader, body: Body },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Text,
    Reasoning,
    Dropped,
    /// For a tool; text without headers may call, too.
    Tool,
}

impl MessageReader {
    /// A reader for the answer to a prompt that ends with the start of a header, or within reasoning.
    pub(super) fn new(
        format: &'static Messages,
        calls: Option<&'static Family>,
        types: &Arc<ToolTypes>,
        in_reasoning: bool,
    ) -> Self {
        Self {
            format,
            calls,
            types: Arc::clone(types),
            at: match in_reasoning {
                true => At::Body(Body::Reasoning),
                false => At::Start,
            },
            head: String::new(),
            framed: in_reasoning,
        }
    }

    /// Reads on.
    ///
    /// # Errors
    /// [`Stop::Wait`].
    pub(super) fn step(&mut self, input: &mut Input, sink: &mut Sink) -> Read<()> {
        let stopped = match &mut self.at {
            At::Start => {
                input.mark();
                self.head.clear();
                self.at = At::Header;
                return Ok(());
            }
            At::Header => self.header(input, sink),
            At::Body(body) => {
                let body = *body;
                return self.body(body, input, sink);
            }
            At::Recipient(_) => self.recipient(input, sink),
            At::Calls { reader, .. } => reader.step(input, sink).map(|flow| {
                if flow == Flow::Done {
                    input.release();
                    self.leave_calls();
                }
            }),
        };
        if stopped == Err(Stop::Fail) {
            // What is kept says nothing but itself.
            let body = match self.at {
                At::Recipient(body) | At::Calls { body, .. } => body,
                _ if self.framed => Body::Text,
                _ => Body::Tool,
            };
            sink.call_break(input.fault());
            show(body, &input.take_held(), sink);
            self.at = At::Body(body);
            return Ok(());
        }
        stopped
    }

    /// Shows what is kept: the answer is over.
    pub(super) fn finish(&self, input: &mut Input, sink: &mut Sink) {
        let body = match self.at {
            At::Body(body) | At::Recipient(body) | At::Calls { body, .. } => body,
            At::Start | At::Header => Body::Text,
        };
        show(body, &input.take_held(), sink);
    }

    /// Whether a thought is open.
    pub(super) fn in_reasoning(&self) -> bool {
        matches!(self.at, At::Body(Body::Reasoning) | At::Recipient(Body::Reasoning))
    }

    /// Whether a message has begun that is no thought.
    pub(super) fn is_in_answer(&self) -> bool {
        !self.in_reasoning() && !matches!(self.at, At::Start | At::Header)
    }

    fn header(&mut self, input: &mut Input, sink: &mut Sink) -> Read<()> {
        let bodies = self.format.bodies.iter().map(|(marker, _)| *marker);
        let markers: Vec<_> = bodies
            .chain([self.format.start])
            .chain(self.format.ends.iter().copied())
            .collect();
        let (len, found) = input.find(&markers);
        self.take_header(len, input)?;
        let index = found.ok_or(Stop::Wait)?;
        let Some((marker, kind)) = self.format.bodies.get(index) else {
            if !self.head.trim().is_empty() {
                return Err(Stop::Fail);
            }
            // Another start, or an end after an end.
            let marker = markers[index];
            if marker == self.format.start {
                input.mark();
                input.take(marker.len());
            } else {
                input.take(marker.len());
                input.mark();
            }
            self.head.clear();
            return Ok(());
        };
        let recipient = self.header_recipient().ok_or(Stop::Fail)?.to_owned();
        input.take(marker.len());
        self.begin_body(*kind, &recipient, input, sink);
        Ok(())
    }

    /// Reads `len` bytes of a header.
    ///
    /// # Errors
    /// [`Stop::Fail`] at the first character that makes it none, wherever the text was cut.
    fn take_header(&mut self, len: usize, input: &mut Input) -> Read<()> {
        let known = self.head.len();
        self.head.push_str(&input.rest()[..len]);
        input.looked_at += self.head.len().min(MAX_HEADER_BYTES);
        let fits = |end: &usize| *end <= MAX_HEADER_BYTES && self.may_be_header(&self.head[..*end]);
        if fits(&self.head.len()) {
            input.take(len);
            return Ok(());
        }
        let ends = self.head[known..]
            .char_indices()
            .map(|(place, c)| known + place + c.len_utf8());
        let first = ends.into_iter().find(|end| !fits(end)).unwrap_or(self.head.len());
        input.take(first - known);
        Err(Stop::Fail)
    }

    /// Whether more text can make a header of what is there.
    fn may_be_header(&self, head: &str) -> bool {
        let mut words = head.split_whitespace();
        let ended = head.ends_with(char::is_whitespace);
        match (self.format.recipients, words.next(), words.next(), words.next()) {
            (_, None, ..) => true,
            (None, Some(word), None, _) => is_name(word),
            (Some(to), Some(word), None, _) => {
                ROLE.starts_with(word) && (!ended || word == ROLE) || may_be_recipient(word, to.before, ended)
            }
            (Some(to), Some(ROLE), Some(word), None) => may_be_recipient(word, to.before, ended),
            _ => false,
        }
    }

    /// The recipient that the header names, or none, when it is one.
    fn header_recipient(&self) -> Option<&str> {
        let Some(to) = self.format.recipients else {
            return Some("");
        };
        let head = self.head.trim();
        let rest = head.strip_prefix(ROLE).unwrap_or(head).trim_start();
        if rest.is_empty() {
            return Some("");
        }
        rest.strip_prefix(to.before).filter(|name| !name.is_empty())
    }

    fn begin_body(&mut self, kind: Kind, recipient: &str, input: &mut Input, sink: &mut Sink) {
        self.framed = true;
        let to = self.format.recipients;
        let is_of = |names: fn(&Recipients) -> &'static [&'static str]| {
            to.is_some_and(|recipients| names(recipients).contains(&recipient))
        };
        let body = match kind {
            Kind::Reasoning => Body::Reasoning,
            Kind::Addressed if is_of(|to| to.thoughts) => Body::Reasoning,
            Kind::Addressed if is_of(|to| to.dropped) => Body::Dropped,
            Kind::Addressed if !is_of(|to| to.text) => Body::Tool,
            _ => Body::Text,
        };
        if kind == Kind::Call
            && let Some(reader) = self.calls.and_then(|calls| calls.reader("", &self.types))
        {
            self.at = At::Calls { reader, body };
            return;
        }
        input.release();
        sink.turn();
        self.at = At::Body(body);
    }

    fn body(&mut self, body: Body, input: &mut Input, sink: &mut Sink) -> Read<()> {
        let mut markers: Vec<_> = self.format.bodies.iter().map(|(marker, _)| *marker).collect();
        let num_bodies = markers.len();
        markers.push(self.format.start);
        markers.extend(self.format.recipients.map(|to| to.before));
        let num_starts = markers.len();
        markers.extend(self.format.ends);
        let num_own = markers.len();
        if body == Body::Tool {
            markers.extend(self.calls.map_or(&[][..], Family::open));
        }
        let (len, found) = input.find(&markers);
        show(body, input.take(len), sink);
        let index = found.ok_or(Stop::Wait)?;
        let marker = markers[index];
        input.mark();
        input.take(marker.len());
        self.head.clear();
        if index < num_bodies {
            self.begin_body(self.format.bodies[index].1, "", input, sink);
        } else if index == num_bodies {
            self.at = At::Header;
        } else if index < num_starts {
            self.at = At::Recipient(body);
        } else if index < num_own {
            input.release();
            self.at = At::Start;
        } else if let Some(reader) = self.calls.and_then(|calls| calls.reader(marker, &self.types)) {
            self.at = At::Calls { reader, body };
        }
        Ok(())
    }

    /// Reads a name; a header ends with it when the marker of a body comes next.
    fn recipient(&mut self, input: &mut Input, sink: &mut Sink) -> Read<()> {
        let rest = input.rest();
        let len = rest.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(rest.len());
        input.looked_at += len;
        input.take_into(len, &mut self.head, MAX_NAME_BYTES)?;
        input.peek()?;
        let bodies: Vec<_> = self.format.bodies.iter().map(|(marker, _)| *marker).collect();
        match input.accept_any(&bodies)? {
            Some(index) if !self.head.is_empty() => {
                let recipient = std::mem::take(&mut self.head);
                self.begin_body(self.format.bodies[index].1, &recipient, input, sink);
                Ok(())
            }
            _ => Err(Stop::Fail),
        }
    }

    /// A group of calls is over.
    fn leave_calls(&mut self) {
        if let At::Calls { body, .. } = self.at {
            self.at = match body {
                Body::Tool => At::Body(body),
                _ => At::Start,
            };
        }
    }
}

/// Whether a word is a recipient, or may become one where it has not ended.
fn may_be_recipient(word: &str, before: &str, ended: bool) -> bool {
    let is_name = |name: &str| !name.contains('<') && (!ended || !name.is_empty());
    word.strip_prefix(before).is_some_and(is_name) || !ended && before.starts_with(word)
}

fn show(body: Body, text: &str, sink: &mut Sink) {
    match body {
        Body::Reasoning => sink.reasoning(text),
        Body::Text | Body::Tool => sink.text(text),
        Body::Dropped => {}
    }
}
