//! Text to token ids and back, as Hugging Face's tokenizer for the same model does it.
//!
//! Encoding is the `tokenizers` crate; decoding is a table of bytes per token where the vocabulary allows it, so that
//! the incremental detokenizer and a full decode are the same computation. Reads no GGUF file itself: the arrays come in.

use std::path::Path;
use std::sync::Arc;

use crate::gguf::GgufTokenizer;
use crate::token_bytes::{Spelling, TokenBytes};
use crate::{Detokenizer, Result, TextError};

/// A loaded tokenizer. Cloning shares it; every call may come from any thread.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inner: tokenizers::Tokenizer,
    tokens: TokenBytes,
    spelling: Spelling,
    special: AddedIds,
}

/// Ids put around a text when special tokens are asked for and the tokenizer library does not add them itself.
#[derive(Debug, Default)]
pub(crate) struct AddedIds {
    pub(crate) before: Option<u32>,
    pub(crate) after: Option<u32>,
}

impl Tokenizer {
    /// Loads a Hugging Face `tokenizer.json`. Truncation and padding that the file asks for are switched off: a prompt
    /// is never shortened silently. Blocks on the file.
    ///
    /// # Errors
    /// [`TextError::ReadFile`] and [`TextError::ParseFile`].
    pub fn from_file(path: &Path) -> Result<Self> {
        let json = std::fs::read(path).map_err(|source| TextError::ReadFile {
            path: path.to_owned(),
            source,
        })?;
        Self::from_json(&json, &path.display().to_string())
    }

    /// Loads the contents of a `tokenizer.json`; `origin` names them in errors.
    ///
    /// # Errors
    /// [`TextError::ParseFile`].
    pub fn from_json(json: &[u8], origin: &str) -> Result<Self> {
        let parse_error = |reason: String| TextError::ParseFile {
            origin: origin.to_owned(),
            expected: "tokenizer.json",
            reason,
        };
        let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(|error| parse_error(error.to_string()))?;
        inner
            .with_truncation(None)
            .map_err(|error| parse_error(error.to_string()))?;
        inner.with_padding(None);

        let decoder = serde_json::to_value(inner.get_decoder()).map_err(|error| parse_error(error.to_string()))?;
        let spelling = spelling_of_decoder(&decoder);
        let vocab = inner.get_vocab(true);
        let num_ids = vocab.values().max().map_or(0, |id| *id as usize + 1);
        // Ids are dense in practice; a file with one huge id must not make a huge table.
        if num_ids > 2 * vocab.len() + 65_536 {
            return Err(parse_error(format!(
                "{} tokens, but ids up to {}",
                vocab.len(),
                num_ids - 1
            )));
        }
        let mut by_id: Vec<Option<&str>> = vec![None; num_ids];
        for (token, id) in &vocab {
            by_id[*id as usize] = Some(token);
        }
        let added = inner.get_added_tokens_decoder();
        let mut tokens = TokenBytes::with_capacity(num_ids);
        for (id, token) in (0u32..).zip(&by_id) {
            let special = added.get(&id).is_some_and(|token| token.special);
            tokens.push(*token, special, spelling);
        }
        Ok(Self::new(inner, tokens, spelling, AddedIds::default()))
    }

    /// Builds the tokenizer that a GGUF file describes in its metadata.
    ///
    /// # Errors
    /// [`TextError::UnknownTokenizerModel`], [`TextError::UnknownPreTokenizer`] and the errors of damaged arrays.
    pub fn from_gguf(gguf: &GgufTokenizer) -> Result<Self> {
        let built = gguf.build()?;
        Ok(Self::new(built.inner, built.tokens, built.spelling, built.special))
    }

    fn new(inner: tokenizers::Tokenizer, tokens: TokenBytes, spelling: Spelling, special: AddedIds) -> Self {
        Self {
            shared: Arc::new(Shared {
                inner,
                tokens,
                spelling,
                special,
            }),
        }
    }

