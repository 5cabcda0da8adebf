//! The configuration of loading and running, one section per owner. Resolved once; nothing here reads the environment.

use halyard_models::LoraTargets;
use halyard_models::lora::MAX_LORA_RANK;
use halyard_models::program::LoraOptions;
use halyard_platform_api::DType;

use crate::error::RunnerError;

/// Everything that a model is loaded and run with.
#[derive(Clone, Debug)]
pub struct RunnerConfig {
    /// Activation type; `None`: the device's choice.
    pub dtype: Option<DType>,
    /// Context in tokens; `None`: the model's, if KV memory holds it.
    pub max_model_len: Option<u32>,
    /// Lets a backend round activations where that is faster.
    pub allow_quantized_act: bool,
    /// Attention backend by name; `None`: the platform's best.
    pub attention_backend: Option<String>,
    /// KV cache.
    pub cache: CacheConfig,
    /// Requests that run at the same time.
    pub max_num_seqs: u32,
    /// Tokens of a step; `None`: the device's choice.
    pub max_num_batched_tokens: Option<u32>,
    /// Steps in flight beyond the first; `None`: the device's depth.
    pub async_depth: Option<u32>,
    /// Recorded decode steps.
    pub recording: RecordingConfig,
    /// Over several devices each has some of the experts, and these whole (vLLM's `enable_expert_parallel`); else some
    /// columns of every expert.
    pub expert_parallel: bool,
    /// Adapter slots; `None`: no adapters are served.
    pub lora: Option<LoraSlots>,
    /// Most drafted tokens that a row verifies in a step.
    pub max_drafts: u32,
    /// Rows may give their last hidden state instead of a token ([`crate::RowOutput::HiddenState`]).
    pub hidden_states: bool,
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
    /// Host memory for blocks that the prefix cache on the device loses, of all ranks together; 0: none (vLLM's
    /// `kv_offloading_size`, which is in GiB).
    pub kv_offloading_bytes: u64,
}

impl Default for RunnerConfig {
    fn default() -> Self {
        RunnerConfig {
            dtype: None,
            max_model_len: None,
            allow_quantized_act: false,
            attention_backend: None,
            cache: CacheConfig::default(),
            max_num_seqs: 256,
            max_num_batched_tokens: None,
            async_depth: None,
            recording: RecordingConfig::default(),
            expert_parallel: false,
            lora: None,
            max_drafts: 0,
            hidden_states: false,
        }
    }
}

impl Default for CacheConfig {
    fn default() -> Self {
        CacheConfig {
            block_size: None,
            gpu_memory_utilization: 0.9,
            kv_cache_memory_bytes: None,
            num_gpu_blocks_override: None,
            kv_cache_dtype: None,
            enable_prefix_caching: true,
            kv_offloading_bytes: 0,
        }
    }
}

/// Decode steps recorded once and replayed, on devices that can.
#[derive(Clone, Debug)]
pub struct RecordingConfig {
    /// Encodes every step anew instead (vLLM's name).
    pub enforce_eager: bool,
    /// Compares each new recording with steps encoded anew before it is used: four steps of its size, once.
    pub check: bool,
    /// Which decode step of a size is the first to be recorded. Making and checking a recording costs what encoding
    /// some ten steps costs, and sizes that a batch passes through while it drains come once.
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

/// Adapter slots on the device.
#[derive(Clone, Copy, Debug)]
pub struct LoraSlots {
    /// Adapters that one step may mix.
    pub max_loras: u32,
    /// Largest rank, 1 to 512: slots are as large as this says.
    pub max_rank: u32,
    /// The linears that adapters may change. Each costs two ops a layer in steps with adapters.
    pub targets: LoraTargets,
    /// Type of the adapters' matrices on the device; `None`: that of the activations.
    pub dtype: Option<DType>,
}

/// Most adapters of one step: their slots are allocated at start.
const MAX_LORAS: u32 = 1024;

impl LoraSlots {
    /// Slots of a program whose activations are `act`.
    ///
    /// # Errors
    /// [`RunnerError::Config`] naming the option, its value and its limits.
    pub(crate) fn options(&self, act: DType) -> Result<LoraOptions, RunnerError> {
        let between = |name, value: u32, low: u32, high: u32| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            let message = format!("{value} is not between {low} and {high}");
            Err(RunnerError::Config { name, message })
        };
        between("--max-loras", self.max_loras, 1, MAX_LORAS)?;
        between("--max-lora-rank", self.max_rank, 1, MAX_LORA_RANK)?;
        let dtype = self.dtype.unwrap_or(act);
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(RunnerError::Config {
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
}
