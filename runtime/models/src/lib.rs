//! Models: configuration to description, description to a program of catalogue ops, and weight files.
//!
//! Owns everything that is read from a model's files on disk: config.json, safetensors, GGUF, and the other files of
//! the folder. Knows no kernel, no device, no HTTP, and reads no environment.
//!
//! Reading order: `source` (a path to everything), [`config`] (the description), [`families`],
//! [`weights`], [`program`], then the formats [`gguf`] and [`safetensors`], [`quant`] for what formats mean, and
//! [`lora`] for adapters.

pub mod config;
mod consolidated;
mod error;
pub mod families;
pub mod gguf;
pub mod lora;
mod mapping;
mod overrides;
pub mod program;
pub mod quant;
pub mod safetensors;
mod same_model;
mod source;
mod split_mix;
pub mod weights;

pub use config::{GenerationDefaults, ModelDescription};
pub use error::{ModelError, NearestArchitecture, Result};
pub use gguf::GgufTokenizerData;
pub use lora::{AdapterFingerprint, LoraAdapter, LoraLimits, LoraTargets};
pub use overrides::{GenerationSource, ModelOverrides};
pub use quant::Rounding;
pub use same_model::ModelFacts;
pub use source::{LoadFormat, ModelFiles, TokenizerSource, WeightQuantization};
pub use split_mix::SplitMix64;
pub use weights::{DummyFormat, DummyValues, DummyWeights, Role, WeightTensor, Weights};
