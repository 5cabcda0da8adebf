//! The engine's immutable configuration, one section per owner. Resolved once; nothing below reads the environment.

use std::path::PathBuf;

use halyard_models::{DummyWeights, LoadFormat, ModelFiles, WeightQuantization};
use halyard_platform_api::DType;

use crate::error::EngineError;

/// Everything the engine is started with.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// What to load.
    pub model: ModelConfig,
    /// KV cache.
    pub cache: CacheConfig,
    /// Scheduling.
    pub scheduler: SchedulingConfig,
    /// Recorded decode steps.
    pub recording: RecordingConfig,
}

/// Which model and how its numbers are held.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// A Hugging Face folder or a GGUF file.
    pub path: PathBuf,
    /// How to read it.
    pub load_format: LoadFormat,
    /// What weights of layers are rounded to as they are loaded; `None`: they stay as stored.
    pub quantization: Option<WeightQuantization>,
    /// Activation type; `None`: the device's choice.
    pub dtype: Option<DType>,
    /// Context in tokens; `None`: the model's, if KV memory holds it.
    pub max_model_len: Option<u32>,
    /// Seed of dummy weights and of requests that name none.
    pub seed: u64,
    /// Lets a backend round activations where that is faster (to int8 in blocks for quantised weights, to bf16 for bf16 ones). Without it
    /// products are exact, and a KV cache whose type nobody chose is as exact as the activations. The server's default is true.
    pub allow_quantized_act: bool,
    /// Attention backend by name; `None`: the platform's best.
    pub attention_backend: Option<String>,
}

/// KV cache memory.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// Tokens of a block; `None`: the device's choice.
    pub block_size: Option<u32>,
    /// Share of the device's free memory for weights, activations and KV together (vLLM's name), 0 to 1.
    pub gpu_memory_utilization: f64,
    /// KV bytes; overrides the share.
    pub kv_cache_memory_bytes: Option<u64>,
    /// KV type; `None`: the device's choice.
    pub kv_cache_dtype: Option<DType>,
    /// Reuse blocks of equal prefixes.
    pub enable_prefix_caching: bool,
}

/// Step planning.
#[derive(Clone, Debug)]
pub struct SchedulingConfig {
    /// Requests that run at the same time.
    pub max_num_seqs: u32,
    /// Tokens of a step; `None`: the device's choice.
    pub max_num_batched_tokens: Option<u32>,
    /// Requests that may wait.
    pub max_waiting: u32,
    /// Order.
    pub policy: halyard_scheduler::Policy,
    /// Steps in flight beyond the first; `None`: the device's depth.
    pub async_depth: Option<u32>,
}

/// Decode steps recorded once and replayed, on devices that can.
#[derive(Clone, Debug)]
pub struct RecordingConfig {
    /// Encodes every step anew instead (vLLM's name).
    pub enforce_eager: bool,
    /// Compares each new recording with steps encoded anew before it is used: four steps of its size, once.
    pub check: bool,
    /// Which decode step of a size is the first to be recorded. Making and checking a recording costs what encoding some ten steps
    /// costs, and sizes that a batch passes through while it drains come once.
    pub from_step: u32,
}

impl Default for RecordingConfig {
    fn default() -> Self {
        RecordingConfig {
            enforce_eager: false,
            check: true,
            from_step: 8,
        }
    }
}

impl ModelConfig {
    /// Opens the model's files.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn open(&self) -> Result<ModelFiles, EngineError> {
        let dummy = DummyWeights {
            seed: self.seed,
            ..DummyWeights::default()
        };
        let mut files = ModelFiles::open(&self.path, self.load_format, dummy)?;
        match self.quantization {
            None => {}
            Some(WeightQuantization::Fp8) => files.quantise()?,
        }
        Ok(files)
    }
}

impl EngineConfig {
    /// Defaults for a model at `path`.
    pub fn for_model(path: impl Into<PathBuf>) -> Self {
        EngineConfig {
            model: ModelConfig {
                path: path.into(),
                load_format: LoadFormat::Auto,
                quantization: None,
                dtype: None,
                max_model_len: None,
                seed: 0,
                allow_quantized_act: false,
                attention_backend: None,
            },
            cache: CacheConfig {
                block_size: None,
                gpu_memory_utilization: 0.9,
                kv_cache_memory_bytes: None,
                kv_cache_dtype: None,
                enable_prefix_caching: true,
            },
            scheduler: SchedulingConfig {
                max_num_seqs: 256,
                max_num_batched_tokens: None,
                max_waiting: 4096,
                policy: halyard_scheduler::Policy::Fcfs,
                async_depth: None,
            },
            recording: RecordingConfig::default(),
        }
    }
}
