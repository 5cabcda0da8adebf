//! Options of an engine as Python hands them over: one JSON object, vLLM's names. Reads them strictly and opens what
//! they name.

use std::path::PathBuf;
use std::sync::Arc;

use halyard_engine::{EngineConfig, EngineHandle, LoraConfig, RecordSender};
use halyard_models::{GenerationSource, LoadFormat};
use halyard_platform_api::{DType, Device, OpenOptions};
use halyard_plugin_host::{Catalog, SearchPath, select_platform};
use serde::Deserialize;

use crate::error::StartError;

/// Keywords of `LLM` that the engine reads. Those without a value keep the engine's default.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    model: PathBuf,
    #[serde(default)]
    tokenizer: Option<PathBuf>,
    #[serde(default)]
    load_format: Option<String>,
    #[serde(default)]
    quantization: Option<String>,
    #[serde(default)]
    dtype: Option<String>,
    #[serde(default)]
    kv_cache_dtype: Option<String>,
    #[serde(default)]
    max_model_len: Option<u32>,
    #[serde(default)]
    seed: u64,
    #[serde(default = "yes")]
    allow_quantized_act: bool,
    #[serde(default)]
    attention_backend: Option<String>,
    #[serde(default)]
    chat_template: Option<String>,
    #[serde(default)]
    hf_overrides: serde_json::Map<String, serde_json::Value>,
    #[serde(default)]
    generation_config: Option<String>,
    #[serde(default)]
    override_generation_config: serde_json::Map<String, serde_json::Value>,
    #[serde(default)]
    block_size: Option<u32>,
    #[serde(default)]
    gpu_memory_utilization: Option<f64>,
    #[serde(default)]
    kv_cache_memory_bytes: Option<u64>,
    #[serde(default)]
    num_gpu_blocks_override: Option<u32>,
    #[serde(default)]
    kv_offloading_size: Option<f64>,
    #[serde(default = "yes")]
    enable_prefix_caching: bool,
    #[serde(default)]
    max_num_seqs: Option<u32>,
    #[serde(default)]
    max_num_batched_tokens: Option<u32>,
    #[serde(default)]
    enforce_eager: bool,
    #[serde(default)]
    enable_sleep_mode: bool,
    #[serde(default)]
    enable_lora: bool,
    #[serde(default)]
    max_loras: Option<u32>,
    #[serde(default)]
    max_lora_rank: Option<u32>,
    #[serde(default)]
    max_cpu_loras: Option<u32>,
    #[serde(default = "one")]
    tensor_parallel_size: u32,
    #[serde(default)]
    enable_expert_parallel: bool,
    #[serde(default)]
    platform: Option<String>,
    #[serde(default)]
    device: u32,
    #[serde(default)]
    platform_options: Vec<String>,
    #[serde(default)]
    platform_cache_dir: Option<PathBuf>,
    #[serde(default)]
    plugin_dirs: Vec<PathBuf>,
    /// The variable `HALYARD_PLUGIN_PATH`, as Python found it.
    #[serde(default)]
    plugin_path: Option<String>,
    /// The folder of the package's own platforms.
    #[serde(default)]
    shipped_plugins: Option<PathBuf>,
    #[serde(default)]
    user_plugins: Option<PathBuf>,
}

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
}

fn option(name: &'static str, message: impl Into<String>) -> StartError {
    let message = message.into();
    StartError::Option { name, message }
}

fn parse_dtype(name: &'static str, text: Option<&str>) -> Result<Option<DType>, StartError> {
    let text = text.unwrap_or("auto").to_ascii_lowercase();
    match text.trim_start_matches("torch.") {
        "auto" => Ok(None),
        "float32" | "float" => Ok(Some(DType::F32)),
        "float16" | "half" => Ok(Some(DType::F16)),
        "bfloat16" => Ok(Some(DType::BF16)),
        "fp8" | "fp8_e4m3" if name == "kv_cache_dtype" => Ok(Some(DType::F8E4M3)),
        "int8_per_token_head" | "int8" if name == "kv_cache_dtype" => Ok(Some(DType::I8)),
        "int4_per_token_head" | "int4" if name == "kv_cache_dtype" => Ok(Some(DType::U4)),
        _ => Err(option(
            name,
            format!(
                "`{text}` is not known; known are auto, float32, float16, bfloat16, and for kv_cache_dtype fp8, \
                 int8_per_token_head (int8), int4_per_token_head (int4)"
            ),
        )),
    }
}

impl Options {
    /// Reads the JSON object.
    ///
    /// # Errors
    /// An unknown keyword, a value of another type.
    pub fn read(text: &str) -> Result<Options, StartError> {
        Ok(serde_json::from_str(text)?)
    }

