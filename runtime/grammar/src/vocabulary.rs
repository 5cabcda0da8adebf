//! A model's tokens as the grammar library wants them: a tree of their bytes. Special tokens stand apart from text, so
//! that no text of a grammar is ever spelled with them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use halyard_text::Tokenizer;
use toktrie::{INVALID_TOKEN, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::error::GrammarError;

/// Tokens of more bytes are never allowed: the tree takes words of 1,024 bytes at most.
const MAX_TOKEN_BYTES: usize = 1000;

/// A model's tokens.
pub(crate) struct Vocabulary {
    trie: TokTrie,
}

impl Vocabulary {
    /// The tokens of a model whose logits have `size` places, and which ends a text with one of `ends`.
    pub(crate) fn new(tokenizer: &Tokenizer, size: u32, ends: &[u32]) -> Result<Vocabulary, GrammarError> {
        if !tokenizer.decodes_by_bytes() {
            return Err(GrammarError::Model(
                "its tokenizer's decoder does not give each token bytes of its own; byte-level and SentencePiece \
                 vocabularies do"
                    .to_string(),
            ));
        }
        let end = ends.first().copied().unwrap_or(INVALID_TOKEN);
        let words: Vec<Vec<u8>> = (0..size).map(|id| word(tokenizer, id, ends)).collect();
        let build = || {
            let trie = TokTrie::from(&TokRxInfo::new(size, end), &words);
            if ends.len() > 1 {
                trie.with_eos_tokens(ends)
            } else {
                trie
            }
        };
        // The library asserts its own limits, such as the number of nodes.
        let trie = catch_unwind(AssertUnwindSafe(build))
            .map_err(|_| GrammarError::Model(format!("its {size} tokens make no tree that the library takes")))?;
        Ok(Vocabulary { trie })
    }
}

/// The bytes of a token; those of a special one follow the library's marker. None: the token never comes.
fn word(tokenizer: &Tokenizer, id: u32, ends: &[u32]) -> Vec<u8> {
    let Ok(bytes) = tokenizer.token_bytes(id) else {
        return if ends.contains(&id) {
            special(format!("<[{id}]>").as_bytes())
        } else {
            Vec::new()
        };
    };
    if ends.contains(&id) || tokenizer.is_special(id) {
        return special(&bytes);
    }
    // A word that begins as special ones do is no text: UTF-8 has no such byte.
    let is_text = bytes.len() <= MAX_TOKEN_BYTES && bytes.first() != Some(&TokTrie::SPECIAL_TOKEN_MARKER);
    if is_text { bytes } else { Vec::new() }
}

fn special(bytes: &[u8]) -> Vec<u8> {
    let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
    word.extend(bytes.iter().take(MAX_TOKEN_BYTES));
    word
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(bytes)
    }

    /// The model chooses how it spells what a grammar forces.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
