//! Reads templates and special tokens from a model folder's `tokenizer_config.json`. Parses text, opens no file.

use serde_json::Value;

use crate::{Result, TextError};

/// Special tokens as text, for the template variables of the same names.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SpecialTokens {
    /// `bos_token`.
    pub bos_token: Option<String>,
    /// `eos_token`.
    pub eos_token: Option<String>,
    /// `pad_token`.
    pub pad_token: Option<String>,
    /// `unk_token`.
    pub unk_token: Option<String>,
}

/// The parts of `tokenizer_config.json` that serving needs.
#[derive(Debug, Clone, Default)]
pub struct TokenizerConfig {
    /// Special tokens as text.
    pub special_tokens: SpecialTokens,
    /// Template sources by name; a single one is named `default`.
    pub chat_templates: Vec<(String, String)>,
    /// Whether the tokenizer adds a beginning of sequence; tokenizer.json's own post-processor usually says the same.
    pub add_bos_token: Option<bool>,
    /// `model_max_length` where it is a real limit, in tokens.
    pub model_max_length: Option<u64>,
}

impl TokenizerConfig {
    /// Parses the contents of a `tokenizer_config.json`; `origin` names them in errors.
    ///
    /// # Errors
    /// [`TextError::ParseFile`].
    pub fn from_json(json: &[u8], origin: &str) -> Result<Self> {
        let parse_error = |reason: String| TextError::ParseFile {
            origin: origin.to_owned(),
            expected: "tokenizer_config.json",
            reason,
        };
        let root: Value = serde_json::from_slice(json).map_err(|error| parse_error(error.to_string()))?;
        if !root.is_object() {
            return Err(parse_error("the top level is not an object".to_owned()));
        }
        // Either a plain string or a serialised AddedToken.
        let token = |name: &str| {
            let value = &root[name];
            value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned)
        };
        let chat_templates = match &root["chat_template"] {
            Value::Null => Vec::new(),
            Value::String(source) => vec![("default".to_owned(), source.clone())],
            Value::Array(entries) => entries
                .iter()
                .map(|entry| {
                    Some((
                        entry["name"].as_str()?.to_owned(),
                        entry["template"].as_str()?.to_owned(),
                    ))
                })
                .collect::<Option<Vec<_>>>()
                .ok_or_else(|| parse_error("an entry of chat_template lacks name or template".to_owned()))?,
            _ => {
                return Err(parse_error("chat_template is neither a string nor a list".to_owned()));
            }
        };
        Ok(Self {
            special_tokens: SpecialTokens {
                bos_token: token("bos_token"),
                eos_token: token("eos_token"),
                pad_token: token("pad_token"),
                unk_token: token("unk_token"),
            },
            chat_templates,
            add_bos_token: root["add_bos_token"].as_bool(),
            // transformers writes 1e30 for "no limit", which is not an integer in range.
            model_max_length: root["model_max_length"].as_u64(),
        })
    }

    /// The template for a request: `tool_use` when there are tools and the model has one, else `default`, else the
    /// only one.
    ///
    /// # Errors
    /// [`TextError::NoChatTemplate`].
    pub fn chat_template(&self, has_tools: bool) -> Result<&str> {
        let named = |name: &str| self.chat_templates.iter().find(|(other, _)| other == name);
        let chosen = if has_tools {
            named("tool_use").or_else(|| named("default"))
        } else {
            named("default")
        };
        let only = || {
            if self.chat_templates.len() == 1 {
                self.chat_templates.first()
            } else {
                None
            }
        };
        chosen
            .or_else(only)
            .map(|(_, source)| source.as_str())
            .ok_or(TextError::NoChatTemplate)
    }
}
