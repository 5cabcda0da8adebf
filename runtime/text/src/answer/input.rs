//! The text that the model wrote and no one has read yet. Every reader gives the same result however the text was cut
//! into pieces: where more text could change an answer it says [`Stop::Wait`], until the text is known to be over.

use super::call::MAX_NAME_BYTES;
use super::event::CallFault;

/// Why a reader did not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// More text has to come.
    Wait,
    /// The text is not what the format says.
    Fail,
}

/// What a reader gives.
pub(super) type Read<T> = Result<T, Stop>;

/// Whether a marker stands at a place.
enum Match {
    /// This one does, and no longer one can.
    Full(usize),
    /// One may, when more text has come.
    Partial,
    /// None does.
    None,
}

/// Text with a place up to which it was read, and a mark from which on it is kept.
#[derive(Clone, Debug, Default)]
pub(super) struct Input {
    text: String,
    /// What is before it was read.
    at: usize,
    /// Text from here on may have to be handed back: it was read as a call and may not be one.
    mark: Option<usize>,
    /// No more text comes.
    last: bool,
    /// Bytes that were compared or moved.
    pub(super) looked_at: usize,
}

impl Input {
    /// Adds text at the end.
    pub(super) fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Says that no more text comes.
    pub(super) fn end(&mut self) {
        self.last = true;
    }

    /// What is wrong with a call that cannot be read on from here.
    pub(super) fn fault(&self) -> CallFault {
        if self.last && self.rest().is_empty() {
            CallFault::CutOff
        } else {
            CallFault::NotJson
        }
    }

    /// Whether no more text comes.
    pub(super) fn is_last(&self) -> bool {
        self.last
    }

    /// Forgets what was read and is not kept. To be called once a piece.
    pub(super) fn compact(&mut self) {
        let keep = self.mark.unwrap_or(self.at);
        if keep > 0 {
            self.text.drain(..keep);
            self.looked_at += self.text.len();
            self.at -= keep;
            self.mark = self.mark.map(|_| 0);
        }
    }

    /// Keeps the text from here on.
    pub(super) fn mark(&mut self) {
        self.mark = Some(self.at);
    }

    /// The text since the mark is understood.
    pub(super) fn release(&mut self) {
        self.mark = None;
    }

    /// Text since the mark, which is no longer kept then.
    pub(super) fn take_held(&mut self) -> String {
        self.mark
            .take()
            .map(|mark| self.text[mark..self.at].to_owned())
            .unwrap_or_default()
    }

    /// Text not read yet.
    pub(super) fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// Reads `len` bytes of [`Input::rest`].
    pub(super) fn take(&mut self, len: usize) -> &str {
        let start = self.at;
        self.at += len;
        &self.text[start..self.at]
    }

    /// The next character, which is not read by this.
    pub(super) fn peek(&mut self) -> Read<char> {
        self.looked_at += 1;
        self.rest().chars().next().ok_or(Stop::Wait)
    }

    /// Reads white space; the character after it, which is not read. A reader that goes on without that character
    /// would take white space of the next piece for something else.
    pub(super) fn next_visible(&mut self) -> Read<char> {
        self.whitespace();
        self.peek()
    }

    /// Reads white space, as much as is there.
    pub(super) fn whitespace(&mut self) -> &str {
        let rest = self.rest();
        let len = rest.len() - rest.trim_start().len();
        self.looked_at += len;
        self.take(len)
    }

    /// Reads `marker` if it comes next.
    pub(super) fn accept(&mut self, marker: &str) -> Read<bool> {
        Ok(self.accept_any(&[marker])?.is_some())
    }

    /// Reads the longest of `markers` that comes next, and says which.
    pub(super) fn accept_any(&mut self, markers: &[&str]) -> Read<Option<usize>> {
        match self.match_at(self.at, markers) {
            Match::Full(index) => {
                self.at += markers[index].len();
                Ok(Some(index))
            }
            Match::Partial => Err(Stop::Wait),
            Match::None => Ok(None),
        }
    }

    /// Whether one of `markers` comes `len` bytes from here; does not read it.
    pub(super) fn marker_after(&mut self, len: usize, markers: &[&str]) -> Read<bool> {
        match self.match_at(self.at + len, markers) {
            Match::Full(_) => Ok(true),
            Match::Partial => Err(Stop::Wait),
            Match::None => Ok(false),
        }
    }

    /// How many bytes of the rest stand before the first of `markers`, and which that is: the longest at its place.
    /// Where none is there, all bytes but those that may begin one.
    pub(super) fn find(&mut self, markers: &[&str]) -> (usize, Option<usize>) {
        let mut place = self.at;
        while place < self.text.len() {
            let byte = self.text.as_bytes()[place];
            self.looked_at += 1;
            if markers.iter().any(|marker| marker.as_bytes()[0] == byte) {
                match self.match_at(place, markers) {
                    Match::Full(index) => return (place - self.at, Some(index)),
                    Match::Partial => return (place - self.at, None),
                    Match::None => {}
                }
            }
            place += 1;
        }
        (self.text.len() - self.at, None)
    }

    /// Reads more of a name up to the first of `markers`; says which that is, which is not read.
    ///
    /// # Errors
    /// [`Stop::Fail`] at the first character that makes the name too long.
    pub(super) fn name(&mut self, name: &mut String, markers: &[&'static str]) -> Read<Option<&'static str>> {
        let (len, found) = self.find(markers);
        self.take_into(len, name, MAX_NAME_BYTES)?;
        match found {
            Some(index) => Ok(Some(markers[index])),
            None if len > 0 => Ok(None),
            None => Err(Stop::Wait),
        }
    }

    /// Reads `len` bytes of the rest to the end of `word`.
    ///
    /// # Errors
    /// [`Stop::Fail`] at the first character that makes the word longer than `most`, wherever the text was cut.
    pub(super) fn take_into(&mut self, len: usize, word: &mut String, most: usize) -> Read<()> {
        let mut fits = len.min(most - word.len());
        while !self.rest().is_char_boundary(fits) {
            fits -= 1;
        }
        word.push_str(self.take(fits));
        if fits < len { Err(Stop::Fail) } else { Ok(()) }
    }

    fn match_at(&mut self, place: usize, markers: &[&str]) -> Match {
        let rest = &self.text.as_bytes()[place..];
        let mut full: Option<usize> = None;
        let mut partial = false;
        for (index, marker) in markers.iter().enumerate() {
            let marker = marker.as_bytes();
            let equal = marker.iter().zip(rest).take_while(|(a, b)| a == b).count();
            self.looked_at += equal + 1;
            if equal == marker.len() {
                if full.is_none_or(|best| markers[best].len() < marker.len()) {
                    full = Some(index);
                }
            } else if equal == rest.len() {
                partial = true;
            }
        }
        match full {
            _ if partial && !self.last => Match::Partial,
            Some(index) => Match::Full(index),
            None => Match::None,
        }
    }
}
