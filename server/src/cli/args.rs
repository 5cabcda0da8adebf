//! Flags that several commands share, in one section for each owner: platform, model, KV cache, scheduling, logging.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use halyard_engine::{
    CacheConfig, DEFAULT_MAX_STEP, EngineConfig, GuideConfig, ModelConfig, RecordingConfig, SchedulingConfig,
};
use halyard_models::{LoadFormat, WeightQuantization};
use halyard_platform_api::OpenOptions;
use halyard_plugin_host::{AllowList, PluginError, SearchPath};
use halyard_scheduler::Policy;

use super::isolation::HookIsolation;
use super::lora::LoraArgs;
use super::model_flags::OverrideArgs;
use super::structured::StructuredArgs;
use super::units::{
    ContextLength, DTypeChoice, parse_bytes, parse_context, parse_dtype, parse_gib, parse_kv_dtype, parse_policy,
    parse_share, parse_tokens,
};
use crate::error::ServerError;
use crate::logging::LogFormat;
use crate::source::ResolvedModel;
use crate::templates::TemplateProcesses;

/// Where plugins are.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Plugins")]
pub struct PluginArgs {
    /// A plugin library, before all others; may be repeated
    #[arg(long = "plugin", value_name = "FILE", env = "HALYARD_PLUGIN", value_delimiter = ',')]
    pub plugins: Vec<PathBuf>,
    /// A folder of plugin libraries; may be repeated. After these: HALYARD_PLUGIN_PATH, the program's folder, the
    /// user's and the system's folders
    #[arg(
        long = "plugin-dir",
        value_name = "FOLDER",
        env = "HALYARD_PLUGIN_DIR",
        value_delimiter = ','
    )]
    pub plugin_dirs: Vec<PathBuf>,
    /// Load only libraries whose sha256 is listed in this file
    #[arg(long, value_name = "FILE", env = "HALYARD_PLUGINS_LOCK")]
    pub plugins_lock: Option<PathBuf>,
}

impl PluginArgs {
    /// The search path, with the environment's part.
    ///
    /// # Errors
    /// A lock file that cannot be used.
    pub fn search_path(&self) -> Result<SearchPath, PluginError> {
        let program = std::env::current_exe().and_then(|path| path.canonicalize()).ok();
        let program_folder = program.as_deref().and_then(|path| path.parent()).map(PathBuf::from);
        let prefix = program_folder
            .as_deref()
            .and_then(|path| path.parent())
            .map(|path| path.join("lib").join("halyard"));
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let data = std::env::var_os("XDG_DATA_HOME")
            .filter(|value| !value.is_empty())
            .map(PathBuf::from);
        let data = data.or_else(|| home.map(|home| home.join(".local").join("share")));
        let system = ["/usr/local/lib/halyard", "/usr/lib/halyard"].map(PathBuf::from);
        Ok(SearchPath {
            plugins: self.plugins.clone(),
            plugin_dirs: self.plugin_dirs.clone(),
            path_variable: std::env::var_os("HALYARD_PLUGIN_PATH"),
            program_folder,
            user_dirs: data
                .map(|data| data.join("halyard").join("plugins"))
                .into_iter()
                .collect(),
            system_dirs: prefix.into_iter().chain(system).collect(),
            allow_list: self.plugins_lock.as_deref().map(AllowList::read).transpose()?,
        })
    }
}

/// The folder of platforms' caches.
pub const CACHE_VARIABLE: &str = "HALYARD_CACHE_DIR";

