//! Calls as tags with a tag for each parameter: `<function=f><parameter=a>1</parameter></function>`. The values are
//! bare text; they become JSON by the types that the tool's schema gives.

use std::sync::Arc;

use super::call::{Flow, is_name};
use super::event::Sink;
use super::input::{Input, Read, Stop};
use super::json_calls::{JsonCallReader, JsonCalls};
use super::types::{ToolTypes, Types, escaped, quoted};

/// What is particular to a format of this family.
#[derive(Debug)]
pub(super) struct XmlCalls {
    /// Markers around all calls, if there are such.
    pub(super) section: Option<(&'static str, &'static str)>,
    /// All markers that begin calls.
    pub(super) open: &'static [&'static str],
    /// What a call begins with, up to its name.
    pub(super) call: &'static str,
    /// What ends the name. All but the first are read again.
    pub(super) name_end: &'static [&'static str],
    /// What ends a call.
    pub(super) close: &'static str,
    /// What a parameter begins with, up to its name.
    pub(super) parameter: &'static str,
    /// What ends the name of a parameter.
    pub(super) key_end: &'static str,
    /// What begins the value, if that is a tag of its own.
    pub(super) value: Option<&'static str>,
    /// What ends a value.
    pub(super) value_end: &'static str,
    /// What the names are attributes of, if they are: `name="f"`.
    pub(super) attributes: Option<&'static Attributes>,
    /// White space around a value that is no part of it.
    pub(super) trim: Trim,
    /// The types of a value that the schema does not name.
    pub(super) untyped: Types,
    /// Markers between calls of a section that say nothing.
    pub(super) skip: &'static [&'static str],
    /// The tags around the type of a value, which may stand before the value.
    pub(super) kind: Option<(&'static str, &'static str)>,
    /// What a call may be instead: JSON, told by its bracket.
    pub(super) json: Option<&'static JsonCalls>,
    /// What says whether a value is a string.
    pub(super) typing: Typing,
    /// Whether `f.f` is the request's function `f`.
    pub(super) doubled: bool,
    /// Markers that break a call off: the message that it stands in is over.
    pub(super) breaks: &'static [&'static str],
}

/// What says which type a value has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Typing {
    /// The tool's schema.
    Schema,
    /// The schema of a string; what is no string is whatever JSON says, otherwise a string.
    Strings,
    /// What JSON says, otherwise it is a string.
    Json,
}

/// The attributes of tags that say something.
#[derive(Debug)]
pub(super) struct Attributes {
    /// That of a call with the function's name.
    pub(super) function: &'static str,
    /// That of a parameter with its name.
    pub(super) parameter: &'static str,
    /// That of a parameter and its value that say: this is a string, whatever the schema says.
    pub(super) string: (&'static str, &'static str),
}

/// White space around a value that is no part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trim {
    /// None.
    Nothing,
    /// A line break at each end.
    LineBreak,
    /// All of it.
    All,
}

/// Reads one group of calls.
#[derive(Clone, Debug)]
pub(super) struct XmlCallReader {
    format: &'static XmlCalls,
    types: Arc<ToolTypes>,
    at: At,
    /// The name that is being read, of the function or of a parameter.
    head: String,
    function: String,
    num_parameters: usize,
    /// The type that the model wrote before a value.
    kind: Option<String>,
    /// What ends a value, and what comes between parameters.
    ends: Vec<&'static str>,
    value_ends: Vec<&'static str>,
}

#[derive(Clone, Debug)]
enum At {
    /// Before or between calls of a section.
    Gap { empty: bool },
    /// In the function's name.
    Name,
    /// Between parameters.
    Body,
    /// In a parameter's name.
    Key,
    /// Between name and value, which have tags of their own.
    BeforeValue,
    /// In the type of a value.
    Kind,
    /// In a call that is JSON.
    Json(JsonCallReader),
    /// In a value.
    Value(Value),
}

/// A value that is being read.
#[derive(Clone, Debug)]
struct Value {
    types: Types,
    /// Text that is not shown yet: all of a value whose type is not known before it ends, otherwise white space that
    /// may be its end.
    held: String,
    started: bool,
}

