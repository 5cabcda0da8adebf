//! Calls as JSON objects that hold the name and the arguments: `{"name": "f", "arguments": {…}}`, alone or in a list,
//! between markers or bare. The arguments leave as the model writes them.

use super::call::{Flow, MAX_NAME_BYTES};
use super::event::Sink;
use super::input::{Input, Read, Stop};
use super::json_span::{JsonSpan, Span};

/// What is particular to a format of this family.
#[derive(Debug)]
pub(super) struct JsonCalls {
    /// Markers that begin calls; with none, calls stand at the start of the text.
    pub(super) open: &'static [&'static str],
    /// Markers that end them; with none they end with the JSON.
    pub(super) close: &'static [&'static str],
    /// Whether a call may begin without a marker, at the start of the text.
    pub(super) bare: bool,
    /// Whether the calls are in a JSON list, or may be.
    pub(super) list: Listing,
    /// Keys of the name; with none the key of the arguments is the name.
    pub(super) names: &'static [&'static str],
    /// Keys of the arguments.
    pub(super) arguments: &'static [&'static str],
}

/// Whether calls are in a JSON list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listing {
    /// They are objects.
    Objects,
    /// They are in a list.
    List,
    /// Either.
    Both,
}

/// Reads one group of calls.
#[derive(Clone, Debug)]
pub(super) struct JsonCallReader {
    format: &'static JsonCalls,
    at: At,
    in_list: bool,
    object: Object,
}

#[derive(Clone, Debug, PartialEq)]
enum At {
    /// After the first marker.
    Begin,
    /// Before an object.
    Item,
    /// In one.
    Object,
    /// After one.
    After,
    /// After something that is no call and before a closing marker.
    Rubbish,
}

impl JsonCallReader {
    /// A reader for the text after an opening marker, or for bare JSON.
    pub(super) fn new(format: &'static JsonCalls) -> Self {
        Self {
            format,
            at: At::Begin,
            in_list: false,
            object: Object::default(),
        }
    }

    /// Reads on.
    pub(super) fn step(&mut self, input: &mut Input, sink: &mut Sink) -> Read<Flow> {
        match self.at {
            At::Begin => match (input.next_visible()?, self.format.list) {
                ('[', Listing::List | Listing::Both) => {
                    input.take(1);
                    self.in_list = true;
                    self.at = At::Item;
                }
                ('{', Listing::Objects | Listing::Both) => self.at = At::Item,
                _ => return Err(Stop::Fail),
            },
            At::Item => {
                if input.next_visible()? != '{' {
                    return Err(Stop::Fail);
                }
                self.object = Object::default();
                self.at = At::Object;
            }
            At::Object => match self.object.step(self.format, input, sink) {
                Ok(true) => {
                    input.mark();
                    self.at = At::After;
                }
                Err(Stop::Fail) if sink.in_call() && !self.format.close.is_empty() => {
                    sink.call_break(input.fault());
                    sink.text(&input.take_held());
                    self.at = At::Rubbish;
                }
                other => {
                    other?;
                }
            },
            At::After => return self.after(input, sink),
            At::Rubbish => {
                let ends: Vec<_> = self.format.close.iter().chain(self.format.open).copied().collect();
                let (len, found) = input.find(&ends);
                sink.text(input.take(len));
                match found {
                    Some(index) if index < self.format.close.len() => {
                        input.take(ends[index].len());
                        return Ok(Flow::Done);
                    }
                    Some(_) => return Ok(Flow::Done),
                    None => return Err(Stop::Wait),
                }
            }
        }
        Ok(Flow::More)
    }

    fn after(&mut self, input: &mut Input, sink: &mut Sink) -> Read<Flow> {
        input.next_visible()?;
        if input.accept_any(self.format.close)?.is_some() {
            return Ok(Flow::Done);
        }
        if input.marker_after(0, self.format.open)? {
            return Ok(Flow::Done);
        }
        match input.peek()? {
            ']' if self.in_list => {
                input.take(1);
                self.in_list = false;
                input.mark();
                if self.format.close.is_empty() {
                    return Ok(Flow::Done);
                }
            }
            ',' if self.in_list => {
                input.take(1);
                self.at = At::Item;
            }
            ';' | ',' if self.format.list != Listing::List => {
                input.take(1);
                self.at = At::Item;
            }
            '{' if !self.in_list && self.format.list != Listing::List => self.at = At::Item,
            _ if self.format.close.is_empty() => return Err(Stop::Fail),
            _ => {
                // Something is left over before the closing marker, most often one bracket too many.
                sink.text(&input.take_held());
                self.at = At::Rubbish;
            }
        }
        Ok(Flow::More)
    }
}