/// Which device to run on.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Platform")]
pub struct PlatformArgs {
    /// The platform: exactly this one, or an error; without it the best one that has a device
    #[arg(long, value_name = "NAME", env = "HALYARD_PLATFORM")]
    pub platform: Option<String>,
    /// Which of its devices
    #[arg(long, value_name = "INDEX", env = "HALYARD_DEVICE", default_value_t = 0)]
    pub device: u32,
    /// An option of the platform, such as threads=8 for cpu; may be repeated. docs/backends lists the options of each
    /// platform; an unknown one stops the start
    #[arg(
        long = "platform-option",
        value_name = "KEY=VALUE",
        env = "HALYARD_PLATFORM_OPTION",
        value_delimiter = ','
    )]
    pub platform_options: Vec<String>,
    /// Folder in which platforms keep compiled kernels and tuned choices. Without it `halyard` in $XDG_CACHE_HOME or
    /// ~/.cache; an empty variable keeps nothing
    // The usual parser of paths refuses the empty variable before anybody asks what it means.
    #[arg(long, value_name = "FOLDER", env = CACHE_VARIABLE,
        value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub platform_cache_dir: Option<PathBuf>,
    /// Devices that share every layer of the model, from --device on: heads and feed-forward columns are divided among
    /// them
    #[arg(long, value_name = "COUNT", env = "HALYARD_TENSOR_PARALLEL_SIZE", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub tensor_parallel_size: u32,
    /// Copies of the model, each on --tensor-parallel-size devices of its own, from --device on. A request goes to the
    /// copy with the least to do, and to the one that has its prefix where that saves more
    #[arg(long, value_name = "COUNT", env = "HALYARD_DATA_PARALLEL_SIZE", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub data_parallel_size: u32,
    /// Of --data-parallel-size servers behind a load balancer, which one this is: it runs one copy, and its metrics
    /// have this number
    #[arg(long, value_name = "RANK", env = "HALYARD_DATA_PARALLEL_RANK")]
    pub data_parallel_rank: Option<u32>,
    /// Says that --data-parallel-rank is one of several servers; needs it
    #[arg(long, value_name = "BOOL", env = "HALYARD_DATA_PARALLEL_EXTERNAL_LB", default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub data_parallel_external_lb: bool,
    /// With --tensor-parallel-size: give each device some of the experts, and these whole, instead of some columns of
    /// every expert. For models with experts
    #[arg(long, value_name = "BOOL", env = "HALYARD_ENABLE_EXPERT_PARALLEL", default_value_t = false, num_args = 0..=1,
        require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub enable_expert_parallel: bool,
    /// A plugin that receives statistics: NAME, NAME:key=value,… or NAME={"key": …}; may be repeated. A server always
    /// runs prometheus and log-line; naming one of them here configures it
    #[arg(
        long = "stat-logger",
        value_name = "NAME[:key=value|=JSON]",
        env = "HALYARD_STAT_LOGGER"
    )]
    pub stat_loggers: Vec<String>,
    /// Where stat loggers run: none (in this process) or process (each in a process of its own, whose crash does not
    /// harm the server); NAME=MODE for one of them; may be repeated
    #[arg(
        long,
        value_name = "[NAME=]MODE",
        env = "HALYARD_HOOK_ISOLATION",
        value_delimiter = ','
    )]
    pub hook_isolation: Vec<HookIsolation>,
    /// Milliseconds that a call of a stat logger may take; a slower one is put into quarantine
    #[arg(long, value_name = "MS", env = "HALYARD_STAT_LOGGER_DEADLINE_MS", default_value_t = 1000,
        value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub stat_logger_deadline_ms: u64,
}

impl PlatformArgs {
    /// The number of a copy of this server, for metrics and events.
    pub fn rank_of(&self, copy: usize) -> u32 {
        self.data_parallel_rank.unwrap_or(copy as u32)
    }

    /// Copies of the model that this server runs.
    ///
    /// # Errors
    /// A rank that is none, or that is missing.
    pub fn num_copies(&self) -> Result<u32, ServerError> {
        let wrong = |option, message| ServerError::Option { option, message };
        match self.data_parallel_rank {
            Some(rank) if rank >= self.data_parallel_size => Err(wrong(
                "--data-parallel-rank",
                format!(
                    "{rank}: ranks count from 0 to --data-parallel-size ({}) less one",
                    self.data_parallel_size
                ),
            )),
            Some(_) => Ok(1),
            None if self.data_parallel_external_lb => Err(wrong(
                "--data-parallel-external-lb",
                "which of the servers is this? give --data-parallel-rank; without both one server runs all copies"
                    .to_owned(),
            )),
            None => Ok(self.data_parallel_size),
        }
    }

