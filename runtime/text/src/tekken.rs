//! Mistral's own tokenizer file, `tekken.json`: read into the arrays that a GGUF file has, so that ids equal
//! mistral-common's. It holds tokens as bytes in the order in which they merge, and no list of merges.
//!
//! Formats of the file and of prompts: mistral-common 1.13, which is also what the goldens are made with.

use std::path::Path;

use ahash::AHashMap;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;

use crate::gguf::GgufTokenizer;
use crate::pre_tokenizer::TEKKEN;
use crate::token_bytes::character_of;
use crate::{Result, TextError, Tokenizer};

/// Bytes of a file; published ones have 15 MB.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Tokens, special ones included; published files use 131,072.
const MAX_TOKENS: usize = 1 << 20;
/// Bytes of a token; published ones have up to 128.
const MAX_TOKEN_BYTES: usize = 512;
/// Looks for pairs while merges are recovered, over all tokens; published files need some 30 million.
const MAX_PAIRS: usize = 1_000_000_000;
/// Special tokens of files that list none, by rank.
const SPECIAL: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];
/// Prompts of versions 3 to 13, which `version` tells apart.
const TEMPLATE: &str = include_str!("tekken.jinja");

#[derive(Deserialize)]
struct File {
    config: Config,
    vocab: Vec<Token>,
    special_tokens: Option<Vec<SpecialToken>>,
}

#[derive(Deserialize)]
struct Config {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
    #[serde(default)]
    version: String,
}

#[derive(Deserialize)]
struct Token {
    rank: usize,
    token_bytes: String,
}

#[derive(Deserialize)]
struct SpecialToken {
    rank: usize,
    token_str: String,
}

/// A `tekken.json`.
#[derive(Debug)]
pub struct Tekken {
    tokenizer: Tokenizer,
    bos: String,
    eos: String,
    version: u32,
}

impl Tekken {
    /// Reads the file. Blocks on it.
    ///
    /// # Errors
    /// [`TextError::ReadFile`]; [`TextError::ParseFile`] with what is wrong, or over which limit.
    pub fn open(path: &Path) -> Result<Self> {
        let unreadable = |source| TextError::ReadFile {
            path: path.to_owned(),
            source,
        };
        let origin = path.display().to_string();
        let size = std::fs::metadata(path).map_err(unreadable)?.len();
        if size > MAX_FILE_BYTES {
            let reason = format!("it has {size} bytes; at most {MAX_FILE_BYTES} are read");
            return Err(invalid(&origin, reason));
        }
        Self::from_json(&std::fs::read(path).map_err(unreadable)?, &origin)
    }

    /// Reads the contents of a `tekken.json`; `origin` names them in errors.
    ///
    /// # Errors
    /// [`TextError::ParseFile`].
    pub fn from_json(json: &[u8], origin: &str) -> Result<Self> {
        let invalid = |reason| invalid(origin, reason);
        let file: File = serde_json::from_slice(json).map_err(|error| invalid(error.to_string()))?;
        let version = file.config.version.trim_start_matches('v').parse().unwrap_or(0);
        let arrays = file.arrays().map_err(invalid)?;
        let text = |id| arrays.token(id).unwrap_or_default().to_owned();
        Ok(Self {
            bos: text(arrays.bos_id),
            eos: text(arrays.eos_id),
            tokenizer: Tokenizer::from_gguf(&arrays)?,
            version,
        })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The texts of the tokens that begin and end a sequence.
    pub fn bos_and_eos(&self) -> (&str, &str) {
        (&self.bos, &self.eos)
    }

    /// The chat template of the file's version, as Jinja; `None` for a version whose prompts are not known here.
    pub fn chat_template(&self) -> Option<String> {
        let known = [3, 7, 11, 13].contains(&self.version);
        known.then(|| format!("{{%- set version = {} -%}}\n{TEMPLATE}", self.version))
    }
}

fn invalid(origin: &str, reason: String) -> TextError {
    TextError::ParseFile {
        origin: origin.to_owned(),
        expected: "tekken.json",
        reason,
    }
}

impl File {
    fn arrays(&self) -> std::result::Result<GgufTokenizer, String> {
        if self.config.pattern != TEKKEN {
            return Err(format!(
                "it splits text by `{}`; known is Tekken's own pattern only. Use the model's tokenizer.json",
                self.config.pattern.chars().take(100).collect::<String>()
            ));
        }
        let (num_tokens, num_special) = (self.config.default_vocab_size, self.config.default_num_special_tokens);
        if num_tokens > MAX_TOKENS {
            return Err(format!(
                "default_vocab_size is {num_tokens}; at most {MAX_TOKENS} are taken"
            ));
        }
        let num_plain = num_tokens
            .checked_sub(num_special)
            .filter(|&plain| plain <= self.vocab.len())
            .ok_or_else(|| {
                format!(
                    "default_vocab_size {num_tokens} without {num_special} special tokens is not within its {} tokens",
                    self.vocab.len()
                )
            })?;
        let mut tokens = self.special(num_special)?;
        let bytes = self.plain(num_plain)?;
        tokens.extend(bytes.iter().map(|bytes| spelled(bytes)));
        let id = |name: &str| tokens[..num_special].iter().position(|token| token == name);
        let id = |name: &str| id(name).and_then(|id| u32::try_from(id).ok());
        Ok(GgufTokenizer {
            model: "gpt2".to_owned(),
            pre: Some("tekken".to_owned()),
            token_types: (0..num_tokens).map(|id| if id < num_special { 3 } else { 1 }).collect(),
            merges: merges(&bytes)?,
            bos_id: id("<s>"),
            eos_id: id("</s>"),
            add_bos: Some(true),
            tokens,
            ..GgufTokenizer::default()
        })
    }

