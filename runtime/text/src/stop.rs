//! Stop strings over a stream of text pieces. Holds back exactly the text that may still become a stop string.
//!
//! One Knuth-Morris-Pratt matcher per stop string, so the cost is linear in the text whatever the strings are. The
//! failure table grows only as far as the text has matched: a very long stop string costs nothing until it matches.

use crate::{Result, TextError};

/// What [`StopChecker::push`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopOutcome {
    /// No stop string yet; this text, possibly empty, is safe to show.
    Text(String),
    /// A stop string is complete.
    Stop {
        /// Which one, as given.
        index: usize,
        /// The last text to show: before the stop string, or with it when that was asked for.
        text: String,
    },
}

/// Watches one sequence's text for its stop strings.
///
/// The stop string that is complete first ends the text; of two that end at the same place the longer one counts. So
/// the result does not depend on how the text is cut into pieces.
#[derive(Debug, Clone)]
pub struct StopChecker {
    patterns: Vec<Pattern>,
    include_stop: bool,
    /// Text not handed out yet starts at `start`; what is before it is dropped now and then.
    held: String,
    start: usize,
    stopped: bool,
}

#[derive(Debug, Clone)]
struct Pattern {
    bytes: Box<[u8]>,
    /// `failure[k]`: the longest proper border of the first k + 1 bytes, filled in as far as needed.
    failure: Vec<usize>,
    matched: usize,
}

impl StopChecker {
    /// Prepares to stop at any of `stops`; none is fine, then all text passes at once. With `include_stop` the stop
    /// string itself is part of the text.
    ///
    /// # Errors
    /// [`TextError::EmptyStopString`].
    pub fn new<S: AsRef<str>>(stops: &[S], include_stop: bool) -> Result<Self> {
        let mut patterns = Vec::with_capacity(stops.len());
        for (index, stop) in stops.iter().enumerate() {
            if stop.as_ref().is_empty() {
                return Err(TextError::EmptyStopString { index });
            }
            let bytes = stop.as_ref().as_bytes().into();
            patterns.push(Pattern {
                bytes,
                failure: Vec::new(),
                matched: 0,
            });
        }
        Ok(Self {
            patterns,
            include_stop,
            held: String::new(),
            start: 0,
            stopped: false,
        })
    }

    /// Takes the next piece of text. After a stop, all further text is dropped.
    pub fn push(&mut self, piece: &str) -> StopOutcome {
        if self.stopped {
            return StopOutcome::Text(String::new());
        }
        if self.patterns.is_empty() {
            return StopOutcome::Text(piece.to_owned());
        }
        let piece_start = self.held.len();
        self.held.push_str(piece);
        for (offset, byte) in piece.bytes().enumerate() {
            let mut complete = false;
            for pattern in &mut self.patterns {
                complete |= pattern.advance(byte);
            }
            if complete {
                return self.stop_at(piece_start + offset + 1);
            }
        }
        StopOutcome::Text(self.take_safe())
    }

    /// Takes a piece of text in which stop strings do not count (a request's first `min_tokens` tokens). Returns all of
    /// it, after the text that was held. A stop string that begins in it is not found either.
    pub fn pass(&mut self, piece: &str) -> String {
        if self.stopped {
            return String::new();
        }
        self.held.push_str(piece);
        self.patterns.iter_mut().for_each(|pattern| pattern.matched = 0);
        self.take_safe()
    }

    /// Ends the text: returns what was held back.
    pub fn finish(&mut self) -> String {
        self.patterns.iter_mut().for_each(|pattern| pattern.matched = 0);
        self.take_safe()
    }

    /// Ends the text at `end`, a place in `held` where at least one stop string is complete.
    fn stop_at(&mut self, end: usize) -> StopOutcome {
        let mut index = 0;
        let mut stop_bytes = 0;
        for (candidate, pattern) in self.patterns.iter().enumerate() {
            if pattern.matched == pattern.bytes.len() && pattern.matched > stop_bytes {
                (index, stop_bytes) = (candidate, pattern.matched);
            }
        }
        let shown_end = if self.include_stop { end } else { end - stop_bytes };
        let text = self.held[self.start..shown_end].to_owned();
        self.held = String::new();
        self.start = 0;
        self.stopped = true;
        StopOutcome::Stop { index, text }
    }

    /// Hands out the text in front of the longest partial match. A partial match starts with a stop string's first
    /// byte, so the cut is never inside a character.
    fn take_safe(&mut self) -> String {
        let longest = self.patterns.iter().map(|pattern| pattern.matched).max().unwrap_or(0);
        let end = self.held.len() - longest;
        let text = self.held[self.start..end].to_owned();
        self.start = end;
        // Moving the rest to the front only when it is the smaller half keeps the total cost linear.
        if self.start > self.held.len() / 2 {
            self.held.drain(..self.start);
            self.start = 0;
        }
        text
    }
}

impl Pattern {
    /// Takes one byte of text; true when the pattern ends with it.
    fn advance(&mut self, byte: u8) -> bool {
        if self.matched == self.bytes.len() {
            self.matched = self.border(self.matched);
        }
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.border(self.matched);
        }
        if self.bytes[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == self.bytes.len()
    }

    /// The longest proper border of the first `len` bytes, `len` at least 1.
    fn border(&mut self, len: usize) -> usize {
        while self.failure.len() < len {
            let next = self.failure.len();
            let mut border = if next == 0 { 0 } else { self.failure[next - 1] };
            while border > 0 && self.bytes[border] != self.bytes[next] {
                border = self.failure[border - 1];
            }
            if next > 0 && self.bytes[border] == self.bytes[next] {
                border += 1;
            }
            self.failure.push(border);
        }
        self.failure[len - 1]
    }
}
