//! The families of architectures: one file each, which maps configuration to a description and names
//! the weights. A family holds no code of layers; two that differ only by names mean a missing option.

mod gemma3;
mod llama;
mod names;
mod qwen2;
mod qwen3;
mod qwen3_moe;

use std::path::Path;

use crate::config::gguf::GgufConfig;
use crate::config::{JsonFields, ModelDescription, huggingface};
use crate::error::{ModelError, Result};
use crate::gguf::GgufFile;
use crate::weights::NameTables;

/// A family of architectures.
#[derive(Debug)]
pub struct Family {
    /// Short name for logs.
    pub name: &'static str,
    /// Names in `architectures` of config.json, then values of `model_type`.
    pub hf_architectures: &'static [&'static str],
    /// Values of `general.architecture` in GGUF files.
    pub gguf_architectures: &'static [&'static str],
    describe_hf: fn(&JsonFields) -> Result<ModelDescription>,
    describe_gguf: fn(&GgufConfig) -> Result<ModelDescription>,
    /// Names of weights in Hugging Face files.
    pub(crate) hf_names: &'static NameTables,
    /// Names of weights in GGUF files.
    pub(crate) gguf_names: &'static NameTables,
}

/// Every family.
pub static FAMILIES: [&Family; 5] = [
    &llama::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &qwen3_moe::FAMILY,
    &gemma3::FAMILY,
];

impl Family {
    /// The family and description of a Hugging Face configuration.
    ///
    /// # Errors
    /// [`ModelError::UnknownArchitecture`] with the known names; errors of missing, bad or unsupported fields.
    pub fn describe_config(config: &JsonFields) -> Result<(&'static Family, ModelDescription)> {
        let found = huggingface::architecture(config)?.ok_or_else(|| config.missing("architectures"))?;
        let family = lookup(config.path(), found, |family| family.hf_architectures)?;
        let description = (family.describe_hf)(config)?.check(config.path())?;
        Ok((family, description))
    }

    /// The family and description of a GGUF file.
    ///
    /// # Errors
    /// As [`Family::describe_config`].
    pub fn describe_file(file: &GgufFile) -> Result<(&'static Family, ModelDescription)> {
        let config = GgufConfig::new(file)?;
        let family = lookup(file.path(), config.arch, |family| family.gguf_architectures)?;
        let description = (family.describe_gguf)(&config)?.check(file.path())?;
        Ok((family, description))
    }
}

fn lookup(path: &Path, found: &str, names: impl Fn(&Family) -> &'static [&'static str]) -> Result<&'static Family> {
    let family = FAMILIES.into_iter().find(|family| names(family).contains(&found));
    family.ok_or_else(|| ModelError::UnknownArchitecture {
        path: path.to_path_buf(),
        found: found.to_owned(),
        known: FAMILIES.iter().flat_map(|family| names(family)).copied().collect(),
    })
}
