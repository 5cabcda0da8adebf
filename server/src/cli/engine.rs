//! From flags to a running engine: platform, device, model files, engine. Each step fails with its own reason; nothing
//! falls back to another platform or model.

use std::sync::Arc;

use halyard_engine::{EngineHandle, LoadProgress};
use halyard_platform_api::Device;
use halyard_platform_api::hooks::StatLogger;
use halyard_plugin_host::{Catalog, Kind, select_platform};
use indicatif::{ProgressBar, ProgressStyle};

use super::args::EngineArgs;
use super::isolation::{check_names, stat_logger_factory};
use crate::error::ServerError;
use crate::source::ResolvedModel;

/// A platform's device, or the devices that share a model, chosen and not yet in use.
pub struct ChosenDevice {
    /// Platform name and version, for people.
    pub platform: String,
    /// The device's name, for people; of several, their number and the first one's.
    pub device_name: String,
    devices: Vec<Arc<dyn Device>>,
    catalog: Catalog,
}

impl ChosenDevice {
    /// Everything that plugins can be chosen from.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
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
            tracing::info!(platform = rejection.name, "not chosen: {}", rejection.reason);
        }
        let indices = self.device_indices(&name, selected.devices.len())?;
        let first = &selected.devices[indices[0] as usize].name;
        let device_name = match indices.len() {
            1 => first.clone(),
            count => format!("{count} devices, {first}"),
        };
        let open = |&index: &u32| {
            let opened = selected.platform.open(index);
            opened.map_err(|source| ServerError::Device {
                platform: name.clone(),
                index,
                source,
            })
        };
        let devices = indices.iter().map(open).collect::<Result<_, _>>()?;
        tracing::info!(platform = name, version, device = device_name, path = ?selected.plugin.path(), "platform chosen");
        Ok(ChosenDevice {
            platform: format!("{name} {version}"),
            device_name,
            devices,
            catalog,
        })
    }

    /// Indices of the devices to open, all of them there.
    fn device_indices(&self, platform: &str, count: usize) -> Result<Vec<u32>, ServerError> {
        let (first, size) = (self.platform.device, self.platform.tensor_parallel_size);
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
                "{size}: platform {platform} has {count} device(s), {left} from --device {first} on; see `halyard platforms`"
            );
            return Err(ServerError::Option {
                option: "--tensor-parallel-size",
                message,
            });
        }
        Ok((first..first + size).collect())
    }

    /// Loads the model onto the device and starts the engine. Blocks.
    ///
    /// # Errors
    /// What is wrong with the model, its memory or a stat logger.
    pub fn start(
        &self,
        chosen: &ChosenDevice,
        model: &ResolvedModel,
        mut loggers: Vec<Box<dyn StatLogger>>,
    ) -> Result<EngineHandle, ServerError> {
        let config = self.config(model.path.clone());
        let files = config.model.open()?;
        loggers.extend(self.stat_loggers(&chosen.catalog)?);
        let bar = ProgressBar::new(files.weight_bytes);
        let style = ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let mut show = |progress: LoadProgress| {
            bar.set_message(progress.stage);
            bar.set_length(progress.total_bytes);
            bar.set_position(progress.done_bytes);
        };
        let started = EngineHandle::start_on(config, &chosen.devices, files, loggers, &mut show);
        bar.finish_and_clear();
        let engine = started?;
        for note in &engine.info().notes {
            tracing::info!("{note}");
        }
        Ok(engine)
    }

    fn stat_loggers(&self, catalog: &Catalog) -> Result<Vec<Box<dyn StatLogger>>, ServerError> {
        check_names(&self.platform.hook_isolation, &self.platform.stat_loggers)?;
        let start = |text: &String| {
            let (name, config) = text.split_once('=').unwrap_or((text, "{}"));
            let candidate = catalog.find(Kind::StatLogger, name)?;
            let logger = stat_logger_factory(catalog, candidate, &self.platform.hook_isolation)?.create(config);
            logger.map_err(|source| ServerError::StatLogger {
                name: name.to_owned(),
                source,
            })
        };
        self.platform.stat_loggers.iter().map(start).collect()
    }
}
