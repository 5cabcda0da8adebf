//! Finds the end of a JSON value as it comes, without reading what it says: quotes, escapes and brackets are enough.
//! What is wrong in it passes, byte for byte.

use super::input::{Input, Read, Stop};

/// The place within one JSON value.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonSpan {
    depth: usize,
    in_string: bool,
    escaped: bool,
    started: bool,
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Span {
    /// The value goes on.
    More,
    /// It is complete.
    Complete,
    /// A marker comes next, outside a string, where the value cannot end.
    Marker,
}

impl JsonSpan {
    /// Reads more of the value: how many bytes of the rest belong to it, and whether it ends there. `markers` end it
    /// where they come outside a string.
    ///
    /// # Errors
    /// [`Stop::Wait`] when nothing can be read yet.
    pub(super) fn read(&mut self, input: &mut Input, markers: &[&str]) -> Read<(usize, Span)> {
        let mut len = 0;
        loop {
            input.looked_at += 1;
            let rest = &input.rest()[len..];
            let Some(&byte) = rest.as_bytes().first() else {
                break;
            };
            let width = rest.chars().next().map_or(1, char::len_utf8);
            if self.in_string {
                // Bytes of a string that mean nothing here, at once.
                if !self.escaped && byte != b'"' && byte != b'\\' {
                    let plain = rest.bytes().position(|b| b == b'"' || b == b'\\').unwrap_or(rest.len());
                    input.looked_at += plain;
                    len += plain;
                    continue;
                }
                len += width;
                if self.escaped {
                    self.escaped = false;
                } else if byte == b'\\' {
                    self.escaped = true;
                } else {
                    self.in_string = false;
                    if self.depth == 0 {
                        return Ok((len, Span::Complete));
                    }
                }
                continue;
            }
            if markers.iter().any(|marker| marker.as_bytes()[0] == byte) {
                match input.marker_after(len, markers) {
                    Ok(true) => return Ok((len, Span::Marker)),
                    Ok(false) => {}
                    Err(_) if len == 0 => return Err(Stop::Wait),
                    Err(_) => return Ok((len, Span::More)),
                }
            }
            let scalar_ends = self.started && self.depth == 0;
            match byte {
                b'"' if scalar_ends => return Ok((len, Span::Complete)),
                b'"' => (self.in_string, self.started) = (true, true),
                b'{' | b'[' if scalar_ends => return Ok((len, Span::Complete)),
                b'{' | b'[' => (self.depth, self.started) = (self.depth + 1, true),
                b'}' | b']' if self.depth == 0 => return Ok((len, Span::Complete)),
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Ok((len + 1, Span::Complete));
                    }
                }
                b',' | b':' | b' ' | b'\n' | b'\r' | b'\t' if self.depth == 0 => return Ok((len, Span::Complete)),
                _ => self.started = true,
            }
            len += width;
        }
        if len > 0 {
            Ok((len, Span::More))
        } else if input.is_last() && self.started && self.depth == 0 && !self.in_string {
            Ok((0, Span::Complete))
        } else {
            Err(Stop::Wait)
        }
    }
}
