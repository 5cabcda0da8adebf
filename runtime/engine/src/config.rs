//! The engine's immutable configuration, one section per owner. Resolved once; nothing below reads the environment.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use halyard_grammar::GrammarConfig;
use halyard_models::{DummyWeights, LoadFormat, LoraTargets, ModelFiles, ModelOverrides, WeightQuantization};
use halyard_platform_api::DType;
use halyard_runner::{CacheConfig, LoraSlots, RecordingConfig, RunnerConfig};
use halyard_text::TemplateHost;

use crate::error::EngineError;
use crate::kv_events::KvEventSink;
use crate::lora::AdapterSource;

/// Default of [`SchedulingConfig::max_step`]: while a long prompt is computed, other streams pause no longer than a
/// reader notices.
pub const DEFAULT_MAX_STEP: Duration = Duration::from_millis(250);

/// Default of [`GuideConfig::max_mask_time`]: far more than a grammar needs, and less than clients wait.
pub const DEFAULT_MAX_MASK_TIME: Duration = Duration::from_secs(10);

/// Everything the engine is started with.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The model to load.
    pub model: ModelConfig,
    /// KV cache.
    pub cache: CacheConfig,
    /// Scheduling.
    pub scheduler: SchedulingConfig,
    /// Recorded decode steps.
    pub recording: RecordingConfig,
    /// LoRA adapters; `None`: none are served.
    pub lora: Option<LoraConfig>,
    /// Drafted tokens; `None`: each token takes a step.
    pub speculative: Option<SpeculativeConfig>,
    /// Bounds of token guides.
    pub guides: GuideConfig,
    /// Bounds of structured output.
    pub grammars: GrammarConfig,
    /// Requests may ask for the last hidden state of their prompt ([`crate::Request::hidden_state`]).
    pub hidden_states: bool,
    /// Where the model's chat template runs; `None`: in this process, for models that are trusted.
    pub templates: Option<Arc<dyn TemplateHost>>,
    /// Gets the changes of the prefix cache; `None`: none are kept.
    pub kv_events: Option<Arc<dyn KvEventSink>>,
    /// The engine may sleep ([`crate::EngineHandle::sleep`]): the model's files stay mapped while it runs.
    pub sleep_mode: bool,
}

/// Which model and how its numbers are held.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// A Hugging Face folder or a GGUF file.
    pub path: PathBuf,
    /// How to read it.
    pub load_format: LoadFormat,
    /// The type to which layers' weights are rounded while loading; `None`: they stay as stored.
    pub quantization: Option<WeightQuantization>,
    /// Activation type; `None`: the device's choice.
    pub dtype: Option<DType>,
    /// Context in tokens; `None`: the model's, if KV memory holds it.
    pub max_model_len: Option<u32>,
    /// Seed of dummy weights and of requests that name none.
    pub seed: u64,
    /// Lets a backend round activations where that is faster (to int8 in blocks for quantised weights, to bf16 for bf16
    /// ones). Without it products are exact, and a KV cache whose type was not chosen is as exact as the activations.
    /// The server's default is true.
    pub allow_quantized_act: bool,
    /// Attention backend by name; `None`: the platform's best.
    pub attention_backend: Option<String>,
    /// Over several devices each has some of the experts, and these whole (vLLM's name); else some columns of every
    /// expert.
    pub enable_expert_parallel: bool,
    /// Overrides of the model's own files.
    pub overrides: ModelOverrides,
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
    /// rest, and none computes more than this in a step. 0: half of a step is long, and a long prompt that is alone
    /// fills it.
    pub long_prefill_token_threshold: u32,
    /// Prompts are cut so that a step takes about this long. Zero: no bound.
    pub max_step: Duration,
}

/// Drafts by prompt lookup, for sequences that take the likeliest token (vLLM's names and defaults; its method
/// `ngram`). Drafts need the tokens on the host, so a step begins only when the one before has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeculativeConfig {
    /// Most tokens drafted for a step.
    pub num_speculative_tokens: u32,
    /// Fewest last tokens that must have come before.
    pub prompt_lookup_min: u32,
    /// Most of them that are looked for.
    pub prompt_lookup_max: u32,
}

