//! Flags that replace a model's own files, and those that choose files of a hub repository.

use std::path::{Path, PathBuf};

use clap::Args;
use halyard_models::{GenerationSource, ModelOverrides};
use serde_json::{Map, Value};

use crate::error::ServerError;
use crate::source::{self, SourceError, SourceSettings};

/// Fields of a generation configuration that requests take as defaults.
const GENERATION_FIELDS: [&str; 9] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "max_new_tokens",
    "eos_token_id",
];

/// Overrides of a model's own files.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Model")]
pub struct OverrideArgs {
    /// Tokenizer in place of the model's: a folder (its chat template and special tokens count as well), a
    /// tokenizer.json, or org/repo
    #[arg(long, value_name = "PATH|ORG/REPO", env = "HALYARD_TOKENIZER")]
    pub tokenizer: Option<String>,
    /// Chat template in place of the model's: a file, or the template itself
    #[arg(long, value_name = "FILE|TEXT", env = "HALYARD_CHAT_TEMPLATE")]
    pub chat_template: Option<String>,
    /// Form of message contents for the chat template: auto (as it reads them), string, or openai (lists of parts)
    #[arg(long, value_name = "FORMAT", env = "HALYARD_CHAT_TEMPLATE_CONTENT_FORMAT", default_value = "auto",
        value_parser = parse_content_format)]
    pub chat_template_content_format: ContentFormat,
    /// Sampling defaults of requests: auto (the model's generation_config.json), vllm (none), or a folder with a
    /// generation_config.json
    #[arg(
        long,
        value_name = "auto|vllm|FOLDER",
        env = "HALYARD_GENERATION_CONFIG",
        default_value = "auto"
    )]
    pub generation_config: String,
    /// Sampling defaults over those, as JSON: {"temperature": 0.5}
    #[arg(long, value_name = "JSON", env = "HALYARD_OVERRIDE_GENERATION_CONFIG", value_parser = parse_object)]
    pub override_generation_config: Option<JsonObject>,
    /// Fields of config.json in place of the model's, as JSON; objects are merged
    #[arg(long, value_name = "JSON", env = "HALYARD_HF_OVERRIDES", value_parser = parse_object)]
    pub hf_overrides: Option<JsonObject>,
    /// Branch, tag or commit of a model of the hub; without it main
    #[arg(long, value_name = "REVISION", env = "HALYARD_REVISION")]
    pub revision: Option<String>,
    /// Branch, tag or commit of a --tokenizer of the hub; without it main
    #[arg(long, value_name = "REVISION", env = "HALYARD_TOKENIZER_REVISION")]
    pub tokenizer_revision: Option<String>,
    /// Folder for models of the hub; without it the user's cache
    #[arg(long, value_name = "FOLDER", env = "HALYARD_DOWNLOAD_DIR")]
    pub download_dir: Option<PathBuf>,
    /// Token for the hub; without it HF_TOKEN, or the one that its own tools keep
    #[arg(long, value_name = "TOKEN", env = "HALYARD_HF_TOKEN", hide_env_values = true, num_args = 0..=1,
        default_missing_value = "")]
    pub hf_token: Option<String>,
}

/// A value of `--chat-template-content-format`: whether contents are lists of parts; `None`: as the template reads
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContentFormat(Option<bool>);

fn parse_content_format(text: &str) -> Result<ContentFormat, String> {
    match text {
        "auto" => Ok(ContentFormat(None)),
        "string" => Ok(ContentFormat(Some(false))),
        "openai" => Ok(ContentFormat(Some(true))),
        _ => Err("choose one of auto, string, openai".to_owned()),
    }
}

/// A JSON object.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonObject(pub Map<String, Value>);

/// Reads a JSON object.
///
/// # Errors
/// What is wrong with it, and an example.
pub fn parse_object(text: &str) -> Result<JsonObject, String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => Ok(JsonObject(fields)),
        Ok(_) => Err("it is JSON, but no object; write {\"key\": value}".to_owned()),
        Err(error) => Err(format!("it is not JSON: {error}; write {{\"key\": value}}")),
    }
}

