//! What the families of tool formats have in common: a reader is made for each group of calls, reads on from the
//! marker that began it, and says when the group is over.

use std::sync::Arc;

use super::call::Flow;
use super::element_calls::{ElementCallReader, ElementCalls};
use super::event::Sink;
use super::input::{Input, Read};
use super::json_calls::{JsonCallReader, JsonCalls, Listing};
use super::literal_calls::{LiteralCallReader, LiteralCalls};
use super::message_marks::Messages;
use super::named_calls::{NamedCallReader, NamedCalls};
use super::python_calls::{PythonCallReader, PythonCalls};
use super::types::ToolTypes;
use super::xml_calls::{XmlCallReader, XmlCalls};

/// A family of tool formats, with what is particular to one of them.
#[derive(Debug)]
pub(super) enum Family {
    /// JSON objects that hold name and arguments.
    Json(JsonCalls),
    /// A name, then arguments as JSON.
    Named(NamedCalls),
    /// Tags with a tag for each parameter.
    Xml(XmlCalls),
    /// JSON with other quotes.
    Literal(LiteralCalls),
    /// Python.
    Python(PythonCalls),
    /// Elements with the parameters' names.
    Elements(ElementCalls),
    /// Messages with headers, which are not only calls.
    Harmony,
    /// The same, and how calls are written in them.
    Messages(&'static Messages, &'static Family),
}

/// Reads one group of calls.
#[derive(Clone, Debug)]
pub(super) enum Reader {
    Json(JsonCallReader),
    Named(Box<NamedCallReader>),
    Xml(Box<XmlCallReader>),
    Literal(Box<LiteralCallReader>),
    Python(Box<PythonCallReader>),
    Elements(Box<ElementCallReader>),
}

impl Family {
    /// The markers that begin calls.
    pub(super) fn open(&self) -> &'static [&'static str] {
        match self {
            Self::Json(format) => format.open,
            Self::Named(format) => format.open,
            Self::Xml(format) => format.open,
            Self::Literal(format) => format.open,
            Self::Python(format) => format.open,
            Self::Elements(format) => format.open,
            Self::Harmony | Self::Messages(..) => &[],
        }
    }

    /// All markers.
    pub(super) fn markers(&self) -> Vec<&'static str> {
        match self {
            Self::Json(format) => [format.open, format.close].concat(),
            Self::Named(format) => {
                let mut markers = [format.open, format.name_end].concat();
                markers.extend(
                    [Some(format.call), format.kind_end, format.id, format.close]
                        .into_iter()
                        .flatten(),
                );
                markers.extend(format.section.map(|(_, close)| close));
                markers
            }
            Self::Xml(format) => {
                let mut markers = [format.open, format.skip, format.name_end].concat();
                markers.extend([
                    format.call,
                    format.close,
                    format.parameter,
                    format.key_end,
                    format.value_end,
                ]);
                markers.extend(format.value);
                markers.extend(format.kind.into_iter().flat_map(|(open, close)| [open, close]));
                markers.extend(format.section.map(|(_, close)| close));
                markers
            }
            Self::Literal(format) => [format.open, &[format.close, format.quote]].concat(),
            Self::Python(format) => [format.open, format.close].concat(),
            Self::Elements(format) => [format.open, &[format.section.1, format.call, format.close]].concat(),
            Self::Harmony => super::harmony::MARKERS.to_vec(),
            Self::Messages(messages, calls) => [messages.markers(), calls.markers()].concat(),
        }
    }

    /// Whether this character begins calls at the start of the text, without a marker.
    pub(super) fn begins_bare(&self, first: char) -> bool {
        match self {
            Self::Json(format) if format.bare => match first {
                '{' => format.list != Listing::List,
                '[' => format.list != Listing::Objects,
                _ => false,
            },
            Self::Python(format) => format.bare && first == '[',
            _ => false,
        }
    }

    /// A reader for the text after `marker`, one of [`Family::open`], or none at the start of bare calls.
    pub(super) fn reader(&'static self, marker: &str, types: &Arc<ToolTypes>) -> Option<Reader> {
        Some(match self {
            Self::Json(format) => Reader::Json(JsonCallReader::new(format)),
            Self::Named(format) => Reader::Named(Box::new(NamedCallReader::new(format, marker))),
            Self::Xml(format) => Reader::Xml(Box::new(XmlCallReader::new(format, marker, types))),
            Self::Literal(format) => Reader::Literal(Box::new(LiteralCallReader::new(format, types))),
            Self::Python(format) => Reader::Python(Box::new(PythonCallReader::new(format, marker))),
            Self::Elements(format) => Reader::Elements(Box::new(ElementCallReader::new(format, types))),
            Self::Harmony | Self::Messages(..) => return None,
        })
    }
}

impl Reader {
    /// Reads on.
    ///
    /// # Errors
    /// [`super::input::Stop::Fail`] where the text is not what the format says: what was kept since the mark is text.
    pub(super) fn step(&mut self, input: &mut Input, sink: &mut Sink) -> Read<Flow> {
        match self {
            Self::Json(reader) => reader.step(input, sink),
            Self::Named(reader) => reader.step(input, sink),
            Self::Xml(reader) => reader.step(input, sink),
            Self::Literal(reader) => reader.step(input, sink),
            Self::Python(reader) => reader.step(input, sink),
            Self::Elements(reader) => reader.step(input, sink),
        }
    }
}
