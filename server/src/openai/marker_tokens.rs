//! Which tokens begin a marker of reasoning, and which would go beyond one: found once for a vocabulary.

use halyard_text::{AnswerFormat, Tokenizer};

/// A marker, and tokens by the number of its bytes that came before them.
type Marker = (Vec<u8>, Vec<Vec<u32>>);

/// Tokens at the markers of reasoning.
#[derive(Debug, Default)]
pub struct MarkerTokens {
    /// Each marker that begins reasoning. Behind so many of its bytes: the tokens that go on with it.
    pub(super) open: Vec<Marker>,
    /// Each marker that ends reasoning. Behind so many of its bytes: the tokens that go on with it and beyond its end.
    /// They are not allowed, since their rest would not be bound.
    pub(super) close: Vec<Marker>,
}

impl MarkerTokens {
    /// Looks each token of a vocabulary up.
    pub fn new(format: &AnswerFormat, tokenizer: &Tokenizer) -> Self {
        let table = |markers: Vec<String>| -> Vec<Marker> {
            let empty = |marker: String| (vec![Vec::new(); marker.len()], marker.into_bytes());
            markers
                .into_iter()
                .map(empty)
                .map(|(ids, marker)| (marker, ids))
                .collect()
        };
        let (open, close) = format.reasoning_markers();
        let mut tokens = MarkerTokens {
            open: table(open),
            close: table(close),
        };
        if tokens.open.is_empty() && tokens.close.is_empty() {
            return tokens;
        }
        for id in 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX) {
            match tokenizer.token_bytes(id) {
                Ok(bytes) if !bytes.is_empty() => tokens.add(id, &bytes),
                _ => {}
            }
        }
        tokens
    }

    fn add(&mut self, id: u32, bytes: &[u8]) {
        for (marker, by_bytes) in &mut self.open {
            for (from, ids) in by_bytes.iter_mut().enumerate() {
                // White space before a marker says nothing.
                let bytes = if from == 0 { bytes.trim_ascii_start() } else { bytes };
                if !bytes.is_empty() && marker[from..].starts_with(bytes) {
                    ids.push(id);
                }
            }
        }
        for (marker, by_bytes) in &mut self.close {
            for (from, ids) in by_bytes.iter_mut().enumerate() {
                let rest = &marker[from..];
                // Behind nothing of it the whole marker may stand anywhere in the token but at its end.
                let goes_beyond = match from {
                    0 => bytes[..bytes.len() - 1].windows(rest.len()).any(|part| part == rest),
                    _ => bytes.len() > rest.len() && bytes.starts_with(rest),
                };
                if goes_beyond {
                    ids.push(id);
                }
            }
        }
    }
}