    fn config(&self) -> Result<EngineConfig, StartError> {
        let mut config = EngineConfig::for_model(&self.model);
        let (model, cache, scheduler) = (&mut config.model, &mut config.cache, &mut config.scheduler);
        let parse = |error: halyard_models::ModelError| error.to_string();
        let load_format = self.load_format.as_deref().unwrap_or("auto").parse::<LoadFormat>();
        model.load_format = load_format.map_err(|error| option("load_format", parse(error)))?;
        let quantization = self.quantization.as_deref().map(str::parse).transpose();
        model.quantization = quantization.map_err(|error| option("quantization", parse(error)))?;
        model.dtype = parse_dtype("dtype", self.dtype.as_deref())?;
        model.max_model_len = self.max_model_len;
        model.seed = self.seed;
        model.allow_quantized_act = self.allow_quantized_act;
        model.enable_expert_parallel = self.enable_expert_parallel;
        model.attention_backend = self.attention_backend.clone().filter(|name| name != "auto");
        model.overrides.tokenizer.clone_from(&self.tokenizer);
        model.overrides.chat_template.clone_from(&self.chat_template);
        model.overrides.config.clone_from(&self.hf_overrides);
        model
            .overrides
            .generation_fields
            .clone_from(&self.override_generation_config);
        model.overrides.generation = match self.generation_config.as_deref() {
            None | Some("auto") => GenerationSource::Model,
            Some("vllm") => GenerationSource::Engine,
            Some(folder) => GenerationSource::Folder(folder.into()),
        };
        cache.block_size = self.block_size;
        if let Some(share) = self.gpu_memory_utilization {
            if !(share > 0.0 && share <= 1.0) {
                let message = format!("{share} is not above 0 and at most 1");
                return Err(option("gpu_memory_utilization", message));
            }
            cache.gpu_memory_utilization = share;
        }
        cache.kv_cache_memory_bytes = self.kv_cache_memory_bytes;
        cache.num_gpu_blocks_override = self.num_gpu_blocks_override;
        if let Some(gib) = self.kv_offloading_size {
            if !(0.0..=1_048_576.0).contains(&gib) {
                let message = format!("{gib} is not a number of GiB, 0 to 1048576");
                return Err(option("kv_offloading_size", message));
            }
            cache.kv_offloading_bytes = (gib * f64::from(1 << 30)) as u64;
        }
        cache.kv_cache_dtype = parse_dtype("kv_cache_dtype", self.kv_cache_dtype.as_deref())?;
        cache.enable_prefix_caching = self.enable_prefix_caching;
        if let Some(count) = self.max_num_seqs {
            if !(1..=65_536).contains(&count) {
                return Err(option("max_num_seqs", format!("{count} is not between 1 and 65536")));
            }
            scheduler.max_num_seqs = count;
        }
        scheduler.max_num_batched_tokens = self.max_num_batched_tokens;
        config.recording.enforce_eager = self.enforce_eager;
        config.sleep_mode = self.enable_sleep_mode;
        if self.enable_lora {
            let default = LoraConfig::default();
            config.lora = Some(LoraConfig {
                max_loras: self.max_loras.unwrap_or(default.max_loras),
                max_rank: self.max_lora_rank.unwrap_or(default.max_rank),
                max_cpu_loras: self.max_cpu_loras,
                ..default
            });
        }
        Ok(config)
    }

    /// Chooses the platform, opens its devices and loads the model.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(&self) -> Result<(EngineHandle, String), StartError> {
        let mut config = self.config()?;
        let search = SearchPath {
            plugin_dirs: self.plugin_dirs.clone(),
            path_variable: self.plugin_path.clone().map(Into::into),
            program_folder: self.shipped_plugins.clone(),
            user_dirs: self.user_plugins.iter().cloned().collect(),
            ..SearchPath::default()
        };
        let catalog = Catalog::discover(&search);
        for failure in catalog.failures() {
            tracing::warn!("plugin skipped: {failure}");
        }
        let selected = select_platform(&catalog, self.platform.as_deref())?;
        let manifest = selected.plugin.manifest();
        for rejection in &selected.rejected {
            tracing::debug!(platform = rejection.name, "not chosen: {}", rejection.reason);
        }
        let count = u32::try_from(selected.devices.len()).unwrap_or(u32::MAX);
        let left = count.saturating_sub(self.device);
        if left == 0 {
            let message = format!("{}: platform {} has {count} device(s)", self.device, manifest.name);
            return Err(option("device", message));
        }
        if !(1..=left).contains(&self.tensor_parallel_size) {
            let message = format!(
                "{}: platform {} has {left} device(s) from device {} on",
                self.tensor_parallel_size, manifest.name, self.device
            );
            return Err(option("tensor_parallel_size", message));
        }
        let open = |index| -> Result<Arc<dyn Device>, StartError> {
            let mut options = OpenOptions::of(index).in_cache(self.platform_cache_dir.as_deref());
            for text in &self.platform_options {
                options = options
                    .with_text(text)
                    .map_err(|error| option("platform_options", error.message))?;
            }
            selected
                .platform
                .open_with(&options)
                .map_err(|source| StartError::Device {
                    platform: manifest.name.clone(),
                    index,
                    source,
                })
        };
        let devices: Vec<_> = (self.device..self.device + self.tensor_parallel_size)
            .map(open)
            .collect::<Result<_, _>>()?;
        // As the server does: 32-bit floats hold every value of the 16-bit types that the device lacks.
        let facts = devices[0].info();
        if let Some(asked) = config
            .model
            .dtype
            .filter(|dtype| !facts.compute_dtypes.contains(*dtype))
            && facts.compute_dtypes.contains(DType::F32)
        {
            tracing::warn!("dtype {asked:?}: {} computes activations in float32", facts.name);
            config.model.dtype = Some(DType::F32);
        }
        let platform = format!("{} {}: {}", manifest.name, manifest.version, facts.name);
        let files = config.model.open()?;
        let engine = EngineHandle::start_on(config, &devices, files, RecordSender::default(), &mut |_| {})?;
        for note in &engine.info().notes {
            tracing::info!("{note}");
        }
        Ok((engine, platform))
    }
}
