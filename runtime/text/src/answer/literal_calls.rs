//! Calls as `call:f{key:<|"|>text<|"|>,number:1,list:[true]}`: JSON without quotes around keys, and with a marker in
//! place of the quotes around strings. The arguments become JSON as they come.

use std::sync::Arc;

use super::call::{Flow, MAX_DEPTH, is_name};
use super::event::Sink;
use super::input::{Input, Read, Stop};
use super::types::{ToolTypes, Types, escaped, quoted};

/// What is particular to a format of this family.
#[derive(Debug)]
pub(super) struct LiteralCalls {
    /// The marker that begins a call.
    pub(super) open: &'static [&'static str],
    /// What stands before the name.
    pub(super) prefix: &'static str,
    /// The marker that ends a call.
    pub(super) close: &'static str,
    /// The marker around strings.
    pub(super) quote: &'static str,
}

/// Reads one call.
#[derive(Clone, Debug)]
pub(super) struct LiteralCallReader {
    format: &'static LiteralCalls,
    types: Arc<ToolTypes>,
    at: At,
    /// The name, key or bare value that is being read.
    word: String,
    function: String,
    /// The parameter whose value is read, for its type.
    parameter: String,
    /// Open brackets: `true` for an object.
    open: Vec<bool>,
    /// Whether the innermost bracket is still empty.
    empty: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    Begin,
    Name,
    /// Before a key, a value of a list, or the end of either.
    Item,
    Key,
    Value,
    Text,
    Bare,
    After,
    /// After the arguments.
    Close,
    /// After what is no arguments.
    Rubbish,
}

impl LiteralCallReader {
    /// A reader for the text after the opening marker.
    pub(super) fn new(format: &'static LiteralCalls, types: &Arc<ToolTypes>) -> Self {
        Self {
            format,
            types: Arc::clone(types),
            at: At::Begin,
            word: String::new(),
            function: String::new(),
            parameter: String::new(),
            open: Vec::new(),
            empty: true,
        }
    }

    /// Reads on.
    pub(super) fn step(&mut self, input: &mut Input, sink: &mut Sink) -> Read<Flow> {
        match self.read(input, sink) {
            Err(Stop::Fail) if sink.in_call() => {
                sink.call_break(input.fault());
                sink.text(&input.take_held());
                self.at = At::Rubbish;
                Ok(Flow::More)
            }
            other => other,
        }
    }

    fn read(&mut self, input: &mut Input, sink: &mut Sink) -> Read<Flow> {
        match self.at {
            At::Begin => {
                input.next_visible()?;
                if !input.accept(self.format.prefix)? {
                    return Err(Stop::Fail);
                }
                self.at = At::Name;
            }
            At::Name => {
                if input.name(&mut self.word, &["{"])?.is_some() {
                    let name = self.word.trim();
                    if !is_name(name) {
                        return Err(Stop::Fail);
                    }
                    input.release();
                    sink.call_start(name, None);
                    self.function = name.to_owned();
                    self.at = At::Value;
                }
            }
            At::Item => {
                let is_object = self.open.last().copied().unwrap_or_default();
                match input.next_visible()? {
                    '}' if is_object => self.close(input, sink),
                    ']' if !is_object => self.close(input, sink),
                    _ if is_object => {
                        input.mark();
                        self.word.clear();
                        self.at = At::Key;
                    }
                    _ => {
                        self.separate(sink);
                        self.at = At::Value;
                    }
                }
            }
            At::Key => {
                if input.name(&mut self.word, &[":", "}"])? == Some("}") {
                    return Err(Stop::Fail);
                } else if input.rest().starts_with(':') {
                    input.take(1);
                    let key = self.word.trim();
                    let key = key.strip_prefix(self.format.quote).unwrap_or(key);
                    let key = key.strip_suffix(self.format.quote).unwrap_or(key).to_owned();
                    input.release();
                    self.separate(sink);
                    sink.arguments(&quoted(&key));
                    sink.arguments(": ");
                    if self.open.len() == 1 {
                        self.parameter = key;
                    }
                    self.at = At::Value;
                }
            }
            At::Value => match input.next_visible()? {
                first @ ('{' | '[') => {
                    if self.open.len() >= MAX_DEPTH {
                        return Err(Stop::Fail);
                    }
                    sink.arguments(input.take(1));
                    self.open.push(first == '{');
                    self.empty = true;
                    self.at = At::Item;
                }
                ',' | '}' | ']' => return Err(Stop::Fail),
                _ if input.accept(self.format.quote)? => {
                    sink.arguments("\"");
                    self.at = At::Text;
                }
                _ => {
                    input.mark();
                    self.word.clear();
                    self.at = At::Bare;
                }
            },
            At::Text => {
                let (len, found) = input.find(&[self.format.quote]);
                sink.arguments(&escaped(input.take(len)));
                found.ok_or(Stop::Wait)?;
                input.take(self.format.quote.len());
                sink.arguments("\"");
                self.at = At::After;
            }
            At::Bare => {
                let (len, found) = input.find(&[",", "}", "]", self.format.close]);
                self.word.push_str(input.take(len));
                found.ok_or(Stop::Wait)?;
                input.release();
                let known = (self.open.len() == 1)
                    .then(|| self.types.of(&self.function, &self.parameter))
                    .flatten();
                sink.arguments(&known.unwrap_or(Types::ANY).read(self.word.trim()));
                self.at = At::After;
            }
            At::After => match (input.next_visible()?, self.open.last()) {
                (',', _) => {
                    input.take(1);
                    self.at = At::Item;
                }
                ('}', Some(true)) | (']', Some(false)) => self.close(input, sink),
                _ => return Err(Stop::Fail),
            },
            At::Close => {
                input.next_visible()?;
                if input.accept(self.format.close)? {
                    return Ok(Flow::Done);
                }
                input.release();
                self.at = At::Rubbish;
            }
            At::Rubbish => {
                let (len, found) = input.find(&[self.format.close, self.format.open[0]]);
                sink.text(input.take(len));
                if found.ok_or(Stop::Wait)? == 0 {
                    input.take(self.format.close.len());
                }
                return Ok(Flow::Done);
            }
        }
        Ok(Flow::More)
    }

    /// Writes the comma before an item that is not the first.
    fn separate(&mut self, sink: &mut Sink) {
        if !self.empty {
            sink.arguments(", ");
        }
        self.empty = false;
    }

    /// The innermost bracket is closed.
    fn close(&mut self, input: &mut Input, sink: &mut Sink) {
        sink.arguments(input.take(1));
        self.open.pop();
        self.empty = false;
        self.at = At::After;
        if self.open.is_empty() {
            sink.call_end();
            input.mark();
            self.at = At::Close;
        }
    }
}