impl XmlCallReader {
    /// A reader for the text after `marker`.
    pub(super) fn new(format: &'static XmlCalls, marker: &str, types: &Arc<ToolTypes>) -> Self {
        let mut ends = vec![format.parameter, format.close];
        ends.extend(format.section.map(|(_, close)| close));
        ends.extend(format.breaks);
        let mut value_ends = ends.clone();
        value_ends.push(format.value_end);
        ends.push(format.call);
        Self {
            format,
            types: Arc::clone(types),
            at: if marker == format.call {
                At::Name
            } else {
                At::Gap { empty: true }
            },
            head: String::new(),
            function: String::new(),
            num_parameters: 0,
            kind: None,
            ends,
            value_ends,
        }
    }

    /// Reads on.
    pub(super) fn step(&mut self, input: &mut Input, sink: &mut Sink) -> Read<Flow> {
        match &mut self.at {
            At::Gap { empty } => {
                let empty = *empty;
                return self.gap(empty, input);
            }
            At::Json(reader) => match reader.step(input, sink)? {
                Flow::Done if self.format.section.is_some() => {
                    input.mark();
                    self.at = At::Gap { empty: false };
                }
                flow => return Ok(flow),
            },
            At::Name => {
                if let Some(json) = self.format.json
                    && self.head.is_empty()
                    && input.next_visible()? == '{'
                {
                    self.at = At::Json(JsonCallReader::new(json));
                    return Ok(Flow::More);
                }
                if let Some(marker) = input.name(&mut self.head, self.format.name_end)? {
                    let name = self.name(|attributes| attributes.function).ok_or(Stop::Fail)?;
                    if !is_name(&name) {
                        return Err(Stop::Fail);
                    }
                    if marker == self.format.name_end[0] {
                        input.take(marker.len());
                    }
                    let name = match name.split_once('.') {
                        Some((head, tail))
                            if self.format.doubled
                                && head == tail
                                && self.types.has(head)
                                && !self.types.has(&name) =>
                        {
                            head.to_owned()
                        }
                        _ => name,
                    };
                    input.release();
                    sink.call_start(&name, None);
                    self.function = name;
                    self.num_parameters = 0;
                    self.at = At::Body;
                }
            }
            At::Body => return self.body(input, sink),
            At::Key => {
                if input.name(&mut self.head, &[self.format.key_end])?.is_some() {
                    input.take(self.format.key_end.len());
                    self.at = At::BeforeValue;
                    if self.format.value.is_none() {
                        self.begin_value(input, sink)?;
                    }
                }
            }
            At::BeforeValue => {
                input.next_visible()?;
                let mut markers = vec![self.format.value.unwrap_or_default()];
                markers.extend(self.format.kind.filter(|_| self.kind.is_none()).map(|(open, _)| open));
                match input.accept_any(&markers)? {
                    Some(0) => self.begin_value(input, sink)?,
                    Some(_) => {
                        self.kind = Some(String::new());
                        self.at = At::Kind;
                    }
                    None => return Err(Stop::Fail),
                }
            }
            At::Kind => {
                let close = self.format.kind.map_or("", |(_, close)| close);
                if input.name(self.kind.get_or_insert_default(), &[close])?.is_some() {
                    input.take(close.len());
                    self.at = At::BeforeValue;
                }
            }
            At::Value(value) => {
                let (len, found) = input.find(&self.value_ends);
                value.push(input.take(len), self.format.trim, sink);
                let marker = self.value_ends[found.ok_or(Stop::Wait)?];
                if self.format.breaks.contains(&marker) {
                    return Err(Stop::Fail);
                }
                value.end(self.format.trim, sink);
                if marker == self.format.value_end {
                    input.take(marker.len());
                }
                self.at = At::Body;
            }
        }
        Ok(Flow::More)
    }

    fn gap(&mut self, empty: bool, input: &mut Input) -> Read<Flow> {
        input.next_visible()?;
        let close = self.format.section.map(|(_, close)| close);
        let mut markers = vec![self.format.call];
        markers.extend(self.format.skip);
        if !empty {
            markers.extend(close);
        }
        match input.accept_any(&markers)? {
            Some(0) => {
                self.head.clear();
                self.at = At::Name;
            }
            Some(index) if Some(markers[index]) == close => return Ok(Flow::Done),
            Some(_) => {}
            None => return Err(Stop::Fail),
        }
        Ok(Flow::More)
    }

