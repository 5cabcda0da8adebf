//! From flags to a running engine: platform, device, model files, engine. Each step fails with its own reason; nothing
//! falls back to another platform or model.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use halyard_engine::{
    EngineConfig, EngineError, EngineHandle, KvEventSink, LoadProgress, Replicas, check_host_memory, kv_dtype_name,
};
use halyard_hooks::{HubConfig, SinkSpec};
use halyard_platform_api::hooks::StartRecord;
use halyard_platform_api::{DType, Device, DeviceInfo};
use halyard_plugin_host::{Catalog, Rejection, select_platform};

use super::args::EngineArgs;
use super::chosen_hook::ChosenHook;
use super::isolation::{check_names, mode_of};
use super::load_progress::Shown;
use crate::error::ServerError;
use crate::hooks::{ChosenSink, Hooks};
use crate::source::{self, ResolvedModel};

/// A platform's device, or the devices that share a model, chosen and not yet in use; for each copy of the model.
pub struct ChosenDevice {
    /// Platform name and version, for messages.
    pub platform: String,
    /// The device's name, for messages; of several, their number and the first one's.
    pub device_name: String,
    /// By copy, in the order of ranks.
    copies: Vec<Vec<Arc<dyn Device>>>,
    rejected: Vec<Rejection>,
    catalog: Catalog,
}

impl ChosenDevice {
    /// Everything that plugins can be chosen from.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The devices of all copies, in the order of ranks.
    pub fn devices(&self) -> impl Iterator<Item = &DeviceInfo> {
        self.copies.iter().flatten().map(|device| device.info())
    }

    /// Copies of the model that this server runs.
    pub fn num_copies(&self) -> usize {
        self.copies.len()
    }

    /// The platforms that were looked at and not chosen, and why.
    pub fn rejected(&self) -> &[Rejection] {
        &self.rejected
    }
}

impl EngineArgs {
    /// Chooses the platform and opens its device. The log says which platforms were rejected, and why.
    ///
    /// # Errors
    /// [`ServerError::Plugin`], [`ServerError::Device`], an index past the last device.
    pub fn choose_device(&self) -> Result<ChosenDevice, ServerError> {
        let catalog = Catalog::discover(&self.plugins.search_path()?);
        for failure in catalog.failures() {
            tracing::warn!("plugin skipped: {failure}");
        }
        let selected = select_platform(&catalog, self.platform.platform.as_deref())?;
        let name = selected.plugin.manifest().name.clone();
        let version = &selected.plugin.manifest().version;
        for rejection in &selected.rejected {
            tracing::debug!(platform = rejection.name, "not chosen: {}", rejection.reason);
        }
        let indices = self.device_indices(&name, selected.devices.len())?;
        let first = &selected.devices[indices[0] as usize].name;
        let device_name = match indices.len() {
            1 => first.clone(),
            count => format!("{count} devices, {first}"),
        };
        let open = |&index: &u32| {
            let opened = selected.platform.open_with(&self.platform.open_options(index)?);
            opened.map_err(|source| ServerError::Device {
                platform: name.clone(),
                index,
                source,
            })
        };
        let devices = indices.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let size = self.platform.tensor_parallel_size as usize;
        let copies = devices.chunks(size).map(<[_]>::to_vec).collect();
        let path = selected.plugin.path();
        tracing::info!(platform = name, version, device = device_name, ?path, "platform chosen");
        Ok(ChosenDevice {
            platform: format!("{name} {version}"),
            device_name,
            copies,
            rejected: selected.rejected,
            catalog,
        })
    }