    /// What device `index` is opened with.
    ///
    /// # Errors
    /// An option that is not KEY=VALUE, that is there twice, or that has an impossible name; a folder without a name.
    pub fn open_options(&self, index: u32) -> Result<OpenOptions, ServerError> {
        let folder = match &self.platform_cache_dir {
            // Platforms look at the variable themselves, where it says that nothing is kept.
            Some(folder) if folder.as_os_str().is_empty() => match std::env::var_os(CACHE_VARIABLE) {
                Some(value) if value.is_empty() => None,
                _ => {
                    return Err(ServerError::Option {
                        option: "--platform-cache-dir",
                        message: format!("the folder has no name; to keep nothing, set {CACHE_VARIABLE} to nothing"),
                    });
                }
            },
            folder => folder.as_deref(),
        };
        let mut options = OpenOptions::of(index).in_cache(folder);
        for text in &self.platform_options {
            options = options.with_text(text).map_err(|e| ServerError::Option {
                option: "--platform-option",
                message: e.message,
            })?;
        }
        Ok(options)
    }
}

/// The model.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// A folder, a .gguf file, or a model of the hub as org/repo or org/repo:QUANT; without it a small demo model
    #[arg(long, value_name = "PATH|ORG/REPO[:QUANT]", env = "HALYARD_MODEL")]
    pub model: Option<String>,
    /// auto, safetensors, gguf, or dummy (random weights in the model's shape)
    #[arg(long, value_name = "FORMAT", env = "HALYARD_LOAD_FORMAT", default_value = "auto",
        value_parser = parse_load_format)]
    pub load_format: LoadFormat,
    /// Round the layers' weights as they are loaded: fp8 (8-bit floats, one scale an output channel), int8 or int4 (a
    /// scale for 128 inputs). Quantised checkpoints need no flag; the name of their method (awq, gptq, …) is checked
    #[arg(short = 'q', long, value_name = "METHOD", env = "HALYARD_QUANTIZATION", value_parser = parse_quantization)]
    pub quantization: Option<WeightQuantization>,
    /// Type of activations: auto, float32, float16, bfloat16
    #[arg(long, value_name = "TYPE", env = "HALYARD_DTYPE", default_value = "auto", value_parser = parse_dtype)]
    pub dtype: DTypeChoice,
    /// Context in tokens, such as 8192, 8k (8000) or 8K (8192); without it, or with auto, the model's, if KV memory
    /// holds it
    #[arg(long, value_name = "TOKENS", env = "HALYARD_MAX_MODEL_LEN", value_parser = parse_context,
        allow_negative_numbers = true)]
    pub max_model_len: Option<ContextLength>,
    /// Seed of requests that name none, and of dummy weights
    #[arg(long, value_name = "NUMBER", env = "HALYARD_SEED", default_value_t = 0)]
    pub seed: u64,
    /// Let the platform round activations to 8 or 16 bits where that is faster; false: exact products, and a KV cache
    /// as exact
    #[arg(long, value_name = "BOOL", env = "HALYARD_ALLOW_QUANTIZED_ACT", default_value_t = true, num_args = 0..=1,
        default_missing_value = "true", action = clap::ArgAction::Set)]
    pub allow_quantized_act: bool,
    /// Run the model's chat template in this process, without bounds on its memory and stack; for models whose authors
    /// are trusted. Without it the template runs in a process of its own, within bounds
    #[arg(long, env = "HALYARD_TRUST_CHAT_TEMPLATE", default_value_t = false)]
    pub trust_chat_template: bool,
    /// Let POST /sleep give the device's memory back, and keep the model's files mapped for it (with
    /// --server-dev-mode)
    #[arg(long, value_name = "BOOL", env = "HALYARD_ENABLE_SLEEP_MODE", default_value_t = false, num_args = 0..=1,
        default_missing_value = "true", action = clap::ArgAction::Set)]
    pub enable_sleep_mode: bool,
    /// Attention backend by name; without it, or with auto, the platform's best
    #[arg(long, value_name = "NAME", env = "HALYARD_ATTENTION_BACKEND")]
    pub attention_backend: Option<String>,
    #[command(flatten)]
    /// Overrides of its own files.
    pub overrides: OverrideArgs,
}

