//! The models whose kernels are compiled ahead, as `models.json` lists them. A model starts with dummy weights and two
//! layers, as kernels do not depend on how many there are.

use std::path::Path;

use halyard_engine::EngineConfig;
use halyard_models::{LoadFormat, Rounding, WeightQuantization};
use halyard_platform_api::DType;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::PrebuiltError;

/// Context of a start.
const POSITIONS: u32 = 4096;

/// A model of the list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    pub name: String,
    /// Ways of serving it beyond 16 bits.
    pub also: Vec<Way>,
    config: Map<String, Value>,
}

/// How a model is served.
#[derive(Clone, Copy, Debug, Deserialize)]
pub enum Way {
    /// Weights, activations and KV in bf16.
    #[serde(skip)]
    Bf16,
    /// Weights in fp8, with a scale a row.
    #[serde(rename = "fp8")]
    Fp8,
    /// Weights of 4 bits in groups of 128, as AWQ and GPTQ have them.
    #[serde(rename = "int4")]
    Int4,
    /// KV in fp8.
    #[serde(rename = "fp8 KV")]
    Fp8Kv,
}

/// The list.
///
/// # Errors
/// What is wrong with it.
pub fn all() -> Result<Vec<Model>, PrebuiltError> {
    serde_json::from_str(include_str!("models.json")).map_err(PrebuiltError::Models)
}

impl Model {
    /// The engine's configuration for it, with its files written to `folder`.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn engine(&self, way: Way, folder: &Path) -> Result<EngineConfig, PrebuiltError> {
        let mut fields = self.config.clone();
        fields.insert("num_hidden_layers".to_string(), json!(2));
        // Tables of rope for all positions take long to make, and no kernel depends on their length.
        fields.insert("max_position_embeddings".to_string(), json!(POSITIONS));
        fields.insert("torch_dtype".to_string(), json!("bfloat16"));
        for (name, value) in [("bos_token_id", json!(1)), ("eos_token_id", json!(2))] {
            fields.entry(name).or_insert(value);
        }
        let path = folder.join("config.json");
        std::fs::write(&path, Value::from(fields).to_string())
            .map_err(|source| PrebuiltError::Write { path, source })?;
        let mut config = EngineConfig::for_model(folder);
        config.model.load_format = LoadFormat::Dummy;
        // As the server has it by default.
        config.model.allow_quantized_act = true;
        match way {
            Way::Bf16 => {}
            Way::Fp8 => config.model.quantization = Some(WeightQuantization::Round(Rounding::Fp8)),
            Way::Int4 => config.model.quantization = Some(WeightQuantization::Round(Rounding::Int4)),
            Way::Fp8Kv => config.cache.kv_cache_dtype = Some(DType::F8E4M3),
        }
        Ok(config)
    }
}
