//! Which text splitting belongs to which `tokenizer.ggml.pre` name of a GGUF file.
//!
//! A GGUF stores only a name; the splitting rules live in the model's original tokenizer.json. The names and their
//! grouping are facts of llama.cpp (`src/llama-vocab.cpp`, October 2025 and September 2026), the rules those of the
//! models' tokenizer.json files. An unknown name is an error: a guessed rule would silently give other ids.

use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

use crate::{Result, TextError};

/// One way of splitting text before byte-pair merging.
#[derive(Clone, Copy)]
enum Rule {
    /// GPT-2's rule alone.
    Gpt2,
    /// Digits one by one, then GPT-2's rule.
    DigitsThenGpt2,
    /// Regular expressions, each isolating its matches in what the ones before it left.
    Splits(&'static [&'static str]),
}

/// A named splitting rule with what comes with it.
pub(crate) struct PreTokenizer {
    names: &'static [&'static str],
    rule: Rule,
    /// A word that is a token as a whole is taken as that token, whatever the merges say.
    pub(crate) ignore_merges: bool,
    /// The original tokenizer normalises to NFC first.
    pub(crate) nfc: bool,
    /// Whether a beginning-of-sequence token is added when the file does not say.
    pub(crate) add_bos: bool,
}

/// GPT-2's rule, needed as text where it is one of several.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
/// The same as tokenizer.json files spell it.
const GPT2_LAST: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(crate) const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &[&str] = &[
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];
/// Cased letters (Lu, Ll, Lt), which the models' files list one by one.
const DEEPSEEK_LLM: &[&str] = &[
    r"[\r\n]",
    r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
];
const DEEPSEEK_CODER: &[&str] = &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"];
const FALCON: &[&str] = &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"];
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// llama.cpp's own rule for files that name none.
const DEFAULT: &[&str] = &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"];

const fn plain(names: &'static [&'static str], rule: Rule) -> PreTokenizer {
    PreTokenizer {
        names,
        rule,
        ignore_merges: false,
        nfc: false,
        add_bos: false,
    }
}

static KNOWN: &[PreTokenizer] = &[
    plain(&["default"], Rule::Splits(DEFAULT)),
    plain(
        &["gpt-2", "gpt2", "phi-2", "olmo", "jais", "mpt", "exaone4"],
        Rule::Gpt2,
    ),
    plain(
        &["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"],
        Rule::DigitsThenGpt2,
    ),
    PreTokenizer {
        nfc: true,
        ..plain(&["command-r"], Rule::DigitsThenGpt2)
    },
    PreTokenizer {
        nfc: true,
        ..plain(
            &["qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"],
            Rule::Splits(&[QWEN2]),
        )
    },
    PreTokenizer {
        ignore_merges: true,
        add_bos: true,
        ..plain(
            &[
                "llama-bpe",
                "llama3",
                "llama-v3",
                "falcon3",
                "falcon-h1",
                "pixtral",
                "lfm2",
            ],
            Rule::Splits(&[LLAMA3]),
        )
    },
    plain(&["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], Rule::Splits(&[LLAMA3])),
    PreTokenizer {
        ignore_merges: true,
        add_bos: true,
        ..plain(&["tekken"], Rule::Splits(&[TEKKEN]))
    },
    plain(&["gpt-4o", "llama4", "kanana2", "minimax-m2"], Rule::Splits(&[GPT4O])),
    plain(&["deepseek-v3", "hunyuan-dense", "joyai-llm"], Rule::Splits(DEEPSEEK3)),
    plain(&["deepseek-llm"], Rule::Splits(DEEPSEEK_LLM)),
    plain(&["deepseek-coder"], Rule::Splits(DEEPSEEK_CODER)),
    plain(&["falcon"], Rule::Splits(FALCON)),
    PreTokenizer {
        nfc: true,
        ..plain(&["qwen35"], Rule::Splits(&[QWEN35]))
    },
];

/// The `tokenizer.ggml.pre` names that [`crate::Tokenizer::from_gguf`] accepts.
pub fn known_pre_tokenizers() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().flat_map(|entry| entry.names.iter().copied())
}

/// Whether a `Split` by this regular expression is one of the rules here, which texts can be cut by.
pub(crate) fn is_known_split(regex: &str) -> bool {
    [GPT2, GPT2_LAST, LLAMA3, QWEN2, QWEN35, TEKKEN, GPT4O].contains(&regex)
        || DEEPSEEK3.contains(&regex)
        || DEFAULT.contains(&regex)
}

/// Finds a rule by its GGUF name; no name is llama.cpp's `default`.
pub(crate) fn find(name: Option<&str>) -> Result<&'static PreTokenizer> {
    let name = name.filter(|name| !name.is_empty()).unwrap_or("default");
    KNOWN
        .iter()
        .find(|entry| entry.names.contains(&name))
        .ok_or_else(|| TextError::UnknownPreTokenizer {
            pre: name.to_owned(),
            known: known_pre_tokenizers().collect::<Vec<_>>().join(", "),
        })
}

impl PreTokenizer {
    /// The rule as the tokenizer library's object.
    pub(crate) fn build(&self) -> Result<PreTokenizerWrapper> {
        let byte_level = |use_regex| PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, use_regex));
        Ok(match self.rule {
            Rule::Gpt2 => byte_level(true),
            Rule::DigitsThenGpt2 => PreTokenizerWrapper::Sequence(Sequence::new(vec![
                PreTokenizerWrapper::Digits(Digits::new(true)),
                byte_level(true),
            ])),
            Rule::Splits(patterns) => {
                let mut steps = Vec::with_capacity(patterns.len() + 1);
                for pattern in patterns {
                    let pattern = SplitPattern::Regex((*pattern).to_owned());
                    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(|error| {
                        TextError::BuildTokenizer {
                            reason: error.to_string(),
                        }
                    })?;
                    steps.push(PreTokenizerWrapper::Split(split));
                }
                steps.push(byte_level(false));
                PreTokenizerWrapper::Sequence(Sequence::new(steps))
            }
        })
    }
}
