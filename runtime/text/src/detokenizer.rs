//! Ids become text one at a time. Never hands out part of a character: bytes wait until their character is whole.
//!
//! One per generated sequence. Where the vocabulary is a table of bytes, a token costs its bytes. For the others a
//! window of recent tokens is decoded twice, once without the new token, and the difference is the new text.

use crate::token_bytes::Spelling;
use crate::{Result, Tokenizer};

/// How many tokens of the prompt are context for the window decoder; words split further are not known.
const CONTEXT_TOKENS: usize = 6;
/// How many tokens the window decoder holds back while its text ends in U+FFFD. No character takes as many, so after
/// them the bytes are really ill-formed; the limit keeps the window short.
const MAX_HELD_TOKENS: usize = 32;

/// Incremental decoder of one sequence of ids. See the module for its cost.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special_tokens: bool,
    /// Special tokens that are not skipped.
    kept: Vec<u32>,
    /// Bytes whose character is not complete yet.
    pending: Vec<u8>,
    /// How many of `pending` came from the prompt.
    pending_from_prompt: usize,
    /// Nothing was rendered yet, so a SentencePiece leading space is still to be dropped.
    at_start: bool,
    window: Window,
    /// The text that the last call handed out.
    text: String,
}

/// State of the window decoder: `ids[..read]` are rendered, and decoding starts at `prefix`.
#[derive(Debug, Clone, Default)]
struct Window {
    ids: Vec<u32>,
    prefix: usize,
    read: usize,
}

impl Detokenizer {
    /// Starts after `prompt` (its last few ids are enough, none is fine): the first token keeps its leading space when
    /// something stands before it, and a character begun in the prompt is completed. With `skip_special_tokens`,
    /// special tokens give no text.
    pub fn new(tokenizer: &Tokenizer, prompt: &[u32], skip_special_tokens: bool) -> Self {
        let mut detokenizer = Self {
            tokenizer: tokenizer.clone(),
            skip_special_tokens,
            kept: Vec::new(),
            pending: Vec::new(),
            pending_from_prompt: 0,
            at_start: true,
            window: Window::default(),
            text: String::new(),
        };
        if tokenizer.spelling() == Spelling::Other {
            let start = prompt.len().saturating_sub(CONTEXT_TOKENS);
            let known = prompt[start..].iter().copied().filter(|id| tokenizer.contains(*id));
            detokenizer.window.ids.extend(known);
            detokenizer.window.read = detokenizer.window.ids.len();
        } else {
            detokenizer.read_context(prompt);
        }
        detokenizer
    }

    /// The same, but for these special tokens, which give their text in any case: markers that a parser of the text has
    /// to see.
    #[must_use]
    pub fn keeping(mut self, special_tokens: &[u32]) -> Self {
        self.kept = special_tokens.to_vec();
        self
    }

    /// Takes the next id and returns the text that became complete, possibly none. An id without a token (a model's
    /// output can be wider than its vocabulary) gives no text.
    ///
    /// # Errors
    /// [`crate::TextError::Decode`] from the tokenizer library, for vocabularies that are not tables of bytes.
    pub fn push(&mut self, id: u32) -> Result<&str> {
        self.text.clear();
        let skipped = self.skip_special_tokens && self.tokenizer.is_special(id) && !self.kept.contains(&id);
        if !skipped && self.tokenizer.contains(id) {
            if self.tokenizer.spelling() == Spelling::Other {
                self.push_window(id)?;
            } else {
                self.push_bytes(id);
            }
        }
        Ok(&self.text)
    }

