//! Texts walked token by token under a constraint.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::Path;

use halyard_grammar::{Constraint, GrammarConfig, GrammarError, Grammars, Matcher, StructuredOutputs};
use halyard_text::Tokenizer;

/// Tokenizers of tiny models: byte-level with 448 tokens, SentencePiece's bytes with 562. Each with its ends.
pub const TOKENIZERS: [(&str, u32, &[u32]); 2] = [("llama", 448, &[2]), ("gemma3", 562, &[1, 5])];

pub fn tokenizer(name: &str) -> Tokenizer {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    Tokenizer::from_file(&fixtures.join(name).join("tokenizer.json")).expect("a tokenizer")
}

pub fn grammars(name: &str, config: GrammarConfig) -> (Tokenizer, Grammars) {
    let (_, size, ends) = TOKENIZERS
        .into_iter()
        .find(|(known, ..)| *known == name)
        .expect("known");
    let tokenizer = tokenizer(name);
    // Logits may be wider than the vocabulary.
    let grammars = Grammars::new(&tokenizer, size + 70, ends, config);
    (tokenizer, grammars)
}

/// Of the first tokenizer.
pub fn compile(asked: impl Into<StructuredOutputs>) -> Result<(), GrammarError> {
    let (_, grammars) = grammars("llama", GrammarConfig::default());
    grammars.compile(&asked.into()).map(drop)
}

pub fn json(schema: serde_json::Value) -> Constraint {
    Constraint::Json(schema.to_string())
}

pub fn regex(pattern: &str) -> Constraint {
    Constraint::Regex(pattern.to_string())
}

pub fn grammar(text: &str) -> Constraint {
    Constraint::Grammar(text.to_string())
}

pub fn tag(tag: serde_json::Value) -> Constraint {
    Constraint::StructuralTag(tag.to_string())
}

/// A matcher with the mask for the next token.
pub struct Walk {
    matcher: Matcher,
    pub mask: Vec<u32>,
}

impl Walk {
    pub fn new(matcher: Matcher, size: u32) -> Walk {
        let mut walk = Walk {
            matcher,
            mask: vec![0; size.div_ceil(32) as usize],
        };
        walk.ask(&[]);
        walk
    }

    fn ask(&mut self, tokens: &[u32]) {
        self.mask.fill(0);
        self.matcher.next_mask(tokens, &mut self.mask).expect("a mask");
    }

    pub fn allows(&self, token: u32) -> bool {
        self.mask[token as usize / 32] >> (token % 32) & 1 == 1
    }

    /// Takes a token if it is allowed.
    pub fn take(&mut self, token: u32) -> bool {
        let allowed = self.allows(token);
        if allowed {
            self.ask(&[token]);
        }
        allowed
    }

    pub fn allowed(&self) -> Vec<u32> {
        (0..self.mask.len() as u32 * 32).filter(|id| self.allows(*id)).collect()
    }
}

/// How far a text comes: the bytes of it that are allowed, and whether it may end there.
pub fn walk(name: &str, asked: &StructuredOutputs, text: &str) -> (usize, bool) {
    let (tokenizer, grammars) = grammars(name, GrammarConfig::default());
    let grammar = grammars
        .compile(asked)
        .unwrap_or_else(|error| panic!("{asked:?}: {error}"));
    let (_, size, ends) = TOKENIZERS
        .into_iter()
        .find(|(known, ..)| *known == name)
        .expect("known");
    let mut walk = Walk::new(grammar.matcher(), size);
    let mut done = 0;
    // Byte by byte where the tokenizer would write a blank before the text.
    let ids = tokenizer.encode(text, false).expect("tokens");
    let spelled: Vec<u8> = ids
        .iter()
        .flat_map(|id| tokenizer.token_bytes(*id).expect("bytes"))
        .collect();
    assert_eq!(String::from_utf8_lossy(&spelled), text, "{name}");
    for id in ids {
        if !walk.take(id) {
            return (done, false);
        }
        done += tokenizer.token_bytes(id).expect("bytes").len();
    }
    let all_ends = ends.iter().all(|end| walk.allows(*end));
    assert_eq!(all_ends, ends.iter().any(|end| walk.allows(*end)), "all ends or none");
    (done, all_ends)
}

/// Checks that all of a text is allowed, and that it may end there, with every tokenizer.
pub fn accepts(asked: impl Into<StructuredOutputs>, text: &str) {
    let asked = asked.into();
    for (name, ..) in TOKENIZERS {
        assert_eq!(
            walk(name, &asked, text),
            (text.len(), true),
            "{name}: {text:?} under {asked:?}"
        );
    }
}

/// Checks that a text is not allowed, or may not end there.
pub fn refuses(asked: impl Into<StructuredOutputs>, text: &str) {
    let asked = asked.into();
    for (name, ..) in TOKENIZERS {
        assert_ne!(
            walk(name, &asked, text),
            (text.len(), true),
            "{name}: {text:?} under {asked:?}"
        );
    }
}