    /// Indices of the devices to open, all of them there.
    fn device_indices(&self, platform: &str, count: usize) -> Result<Vec<u32>, ServerError> {
        let (first, size) = (self.platform.device, self.platform.tensor_parallel_size);
        let copies = self.platform.num_copies()?;
        if first as usize >= count {
            let message =
                format!("{first}: platform {platform} has {count} device(s), numbered from 0; see `halyard platforms`");
            return Err(ServerError::Option {
                option: "--device",
                message,
            });
        }
        let left = count - first as usize;
        if size as usize > left {
            let message = format!(
                "{size}: platform {platform} has {count} device(s), {left} from --device {first} on; see `halyard \
                 platforms`"
            );
            return Err(ServerError::Option {
                option: "--tensor-parallel-size",
                message,
            });
        }
        let all = u64::from(size) * u64::from(copies);
        if all > left as u64 {
            let message = format!(
                "{copies} copies on {size} device(s) each need {all}: platform {platform} has {count} device(s), \
                 {left} from --device {first} on; see `halyard platforms`"
            );
            return Err(ServerError::Option {
                option: "--data-parallel-size",
                message,
            });
        }
        Ok((first..first + size * copies).collect())
    }

    /// Finds the model and the overrides of its files; fetches missing files.
    ///
    /// # Errors
    /// [`ServerError::Source`], [`ServerError::Option`].
    pub async fn resolve_model(&self) -> Result<ResolvedModel, ServerError> {
        let overrides = self.model.overrides.resolve().await?;
        let settings = self.model.overrides.source_settings();
        let resolved = source::resolve(self.model.model.as_deref(), self.model.load_format, &settings).await?;
        Ok(ResolvedModel { overrides, ..resolved })
    }

    /// Loads the model onto its devices and starts an engine for each copy. Blocks.
    ///
    /// # Errors
    /// A fault of the model, its memory or a stat logger.
    pub fn start(
        &self,
        chosen: &ChosenDevice,
        model: &ResolvedModel,
        hooks: &Hooks,
        served_name: &str,
    ) -> Result<Replicas, ServerError> {
        self.start_with(chosen, model, hooks, served_name, &[])
    }

