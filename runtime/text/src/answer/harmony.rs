//! Harmony, the format of gpt-oss: an answer is a row of messages, each with a header that says its channel and whom it
//! is for: `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`.

use super::arguments::Arguments;
use super::event::Sink;
use super::input::{Input, Read, Stop};

/// All markers.
pub(super) const MARKERS: &[&str] = &[
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
];
/// What ends a message. The first two begin another.
const ENDS: &[&str] = &["<|start|>", "<|channel|>", "<|end|>", "<|call|>", "<|return|>"];
/// The longest header. A longer one is text.
const MAX_HEADER_BYTES: usize = 1024;

/// Reads an answer.
#[derive(Clone, Debug)]
pub(super) struct HarmonyReader {
    at: At,
    header: String,
    /// Whether calls are told from text, and thoughts.
    calls: bool,
}

#[derive(Clone, Debug)]
enum At {
    /// Before a header.
    Start,
    Header,
    Body(Body),
}

/// Whom a message is for.
#[derive(Clone, Debug)]
enum Body {
    Text,
    Reasoning,
    Call(Arguments),
}

impl HarmonyReader {
    /// A reader for the answer to a prompt that ends with `<|start|>assistant`.
    pub(super) fn new(calls: bool) -> Self {
        Self {
            at: At::Start,
            header: String::new(),
            calls,
        }
    }

    /// Reads on. It fails where a header is none: what was kept since the mark is text.
    pub(super) fn step(&mut self, input: &mut Input, sink: &mut Sink) -> Read<()> {
        match &mut self.at {
            At::Start => {
                sink.text(input.whitespace());
                input.mark();
                input.peek()?;
                // The prompt has begun the first message, so its header may come without a marker.
                match input.accept_any(&["<|start|>", "<|channel|>", "to=", "<|message|>"])? {
                    Some(index) => {
                        self.header = ["", "<|channel|>", "to=", ""][index].to_owned();
                        if index == 3 {
                            self.begin_body(input, sink);
                        } else {
                            self.at = At::Header;
                        }
                    }
                    None => {
                        input.release();
                        self.at = At::Body(Body::Text);
                    }
                }
            }
            At::Header => {
                let markers = ["<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>"];
                let (len, found) = input.find(&markers);
                input.take_into(len, &mut self.header, MAX_HEADER_BYTES)?;
                match found {
                    None if len > 0 => {}
                    None => return Err(Stop::Wait),
                    Some(0) => {
                        input.take(markers[0].len());
                        self.begin_body(input, sink);
                    }
                    Some(_) => return Err(Stop::Fail),
                }
            }
            At::Body(Body::Call(arguments)) => {
                if let Some(marker) = arguments.read(input, sink, ENDS, None)? {
                    sink.call_end();
                    self.end_body(marker, input, sink);
                }
            }
            At::Body(body) => {
                let (len, found) = input.find(ENDS);
                let text = input.take(len);
                match body {
                    Body::Reasoning => sink.reasoning(text),
                    _ => sink.text(text),
                }
                self.end_body(ENDS[found.ok_or(Stop::Wait)?], input, sink);
            }
        }
        Ok(())
    }

    /// Whether a thought is open.
    pub(super) fn in_reasoning(&self) -> bool {
        matches!(self.at, At::Body(Body::Reasoning))
    }

    /// Whether a message has begun that is no thought.
    pub(super) fn is_in_answer(&self) -> bool {
        matches!(self.at, At::Body(Body::Text | Body::Call(_)))
    }

    /// A header failed: what follows is text.
    pub(super) fn fail(&mut self) {
        self.at = At::Body(Body::Text);
    }

    fn begin_body(&mut self, input: &mut Input, sink: &mut Sink) {
        input.release();
        sink.turn();
        let (channel, recipient) = read_header(&self.header);
        self.at = At::Body(match recipient {
            Some(name) if self.calls => {
                sink.call_start(name.strip_prefix("functions.").unwrap_or(name), None);
                Body::Call(Arguments::default())
            }
            _ if channel == Some("analysis") => Body::Reasoning,
            _ => Body::Text,
        });
    }

    fn end_body(&mut self, marker: &str, input: &mut Input, sink: &mut Sink) {
        if !matches!(marker, "<|start|>" | "<|channel|>") {
            input.take(marker.len());
        }
        sink.turn();
        self.at = At::Start;
    }
}

/// Channel and recipient of a header such as `assistant to=functions.f<|channel|>commentary <|constrain|>json`.
fn read_header(header: &str) -> (Option<&str>, Option<&str>) {
    let word = |text: &'_ str| -> usize { text.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(text.len()) };
    let channel = header.rsplit_once("<|channel|>").map(|(_, rest)| {
        let rest = rest.trim_start();
        &rest[..word(rest)]
    });
    let recipient = header
        .split_once("to=")
        .map(|(_, rest)| &rest[..word(rest)])
        .filter(|name| !name.is_empty());
    (channel, recipient)
}
