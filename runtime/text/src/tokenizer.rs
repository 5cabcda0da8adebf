//! Text to token ids and back, as Hugging Face's tokenizer for the same model does it.
//!
//! Encoding is the `tokenizers` crate; decoding is a table of bytes per token where the vocabulary allows it, so that
//! the incremental detokenizer and a full decode are the same computation. Reads no GGUF file itself: the arrays come
//! in.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use crate::gguf::{AddedIds, GgufTokenizer};
use crate::long_text::{EncodeLimits, MAX_UNCUT_BYTES, PIECE_BYTES, Separable, floor_char, next_cut};
use crate::token_bytes::{Spelling, TokenBytes};
use crate::tokenizer_file;
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
    separable: Option<Separable>,
    /// The special tokens around a text, when they are asked for.
    around: Around,
    /// Bytes that one byte of text may become before it is split.
    growth: usize,
}

/// Ids before and after a text.
#[derive(Debug, Default)]
struct Around {
    before: Vec<u32>,
    after: Vec<u32>,
}

/// Most special tokens around a text; real models have one or two.
const MAX_AROUND: usize = 64;
/// Tokens that cutting may add to the estimate of a long text, beyond doubling it.
const PIECE_MARGIN: usize = 1024;
/// Texts that a tokenizer must take without a panic: nothing, blanks, words, marks, letters of two to four bytes.
const SAMPLES: [&str; 6] = [
    "",
    " ",
    "hello",
    "Hello, world! 1234\n\n  x",
    "e\u{301}à 世界 \u{1F600}",
    "\t\r\n\0",
];

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
        let growth = tokenizer_file::check(json).map_err(parse_error)?;
        let parsed = caught(|| tokenizers::Tokenizer::from_bytes(json))
            .map_err(|panic| parse_error(format!("the tokenizer library fails on it: {panic}")))?;
        let mut inner = parsed.map_err(|error| parse_error(error.to_string()))?;
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
        let tokenizer = Self::new(inner, tokens, spelling, AddedIds::default(), growth).map_err(parse_error)?;
        tokenizer.try_samples().map_err(parse_error)?;
        Ok(tokenizer)
    }

    /// Builds the tokenizer that a GGUF file describes in its metadata.
    ///
    /// # Errors
    /// [`TextError::UnknownTokenizerModel`], [`TextError::UnknownPreTokenizer`] and the errors of damaged arrays.
    pub fn from_gguf(gguf: &GgufTokenizer) -> Result<Self> {
        let built = gguf.build()?;
        // The normalizers that are built here make three bytes of one at most.
        Self::new(built.inner, built.tokens, built.spelling, built.special, 3)
            .map_err(|reason| TextError::BuildTokenizer { reason })
    }

    fn new(
        inner: tokenizers::Tokenizer,
        tokens: TokenBytes,
        spelling: Spelling,
        special: AddedIds,
        growth: usize,
    ) -> std::result::Result<Self, String> {
        let separable = Separable::of(&inner, &tokens, spelling);
        let mut shared = Shared {
            inner,
            tokens,
            spelling,
            special,
            separable,
            around: Around::default(),
            growth,
        };
        let encode = |special| shared.encode_at_once("a", special).map_err(|error| error.to_string());
        let (with, without) = (encode(true)?, encode(false)?);
        let at = with.windows(without.len().max(1)).position(|ids| ids == without);
        match at {
            Some(at) => {
                shared.around = Around {
                    before: with[..at].to_vec(),
                    after: with[at + without.len()..].to_vec(),
                };
            }
            // These cannot be told apart, so such a text is encoded as a whole.
            None => shared.separable = None,
        }
        if with.len().saturating_sub(without.len()) > MAX_AROUND {
            let found = with.len() - without.len();
            return Err(format!(
                "it puts {found} special tokens around each text; at most {MAX_AROUND} are taken"
            ));
        }
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Encodes texts that have shown faults of tokenizer files: one that panics is no tokenizer to serve with.
    fn try_samples(&self) -> std::result::Result<(), String> {
        for text in SAMPLES {
            for special in [false, true] {
                if let Err(TextError::TokenizerPanicked { reason, .. }) = self.shared.encode_at_once(text, special) {
                    return Err(format!(
                        "the tokenizer library fails with it on the text {text:?}: {reason}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Encodes `text`. With `add_special_tokens` the ids the model expects around a text are added, such as the
    /// beginning of sequence; a chat prompt has them from its template, so it is encoded without. Special tokens
    /// written in the text become their ids, as in Hugging Face's tokenizer.
    ///
    /// # Errors
    /// [`TextError::Encode`], [`TextError::Uncuttable`].
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        self.encode_within(text, add_special_tokens, EncodeLimits::default())
    }

    /// As [`Tokenizer::encode`], given up as soon as the text is known to have more tokens than `limits` allow, or when
    /// it is cancelled. Memory is bounded by the limits and not by the text: a long text is encoded in pieces, or,
    /// where the tokenizer's words may lie anywhere, refused from a length on.
    ///
    /// # Errors
    /// [`TextError::TooManyTokens`], [`TextError::Cancelled`], [`TextError::Uncuttable`], [`TextError::Encode`].
    pub fn encode_within(&self, text: &str, add_special_tokens: bool, limits: EncodeLimits<'_>) -> Result<Vec<u32>> {
        self.encode_pieces(text, add_special_tokens, limits, PIECE_BYTES)
    }

    /// Whether long texts are encoded in pieces.
    #[cfg(test)]
    pub(crate) fn is_separable(&self) -> bool {
        self.shared.separable.is_some()
    }

    /// [`Tokenizer::encode_within`] with pieces of about `piece_bytes`.
    pub(crate) fn encode_pieces(
        &self,
        text: &str,
        add_special_tokens: bool,
        limits: EncodeLimits<'_>,
        piece_bytes: usize,
    ) -> Result<Vec<u32>> {
        let shared = &*self.shared;
        let num_around = if add_special_tokens {
            shared.around.before.len() + shared.around.after.len()
        } else {
            0
        };
        let check = |num_tokens: usize| match limits.max_tokens {
            Some(max_tokens) if num_tokens + num_around > max_tokens => Err(TextError::TooManyTokens {
                max_tokens,
                at_least: num_tokens + num_around,
            }),
            _ => Ok(()),
        };
        if text.len() <= piece_bytes {
            // One of many short texts is not begun any more.
            if limits.is_cancelled() {
                return Err(TextError::Cancelled);
            }
            let ids = shared.encode_at_once(text, add_special_tokens)?;
            check(ids.len() - num_around.min(ids.len()))?;
            return Ok(ids);
        }
        let Some(separable) = &shared.separable else {
            self.check_estimate(text, limits)?;
            let ids = shared.encode_at_once(text, add_special_tokens)?;
            check(ids.len() - num_around.min(ids.len()))?;
            return Ok(ids);
        };
        check(separable.min_tokens(text))?;
        let mut ids = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            if limits.is_cancelled() {
                return Err(TextError::Cancelled);
            }
            let (piece, after) = rest.split_at(next_cut(rest, piece_bytes));
            if piece.len() > MAX_UNCUT_BYTES {
                return Err(TextError::Uncuttable {
                    bytes: piece.len(),
                    max_bytes: MAX_UNCUT_BYTES,
                });
            }
            ids.extend(shared.encode_at_once(piece, false)?);
            check(ids.len())?;
            rest = after;
        }
        if add_special_tokens {
            ids.splice(0..0, shared.around.before.iter().copied());
            ids.extend_from_slice(&shared.around.after);
        }
        Ok(ids)
    }

    /// Refuses a text that must be encoded at once and is too long for that. A text far over the limit is recognised by
    /// its parts: cut anywhere, a part differs in the tokens of the words that were cut and in no others.
    fn check_estimate(&self, text: &str, limits: EncodeLimits<'_>) -> Result<()> {
        let mut estimate = 0;
        let mut rest = text;
        while let Some(max_tokens) = limits.max_tokens.filter(|_| !rest.is_empty()) {
            if limits.is_cancelled() {
                return Err(TextError::Cancelled);
            }
            let (piece, after) = rest.split_at(floor_char(rest, PIECE_BYTES.min(rest.len())));
            estimate += self.shared.encode_at_once(piece, false)?.len();
            rest = after;
            if estimate / 2 > max_tokens + PIECE_MARGIN {
                return Err(TextError::TooManyTokens {
                    max_tokens,
                    at_least: max_tokens + 1,
                });
            }
        }
        let max_bytes = (2 * MAX_UNCUT_BYTES / self.shared.growth).max(PIECE_BYTES);
        if text.len() > max_bytes {
            return Err(TextError::Uncuttable {
                bytes: text.len(),
                max_bytes,
            });
        }
        Ok(())
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

    /// Whether a text is the bytes of its tokens, one after another. False where only the tokenizer library's decoder
    /// knows what tokens next to each other become.
    pub fn decodes_by_bytes(&self) -> bool {
        self.spelling() != Spelling::Other
    }

    pub(crate) fn spelling(&self) -> Spelling {
        self.shared.spelling
    }

    pub(crate) fn raw_bytes(&self, id: u32) -> Option<&[u8]> {
        self.shared.tokens.bytes(id)
    }

    pub(crate) fn decode_by_library(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        caught(|| self.shared.inner.decode(ids, skip_special_tokens))
            .map_err(|reason| TextError::TokenizerPanicked { text_bytes: 0, reason })?
            .map_err(|error| TextError::Decode {
                num_tokens: ids.len(),
                reason: error.to_string(),
            })
    }
}

impl Shared {
    /// Encodes a text with all memory that this takes. A panic of the library ends this text and nothing else.
    fn encode_at_once(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        let encoded = caught(|| self.inner.encode_fast(text, add_special_tokens));
        let encoding = encoded
            .map_err(|reason| TextError::TokenizerPanicked {
                text_bytes: text.len(),
                reason,
            })?
            .map_err(|error| TextError::Encode {
                text_bytes: text.len(),
                reason: error.to_string(),
            })?;
        let special = &self.special;
        let mut ids = Vec::with_capacity(encoding.get_ids().len() + 2);
        ids.extend(special.before.filter(|_| add_special_tokens));
        ids.extend_from_slice(encoding.get_ids());
        ids.extend(special.after.filter(|_| add_special_tokens));
        Ok(ids)
    }
}

/// Runs a call into the tokenizer library; the message of a panic in it.
fn caught<T>(call: impl FnOnce() -> T) -> std::result::Result<T, String> {
    // What a call leaves behind is a cache of words, which the library itself guards.
    catch_unwind(AssertUnwindSafe(call)).map_err(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without a message".to_owned())
    })
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
