//! The tokenizer that a GGUF file's metadata describes, rebuilt so that its ids equal Hugging Face's.
//!
//! Takes plain arrays; reading the file is the models crate's work. Two kinds exist here: `gpt2`, byte-level BPE with
//! merges in the file, and `llama`, SentencePiece BPE whose merges follow from the pieces and their order.

use ahash::AHashMap;
use tokenizers::models::bpe::{BPE, Merges};
use tokenizers::normalizers::{NFC, Prepend, Replace, Sequence};
use tokenizers::{AddedToken, NormalizerWrapper};

use crate::token_bytes::{Spelling, TokenBytes, byte_token};
use crate::{Result, TextError, pre_tokenizer};

/// `tokenizer.ggml.token_type` values (gguf specification).
mod token_type {
    pub(super) const UNKNOWN: i32 = 2;
    pub(super) const CONTROL: i32 = 3;
    pub(super) const USER_DEFINED: i32 = 4;
}

/// The `tokenizer.ggml.*` metadata of a GGUF file, one field a key. Arrays over the vocabulary have one entry a token.
#[derive(Debug, Clone, Default, serde::Deserialize)]
#[serde(default)]
pub struct GgufTokenizer {
    /// `model`: `gpt2` or `llama`.
    pub model: String,
    /// `pre`: the splitting rule's name, for `gpt2`.
    pub pre: Option<String>,
    /// `tokens`.
    pub tokens: Vec<String>,
    /// `scores`, higher merges first; may be empty.
    pub scores: Vec<f32>,
    /// `token_type`; may be empty, then all tokens are normal ones.
    pub token_types: Vec<i32>,
    /// `merges`, for `gpt2`: two tokens separated by a space, first merges first.
    pub merges: Vec<String>,
    /// `bos_token_id`.
    pub bos_id: Option<u32>,
    /// `eos_token_id`.
    pub eos_id: Option<u32>,
    /// `padding_token_id`.
    pub pad_id: Option<u32>,
    /// `unknown_token_id`.
    pub unk_id: Option<u32>,
    /// `add_bos_token`; absent means what llama.cpp takes for this kind.
    pub add_bos: Option<bool>,
    /// `add_eos_token`; absent means no.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`; absent means yes for `llama`. Not used by `gpt2`.
    pub add_space_prefix: Option<bool>,
}

/// Ids put around a text when special tokens are asked for and the tokenizer library does not add them itself.
#[derive(Debug, Default)]
pub(crate) struct AddedIds {
    pub(crate) before: Option<u32>,
    pub(crate) after: Option<u32>,
}

/// What [`GgufTokenizer::build`] makes.
pub(crate) struct Built {
    pub(crate) inner: tokenizers::Tokenizer,
    pub(crate) tokens: TokenBytes,
    pub(crate) spelling: Spelling,
    pub(crate) special: AddedIds,
}

impl GgufTokenizer {
    /// The token with this id, for template variables such as `bos_token`.
    pub fn token(&self, id: Option<u32>) -> Option<&str> {
        self.tokens.get(id? as usize).map(String::as_str)
    }

    pub(crate) fn build(&self) -> Result<Built> {
        self.check()?;
        let (mut inner, spelling, add_bos) = match self.model.as_str() {
            "gpt2" => self.build_byte_level()?,
            "llama" => self.build_sentencepiece()?,
            _ => {
                return Err(TextError::UnknownTokenizerModel {
                    model: self.model.clone(),
                    known: "gpt2, llama",
                });
            }
        };
        let mut special = Vec::new();
        let mut plain = Vec::new();
        let mut tokens = TokenBytes::with_capacity(self.tokens.len());
        for (index, token) in self.tokens.iter().enumerate() {
            let is_special = self.is_special(index);
            tokens.push(Some(token), is_special, spelling);
            if token.is_empty() {
                continue;
            }
            if is_special {
                special.push(AddedToken::from(token.as_str(), true).normalized(false));
            } else if self.token_type(index) == token_type::USER_DEFINED
                && (spelling == Spelling::ByteLevel || !is_spaces(token))
            {
                plain.push(AddedToken::from(token.as_str(), false).normalized(false));
            }
        }
        inner.add_special_tokens(&special);
        inner.add_tokens(&plain);
        let special = AddedIds {
            before: self.bos_id.filter(|_| self.add_bos.unwrap_or(add_bos)),
            after: self.eos_id.filter(|_| self.add_eos.unwrap_or(false)),
        };
        Ok(Built {
            inner,
            tokens,
            spelling,
            special,
        })
    }

    /// Lengths and ids that everything after relies on.
    fn check(&self) -> Result<()> {
        let expected = self.tokens.len();
        if expected == 0 {
            return Err(TextError::MissingMetadata {
                model: self.model.clone(),
                field: "tokens",
            });
        }
        for (field, found) in [("scores", self.scores.len()), ("token_type", self.token_types.len())] {
            if found != 0 && found != expected {
                return Err(TextError::LengthMismatch { field, found, expected });
            }
        }
        for (field, id) in [
            ("bos_token_id", self.bos_id),
            ("eos_token_id", self.eos_id),
            ("padding_token_id", self.pad_id),
            ("unknown_token_id", self.unk_id),
        ] {
            if let Some(id) = id.filter(|id| *id as usize >= expected) {
                return Err(TextError::SpecialTokenOutOfRange {
                    field,
                    id,
                    vocab_size: expected,
                });
            }
        }
        Ok(())
    }

    fn token_type(&self, index: usize) -> i32 {
        self.token_types.get(index).copied().unwrap_or(1)
    }

    fn is_special(&self, index: usize) -> bool {
        matches!(self.token_type(index), token_type::CONTROL | token_type::UNKNOWN)
    }