impl SpeculativeConfig {
    /// The most drafts of a row.
    ///
    /// # Errors
    /// A number that is 0, or a smallest above the largest.
    fn checked(self) -> Result<u32, EngineError> {
        let (min, max) = (self.prompt_lookup_min, self.prompt_lookup_max);
        let refuse = |name, message| Err(EngineError::Config { name, message });
        if self.num_speculative_tokens == 0 {
            return refuse("num_speculative_tokens", "0; choose at least 1".to_string());
        }
        if min == 0 || min > max {
            return refuse(
                "prompt_lookup_min",
                format!("{min} is not between 1 and prompt_lookup_max {max}"),
            );
        }
        Ok(self.num_speculative_tokens)
    }
}

/// Token guides ([`crate::TokenGuide`]). A guide is foreign code: a call of it can be given up, but not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuideConfig {
    /// Longest call for one mask. A request whose guide takes longer ends with an error, and its thread is stuck until
    /// the call returns.
    pub max_mask_time: Duration,
    /// Threads that may be stuck. Below this each gets a replacement; from then on requests with a guide are refused
    /// until one of the calls returns. At least 1.
    pub max_stuck_threads: u32,
}

impl Default for GuideConfig {
    fn default() -> Self {
        GuideConfig {
            max_mask_time: DEFAULT_MAX_MASK_TIME,
            max_stuck_threads: 16,
        }
    }
}

impl GuideConfig {
    /// Checks the bounds.
    ///
    /// # Errors
    /// One that is 0.
    fn check(&self) -> Result<(), EngineError> {
        let refuse = |name| {
            let message = "0; choose more".to_string();
            Err(EngineError::Config { name, message })
        };
        if self.max_mask_time.is_zero() {
            return refuse("max_mask_time");
        }
        if self.max_stuck_threads == 0 {
            return refuse("max_stuck_threads");
        }
        Ok(())
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
    /// Adapters in host memory, at least `max_loras`; `None`: as many as that. Others are read from their files when
    /// they are asked for.
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

/// Most adapters in host memory.
const MAX_CPU_LORAS: u32 = 1 << 20;

impl LoraConfig {
    /// The slots on the device.
    ///
    /// # Errors
    /// Fewer adapters in host memory than slots, or far too many.
    pub(crate) fn slots(&self) -> Result<LoraSlots, EngineError> {
        if let Some(held) = self
            .max_cpu_loras
            .filter(|held| !(self.max_loras..=MAX_CPU_LORAS).contains(held))
        {
            return Err(EngineError::Config {
                name: "--max-cpu-loras",
                message: format!("{held} is not between {} and {MAX_CPU_LORAS}", self.max_loras),
            });
        }
        Ok(LoraSlots {
            max_loras: self.max_loras,
            max_rank: self.max_rank,
            targets: self.targets,
            dtype: self.dtype,
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
    /// The fault.
    pub fn open(&self) -> Result<ModelFiles, EngineError> {
        let dummy = DummyWeights {
            seed: self.seed,
            ..DummyWeights::default()
        };
        let mut files = ModelFiles::open_with(&self.path, self.load_format, dummy, &self.overrides)?;
        match self.quantization {
            None => {}
            Some(quantization) => files.quantise(quantization)?,
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
                enable_expert_parallel: false,
                overrides: ModelOverrides::default(),
            },
            cache: CacheConfig::default(),
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
            speculative: None,
            guides: GuideConfig::default(),
            grammars: GrammarConfig::default(),
            hidden_states: false,
            templates: None,
            kv_events: None,
            sleep_mode: false,
        }
    }

    /// The device half's part.
    ///
    /// # Errors
    /// As [`LoraConfig::slots`]; bounds that are 0.
    pub(crate) fn runner(&self) -> Result<RunnerConfig, EngineError> {
        self.guides.check()?;
        Ok(RunnerConfig {
            dtype: self.model.dtype,
            max_model_len: self.model.max_model_len,
            allow_quantized_act: self.model.allow_quantized_act,
            attention_backend: self.model.attention_backend.clone(),
            cache: self.cache.clone(),
            max_num_seqs: self.scheduler.max_num_seqs,
            max_num_batched_tokens: self.scheduler.max_num_batched_tokens,
            async_depth: self.scheduler.async_depth,
            recording: self.recording.clone(),
            expert_parallel: self.model.enable_expert_parallel,
            lora: self.lora.as_ref().map(LoraConfig::slots).transpose()?,
            max_drafts: self
                .speculative
                .map(SpeculativeConfig::checked)
                .transpose()?
                .unwrap_or(0),
            hidden_states: self.hidden_states,
        })
    }
}