/// KV cache memory.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "KV cache")]
pub struct CacheArgs {
    /// Tokens of a block; without it the device's choice
    #[arg(long, value_name = "TOKENS", env = "HALYARD_BLOCK_SIZE",
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub block_size: Option<u32>,
    /// Share of the device's free memory for weights, activations and KV cache together
    #[arg(long, value_name = "SHARE", env = "HALYARD_GPU_MEMORY_UTILIZATION", default_value = "0.9",
        value_parser = parse_share)]
    pub gpu_memory_utilization: f64,
    /// Bytes of the KV cache (such as 4GiB), in place of a share
    #[arg(long, value_name = "BYTES", env = "HALYARD_KV_CACHE_MEMORY_BYTES", value_parser = parse_bytes)]
    pub kv_cache_memory_bytes: Option<u64>,
    /// Blocks of the KV cache, in place of a share and of bytes
    #[arg(long, value_name = "COUNT", env = "HALYARD_NUM_GPU_BLOCKS_OVERRIDE",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub num_gpu_blocks_override: Option<u32>,
    /// Type of the KV cache: auto (as --dtype), float32, float16, bfloat16, fp8 (E4M3, scale 1: half the memory of 16
    /// bits), int8_per_token_head (or int8: half, with scales of its own), int4_per_token_head (or int4: a quarter)
    #[arg(long, value_name = "TYPE", env = "HALYARD_KV_CACHE_DTYPE", default_value = "auto",
        value_parser = parse_kv_dtype)]
    pub kv_cache_dtype: DTypeChoice,
    /// GiB of host memory for KV blocks that the prefix cache on the device loses, of all devices and copies together;
    /// they come back when a prompt has them. 0: none
    #[arg(long, value_name = "GIB", env = "HALYARD_KV_OFFLOADING_SIZE", default_value = "0", value_parser = parse_gib)]
    pub kv_offloading_size: u64,
    /// Switch prefix caching off: compute every prompt in full
    #[arg(long, value_name = "BOOL", env = "HALYARD_NO_ENABLE_PREFIX_CACHING", default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub no_enable_prefix_caching: bool,
}

/// Step planning.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Scheduling")]
pub struct SchedulingArgs {
    /// Requests that run at the same time
    #[arg(long, value_name = "COUNT", env = "HALYARD_MAX_NUM_SEQS", default_value_t = 256,
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub max_num_seqs: u32,
    /// Tokens of a step, prompt and generated together, such as 2048 or 2K; without it the device's choice
    #[arg(long, value_name = "TOKENS", env = "HALYARD_MAX_NUM_BATCHED_TOKENS", value_parser = parse_tokens)]
    pub max_num_batched_tokens: Option<u32>,
    /// A prompt with more tokens to compute than this is long: long prompts share half of a step while others want the
    /// rest, and none computes more than this in a step. 0: more than half of a step is long, and a long prompt that
    /// runs alone fills the step
    #[arg(
        long,
        value_name = "TOKENS",
        env = "HALYARD_LONG_PREFILL_TOKEN_THRESHOLD",
        default_value_t = 0
    )]
    pub long_prefill_token_threshold: u32,
    /// Cut prompts so that a step takes about this long; a new request waits no longer than that for the next step; 0:
    /// no bound
    #[arg(long, value_name = "MS", env = "HALYARD_MAX_STEP_MS", default_value_t = DEFAULT_MAX_STEP.as_millis() as u64)]
    pub max_step_ms: u64,
    /// Requests that may wait; more are refused with 503
    #[arg(long, value_name = "COUNT", env = "HALYARD_MAX_WAITING", default_value_t = 4096)]
    pub max_waiting: u32,
    /// fcfs, or priority (requests carry one; lower runs first)
    #[arg(long, value_name = "POLICY", env = "HALYARD_SCHEDULING_POLICY", default_value = "fcfs",
        value_parser = parse_policy)]
    pub scheduling_policy: Policy,
    /// Steps in flight beyond the first; without it the device's
    #[arg(long, value_name = "STEPS", env = "HALYARD_ASYNC_DEPTH",
        value_parser = clap::value_parser!(u32).range(0..=8))]
    pub async_depth: Option<u32>,
    /// Encode every step anew instead of replaying recorded decode steps
    #[arg(long, value_name = "BOOL", env = "HALYARD_ENFORCE_EAGER", default_value_t = false, num_args = 0..=1,
        require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub enforce_eager: bool,
}

