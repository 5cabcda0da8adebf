//! LoRA adapters in PEFT's format: an `adapter_config.json` and its safetensors become matrices that fit a model, or an
//! error that names what does not. Knows no device: the engine pads and slices them for its slots.
//!
//! What an adapter adds to a linear is scale · B·(A·x), scale = alpha/rank, or alpha/√rank with rank-stabilised LoRA
//! (PEFT, `LoraLayer`).

mod config;
mod dummy;
mod targets;
mod tensors;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use halyard_platform_api::DType;

use crate::config::ModelDescription;
use crate::error::{ModelError, Result};
use crate::weights::{Linear, Part, Role};

pub use targets::LoraTargets;

/// Largest rank that an adapter may have.
pub const MAX_LORA_RANK: u32 = 512;

/// The limits for adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoraLimits {
    /// Largest rank, at most [`MAX_LORA_RANK`].
    pub max_rank: u32,
    /// The linears that adapters may change.
    pub targets: LoraTargets,
    /// Type that matrices are held in: F32, F16 or BF16.
    pub dtype: DType,
}

/// The two matrices of one linear, row-major, in the adapter's type.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraModule {
    /// Rank.
    pub rank: u32,
    /// A, `[rank, in_features]`.
    pub a: Vec<u8>,
    /// B, `[out_features, rank]`. Holds the ratio to [`LoraAdapter::scale`] where this linear's scale differs.
    pub b: Vec<u8>,
}

/// An adapter in host memory, checked against a model.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraAdapter {
    /// Largest rank of its linears.
    pub rank: u32,
    /// alpha/rank or alpha/√rank of the configuration.
    pub scale: f32,
    /// Type of the matrices.
    pub dtype: DType,
    modules: BTreeMap<(usize, Linear), LoraModule>,
}

/// The file that an adapter was read from, as it was then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterFingerprint {
    path: PathBuf,
    bytes: u64,
    modified: Option<std::time::SystemTime>,
}

impl LoraAdapter {
    /// Reads the adapter in `folder` for a model. Blocks for reading the whole file; holds nothing open afterwards.
    ///
    /// # Errors
    /// Anything that the format, this engine or the model does not allow. The error names the field or tensor, its
    /// value, and a value that works.
    pub fn open(folder: &Path, model: &ModelDescription, limits: &LoraLimits) -> Result<LoraAdapter> {
        let config = config::AdapterConfig::open(folder, limits)?;
        tensors::read(folder, &config, model, limits)
    }

    /// An adapter of random values that changes every target of a model: for measuring.
    ///
    /// # Errors
    /// [`ModelError::BadField`] for a rank above the limits.
    pub fn dummy(model: &ModelDescription, limits: &LoraLimits, rank: u32, seed: u64) -> Result<LoraAdapter> {
        dummy::adapter(model, limits, rank, seed)
    }

    /// A fingerprint of an adapter's folder, to detect later changes.
    ///
    /// # Errors
    /// [`ModelError::Io`] where there is no such file.
    pub fn fingerprint(folder: &Path) -> Result<AdapterFingerprint> {
        let path = tensors::weights_file(folder);
        let metadata = std::fs::metadata(&path).map_err(|source| ModelError::Io {
            path: path.clone(),
            source,
        })?;
        Ok(AdapterFingerprint {
            bytes: metadata.len(),
            modified: metadata.modified().ok(),
            path,
        })
    }

    /// The matrices of a linear, where the adapter changes it.
    #[must_use]
    pub fn module(&self, role: Role) -> Option<&LoraModule> {
        match role {
            Role::Layer(layer, Part::Weight(linear)) => self.modules.get(&(layer, linear)),
            _ => None,
        }
    }

    /// Linears that it changes.
    #[must_use]
    pub fn num_modules(&self) -> usize {
        self.modules.len()
    }

    /// Bytes of its matrices.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let bytes = |module: &LoraModule| (module.a.len() + module.b.len()) as u64;
        self.modules.values().map(bytes).sum()
    }
}

/// Values in a type, little endian.
fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

/// The error of an adapter's field that asks for what is not there.
fn unsupported(
    path: &Path,
    field: impl Into<String>,
    value: impl Into<String>,
    remedy: impl Into<String>,
) -> ModelError {
    ModelError::Unsupported {
        path: path.to_path_buf(),
        field: field.into(),
        value: value.into(),
        remedy: remedy.into(),
    }
}
