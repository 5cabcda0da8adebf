//! What the families of tool formats have in common: a reader is made for each group of calls, reads on from the
//! marker that began it, and says when the group is over.

use std::sync::Arc;

use super::event::Sink;
use super::input::{Input, Read};
use super::json_calls::{JsonCallReader, JsonCalls};
use super::types::ToolTypes;

/// The longest name of a function or of a parameter. A longer one is text.
pub(super) const MAX_NAME_BYTES: usize = 512;

/// Whether a group of calls goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// It does.
    More,
    /// It is over; what was read since the mark says nothing.
    Done,
}

/// A family of tool formats, with what is particular to one of them.
#[derive(Debug)]
pub(super) enum Family {
    /// JSON objects that hold name and arguments.
    Json(JsonCalls),
}

/// Reads one group of calls.
#[derive(Clone, Debug)]
pub(super) enum Reader {
    Json(JsonCallReader),
}

impl Family {
    /// The markers that begin calls.
    pub(super) fn open(&self) -> &'static [&'static str] {
        match self {
            Self::Json(format) => format.open,
        }
    }

    /// All markers.
    pub(super) fn markers(&self) -> Vec<&'static str> {
        match self {
            Self::Json(format) => [format.open, format.close].concat(),
        }
    }

    /// The character that begins calls at the start of the text, without a marker.
    pub(super) fn begins_bare(&self, first: char) -> bool {
        match self {
            Self::Json(format) => format.bare && matches!(first, '{' | '['),
        }
    }

    /// A reader for the text after a marker of [`Family::open`], or at the start of bare calls.
    pub(super) fn reader(&'static self, _: &'static str, _: &Arc<ToolTypes>) -> Reader {
        match self {
            Self::Json(format) => Reader::Json(JsonCallReader::new(format)),
        }
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
        }
    }
}
