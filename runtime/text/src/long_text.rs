//! Long texts: a bound on their tokens, places where a text can be cut without changing a token, and cancelling an
//! encoding. The memory of an encoding follows the piece, not the text (about 200 bytes a byte of the piece).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use tokenizers::ModelWrapper;

use crate::pre_tokenizer;
use crate::token_bytes::{Spelling, TokenBytes};

/// Texts up to this many bytes are encoded at once.
pub(crate) const PIECE_BYTES: usize = 64 << 10;
/// Longest part of a text that is encoded at once because nothing in it is known to end a word.
pub(crate) const MAX_UNCUT_BYTES: usize = 1 << 20;

/// Cancels an encoding that runs on another thread, or a template. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// Ends the work between two pieces of a text; a template's within 50 ms.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the work has been given up.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What bounds the encoding of one text.
#[derive(Clone, Copy, Debug, Default)]
pub struct EncodeLimits<'a> {
    /// Most tokens, special ones included; `None`: no bound.
    pub max_tokens: Option<usize>,
    /// Asked between pieces.
    pub cancel: Option<&'a CancelFlag>,
}

impl EncodeLimits<'_> {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(CancelFlag::is_cancelled)
    }
}

/// What is known of a tokenizer whose texts can be cut at [`is_cut`]'s places: the cut changes no token of either side.
/// That holds for byte-level BPE over the splitting rules in [`pre_tokenizer`]. None of them has a match that goes on
/// from a letter to white space or from a line break to a letter, and none looks behind itself.
#[derive(Debug)]
pub(crate) struct Separable {
    /// By byte, whether the vocabulary can spell it; the others vanish.
    spelled: [bool; 256],
    /// Bytes of the longest token, and how many times its length a text may have that normalises to it.
    longest_token: usize,
}

impl Separable {
    /// `None` where a cut may change tokens.
    pub(crate) fn of(inner: &tokenizers::Tokenizer, tokens: &TokenBytes, spelling: Spelling) -> Option<Self> {
        let ModelWrapper::BPE(model) = inner.get_model() else {
            return None;
        };
        let normalizer = serde_json::to_value(inner.get_normalizer()).ok()?;
        let splits = serde_json::to_value(inner.get_pre_tokenizer()).ok()?;
        let added = inner.get_added_tokens_decoder();
        let separable = spelling == Spelling::ByteLevel
            && model.dropout.is_none()
            && keeps_cuts(&normalizer)
            && splits_known(&splits) == Some(true)
            && added
                .values()
                .all(|token| !token.lstrip && !token.rstrip && !crosses_a_cut(&token.content));
        if !separable {
            return None;
        }
        let mut spelled = [false; 256];
        let mut longest = 1;
        for id in 0..u32::try_from(tokens.len()).unwrap_or(u32::MAX) {
            let bytes = tokens.bytes(id).unwrap_or_default();
            longest = longest.max(bytes.len());
            if let [byte] = bytes {
                spelled[*byte as usize] = true;
            }
        }
        if !normalizer.is_null() {
            // NFC makes at most three bytes one, and may make any bytes of others.
            spelled = [spelled.iter().all(|spelled| *spelled); 256];
            longest *= 3;
        }
        Some(Separable {
            spelled,
            longest_token: longest,
        })
    }

    /// Fewest tokens that a text can have, from its bytes alone.
    pub(crate) fn min_tokens(&self, text: &str) -> usize {
        let spelled = text.bytes().filter(|byte| self.spelled[*byte as usize]).count();
        spelled.div_ceil(self.longest_token)
    }
}

/// Only NFC is known to do the same to both sides of a cut: white space composes with nothing before it, and neither do
/// the letters of [`is_letter`].
fn keeps_cuts(normalizer: &Value) -> bool {
    match normalizer["type"].as_str() {
        None => normalizer.is_null(),
        Some("NFC") => true,
        Some("Sequence") => list(&normalizer["normalizers"]).iter().all(keeps_cuts),
        Some(_) => false,
    }
}