    /// The special tokens by rank; ranks without one have a name made of it.
    fn special(&self, num_special: usize) -> std::result::Result<Vec<String>, String> {
        let mut tokens: Vec<String> = (0..num_special).map(|rank| format!("<SPECIAL_{rank}>")).collect();
        let mut set = |rank: usize, name: &str| match tokens.get_mut(rank) {
            Some(token) => {
                name.clone_into(token);
                Ok(())
            }
            None => Err(format!("special token {name:?} has rank {rank}, of {num_special}")),
        };
        match &self.special_tokens {
            Some(listed) => listed.iter().try_for_each(|token| set(token.rank, &token.token_str))?,
            None => SPECIAL
                .iter()
                .enumerate()
                .try_for_each(|(rank, name)| set(rank, name))?,
        }
        Ok(tokens)
    }

    /// The bytes of the first tokens by rank.
    fn plain(&self, num_plain: usize) -> std::result::Result<Vec<Vec<u8>>, String> {
        let mut tokens = Vec::with_capacity(num_plain);
        for (rank, token) in self.vocab[..num_plain].iter().enumerate() {
            let bytes = BASE64_STANDARD
                .decode(&token.token_bytes)
                .map_err(|error| format!("token {rank}: {error}"))?;
            if token.rank != rank {
                return Err(format!("token {rank} says that its rank is {}", token.rank));
            }
            if !(1..=MAX_TOKEN_BYTES).contains(&bytes.len()) {
                return Err(format!(
                    "token {rank} has {} bytes; 1 to {MAX_TOKEN_BYTES} are taken",
                    bytes.len()
                ));
            }
            tokens.push(bytes);
        }
        Ok(tokens)
    }
}

fn spelled(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| character_of(byte)).collect()
}

/// The merges that lead to each token, in order: the two parts that are left of a token's bytes when they are merged
/// by the tokens before it. A token that merging does not reach has none, and is taken where it is a whole word.
fn merges(tokens: &[Vec<u8>]) -> std::result::Result<Vec<String>, String> {
    let ranks: AHashMap<&[u8], usize> = tokens
        .iter()
        .enumerate()
        .map(|(rank, bytes)| (&bytes[..], rank))
        .collect();
    let mut merges = Vec::with_capacity(tokens.len());
    let mut pairs_left = MAX_PAIRS;
    for (rank, token) in tokens.iter().enumerate().filter(|(_, token)| token.len() > 1) {
        // Where each part begins, and the end.
        let mut ends: Vec<usize> = (0..=token.len()).collect();
        while ends.len() > 3 {
            pairs_left = pairs_left
                .checked_sub(ends.len())
                .ok_or("its tokens are too long to recover their merges")?;
            let best = (0..ends.len() - 2)
                .filter_map(|part| Some((*ranks.get(&token[ends[part]..ends[part + 2]])?, part)))
                .filter(|&(found, _)| found < rank)
                .min();
            let Some((_, part)) = best else { break };
            ends.remove(part + 1);
        }
        if let [_, middle, _] = ends[..] {
            let (left, right) = token.split_at(middle);
            if ranks.contains_key(left) && ranks.contains_key(right) {
                merges.push(format!("{} {}", spelled(left), spelled(right)));
            }
        }
    }
    Ok(merges)
}