    fn build_byte_level(&self) -> Result<(tokenizers::Tokenizer, Spelling, bool)> {
        let pre = pre_tokenizer::find(self.pre.as_deref())?;
        if self.merges.is_empty() {
            return Err(TextError::MissingMetadata {
                model: self.model.clone(),
                field: "merges",
            });
        }
        let vocab = ids_of(self.tokens.iter().map(String::as_str));
        let mut merges: Merges = Vec::with_capacity(self.merges.len());
        for (index, merge) in self.merges.iter().enumerate() {
            let bad = |reason| TextError::BadMerge {
                index,
                merge: merge.clone(),
                reason,
            };
            let (left, right) = merge
                .split_once(' ')
                .ok_or_else(|| bad("is not two tokens separated by a space"))?;
            if !vocab.contains_key(left) || !vocab.contains_key(right) {
                return Err(bad("joins a token that is not in the vocabulary"));
            }
            merges.push((left.to_owned(), right.to_owned()));
        }
        let model = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .ignore_merges(pre.ignore_merges)
            .build()
            .map_err(|error| TextError::BuildTokenizer {
                reason: error.to_string(),
            })?;
        let mut inner = tokenizers::Tokenizer::new(model);
        inner.with_pre_tokenizer(Some(pre.build()?));
        if pre.nfc {
            inner.with_normalizer(Some(NormalizerWrapper::NFC(NFC)));
        }
        Ok((inner, Spelling::ByteLevel, pre.add_bos))
    }

    fn build_sentencepiece(&self) -> Result<(tokenizers::Tokenizer, Spelling, bool)> {
        let add_space_prefix = self.add_space_prefix.unwrap_or(true);
        // Gemma's files store runs of spaces as they are; merging works on the escaped spelling.
        let respelled: Vec<String> = self.tokens.iter().map(|token| respell_spaces(token)).collect();
        let vocab = ids_of(respelled.iter().map(String::as_str));
        let merges = self.merges_of_pieces(&respelled, &vocab);
        let has_bytes = self.tokens.iter().any(|token| byte_token(token).is_some());
        let mut builder = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .byte_fallback(has_bytes)
            .fuse_unk(true);
        if let Some(unk) = self.unk_id {
            builder = builder.unk_token(respelled[unk as usize].clone());
        }
        let build_error = |reason: String| TextError::BuildTokenizer { reason };
        let model = builder.build().map_err(|error| build_error(error.to_string()))?;
        let mut inner = tokenizers::Tokenizer::new(model);
        let escape = Replace::new(" ", "▁").map_err(|error| build_error(error.to_string()))?;
        let mut steps = Vec::new();
        if add_space_prefix {
            steps.push(NormalizerWrapper::Prepend(Prepend::new("▁".to_owned())));
        }
        steps.push(NormalizerWrapper::Replace(escape));
        inner.with_normalizer(Some(NormalizerWrapper::Sequence(Sequence::new(steps))));
        Ok((
            inner,
            Spelling::SentencePiece {
                strip_leading_space: add_space_prefix,
            },
            true,
        ))
    }

    /// Every way to split a piece into two pieces is a merge; better pieces merge first. SentencePiece numbers its
    /// pieces best first, so where the scores agree with the numbers the number decides: Gemma's user-defined pieces
    /// have a placeholder for a score. Ties go to the longer left side (transformers' `generate_merges`).
    fn merges_of_pieces(&self, pieces: &[String], vocab: &AHashMap<String, u32>) -> Merges {
        let by_number = self.scores_follow_ids();
        let mut found: Vec<(u32, u32, u32)> = Vec::with_capacity(pieces.len() * 2);
        for (id, piece) in (0u32..).zip(pieces) {
            if self.is_special(id as usize) || byte_token(piece).is_some() {
                continue;
            }
            let start = found.len();
            for (split, _) in piece.char_indices().skip(1) {
                let (left, right) = piece.split_at(split);
                if let (Some(left), Some(right)) = (vocab.get(left), vocab.get(right)) {
                    found.push((id, *left, *right));
                }
            }
            // Longer left sides first; `found` has them in order of the left side's length.
            found[start..].reverse();
        }
        if !by_number {
            found.sort_by(|a, b| self.scores[b.0 as usize].total_cmp(&self.scores[a.0 as usize]));
        }
        let piece = |id: u32| pieces[id as usize].clone();
        found
            .into_iter()
            .map(|(_, left, right)| (piece(left), piece(right)))
            .collect()
    }

    /// Whether the normal pieces' scores never rise with the id (or there are none).
    fn scores_follow_ids(&self) -> bool {
        let mut normal = self
            .scores
            .iter()
            .enumerate()
            .filter(|(index, _)| self.token_type(*index) == 1);
        let Some((_, mut previous)) = normal.next() else {
            return true;
        };
        normal.all(|(_, score)| {
            let follows = score <= previous;
            previous = score;
            follows
        })
    }
}

/// Token to id. Of a token that stands twice the last id counts, as in llama.cpp; empty tokens are left out.
fn ids_of<'a>(tokens: impl ExactSizeIterator<Item = &'a str>) -> AHashMap<String, u32> {
    let mut ids = AHashMap::with_capacity(tokens.len());
    for (id, token) in (0u32..).zip(tokens) {
        if !token.is_empty() {
            ids.insert(token.to_owned(), id);
        }
    }
    ids
}

fn is_spaces(token: &str) -> bool {
    !token.is_empty() && token.bytes().all(|byte| byte == b' ')
}

fn respell_spaces(token: &str) -> String {
    if is_spaces(token) {
        "▁".repeat(token.len())
    } else {
        token.to_owned()
    }
}