/// `None` for a step whose effect on a cut is not known, else whether it (or one of its steps) splits words.
fn splits_known(step: &Value) -> Option<bool> {
    match step["type"].as_str()? {
        "ByteLevel" if step["add_prefix_space"] == false => Some(step["use_regex"] != false),
        "Digits" => Some(false),
        "Split" => {
            let isolates = step["behavior"] == "Isolated" && step["invert"] != true;
            let known = step["pattern"]["Regex"]
                .as_str()
                .is_some_and(pre_tokenizer::is_known_split);
            (isolates && known).then_some(true)
        }
        "Sequence" => list(&step["pretokenizers"])
            .iter()
            .try_fold(false, |any, step| Some(any | splits_known(step)?)),
        _ => None,
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Whether a token that is matched in the raw text could lie across a cut.
fn crosses_a_cut(token: &str) -> bool {
    token.char_indices().skip(1).any(|(at, _)| is_cut(token, at)) || token.contains('\n')
}

/// Whether `text` can be cut before the byte `at`: a letter, then white space; or one line break after something that
/// is no white space, then a letter.
fn is_cut(text: &str, at: usize) -> bool {
    let mut before = text[..at].chars().rev();
    let (Some(last), Some(next)) = (before.next(), text[at..].chars().next()) else {
        return false;
    };
    let after_word = is_letter(last) && matches!(next, ' ' | '\n' | '\t' | '\r');
    let after_line = last == '\n' && is_letter(next) && before.next().is_some_and(|c| !c.is_whitespace());
    after_word || after_line
}

/// Letters of scripts whose letters compose with nothing before them: Latin (ASCII), Cyrillic, kana, ideographs,
/// Hangul.
fn is_letter(character: char) -> bool {
    character.is_ascii_alphabetic()
        || matches!(character, 'А'..='я' | 'ぁ'..='ゖ' | 'ァ'..='ヺ' | '一'..='鿿' | '가'..='힣')
}

/// The last place at or before `limit` bytes where `text` can be cut, or else the first one after it up to
/// [`MAX_UNCUT_BYTES`]; the text's end where there is none.
pub(crate) fn next_cut(text: &str, limit: usize) -> usize {
    if text.len() <= limit {
        return text.len();
    }
    let limit = floor_char(text, limit);
    let earlier = text[..limit].char_indices().rev().map(|(at, _)| at);
    let later = text[limit..].char_indices().map(|(at, _)| limit + at);
    let later = later.take_while(|at| *at <= MAX_UNCUT_BYTES);
    earlier
        .take_while(|at| *at > limit / 2)
        .chain(later)
        .find(|at| is_cut(text, *at))
        .unwrap_or(text.len())
}

/// The start of the character that the byte `at` belongs to.
pub(crate) fn floor_char(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use halyard_models::SplitMix64;

    use super::*;
    use crate::{GgufTokenizer, TextError, Tokenizer};

    /// Rules whose texts can be cut.
    const RULES: [&str; 9] = [
        "smollm",
        "gpt-2",
        "default",
        "qwen2",
        "llama-bpe",
        "tekken",
        "gpt-4o",
        "deepseek-v3",
        "command-r",
    ];

    fn golden() -> GgufTokenizer {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/bpe.json");
        let file: Value = serde_json::from_slice(&std::fs::read(path).expect("committed")).expect("JSON");
        serde_json::from_value(file["gguf"].clone()).expect("a tokenizer")
    }

    fn tokenizer(pre: &str) -> Tokenizer {
        let gguf = GgufTokenizer {
            pre: Some(pre.to_owned()),
            ..golden()
        };
        Tokenizer::from_gguf(&gguf).expect("builds")
    }

    /// What splitting rules treat differently, and what cuts could break: runs of blanks, line breaks of two kinds,
    /// contractions, digits, marks, letters that compose, scripts, special tokens.
    const PARTS: [&str; 64] = [
        "a",
        "b",
        "the",
        "Hello",
        "WORLD",
        "camelCase",
        "x",
        "I",
        "'s",
        "'re",
        "'LL",
        "'",
        "\"",
        " ",
        " ",
        " ",
        "  ",
        "    ",
        "\n",
        "\n",
        "\n\n",
        "\r\n",
        "\r",
        "\t",
        "\t\t",
        " \n",
        "\n ",
        "\u{a0}",
        "\u{2003}",
        "\u{3000}",
        "1",
        "12",
        "1234567",
        "٣",
        ".",
        ",",
        "!",
        "?!",
        "...",
        "/",
        "//",
        "-",
        "_",
        "#",
        "$",
        "<",
        ">",
        "(",
        ")",
        "é",
        "e\u{301}",
        "\u{301}",
        "ß",
        "世",
        "界",
        "。",
        "カ",
        "が",
        "か\u{3099}",
        "한",
        "Ж",
        "\u{1F600}",
        "<|im_start|>",
        "\0",
    ];

    fn text(random: &mut SplitMix64, parts: usize) -> String {
        (0..parts).map(|_| PARTS[random.index(PARTS.len())]).collect()
    }

    #[test]
    fn pieces_have_the_ids_of_the_whole() {
        for rule in RULES {
            let tokenizer = tokenizer(rule);
            assert!(tokenizer.is_separable(), "{rule}");
            let mut random = SplitMix64(0x9E37_79B9_7F4A_7C15);
            let mut cuts = 0;
            for round in 0..1500 {
                let text = text(&mut random, 60);
                let special = round % 2 == 0;
                let whole = tokenizer.encode(&text, special).expect("encodes");
                let piece_bytes = 1 + random.index(24);
                let pieces = tokenizer
                    .encode_pieces(&text, special, EncodeLimits::default(), piece_bytes)
                    .expect("encodes");
                assert_eq!(pieces, whole, "{rule}, pieces of {piece_bytes} bytes of {text:?}");
                let mut rest = text.as_str();
                while !rest.is_empty() {
                    rest = &rest[next_cut(rest, piece_bytes)..];
                    cuts += 1;
                }
            }
            assert!(cuts > 5_000, "{rule}: {cuts} pieces only");
        }
    }

    #[test]
    fn a_text_over_the_limit_is_refused_early() {
        let tokenizer = tokenizer("smollm");
        let limits = |max_tokens| EncodeLimits {
            max_tokens: Some(max_tokens),
            cancel: None,
        };
        let long = "a ".repeat(1 << 20);
        match tokenizer.encode_within(&long, true, limits(1000)) {
            Err(TextError::TooManyTokens {
                max_tokens: 1000,
                at_least,
            }) => assert!(at_least > 1000),
            other => panic!("{other:?}"),
        }
        let short = "a b c d e f g";
        let exact = tokenizer.encode(short, true).expect("encodes").len();
        assert!(tokenizer.encode_within(short, true, limits(exact)).is_ok());
        assert!(tokenizer.encode_within(short, true, limits(exact - 1)).is_err());
        let long = "a b\n".repeat(40_000);
        let whole = tokenizer.encode(&long, true).expect("encodes");
        assert_eq!(
            tokenizer.encode_within(&long, true, limits(whole.len())).expect("fits"),
            whole
        );
        assert!(tokenizer.encode_within(&long, true, limits(whole.len() - 1)).is_err());
    }

    #[test]
    fn bytes_alone_refuse_what_no_tokens_could_hold() {
        let tokenizer = tokenizer("smollm");
        let long = "a".repeat(4 << 20);
        let limits = EncodeLimits {
            max_tokens: Some(100),
            cancel: None,
        };
        let error = tokenizer.encode_within(&long, false, limits).expect_err("too long");
        assert!(
            matches!(error, TextError::TooManyTokens { at_least, .. } if at_least > 1000),
            "{error}"
        );
        let error = tokenizer.encode(&long, false).expect_err("one word of 4 MiB");
        assert!(matches!(error, TextError::Uncuttable { .. }), "{error}");
    }

    #[test]
    fn work_that_nobody_waits_for_ends() {
        let cancel = CancelFlag::default();
        cancel.cancel();
        let limits = EncodeLimits {
            max_tokens: None,
            cancel: Some(&cancel),
        };
        for text in ["a ".repeat(1 << 20), "one of many short texts".to_owned()] {
            let encoded = tokenizer("smollm").encode_within(&text, false, limits);
            let error = encoded.expect_err("cancelled");
            assert!(matches!(error, TextError::Cancelled), "{error}");
        }
    }

    #[test]
    fn unknown_splits_and_normalizers_are_not_cut() {
        let step = |value: Value| splits_known(&value);
        use serde_json::json;
        assert_eq!(step(json!({"type": "Metaspace"})), None);
        assert_eq!(
            step(json!({"type": "ByteLevel", "add_prefix_space": true, "use_regex": true})),
            None
        );
        let split = json!({"type": "Split", "pattern": {"Regex": ".*"}, "behavior": "Isolated", "invert": false});
        assert_eq!(step(split), None);
        assert!(!keeps_cuts(&json!({"type": "Lowercase"})) && keeps_cuts(&Value::Null));
        assert!(
            crosses_a_cut("end of")
                && crosses_a_cut("\nUser")
                && !crosses_a_cut("<|im_start|>")
                && !crosses_a_cut("  ")
        );
    }
}
