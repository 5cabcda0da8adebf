//! The families of architectures: one file each, which maps configuration to a description and names
//! the weights. A family holds no code of layers; two that differ only by names mean a missing option.

mod baichuan;
mod cohere;
mod deepseek;
mod deepseek_gguf;
mod deepseek_hf;
mod exaone4;
mod falcon;
mod gemma;
mod gemma2;
mod gemma3;
mod glm4;
mod glm4_moe;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod internlm;
mod llama;
mod ministral;
mod mixtral;
mod names;
mod nemotron;
mod olmo2;
mod olmoe;
mod phi3;
mod qwen;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_moe;
mod router;
mod smollm3;
mod stablelm;
mod starcoder2;

use std::path::Path;

use crate::config::gguf::GgufConfig;
use crate::config::{JsonFields, ModelDescription, huggingface};
use crate::error::{ModelError, NearestArchitecture, Result};
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
    pub(crate) hf_names: NameTables,
    /// Names of weights in GGUF files.
    pub(crate) gguf_names: NameTables,
}

/// Every family.
pub static FAMILIES: &[&Family] = &[
    &llama::FAMILY,
    &ministral::FAMILY,
    &ministral::THIRD,
    &mixtral::FAMILY,
    &smollm3::FAMILY,
    &granite::DENSE,
    &granite::EXPERTS,
    &qwen::FAMILY,
    &qwen2::FAMILY,
    &qwen2_moe::FAMILY,
    &qwen3::FAMILY,
    &qwen3_moe::FAMILY,
    &gemma::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
    &phi3::FAMILY,
    &glm4::FAMILY,
    &glm4_moe::FAMILY,
    &deepseek::SECOND,
    &deepseek::THIRD,
    &cohere::FAMILY,
    &olmo2::FAMILY,
    &olmoe::FAMILY,
    &exaone4::FAMILY,
    &internlm::SECOND,
    &internlm::THIRD,
    &baichuan::FAMILY,
    &starcoder2::FAMILY,
    &stablelm::FAMILY,
    &falcon::FAMILY,
    &gpt_neox::FAMILY,
    &gpt2::FAMILY,
    &gpt_oss::FAMILY,
    &nemotron::FAMILY,
];

impl Family {
    /// The family and description of a Hugging Face configuration.
    ///
    /// # Errors
    /// [`ModelError::UnknownArchitecture`] with the known names; errors of missing, bad or unsupported fields.
    pub fn describe_config(config: &JsonFields) -> Result<(&'static Family, ModelDescription)> {
        let found = huggingface::architecture(config)?.ok_or_else(|| config.missing("architectures"))?;
        let family = lookup(config.path(), found, |family| family.hf_architectures).map_err(|error| match error {
            ModelError::UnknownArchitecture { path, found, known, .. } => ModelError::UnknownArchitecture {
                nearest: nearest(config, &found).map(Box::new),
                path,
                found,
                known,
            },
            other => other,
        })?;
        let description = (family.describe_hf)(config)?.check(config.path())?;
        router::check_config(config, &description)?;
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
        router::check_file(&config, &description)?;
        Ok((family, description))
    }
}

/// The description of a GGUF file of a family whose files of that kind are not read: it names no architecture of them.
fn not_read(config: &GgufConfig) -> Result<ModelDescription> {
    Err(ModelError::Unsupported {
        path: config.file.path().to_path_buf(),
        field: "general.architecture".into(),
        value: config.arch.to_owned(),
        remedy: "serve the model from its safetensors files".into(),
    })
}

/// The known architecture with the most similar name, and what of a configuration it would not read.
fn nearest(config: &JsonFields, found: &str) -> Option<NearestArchitecture> {
    /// What every configuration has and no family reads.
    const COMMON: [&str; 14] = [
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "auto_map",
        "dtype",
        "hidden_dropout",
        "initializer_range",
        "model_type",
        "pad_token_id",
        "pretraining_tp",
        "tokenizer_class",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    ];
    // Names that begin alike are mostly of one maker.
    const ALIKE: f64 = 0.85;
    let plain = |name: &str| name.trim_end_matches("ForCausalLM").to_lowercase();
    let names = FAMILIES
        .iter()
        .flat_map(|family| family.hf_architectures.iter().map(move |name| (*name, *family)));
    let classes = names.filter(|(name, _)| name.starts_with(char::is_uppercase));
    let scored = classes.map(|(name, family)| (strsim::jaro_winkler(&plain(name), &plain(found)), name, family));
    let (likeness, name, family) = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    if likeness < ALIKE {
        return None;
    }
    let as_nearest = config.unasked();
    let described = (family.describe_hf)(&as_nearest).and_then(|model| model.check(config.path()));
    let mut unread = as_nearest.never_asked();
    unread.retain(|field| !COMMON.contains(&field.as_str()));
    Some(NearestArchitecture {
        name,
        refusal: described.err().map(|error| error.to_string()),
        unread,
    })
}

fn lookup(path: &Path, found: &str, names: impl Fn(&Family) -> &'static [&'static str]) -> Result<&'static Family> {
    let family = FAMILIES.iter().copied().find(|family| names(family).contains(&found));
    family.ok_or_else(|| ModelError::UnknownArchitecture {
        path: path.to_path_buf(),
        found: found.to_owned(),
        known: FAMILIES.iter().flat_map(|family| names(family)).copied().collect(),
        nearest: None,
    })
}