/// Logs.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Logging")]
pub struct LogArgs {
    /// error, warn, info, debug, trace, or target=level pairs
    #[arg(long, value_name = "FILTER", env = "HALYARD_LOG_LEVEL", default_value = "info")]
    pub log_level: String,
    /// Text or JSON lines, on standard error
    #[arg(long, value_name = "FORMAT", env = "HALYARD_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// Everything that starting an engine takes.
#[derive(Args, Clone, Debug)]
pub struct EngineArgs {
    #[command(flatten)]
    /// Device.
    pub platform: PlatformArgs,
    #[command(flatten)]
    /// Plugins.
    pub plugins: PluginArgs,
    #[command(flatten)]
    /// Model.
    pub model: ModelArgs,
    #[command(flatten)]
    /// KV cache.
    pub cache: CacheArgs,
    #[command(flatten)]
    /// Scheduling.
    pub scheduling: SchedulingArgs,
    #[command(flatten)]
    /// Adapters.
    pub lora: LoraArgs,
    #[command(flatten)]
    /// Structured output.
    pub structured: StructuredArgs,
}

impl EngineArgs {
    /// The engine's configuration for `model`.
    pub fn config(&self, model: &ResolvedModel) -> EngineConfig {
        EngineConfig {
            model: ModelConfig {
                path: model.path.clone(),
                load_format: self.model.load_format,
                quantization: self.model.quantization,
                dtype: self.model.dtype.0,
                max_model_len: self.model.max_model_len.and_then(|length| length.0),
                seed: self.model.seed,
                allow_quantized_act: self.model.allow_quantized_act,
                attention_backend: self.model.attention_backend.clone().filter(|name| name != "auto"),
                enable_expert_parallel: self.platform.enable_expert_parallel,
                overrides: model.overrides.clone(),
            },
            cache: CacheConfig {
                block_size: self.cache.block_size,
                gpu_memory_utilization: self.cache.gpu_memory_utilization,
                kv_cache_memory_bytes: self.cache.kv_cache_memory_bytes,
                num_gpu_blocks_override: self.cache.num_gpu_blocks_override,
                kv_cache_dtype: self.cache.kv_cache_dtype.0,
                enable_prefix_caching: !self.cache.no_enable_prefix_caching,
                kv_offloading_bytes: self.cache.kv_offloading_size,
            },
            scheduler: SchedulingConfig {
                max_num_seqs: self.scheduling.max_num_seqs,
                max_num_batched_tokens: self.scheduling.max_num_batched_tokens,
                max_waiting: self.scheduling.max_waiting,
                policy: self.scheduling.scheduling_policy,
                async_depth: self.scheduling.async_depth,
                long_prefill_token_threshold: self.scheduling.long_prefill_token_threshold,
                max_step: Duration::from_millis(self.scheduling.max_step_ms),
            },
            recording: RecordingConfig {
                enforce_eager: self.scheduling.enforce_eager,
                ..RecordingConfig::default()
            },
            lora: self.lora.config(),
            speculative: None,
            guides: GuideConfig::default(),
            grammars: self.structured.config(),
            hidden_states: false,
            templates: (!self.model.trust_chat_template).then(TemplateProcesses::shared),
            kv_events: None,
            sleep_mode: self.model.enable_sleep_mode,
        }
    }
}

fn parse_quantization(text: &str) -> Result<WeightQuantization, String> {
    text.parse()
        .map_err(|error: halyard_models::ModelError| error.to_string())
}

fn parse_load_format(text: &str) -> Result<LoadFormat, String> {
    text.parse()
        .map_err(|error: halyard_models::ModelError| error.to_string())
}