    /// Ends the sequence: returns what was held back, ill-formed bytes as U+FFFD. The detokenizer may be dropped after.
    ///
    /// # Errors
    /// As [`Detokenizer::push`].
    pub fn finish(&mut self) -> Result<&str> {
        self.text.clear();
        if self.tokenizer.spelling() == Spelling::Other {
            let whole = self
                .tokenizer
                .decode_by_library(&self.window.ids[self.window.prefix..], false)?;
            let shown = self.rendered_prefix()?;
            self.text.push_str(new_text(&shown, &whole));
            self.window.read = self.window.ids.len();
            self.window.prefix = self.window.read;
        } else if self.pending.len() > self.pending_from_prompt {
            for _ in 0..self.replacements(self.pending.len()) {
                self.text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.pending.clear();
        self.pending_from_prompt = 0;
        Ok(&self.text)
    }

    /// Finds what of the prompt matters: whether anything is rendered, and an unfinished character at its end.
    fn read_context(&mut self, prompt: &[u32]) {
        let mut tail: Vec<u8> = Vec::new();
        for id in prompt.iter().rev() {
            let skipped = self.skip_special_tokens && self.tokenizer.is_special(*id);
            let Some(bytes) = self
                .tokenizer
                .raw_bytes(*id)
                .filter(|bytes| !skipped && !bytes.is_empty())
            else {
                continue;
            };
            self.at_start = false;
            tail.splice(0..0, bytes.iter().copied());
            // A character has at most four bytes, so at most three of them can be waiting.
            if tail.len() >= 4 {
                break;
            }
        }
        let start = unfinished_character(&tail);
        self.pending.extend_from_slice(&tail[start..]);
        self.pending_from_prompt = self.pending.len();
    }

    fn push_bytes(&mut self, id: u32) {
        let Some(bytes) = self.tokenizer.raw_bytes(id) else {
            return;
        };
        if bytes.is_empty() {
            return;
        }
        if self.pending_from_prompt > 0 {
            // Only a character that the new bytes really continue is completed; the prompt's own loose bytes are the
            // prompt's affair.
            let begun = self.pending.len();
            self.pending.extend_from_slice(bytes);
            if let Err(error) = std::str::from_utf8(&self.pending)
                && error.valid_up_to() == 0
                && error.error_len().is_some_and(|len| len <= begun)
            {
                self.pending.drain(..begun);
            }
            self.pending_from_prompt = 0;
        } else {
            self.pending.extend_from_slice(bytes);
        }
        self.drain_complete();
    }

    /// Moves the complete characters of `pending` into `text`.
    fn drain_complete(&mut self) {
        let mut done = 0;
        while done < self.pending.len() {
            let (valid, bad) = match std::str::from_utf8(&self.pending[done..]) {
                Ok(valid) => (valid, Some(0)),
                Err(error) => {
                    let valid = &self.pending[done..done + error.valid_up_to()];
                    (std::str::from_utf8(valid).unwrap_or_default(), error.error_len())
                }
            };
            done += valid.len();
            let strip = self.tokenizer.spelling()
                == Spelling::SentencePiece {
                    strip_leading_space: true,
                };
            let valid = if self.at_start && strip {
                valid.strip_prefix(' ').unwrap_or(valid)
            } else {
                valid
            };
            self.text.push_str(valid);
            self.at_start = false;
            match bad {
                None => break,
                Some(len) => {
                    for _ in 0..self.replacements(len) {
                        self.text.push(char::REPLACEMENT_CHARACTER);
                    }
                    done += len;
                }
            }
        }
        self.pending.drain(..done);
    }

    /// How many U+FFFD stand for one ill-formed sequence of `len` bytes; see [`Tokenizer::decode`].
    fn replacements(&self, len: usize) -> usize {
        match self.tokenizer.spelling() {
            Spelling::ByteLevel => len.min(1),
            _ => len,
        }
    }

    fn rendered_prefix(&self) -> Result<String> {
        self.tokenizer
            .decode_by_library(&self.window.ids[self.window.prefix..self.window.read], false)
    }

    fn push_window(&mut self, id: u32) -> Result<()> {
        self.window.ids.push(id);
        let shown = self.rendered_prefix()?;
        let whole = self
            .tokenizer
            .decode_by_library(&self.window.ids[self.window.prefix..], false)?;
        let unfinished =
            whole.ends_with(char::REPLACEMENT_CHARACTER) && self.window.ids.len() - self.window.read <= MAX_HELD_TOKENS;
        if whole.len() > shown.len() && !unfinished {
            self.text.push_str(new_text(&shown, &whole));
            self.window.prefix = self.window.read;
            self.window.read = self.window.ids.len();
            // Ids before the prefix are never decoded again.
            self.window.ids.drain(..self.window.prefix);
            self.window.read -= self.window.prefix;
            self.window.prefix = 0;
        }
        Ok(())
    }
}

/// What `whole` has after the part it shares with `shown`.
fn new_text<'a>(shown: &str, whole: &'a str) -> &'a str {
    let shared: usize = shown
        .chars()
        .zip(whole.chars())
        .take_while(|(a, b)| a == b)
        .map(|(a, _)| a.len_utf8())
        .sum();
    &whole[shared..]
}

/// Where an unfinished character at the end of `bytes` starts, or their length.
fn unfinished_character(bytes: &[u8]) -> usize {
    let mut start = 0;
    while let Err(error) = std::str::from_utf8(&bytes[start..]) {
        start += error.valid_up_to();
        match error.error_len() {
            None => return start,
            Some(len) => start += len,
        }
    }
    bytes.len()
}