    /// The same with listeners to events of the prefix cache: one a copy, or none.
    ///
    /// # Errors
    /// As [`EngineArgs::start`].
    pub fn start_with(
        &self,
        chosen: &ChosenDevice,
        model: &ResolvedModel,
        hooks: &Hooks,
        served_name: &str,
        kv_events: &[Arc<dyn KvEventSink>],
    ) -> Result<Replicas, ServerError> {
        let mut config = self.config(model);
        // Before anything is loaded, and of all copies together.
        check_host_memory(config.cache.kv_offloading_bytes).map_err(EngineError::from)?;
        config.cache.kv_offloading_bytes /= chosen.num_copies() as u64;
        config.model.dtype = dtype_of_device(config.model.dtype, chosen.copies[0][0].info());
        let start = |copy: usize, progress: &mut dyn FnMut(LoadProgress)| {
            let files = config.model.open()?;
            let devices = &chosen.copies[copy];
            let config = EngineConfig {
                kv_events: kv_events.get(copy).cloned(),
                ..config.clone()
            };
            Ok::<_, ServerError>(EngineHandle::start_on(
                config,
                devices,
                files,
                hooks.sender(copy),
                progress,
            )?)
        };
        let mut shown = Shown::new();
        let mut show = |progress: LoadProgress| shown.show(progress);
        // Copies load side by side; the first one's progress stands for all.
        let started = std::thread::scope(|scope| {
            let load = |copy| scope.spawn(move || start(copy, &mut |_| {}));
            let others: Vec<_> = (1..chosen.copies.len()).map(load).collect();
            let first = start(0, &mut show);
            let others = others.into_iter().map(|other| match other.join() {
                Ok(engine) => engine,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            std::iter::once(first).chain(others).collect::<Result<Vec<_>, _>>()
        });
        shown.end();
        let mut engines = started?;
        for (copy, engine) in engines.iter().enumerate() {
            let rank = self.platform.rank_of(copy);
            hooks.engine_started(copy, &start_record(engine, rank, chosen, &config, served_name));
            engine.tell_adapters();
        }
        for note in &engines[0].info().notes {
            tracing::info!("{note}");
        }
        let first = engines.remove(0);
        Ok(Replicas::new(first, engines))
    }

    /// Starts the stat loggers of `--stat-logger` for each copy of the model, after those of `always` that it does not
    /// name, and `own` of the copy's number as the last.
    ///
    /// # Errors
    /// A name that is no stat logger, a library or a configuration that does not start.
    pub fn hooks(
        &self,
        chosen: &ChosenDevice,
        always: Vec<ChosenSink>,
        own: impl Fn(usize) -> Option<SinkSpec>,
    ) -> Result<Hooks, ServerError> {
        let mut sinks: Vec<ChosenSink> = Vec::new();
        for text in &self.platform.stat_loggers {
            let hook: ChosenHook = text.parse().map_err(|message| ServerError::Option {
                option: "--stat-logger",
                message: format!("{text}: {message}"),
            })?;
            sinks.push(ChosenSink {
                isolation: mode_of(&self.platform.hook_isolation, &hook.name),
                name: hook.name,
                config: hook.config,
            });
        }
        let names: Vec<&str> = sinks.iter().map(|sink| sink.name.as_str()).collect();
        check_names(&self.platform.hook_isolation, &names)?;
        let named = |name: &str| sinks.iter().any(|sink| sink.name == name);
        let mut all: Vec<ChosenSink> = always.into_iter().filter(|sink| !named(&sink.name)).collect();
        all.append(&mut sinks);
        let config = HubConfig {
            call_deadline: Duration::from_millis(self.platform.stat_logger_deadline_ms),
            ..HubConfig::default()
        };
        Ok(Hooks::start_with(
            &chosen.catalog,
            self.plugins.search_path()?,
            &all,
            config,
            (0..chosen.num_copies()).map(own).collect(),
        )?)
    }
}

/// The type of activations on a device: the one that was asked for, or the device's own 32-bit floats where it lacks
/// the 16-bit ones that were. They hold every value of both 16-bit types, so that nothing is rounded more than was
/// asked for; the log says so.
fn dtype_of_device(asked: Option<DType>, facts: &DeviceInfo) -> Option<DType> {
    let (name, dtype) = match asked {
        Some(DType::BF16) => ("bfloat16", DType::BF16),
        Some(DType::F16) => ("float16", DType::F16),
        _ => return asked,
    };
    if facts.compute_dtypes.contains(dtype) || !facts.compute_dtypes.contains(DType::F32) {
        return asked;
    }
    tracing::info!(
        "--dtype {name}: {} computes activations in float32, which holds every value of {name}; weights stay as they \
         are stored, and --allow-quantized-act rounds what it rounds without --dtype",
        facts.name
    );
    Some(DType::F32)
}

/// The record that stat loggers get of an engine that has loaded.
fn start_record(
    engine: &EngineHandle,
    engine_index: u32,
    chosen: &ChosenDevice,
    config: &EngineConfig,
    name: &str,
) -> StartRecord {
    let info = engine.info();
    StartRecord {
        engine_index,
        tensor_parallel_size: info.tensor_parallel_size,
        max_model_len: info.max_model_len,
        max_num_seqs: info.max_num_seqs,
        max_num_batched_tokens: info.max_num_batched_tokens,
        block_size: info.block_size,
        num_blocks: info.num_blocks,
        prefix_caching: u32::from(config.cache.enable_prefix_caching),
        max_loras: config.lora.as_ref().map_or(0, |lora| lora.max_loras),
        unix_ns: unix_ns(),
        weight_bytes: info.weight_bytes,
        kv_cache_bytes: u64::from(info.num_blocks) * info.block_bytes,
        model: name.into(),
        model_root: config.model.path.display().to_string().into(),
        architecture: info.architecture.as_str().into(),
        dtype: format!("{:?}", info.dtype).to_lowercase().into(),
        kv_cache_dtype: kv_dtype_name(info.kv_cache_dtype).to_lowercase().into(),
        platform: chosen.platform.as_str().into(),
        device: chosen.device_name.as_str().into(),
        version: env!("CARGO_PKG_VERSION").into(),
    }
}

fn unix_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |elapsed| u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
}
