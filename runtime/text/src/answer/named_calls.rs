//! Calls as a name, a marker and the arguments as JSON: `<|call|>f<|arguments|>{…}<|end|>`. The arguments leave as the
//! model writes them.

use super::arguments::Arguments;
use super::call::{Flow, is_name};
use super::event::Sink;
use super::input::{Input, Read, Stop};
use super::json_calls::{JsonCallReader, JsonCalls};

/// What is particular to a format of this family.
#[derive(Debug)]
pub(super) struct NamedCalls {
    /// Markers around all calls of an answer, if there are such.
    pub(super) section: Option<(&'static str, &'static str)>,
    /// All markers that begin calls: that of the section and that of a call.
    pub(super) open: &'static [&'static str],
    /// The marker that begins a call.
    pub(super) call: &'static str,
    /// The marker between the kind of a tool, which says nothing, and its name.
    pub(super) kind_end: Option<&'static str>,
    /// The marker that ends the name; a bracket of the arguments may, too.
    pub(super) name_end: &'static [&'static str],
    /// The marker between name and id.
    pub(super) id: Option<&'static str>,
    /// What may stand between the arguments and the end of the call.
    pub(super) fence: Option<&'static str>,
    /// The marker that ends a call; without one the JSON does.
    pub(super) close: Option<&'static str>,
    /// Whether the name is an id such as `functions.f:0`.
    pub(super) name_is_id: bool,
    /// Another family that the same marker may begin, told by a bracket that comes next.
    pub(super) or: Option<&'static JsonCalls>,
}

/// Reads one group of calls.
#[derive(Clone, Debug)]
pub(super) struct NamedCallReader {
    format: &'static NamedCalls,
    at: At,
    name: String,
    id: Option<String>,
    ends: Vec<&'static str>,
}

#[derive(Clone, Debug)]
enum At {
    /// In the section, before or between calls.
    Gap { empty: bool },
    /// After the marker of a call.
    Begin,
    /// Before the marker that ends the kind.
    Kind,
    /// In the name.
    Name,
    /// In the id.
    Id,
    /// In the arguments.
    Arguments(Arguments),
    /// In calls of the other family.
    Other(JsonCallReader),
}

impl NamedCallReader {
    /// A reader for the text after `marker`.
    pub(super) fn new(format: &'static NamedCalls, marker: &str) -> Self {
        let mut ends: Vec<_> = format.close.into_iter().chain([format.call]).collect();
        ends.extend(format.section.map(|(_, close)| close));
        Self {
            format,
            at: if marker == format.call {
                At::Begin
            } else {
                At::Gap { empty: true }
            },
            name: String::new(),
            id: None,
            ends,
        }
    }

    /// Reads on.
    pub(super) fn step(&mut self, input: &mut Input, sink: &mut Sink) -> Read<Flow> {
        match &mut self.at {
            At::Gap { empty } => {
                let empty = *empty;
                return self.gap(empty, input);
            }
            At::Begin => {
                if let Some(other) = self.format.or
                    && matches!(input.next_visible()?, '[' | '{')
                {
                    self.at = At::Other(JsonCallReader::new(other));
                    return Ok(Flow::More);
                }
                self.name.clear();
                self.id = None;
                self.at = if self.format.kind_end.is_some() {
                    At::Kind
                } else {
                    At::Name
                };
            }
            At::Kind => {
                let kind_end = self.format.kind_end.unwrap_or_default();
                if input.name(&mut self.name, &[kind_end])?.is_some() {
                    input.take(kind_end.len());
                    self.name.clear();
                    self.at = At::Name;
                }
            }
            At::Name => self.name(input, sink)?,
            At::Id => {
                let id = self.id.get_or_insert_default();
                if let Some(marker) = input.name(id, self.format.name_end)? {
                    self.begin_arguments(marker, input, sink)?;
                }
            }
            At::Arguments(arguments) => {
                let found = arguments.read(input, sink, &self.ends, self.format.fence)?;
                let ended = arguments.is_complete() && self.format.close.is_none();
                if ended || found.is_some() {
                    return Ok(self.end_call(found, input, sink));
                }
            }
            At::Other(reader) => return reader.step(input, sink),
        }
        Ok(Flow::More)
    }

    fn gap(&mut self, empty: bool, input: &mut Input) -> Read<Flow> {
        input.next_visible()?;
        let close = self.format.section.map_or("", |(_, close)| close);
        let markers: &[&str] = if empty {
            &[self.format.call]
        } else {
            &[self.format.call, close]
        };
        match input.accept_any(markers)? {
            Some(0) => self.at = At::Begin,
            Some(_) => return Ok(Flow::Done),
            None => return Err(Stop::Fail),
        }
        Ok(Flow::More)
    }

    fn name(&mut self, input: &mut Input, sink: &mut Sink) -> Read<()> {
        let markers: Vec<_> = self
            .format
            .name_end
            .iter()
            .copied()
            .chain(self.format.id)
            .chain(self.format.close)
            .collect();
        let Some(marker) = input.name(&mut self.name, &markers)? else {
            return Ok(());
        };
        if self.format.id == Some(marker) {
            input.take(marker.len());
            self.at = At::Id;
            return Ok(());
        }
        self.begin_arguments(marker, input, sink)
    }

    /// Name and id are known; `marker` comes next.
    fn begin_arguments(&mut self, marker: &'static str, input: &mut Input, sink: &mut Sink) -> Read<()> {
        let whole = self.name.trim();
        let mut name = whole;
        if self.format.name_is_id {
            name = whole.split(':').next().unwrap_or(whole);
            name = name.strip_prefix("functions.").unwrap_or(name);
            self.id = (name != whole).then(|| whole.to_owned());
        }
        if !is_name(name) {
            return Err(Stop::Fail);
        }
        if self.format.close != Some(marker) && marker != "{" {
            input.take(marker.len());
        }
        input.release();
        let id = self
            .id
            .take()
            .map(|id| id.trim().to_owned())
            .filter(|id| !id.is_empty());
        sink.call_start(name, id);
        self.at = At::Arguments(Arguments::default());
        Ok(())
    }

    /// The arguments are over; `found` comes next, unless the JSON ended them.
    fn end_call(&mut self, found: Option<&'static str>, input: &mut Input, sink: &mut Sink) -> Flow {
        sink.call_end();
        if self.format.close.is_some() && found == self.format.close {
            input.take(found.map_or(0, str::len));
        }
        if self.format.section.is_none() {
            return Flow::Done;
        }
        input.mark();
        self.at = At::Gap { empty: false };
        Flow::More
    }
}
