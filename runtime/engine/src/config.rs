//! The engine's immutable configuration, one section per owner. Resolved once; nothing below reads the environment.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use halyard_models::lora::MAX_LORA_RANK;
use halyard_models::program::LoraOptions;
use halyard_models::{DummyWeights, LoadFormat, LoraTargets, ModelFiles, ModelOverrides, WeightQuantization};
use halyard_platform_api::DType;
use halyard_text::TemplateHost;

use crate::error::EngineError;
use crate::lora::AdapterSource;

/// Default of [`SchedulingConfig::max_step`]: a stream beside a long prompt pauses no longer than a reader notices.
pub const DEFAULT_MAX_STEP: Duration = Duration::from_millis(250);

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
    /// LoRA adapters; `None`: none are served.
    pub lora: Option<LoraConfig>,
    /// Where the model's chat template runs; `None`: in this process, for models that are trusted.
    pub templates: Option<Arc<dyn TemplateHost>>,
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
    /// What stands in for the model's own files.
    pub overrides: ModelOverrides,
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
    /// Blocks of the KV cache; overrides share and bytes (vLLM's name).
    pub num_gpu_blocks_override: Option<u32>,
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
    /// A prompt with more tokens to compute than this is long: long prompts share half of a step while others want the
    /// rest, and none computes more than this in a step. 0: half of a step is long, and a long prompt that is alone fills it.
    pub long_prefill_token_threshold: u32,
    /// Prompts are cut so that a step takes about this long. Zero: no bound.
    pub max_step: Duration,
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

/// LoRA adapters. Defaults are vLLM's.
#[derive(Clone, Debug)]
pub struct LoraConfig {
    /// Adapters that are there from the start: name and source.
    pub adapters: Vec<(String, AdapterSource)>,
    /// Adapters that one step may mix: slots on the device.
    pub max_loras: u32,
    /// Largest rank that is served, 1 to 512: slots are as large as this says.
    pub max_rank: u32,
    /// Adapters in host memory, at least `max_loras`; `None`: as many as that. Others are read from their files when they are asked for.
    pub max_cpu_loras: Option<u32>,
    /// The linears that adapters may change. Each costs two ops a layer in steps with adapters.
    pub targets: LoraTargets,
    /// Type of the adapters' matrices on the device; `None`: that of the activations.
    pub dtype: Option<DType>,
}

impl Default for LoraConfig {
    fn default() -> Self {
        LoraConfig {
            adapters: Vec::new(),
            max_loras: 1,
            max_rank: 16,
            max_cpu_loras: None,
            targets: LoraTargets::ALL,
            dtype: None,
        }
    }
}

/// Most adapters of one step: their slots are allocated at start.
const MAX_LORAS: u32 = 1024;
/// Most adapters in host memory.
const MAX_CPU_LORAS: u32 = 1 << 20;

impl LoraConfig {
    /// Slots of a program whose activations are `act`.
    ///
    /// # Errors
    /// [`EngineError::Config`] naming the option, its value and its limits.
    pub(crate) fn options(&self, act: DType) -> Result<LoraOptions, EngineError> {
        let between = |name, value: u32, low: u32, high: u32| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            let message = format!("{value} is not between {low} and {high}");
            Err(EngineError::Config { name, message })
        };
        between("--max-loras", self.max_loras, 1, MAX_LORAS)?;
        between("--max-lora-rank", self.max_rank, 1, MAX_LORA_RANK)?;
        if let Some(held) = self.max_cpu_loras {
            between("--max-cpu-loras", held, self.max_loras, MAX_CPU_LORAS)?;
        }
        let dtype = self.dtype.unwrap_or(act);
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(EngineError::Config {
                name: "--lora-dtype",
                message: format!("{dtype:?} is not one of F32, F16 and BF16"),
            });
        }
        Ok(LoraOptions {
            num_slots: self.max_loras,
            max_rank: self.max_rank,
            dtype,
            targets: self.targets,
        })
    }

    /// Adapters in host memory.
    pub(crate) fn max_host(&self) -> usize {
        self.max_cpu_loras.unwrap_or(self.max_loras) as usize
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
        let mut files = ModelFiles::open_with(&self.path, self.load_format, dummy, &self.overrides)?;
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
                overrides: ModelOverrides::default(),
            },
            cache: CacheConfig {
                block_size: None,
                gpu_memory_utilization: 0.9,
                kv_cache_memory_bytes: None,
                num_gpu_blocks_override: None,
                kv_cache_dtype: None,
                enable_prefix_caching: true,
            },
            scheduler: SchedulingConfig {
                max_num_seqs: 256,
                max_num_batched_tokens: None,
                max_waiting: 4096,
                policy: halyard_scheduler::Policy::Fcfs,
                async_depth: None,
                long_prefill_token_threshold: 0,
                max_step: DEFAULT_MAX_STEP,
            },
            recording: RecordingConfig::default(),
            lora: None,
            templates: None,
        }
    }
}
