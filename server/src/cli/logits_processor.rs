//! Flags of logits processors.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use halyard_engine::EngineHandle;
use halyard_platform_api::logits_processor::{LogitsModel, LogitsProcessorFactory};
use halyard_plugin_host::{Catalog, Kind};
use halyard_request_hooks::LogitsProcessors;

use super::chosen_hook::ChosenHook;
use crate::error::ServerError;
use crate::http::logits::ServedModel;
use crate::openai::logits_args::THINKING_TOKEN_BUDGET;

/// Flags of logits processors.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Logits processors")]
pub struct LogitsProcessorArgs {
    /// A plugin that changes which tokens come, with its configuration; may be repeated: each is given what those
    /// before it leave
    #[arg(
        long = "logits-processor",
        value_name = "NAME[:KEY=VALUE,…]",
        env = "HALYARD_LOGITS_PROCESSOR"
    )]
    logits_processors: Vec<ChosenHook>,
    /// Milliseconds for each call of a logits processor, one before each token; past them the request fails
    #[arg(long = "logits-processor-timeout-ms", value_name = "MS", env = "HALYARD_LOGITS_PROCESSOR_TIMEOUT_MS",
        default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=600_000))]
    logits_timeout_ms: u32,
}

/// Processors that were loaded and not yet started.
pub type LoadedProcessors = Vec<(String, Arc<dyn LogitsProcessorFactory>, String)>;

impl LogitsProcessorArgs {
    /// Loads the chosen processors. Blocks.
    ///
    /// # Errors
    /// A name that is not known, a plugin that does not load.
    pub fn load(&self, catalog: &Catalog) -> Result<LoadedProcessors, ServerError> {
        let load = |hook: &ChosenHook| {
            let plugin = catalog.load(catalog.find(Kind::LogitsProcessor, &hook.name)?)?;
            tracing::info!(logits_processor = hook.name, path = ?plugin.path(), "loaded");
            Ok((
                hook.name.clone(),
                plugin.logits_processor_factory()?,
                hook.config.clone(),
            ))
        };
        self.logits_processors.iter().map(load).collect()
    }

    /// Starts loaded processors for the model of `engine`. Blocks.
    ///
    /// # Errors
    /// A configuration that one refuses.
    pub fn start(&self, loaded: LoadedProcessors, engine: &EngineHandle) -> Result<LogitsProcessors, ServerError> {
        let model: Arc<dyn LogitsModel> = Arc::new(ServedModel::of(engine));
        let timeout = Duration::from_millis(u64::from(self.logits_timeout_ms));
        LogitsProcessors::create(loaded, &model, timeout, &[THINKING_TOKEN_BUDGET])
            .map_err(|(name, source)| ServerError::LogitsProcessor { name, source })
    }
}