/// The place within one object.
#[derive(Clone, Debug, Default)]
struct Object {
    place: Place,
    span: JsonSpan,
    /// The key or short value that is being read, as JSON.
    short: String,
    name: Option<String>,
    id: Option<String>,
    /// Arguments that came before the name.
    early: Option<String>,
    has_arguments: bool,
    /// Whether it has members that mean nothing here.
    has_others: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Place {
    #[default]
    Open,
    KeyOrEnd,
    Key,
    Colon,
    Value,
    InValue(Goal),
    CommaOrEnd,
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Goal {
    Name,
    Id,
    Arguments,
    Other,
}

impl Object {
    /// Reads on; true when the object is complete and was a call.
    fn step(&mut self, format: &'static JsonCalls, input: &mut Input, sink: &mut Sink) -> Read<bool> {
        match self.place {
            Place::Open => {
                input.take(1);
                self.place = Place::KeyOrEnd;
            }
            Place::KeyOrEnd => match input.next_visible()? {
                '"' => {
                    if sink.in_call() {
                        input.mark();
                    }
                    self.short.clear();
                    self.span = JsonSpan::default();
                    self.place = Place::Key;
                }
                '}' => return self.close(format, input, sink),
                _ => return Err(Stop::Fail),
            },
            Place::Key => {
                if self.read_short(input)? {
                    self.place = Place::Colon;
                }
            }
            Place::Colon => {
                if input.next_visible()? != ':' {
                    return Err(Stop::Fail);
                }
                input.take(1);
                self.place = Place::Value;
            }
            Place::Value => {
                let first = input.next_visible()?;
                let key: String = serde_json::from_str(&self.short).map_err(|_| Stop::Fail)?;
                let goal = if format.names.is_empty() && !self.has_arguments && !key.is_empty() {
                    self.name = Some(key.clone());
                    Goal::Arguments
                } else if format.names.contains(&key.as_str()) && self.name.is_none() {
                    Goal::Name
                } else if format.arguments.contains(&key.as_str()) && !self.has_arguments {
                    Goal::Arguments
                } else if key == "id" && first == '"' && self.id.is_none() {
                    Goal::Id
                } else {
                    Goal::Other
                };
                if goal == Goal::Name && first != '"' || matches!(first, ',' | ':' | '}' | ']') {
                    return Err(Stop::Fail);
                }
                self.has_others |= goal == Goal::Other && key != "type";
                if goal == Goal::Arguments {
                    self.has_arguments = true;
                    match &self.name {
                        Some(name) => {
                            input.release();
                            sink.call_start(name, self.id.take());
                        }
                        None => self.early = Some(String::new()),
                    }
                }
                if sink.in_call() {
                    input.release();
                }
                self.short.clear();
                self.span = JsonSpan::default();
                self.place = Place::InValue(goal);
            }
            Place::InValue(Goal::Arguments | Goal::Other) => return self.read_long(format, input, sink),
            Place::InValue(goal) => {
                if self.read_short(input)? {
                    let value: String = serde_json::from_str(&self.short).map_err(|_| Stop::Fail)?;
                    if goal == Goal::Id {
                        self.id = Some(value);
                    } else {
                        self.named(value, input, sink)?;
                    }
                    self.place = Place::CommaOrEnd;
                }
            }
            Place::CommaOrEnd => match input.next_visible()? {
                ',' => {
                    input.take(1);
                    self.place = Place::KeyOrEnd;
                }
                '}' => return self.close(format, input, sink),
                _ => return Err(Stop::Fail),
            },
        }
        Ok(false)
    }

    /// The name is known; arguments that came before it follow at once.
    fn named(&mut self, name: String, input: &mut Input, sink: &mut Sink) -> Read<()> {
        if name.is_empty() {
            return Err(Stop::Fail);
        }
        if let Some(early) = self.early.take() {
            input.release();
            sink.call_start(&name, self.id.take());
            sink.arguments(&early);
        }
        self.name = Some(name);
        Ok(())
    }

    /// The object's last bracket comes next. Without arguments it is a call only between markers, and when it has
    /// nothing else that may be meant as such.
    fn close(&mut self, format: &'static JsonCalls, input: &mut Input, sink: &mut Sink) -> Read<bool> {
        if !sink.in_call() {
            match &self.name {
                Some(name) if !format.bare && !self.has_others => {
                    input.release();
                    sink.call_start(name, self.id.take());
                }
                _ => return Err(Stop::Fail),
            }
        }
        input.take(1);
        sink.call_end();
        Ok(true)
    }

    /// Reads a string of bounded length; true when it is complete.
    fn read_short(&mut self, input: &mut Input) -> Read<bool> {
        let (len, span) = self.span.read(input, &[])?;
        input.take_into(len, &mut self.short, MAX_NAME_BYTES)?;
        Ok(span == Span::Complete)
    }

    fn read_long(&mut self, format: &'static JsonCalls, input: &mut Input, sink: &mut Sink) -> Read<bool> {
        let ends: Vec<_> = format.close.iter().chain(format.open).copied().collect();
        let (len, span) = self.span.read(input, &ends)?;
        let text = input.take(len);
        if self.place == Place::InValue(Goal::Arguments) {
            match &mut self.early {
                Some(early) => early.push_str(text),
                None => sink.arguments(text),
            }
        }
        match span {
            Span::More => {}
            Span::Complete => self.place = Place::CommaOrEnd,
            Span::Marker => return Err(Stop::Fail),
        }
        Ok(false)
    }
}
