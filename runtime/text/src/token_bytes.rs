//! The bytes that each token stands for, in one arena, computed once when a tokenizer is loaded.
//!
//! With it, decoding is appending bytes: no look-ups by string, no decoding of a window again and again. Vocabularies
//! whose decoder is neither byte-level nor SentencePiece-like have no such table (`Spelling::Other`).

/// How a vocabulary spells bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// GPT-2's alphabet: every byte is one printable character.
    ByteLevel,
    /// `▁` is a space and `<0xAB>` a byte.
    SentencePiece {
        /// The first space of a text is not part of it: the encoder put it there.
        strip_leading_space: bool,
    },
    /// Anything else: only the tokenizer library's decoder knows.
    Other,
}

/// Per token id: the bytes, and whether it is special.
#[derive(Debug)]
pub(crate) struct TokenBytes {
    arena: Vec<u8>,
    ends: Vec<u32>,
    flags: Vec<u8>,
}

const PRESENT: u8 = 1;
const SPECIAL: u8 = 2;

impl TokenBytes {
    pub(crate) fn with_capacity(num_tokens: usize) -> Self {
        Self {
            arena: Vec::with_capacity(num_tokens * 8),
            ends: Vec::with_capacity(num_tokens),
            flags: Vec::with_capacity(num_tokens),
        }
    }

    /// Appends the next id's token; `None` for an id that has none.
    pub(crate) fn push(&mut self, token: Option<&str>, special: bool, spelling: Spelling) {
        let mut flags = 0;
        if let Some(token) = token {
            flags = PRESENT | if special { SPECIAL } else { 0 };
            spell(token, spelling, &mut self.arena);
        }
        self.ends.push(u32::try_from(self.arena.len()).unwrap_or(u32::MAX));
        self.flags.push(flags);
    }

    /// One more than the largest id.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn bytes(&self, id: u32) -> Option<&[u8]> {
        let index = id as usize;
        if self.flags.get(index)? & PRESENT == 0 {
            return None;
        }
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        self.arena.get(start..self.ends[index] as usize)
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.flags.get(id as usize).is_some_and(|flags| flags & SPECIAL != 0)
    }
}

/// Appends the bytes that `token` stands for.
fn spell(token: &str, spelling: Spelling, out: &mut Vec<u8>) {
    match spelling {
        Spelling::ByteLevel => {
            let start = out.len();
            for character in token.chars() {
                let Some(byte) = byte_of(character) else {
                    // An added token outside the alphabet is itself, as in the tokenizer library's decoder.
                    out.truncate(start);
                    out.extend_from_slice(token.as_bytes());
                    return;
                };
                out.push(byte);
            }
        }
        Spelling::SentencePiece { .. } => {
            if let Some(byte) = byte_token(token) {
                out.push(byte);
                return;
            }
            for (index, piece) in token.split('▁').enumerate() {
                if index > 0 {
                    out.push(b' ');
                }
                out.extend_from_slice(piece.as_bytes());
            }
        }
        Spelling::Other => out.extend_from_slice(token.as_bytes()),
    }
}

/// The byte of a `<0xAB>` token.
pub(crate) fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        None
    } else {
        u8::from_str_radix(digits, 16).ok()
    }
}

/// The character of GPT-2's alphabet that stands for a byte: the inverse of [`byte_of`].
pub(crate) fn character_of(byte: u8) -> char {
    let code = u32::from(byte);
    let code = match code {
        0x00..=0x20 => code + 0x100,
        0x7F..=0xA0 => code - 0x7F + 0x121,
        0xAD => 0x143,
        _ => code,
    };
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte that a character of GPT-2's alphabet stands for: printable Latin-1 is itself, and the 68 other bytes
/// follow in order from U+0100 (`bytes_to_unicode` in GPT-2's encoder.py).
fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    let byte = match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7F,
        0x143 => 0xAD,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    #[test]
    fn alphabet_is_the_tokenizer_library_s() {
        let alphabet = ByteLevel::alphabet();
        assert_eq!(alphabet.len(), 256);
        let mut seen = [false; 256];
        for character in alphabet {
            let byte = byte_of(character).expect("a character of the alphabet");
            assert!(!seen[byte as usize], "byte {byte} twice");
            seen[byte as usize] = true;
            assert_eq!(character_of(byte), character);
        }
        assert_eq!(byte_of('Ġ'), Some(b' '));
        assert_eq!(byte_of('Ċ'), Some(b'\n'));
        assert_eq!(byte_of('世'), None);
    }

    #[test]
    fn spells_bytes_spaces_and_foreign_tokens() {
        let mut table = TokenBytes::with_capacity(4);
        let pieces = Spelling::SentencePiece {
            strip_leading_space: true,
        };
        table.push(Some("▁a▁"), false, pieces);
        table.push(Some("<0xF0>"), false, pieces);
        table.push(None, false, pieces);
        table.push(Some("<0xZZ>"), true, pieces);
        table.push(Some("Ġé世"), false, Spelling::ByteLevel);
        assert_eq!(table.bytes(0), Some(b" a ".as_slice()));
        assert_eq!(table.bytes(1), Some([0xF0].as_slice()));
        assert_eq!(table.bytes(2), None);
        assert_eq!(table.bytes(3), Some(b"<0xZZ>".as_slice()));
        assert_eq!(table.bytes(4), Some("Ġé世".as_bytes()));
        assert_eq!(table.bytes(5), None);
        assert!(table.is_special(3) && !table.is_special(0) && !table.is_special(9));
    }
}