impl OverrideArgs {
    /// Where models come from: the environment's settings with those of the flags.
    pub fn source_settings(&self) -> SourceSettings {
        let mut settings = SourceSettings::from_env();
        if let Some(folder) = &self.download_dir {
            settings.cache_dir.clone_from(folder);
            settings.hub_cache_dir = Some(folder.clone());
        }
        if let Some(token) = self.hf_token.as_ref().filter(|token| !token.is_empty()) {
            settings.token = Some(token.clone());
        }
        settings.revision.clone_from(&self.revision);
        settings
    }

    /// Brings what the flags name to this machine and reads it.
    ///
    /// # Errors
    /// A file or folder that is not there, a template that is none.
    pub async fn resolve(&self) -> Result<ModelOverrides, ServerError> {
        let tokenizer = match &self.tokenizer {
            None => None,
            Some(asked) => {
                let settings = SourceSettings {
                    revision: self.tokenizer_revision.clone(),
                    ..self.source_settings()
                };
                Some(source::resolve_tokenizer(asked, &settings).await?)
            }
        };
        let object = |given: &Option<JsonObject>| given.clone().map(|object| object.0).unwrap_or_default();
        let generation_fields = object(&self.override_generation_config);
        let idle: Vec<&str> = generation_fields
            .keys()
            .map(String::as_str)
            .filter(|key| !GENERATION_FIELDS.contains(key))
            .collect();
        if !idle.is_empty() {
            tracing::warn!(
                "--override-generation-config: without effect: {}; defaults are {}",
                idle.join(", "),
                GENERATION_FIELDS.join(", ")
            );
        }
        Ok(ModelOverrides {
            config: object(&self.hf_overrides),
            tokenizer,
            chat_template: self.chat_template.as_deref().map(read_template).transpose()?,
            content_parts: self.chat_template_content_format.0,
            generation: match self.generation_config.as_str() {
                "auto" | "" => GenerationSource::Model,
                "vllm" => GenerationSource::Engine,
                folder => GenerationSource::Folder(generation_folder(folder)?),
            },
            generation_fields,
        })
    }
}

fn generation_folder(folder: &str) -> Result<PathBuf, ServerError> {
    let path = PathBuf::from(folder);
    if path.join("generation_config.json").is_file() {
        return Ok(path);
    }
    Err(ServerError::Option {
        option: "--generation-config",
        message: format!("`{folder}` is no folder with a generation_config.json; give auto, vllm, or such a folder"),
    })
}

/// A template from a file, or the template itself where the text can only be one.
fn read_template(given: &str) -> Result<String, ServerError> {
    let path = Path::new(given);
    if path.is_file() {
        return std::fs::read_to_string(path)
            .map_err(SourceError::io(path))
            .map_err(ServerError::from);
    }
    if given.contains(['{', '}', '\n']) {
        // A template on one line carries its line breaks as backslash and n.
        return Ok(given.replace("\\n", "\n"));
    }
    Err(ServerError::Option {
        option: "--chat-template",
        message: format!("there is no file `{given}`, and it is no template either (it has no braces)"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_a_file_or_itself() {
        let file = std::env::temp_dir().join(format!("halyard-template-{}", std::process::id()));
        std::fs::write(&file, "{{ a }}").expect("written");
        assert_eq!(read_template(&file.display().to_string()).expect("a file"), "{{ a }}");
        std::fs::remove_file(&file).expect("removable");
        assert_eq!(read_template("{{ a }}\\n").expect("a template"), "{{ a }}\n");
        let error = read_template("no/such/file.jinja").expect_err("neither").to_string();
        assert!(
            error.contains("--chat-template") && error.contains("no/such/file.jinja"),
            "{error}"
        );
    }

    #[test]
    fn objects_are_objects() {
        assert!(parse_object(r#"{"a": 1}"#).is_ok());
        assert!(parse_object("[1]").expect_err("a list").contains("no object"));
        assert!(parse_object("{").expect_err("broken").contains("not JSON"));
    }
}