    /// Encodes `text`. With `add_special_tokens` the ids the model expects around a text are added, such as the
    /// beginning of sequence; a chat prompt has them from its template, so it is encoded without. Special tokens
    /// written in the text become their ids, as in Hugging Face's tokenizer.
    ///
    /// # Errors
    /// [`TextError::Encode`].
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        let encoding = self
            .shared
            .inner
            .encode_fast(text, add_special_tokens)
            .map_err(|error| TextError::Encode {
                text_bytes: text.len(),
                reason: error.to_string(),
            })?;
        let special = &self.shared.special;
        let mut ids = Vec::with_capacity(encoding.get_ids().len() + 2);
        ids.extend(special.before.filter(|_| add_special_tokens));
        ids.extend_from_slice(encoding.get_ids());
        ids.extend(special.after.filter(|_| add_special_tokens));
        Ok(ids)
    }

    /// Decodes `ids` as one text. Bytes that are not UTF-8 become U+FFFD: one for each ill-formed sequence in
    /// byte-level vocabularies, one for each byte in SentencePiece ones. (There the `tokenizers` crate also gives up
    /// the well-formed characters of the same run of byte tokens; they are kept here, as SentencePiece keeps them.)
    ///
    /// # Errors
    /// [`TextError::TokenOutOfVocabulary`], [`TextError::Decode`].
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        if let Some(id) = ids.iter().find(|id| !self.contains(**id)) {
            return Err(TextError::TokenOutOfVocabulary {
                id: *id,
                vocab_size: self.vocab_size(),
            });
        }
        if self.spelling() == Spelling::Other {
            return self.decode_by_library(ids, skip_special_tokens);
        }
        let mut detokenizer = Detokenizer::new(self, &[], skip_special_tokens);
        let mut text = String::new();
        for id in ids {
            text.push_str(detokenizer.push(*id)?);
        }
        text.push_str(detokenizer.finish()?);
        Ok(text)
    }

    /// One more than the largest token id. A model's output may be wider: those ids have no token.
    pub fn vocab_size(&self) -> usize {
        self.shared.tokens.len()
    }

    /// Whether `id` has a token.
    pub fn contains(&self, id: u32) -> bool {
        self.shared.tokens.bytes(id).is_some()
    }

    /// The token as the vocabulary spells it (`Ġthe`, `▁the`, `<0xE2>`).
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.shared.inner.id_to_token(id)
    }

    /// The id of a token spelled as in the vocabulary.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.shared.inner.token_to_id(token)
    }

    /// Whether `id` is a special token: matched as a whole in text and left out of a decode that skips them.
    pub fn is_special(&self, id: u32) -> bool {
        self.shared.tokens.is_special(id)
    }

    /// The bytes that a token stands for, which need not be UTF-8 by themselves.
    ///
    /// # Errors
    /// [`TextError::TokenOutOfVocabulary`], [`TextError::Decode`].
    pub fn token_bytes(&self, id: u32) -> Result<Vec<u8>> {
        let bytes = self.shared.tokens.bytes(id).ok_or(TextError::TokenOutOfVocabulary {
            id,
            vocab_size: self.vocab_size(),
        })?;
        if self.spelling() == Spelling::Other {
            return Ok(self.decode_by_library(&[id], false)?.into_bytes());
        }
        Ok(bytes.to_vec())
    }

    pub(crate) fn spelling(&self) -> Spelling {
        self.shared.spelling
    }

    pub(crate) fn raw_bytes(&self, id: u32) -> Option<&[u8]> {
        self.shared.tokens.bytes(id)
    }

    pub(crate) fn decode_by_library(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        self.shared
            .inner
            .decode(ids, skip_special_tokens)
            .map_err(|error| TextError::Decode {
                num_tokens: ids.len(),
                reason: error.to_string(),
            })
    }
}

/// Recognises the decoders whose work is a table of bytes; the shapes are those of published tokenizer.json files.
fn spelling_of_decoder(decoder: &serde_json::Value) -> Spelling {
    let kind = |value: &serde_json::Value| value["type"].as_str().unwrap_or_default().to_owned();
    match kind(decoder).as_str() {
        "ByteLevel" => Spelling::ByteLevel,
        "Sequence" => {
            let steps = decoder["decoders"].as_array().map_or(&[][..], Vec::as_slice);
            let (mut spaces, mut bytes, mut strip, mut other) = (false, false, false, false);
            for step in steps {
                match kind(step).as_str() {
                    "Replace" if step["pattern"]["String"] == "▁" && step["content"] == " " => spaces = true,
                    "ByteFallback" => bytes = true,
                    "Fuse" => {}
                    "Strip" if step["content"] == " " && step["start"] == 1 && step["stop"] == 0 => strip = true,
                    _ => other = true,
                }
            }
            if spaces && bytes && !other {
                Spelling::SentencePiece {
                    strip_leading_space: strip,
                }
            } else {
                Spelling::Other
            }
        }
        _ => Spelling::Other,
    }
}
