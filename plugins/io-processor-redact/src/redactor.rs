//! Redacts one text that comes in pieces. Holds back only what may still become a secret, at most [`MAX_HELD`] bytes;
//! the result does not depend on how the text is cut.

use crate::patterns::{Class, Found, MAX_HELD, Rest, Text, pem_body};

/// Redacts one text.
#[derive(Debug)]
pub struct Redactor {
    replacement: String,
    /// Text that has come and was not decided on.
    held: String,
    /// The last byte decided on.
    before: Option<u8>,
    /// What is being dropped.
    inside: Inside,
}

#[derive(Clone, Copy, Debug)]
enum Inside {
    Nothing,
    Run(Class),
    Pem,
}

impl Redactor {
    /// A redactor at the beginning of a text, which writes `replacement` for each secret.
    pub fn new(replacement: &str) -> Redactor {
        Redactor {
            replacement: replacement.to_owned(),
            held: String::new(),
            before: None,
            inside: Inside::Nothing,
        }
    }

    /// A whole text.
    pub fn whole(replacement: &str, text: &str) -> String {
        let mut redactor = Redactor::new(replacement);
        let mut shown = redactor.push(text);
        shown.push_str(&redactor.finish());
        shown
    }

    /// Takes the next piece and returns what may be shown by now.
    pub fn push(&mut self, piece: &str) -> String {
        self.held.push_str(piece);
        let shown = self.advance(false);
        debug_assert!(self.held.len() <= MAX_HELD, "{} bytes are held", self.held.len());
        shown
    }

    /// The text has ended: returns what was held back.
    pub fn finish(&mut self) -> String {
        self.advance(true)
    }

    /// Bytes that are held back.
    pub fn held_len(&self) -> usize {
        self.held.len()
    }

    /// Decides on as much of the held text as can be decided. Secrets are ASCII, so every cut is between characters.
    fn advance(&mut self, ended: bool) -> String {
        let held = std::mem::take(&mut self.held);
        let bytes = held.as_bytes();
        let mut text = Text::new(bytes, ended);
        let mut shown = String::with_capacity(held.len());
        // Text from `plain` to `at` is to be shown.
        let (mut plain, mut at) = (0, 0);
        while at < bytes.len() {
            match self.inside {
                Inside::Run(class) => {
                    at += bytes[at..].iter().take_while(|byte| class(**byte)).count();
                    if at < bytes.len() {
                        self.inside = Inside::Nothing;
                    }
                }
                Inside::Pem => match text.pem_end_at(at) {
                    None => break,
                    Some(0) if pem_body(bytes[at]) => at += 1,
                    Some(len) => {
                        at += len;
                        self.inside = Inside::Nothing;
                    }
                },
                Inside::Nothing => {
                    let before = if at == 0 { self.before } else { Some(bytes[at - 1]) };
                    match text.secret_at(at, before) {
                        Found::No => {
                            at += 1;
                            continue;
                        }
                        Found::NeedMore => break,
                        Found::Secret { keep, len, rest } => {
                            shown.push_str(&held[plain..at + keep]);
                            shown.push_str(&self.replacement);
                            at += len;
                            self.inside = match rest {
                                Rest::None => Inside::Nothing,
                                Rest::Run(class) => Inside::Run(class),
                                Rest::Pem => Inside::Pem,
                            };
                        }
                    }
                }
            }
            plain = at;
        }
        shown.push_str(&held[plain..at]);
        if at > 0 {
            self.before = Some(bytes[at - 1]);
        }
        self.held = held[at..].to_owned();
        shown
    }
}
