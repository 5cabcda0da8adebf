//! Arguments that are JSON up to a marker, as the model writes them.

use super::event::Sink;
use super::input::{Input, Read, Stop};
use super::json_span::{JsonSpan, Span};

/// The place within the arguments of one call.
#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    span: JsonSpan,
    started: bool,
    complete: bool,
    /// White space and fences after the JSON: no part of it unless more comes.
    tail: String,
}

impl Arguments {
    /// Reads on; says which of `ends` comes next, which is not read. A marker within a string of the JSON is none.
    /// `fence` is dropped where it stands between the JSON and its end.
    ///
    /// # Errors
    /// [`Stop::Wait`].
    pub(super) fn read(
        &mut self,
        input: &mut Input,
        sink: &mut Sink,
        ends: &[&'static str],
        fence: Option<&'static str>,
    ) -> Read<Option<&'static str>> {
        if !self.started {
            input.next_visible()?;
            self.started = true;
        }
        if !self.complete {
            let (len, span) = self.span.read(input, ends)?;
            sink.arguments(input.take(len));
            self.complete = span != Span::More;
            return Ok(None);
        }
        let markers: Vec<&'static str> = ends.iter().copied().chain(fence).collect();
        let (len, found) = input.find(&markers);
        let text = input.take(len);
        let blank = text.len() - text.trim_end().len();
        if blank < text.len() {
            sink.arguments(&std::mem::take(&mut self.tail));
            sink.arguments(&text[..text.len() - blank]);
        }
        self.tail.push_str(&text[text.len() - blank..]);
        match found.map(|index| markers[index]) {
            None => Err(Stop::Wait),
            Some(marker) if fence == Some(marker) => {
                self.tail.push_str(input.take(marker.len()));
                Ok(None)
            }
            Some(marker) => Ok(Some(marker)),
        }
    }

    /// Whether the JSON value is complete, or what is there can be none.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }
}
