//! Overrides by the operator of a model's own files: fields of config.json, the tokenizer, the chat template, the
//! generation defaults. Read once, when the model is opened; the files on disk are never changed.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::config::{GenerationDefaults, JsonFields};
use crate::error::{ModelError, Result};

/// Where the generation defaults come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GenerationSource {
    /// The model's generation_config.json.
    #[default]
    Model,
    /// None: the engine's own. Which tokens end a sequence still comes from the model.
    Engine,
    /// The generation_config.json of another folder.
    Folder(PathBuf),
}

/// Overrides of a model's own files; the default changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelOverrides {
    /// Fields of config.json. An object is merged into the object there, any other value replaces it.
    pub config: Map<String, Value>,
    /// A tokenizer.json, or a folder with one, whose chat template and special tokens then count as well.
    pub tokenizer: Option<PathBuf>,
    /// Jinja source of the chat template.
    pub chat_template: Option<String>,
    /// Whether the chat template is handed contents as lists of parts or as strings; `None`: as it reads them.
    pub content_parts: Option<bool>,
    /// Where the generation defaults come from.
    pub generation: GenerationSource,
    /// Fields of generation_config.json, over those of `generation`.
    pub generation_fields: Map<String, Value>,
}

impl ModelOverrides {
    /// The configuration of `path` with the fields of [`ModelOverrides::config`].
    ///
    /// # Errors
    /// As [`JsonFields::open`].
    pub(crate) fn open_config(&self, path: &Path) -> Result<JsonFields> {
        Ok(self.put_into(JsonFields::open(path)?))
    }

    /// `fields` with those of [`ModelOverrides::config`], which errors then name beside the file.
    pub(crate) fn put_into(&self, fields: JsonFields) -> JsonFields {
        if self.config.is_empty() {
            return fields;
        }
        let blamed = format!("{} with --hf-overrides", fields.path().display());
        fields.with(&self.config).blaming(Path::new(&blamed))
    }

    /// Refuses fields of a configuration where the model has none.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`].
    pub(crate) fn refuse_config(&self, path: &Path) -> Result<()> {
        match self.config.keys().next() {
            None => Ok(()),
            Some(field) => Err(ModelError::Unsupported {
                path: path.to_path_buf(),
                field: field.clone(),
                value: "another value of config.json (--hf-overrides), which a GGUF file does not have".to_owned(),
                remedy: "leave it out, or serve the Hugging Face folder of the model".to_owned(),
            }),
        }
    }

    /// The folder whose tokenizer_config.json, special_tokens_map.json and chat template count for a model in `folder`.
    pub(crate) fn text_folder<'a>(&'a self, folder: &'a Path) -> &'a Path {
        match &self.tokenizer {
            Some(tokenizer) if tokenizer.is_dir() => tokenizer,
            _ => folder,
        }
    }

    /// The tokenizer.json that was given in place of the model's.
    ///
    /// # Errors
    /// [`ModelError::MissingTokenizer`].
    pub(crate) fn tokenizer_file(&self) -> Result<Option<PathBuf>> {
        let Some(given) = &self.tokenizer else { return Ok(None) };
        let file = match given.is_dir() {
            true => given.join("tokenizer.json"),
            false => given.clone(),
        };
        if file.is_file() {
            return Ok(Some(file));
        }
        Err(ModelError::MissingTokenizer {
            path: given.clone(),
            looked_for: vec!["tokenizer.json"],
        })
    }

    /// The generation defaults of a model whose own file is `own` (which need not be there).
    ///
    /// # Errors
    /// A file that is not what it should be, a value outside its range.
    pub(crate) fn generation(&self, own: &Path) -> Result<GenerationDefaults> {
        let given = JsonFields::empty(Path::new("--override-generation-config")).with(&self.generation_fields);
        // Parsed alone first, so that an error names the value's origin.
        GenerationDefaults::read(&given)?;
        let of_model = JsonFields::open_if_present(own)?;
        let base = match &self.generation {
            GenerationSource::Model => of_model.clone(),
            GenerationSource::Engine => None,
            GenerationSource::Folder(folder) => Some(JsonFields::open(&folder.join("generation_config.json"))?),
        };
        let mut defaults = match base {
            Some(base) => GenerationDefaults::read(&base.with(&self.generation_fields))?,
            None => GenerationDefaults::read(&given)?,
        };
        if self.generation == GenerationSource::Engine
            && defaults.eos_token_ids.is_empty()
            && let Some(fields) = of_model
        {
            defaults.eos_token_ids = GenerationDefaults::read(&fields)?.eos_token_ids;
        }
        Ok(defaults)
    }
}