    fn body(&mut self, input: &mut Input, sink: &mut Sink) -> Read<Flow> {
        let (len, found) = input.find(&self.ends);
        sink.aside(input.take(len));
        let marker = self.ends[found.ok_or(Stop::Wait)?];
        if marker == self.format.parameter {
            input.mark();
            input.take(marker.len());
            self.head.clear();
            self.kind = None;
            self.at = At::Key;
            return Ok(Flow::More);
        }
        if self.format.breaks.contains(&marker) {
            return Err(Stop::Fail);
        }
        if marker == self.format.close {
            input.take(marker.len());
        }
        if self.num_parameters > 0 {
            sink.arguments("}");
        }
        sink.call_end();
        if self.format.section.is_none() {
            return Ok(Flow::Done);
        }
        input.mark();
        self.at = At::Gap { empty: false };
        Ok(Flow::More)
    }

    fn begin_value(&mut self, input: &mut Input, sink: &mut Sink) -> Read<()> {
        let key = self.name(|attributes| attributes.parameter).unwrap_or_default();
        let known = self.types.of(&self.function, &key);
        let is_string = |attributes: &Attributes| {
            let (name, value) = attributes.string;
            attribute(&self.head, name) == Some(value)
        };
        let written = self.kind.as_deref().map(written_type);
        let types = match (self.format.typing, known, written) {
            _ if self.format.attributes.is_some_and(is_string) => Types::STRING,
            (Typing::Schema, Some(known), Some(written)) => known.narrowed(written),
            (Typing::Schema, known, written) => known.or(written).unwrap_or(self.format.untyped),
            (Typing::Strings, Some(Types::STRING), _) => Types::STRING,
            (Typing::Strings | Typing::Json, ..) => Types::ANY,
        };
        input.release();
        sink.arguments(if self.num_parameters == 0 { "{" } else { ", " });
        sink.arguments(&quoted(&key));
        sink.arguments(if types.is_string() { ": \"" } else { ": " });
        self.num_parameters += 1;
        self.at = At::Value(Value {
            types,
            held: String::new(),
            started: false,
        });
        Ok(())
    }

    /// The name in the head that was read.
    fn name(&self, which: fn(&Attributes) -> &'static str) -> Option<String> {
        let name = match self.format.attributes {
            Some(attributes) => attribute(&self.head, which(attributes))?,
            None => self.head.trim().trim_matches(['"', '\'']),
        };
        Some(name.to_owned())
    }
}

impl Value {
    fn push(&mut self, mut text: &str, trim: Trim, sink: &mut Sink) {
        if text.is_empty() {
            return;
        }
        if !self.types.is_string() {
            self.held.push_str(text);
            return;
        }
        if !self.started {
            text = match trim {
                Trim::Nothing => text,
                Trim::LineBreak => text.strip_prefix('\n').unwrap_or(text),
                Trim::All => text.trim_start(),
            };
            self.started = trim != Trim::All || !text.is_empty();
        }
        let shown = match trim {
            Trim::Nothing => text,
            Trim::LineBreak => text.strip_suffix('\n').unwrap_or(text),
            Trim::All => text.trim_end(),
        };
        // What is held back is the end of the value only as long as nothing comes after it.
        if trim == Trim::LineBreak && !text.is_empty() || !shown.is_empty() {
            sink.arguments(&escaped(&std::mem::take(&mut self.held)));
        }
        sink.arguments(&escaped(shown));
        self.held.push_str(&text[shown.len()..]);
    }

    fn end(&mut self, trim: Trim, sink: &mut Sink) {
        if self.types.is_string() {
            sink.arguments("\"");
            return;
        }
        let text = match trim {
            Trim::Nothing => self.held.as_str(),
            Trim::LineBreak => {
                let text = self.held.strip_prefix('\n').unwrap_or(&self.held);
                text.strip_suffix('\n').unwrap_or(text)
            }
            Trim::All => self.held.trim(),
        };
        sink.arguments(&self.types.read(text));
    }
}

/// The type that a model wrote beside a value: `integer`, or `array[string]`.
fn written_type(kind: &str) -> Types {
    match kind.split('[').next().unwrap_or_default().trim() {
        "any" | "" => Types::STRING,
        name => Types::named(name),
    }
}

/// The value of an attribute in the head of a tag: in quotes of either kind, or bare.
pub(super) fn attribute<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut from = 0;
    while let Some(place) = head[from..].find(name) {
        let start = from + place;
        from = start + name.len();
        let apart = head[..start].chars().next_back().is_none_or(char::is_whitespace);
        let Some(value) = head[from..].trim_start().strip_prefix('=').filter(|_| apart) else {
            continue;
        };
        let value = value.trim_start();
        return match value.chars().next() {
            Some(quote @ ('"' | '\'')) => value[1..].split(quote).next(),
            _ => value.split(char::is_whitespace).next(),
        };
    }
    None
}
