//! The tokenizer that a GGUF file carries, as plain data for the text crate. Nothing here interprets it.

use super::file::GgufFile;
use super::value::{GgufArray, GgufValue};
use crate::error::{ModelError, Result};

/// `tokenizer.*` metadata of a GGUF file. Lists are either empty (absent) or as long as `tokens`,
/// `merges` excepted.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufTokenizerData {
    /// Algorithm: `gpt2` (byte-level BPE), `llama` (SentencePiece), `bert`, ….
    pub model: String,
    /// Name of the pre-tokenizer, such as `smollm` or `qwen2`.
    pub pre: Option<String>,
    /// Text of each token, by id.
    pub tokens: Vec<String>,
    /// Score of each token (SentencePiece); empty if absent.
    pub scores: Vec<f32>,
    /// Type of each token: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte; empty if absent.
    pub token_types: Vec<i32>,
    /// BPE merges in rank order, each `left right`.
    pub merges: Vec<String>,
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// End of turn, where it differs from `eos`.
    pub eot: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Unknown token.
    pub unk: Option<u32>,
    /// Whether the model expects `bos` in front; `None`: the algorithm's default.
    pub add_bos: Option<bool>,
    /// Whether the model expects `eos` at the end; `None`: the algorithm's default.
    pub add_eos: Option<bool>,
    /// Whether SentencePiece puts a space before the text; `None`: the algorithm's default.
    pub add_space_prefix: Option<bool>,
    /// The chat template's source.
    pub chat_template: Option<String>,
}

const PREFIX: &str = "tokenizer.ggml";

impl GgufTokenizerData {
    /// Copies the tokenizer out of `file`.
    ///
    /// # Errors
    /// [`ModelError::MissingTokenizer`] if there is none, [`ModelError::BadField`] if a value has another
    /// type, a list another length, or an id lies outside the vocabulary.
    pub fn read(file: &GgufFile) -> Result<Self> {
        let Some(model) = file.string("tokenizer.ggml.model")? else {
            return Err(ModelError::MissingTokenizer {
                path: file.path().to_path_buf(),
                looked_for: vec!["tokenizer.ggml.model", "tokenizer.ggml.tokens"],
            });
        };
        let tokens = strings(file, "tokens")?;
        if tokens.is_empty() {
            return Err(ModelError::MissingField {
                path: file.path().to_path_buf(),
                field: "tokenizer.ggml.tokens".into(),
            });
        }
        let id = |name: &str| token_id(file, name, tokens.len());
        Ok(Self {
            model: model.to_owned(),
            pre: file.string("tokenizer.ggml.pre")?.map(str::to_owned),
            scores: floats(file, "scores", tokens.len())?,
            token_types: integers(file, "token_type", tokens.len())?,
            merges: strings(file, "merges")?,
            bos: id("bos_token_id")?,
            eos: id("eos_token_id")?,
            eot: id("eot_token_id")?,
            pad: id("padding_token_id")?,
            unk: id("unknown_token_id")?,
            add_bos: file.bool("tokenizer.ggml.add_bos_token")?,
            add_eos: file.bool("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: file.bool("tokenizer.ggml.add_space_prefix")?,
            chat_template: file.string("tokenizer.chat_template")?.map(str::to_owned),
            tokens,
        })
    }
}

fn strings(file: &GgufFile, name: &str) -> Result<Vec<String>> {
    let key = format!("{PREFIX}.{name}");
    match file.value(&key) {
        None => Ok(Vec::new()),
        Some(GgufValue::Array(GgufArray::String(list))) => Ok(list.clone()),
        Some(other) => Err(file.bad(&key, other, "an array of strings")),
    }
}

fn floats(file: &GgufFile, name: &str, len: usize) -> Result<Vec<f32>> {
    let key = format!("{PREFIX}.{name}");
    match file.value(&key) {
        None => Ok(Vec::new()),
        Some(GgufValue::Array(GgufArray::Float(list))) if list.len() == len => {
            Ok(list.iter().map(|&f| f as f32).collect())
        }
        Some(other) => Err(file.bad(&key, other, &format!("an array of {len} floats, one a token"))),
    }
}

fn integers(file: &GgufFile, name: &str, len: usize) -> Result<Vec<i32>> {
    let key = format!("{PREFIX}.{name}");
    let limit = format!("an array of {len} 32-bit integers, one a token");
    let Some(value) = file.value(&key) else {
        return Ok(Vec::new());
    };
    let list: Option<Vec<i32>> = match value {
        GgufValue::Array(GgufArray::Signed(list)) => list.iter().map(|&n| n.try_into().ok()).collect(),
        GgufValue::Array(GgufArray::Unsigned(list)) => list.iter().map(|&n| n.try_into().ok()).collect(),
        _ => None,
    };
    list.filter(|list| list.len() == len)
        .ok_or_else(|| file.bad(&key, value, &limit))
}

fn token_id(file: &GgufFile, name: &str, num_tokens: usize) -> Result<Option<u32>> {
    let key = format!("{PREFIX}.{name}");
    match file.unsigned(&key)? {
        None => Ok(None),
        // Some converters write -1 as an unsigned "none".
        Some(id) if id == u64::from(u32::MAX) => Ok(None),
        Some(id) if id < num_tokens as u64 => Ok(Some(id as u32)),
        Some(id) => Err(ModelError::BadField {
            path: file.path().to_path_buf(),
            field: key,
            value: id.to_string(),
            limit: format!("a token id below {num_tokens}"),
        }),
    }
}
