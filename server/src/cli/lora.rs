//! Flags of LoRA adapters: those of the engine, which benches take too, and those of the server.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use halyard_engine::{AdapterSource, LoraConfig};
use halyard_models::LoraTargets;
use halyard_platform_api::lora_resolver::LoraResolverFactory;
use halyard_plugin_host::{Catalog, Kind};
use halyard_request_hooks::{LoraResolvers, ResolverSettings};
use serde::Deserialize;

use super::chosen_hook::ChosenHook;
use super::units::{DTypeChoice, parse_dtype};
use crate::error::ServerError;

/// An adapter that is there from the start.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct LoraModule {
    /// Name for clients.
    name: String,
    /// Its folder.
    path: PathBuf,
}

impl std::str::FromStr for LoraModule {
    type Err = String;

    /// `NAME=FOLDER`, or vLLM's JSON.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with('{') {
            return serde_json::from_str(text)
                .map_err(|e| format!("`{text}`: {e}; write {{\"name\": …, \"path\": …}}"));
        }
        match text.split_once('=') {
            Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok(LoraModule {
                name: name.to_owned(),
                path: path.into(),
            }),
            _ => Err(format!("`{text}` is not NAME=FOLDER")),
        }
    }
}

/// Adapters of an engine.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "LoRA")]
pub struct LoraArgs {
    /// Serve LoRA adapters as well as the model; a request names one as its model
    #[arg(long, value_name = "BOOL", env = "HALYARD_ENABLE_LORA", default_value_t = false, num_args = 0..=1,
        require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub enable_lora: bool,
    /// An adapter that is there from the start, in the folder that PEFT wrote; may be repeated
    #[arg(
        long = "lora-modules",
        value_name = "NAME=FOLDER",
        env = "HALYARD_LORA_MODULES",
        num_args = 1..,
        requires = "enable_lora"
    )]
    modules: Vec<LoraModule>,
    /// Adapters that one step may mix: slots in device memory, 1 to 1024; without it 1
    #[arg(long, value_name = "COUNT", env = "HALYARD_MAX_LORAS")]
    max_loras: Option<u32>,
    /// Largest rank that is served, 1 to 512; every slot is as large as this says
    #[arg(long, value_name = "RANK", env = "HALYARD_MAX_LORA_RANK", default_value_t = LoraConfig::default().max_rank)]
    max_lora_rank: u32,
    /// Adapters held in host memory, at least --max-loras, which it is without this; others are read again from their
    /// files
    #[arg(long, value_name = "COUNT", env = "HALYARD_MAX_CPU_LORAS")]
    max_cpu_loras: Option<u32>,
    /// Type of the adapters' matrices on the device: auto (that of the activations), float32, float16, bfloat16
    #[arg(long, value_name = "TYPE", env = "HALYARD_LORA_DTYPE", default_value = "auto", value_parser = parse_dtype)]
    lora_dtype: DTypeChoice,
    /// The linears that adapters may change, with commas between them: fewer make steps with adapters faster
    #[arg(long, value_name = "NAMES", env = "HALYARD_LORA_TARGET_MODULES", default_value_t = LoraTargets::ALL)]
    lora_target_modules: LoraTargets,
    /// Adapters of random values and their rank, for measuring.
    #[arg(skip)]
    dummies: Option<(u32, u32)>,
}

impl LoraArgs {
    /// Serves `count` adapters of random values, and no others, where a count is given.
    pub fn serve_dummies(&mut self, count: Option<u32>, rank: u32) {
        self.dummies = count.map(|count| (count, rank));
    }

    /// The engine's configuration; `None` without LoRA.
    pub fn config(&self) -> Option<LoraConfig> {
        if !self.enable_lora && self.dummies.is_none() {
            return None;
        }
        let files = self.modules.iter().map(|module| {
            let source = AdapterSource::Folder(module.path.clone());
            (module.name.clone(), source)
        });
        let (count, rank) = self.dummies.unwrap_or((0, 1));
        let dummies = (0..count).map(|i| {
            let seed = u64::from(i) << 32;
            (dummy_name(i), AdapterSource::Dummy { rank, seed })
        });
        Some(LoraConfig {
            adapters: files.chain(dummies).collect(),
            max_loras: self.max_loras.unwrap_or(count.max(LoraConfig::default().max_loras)),
            max_rank: self.max_lora_rank,
            max_cpu_loras: self.max_cpu_loras,
            targets: self.lora_target_modules,
            dtype: self.lora_dtype.0,
        })
    }
}

/// Name of a dummy adapter.
pub fn dummy_name(index: u32) -> String {
    format!("dummy-{index}")
}

/// Adapters that come while the server runs.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "LoRA")]
pub struct LoraServeArgs {
    /// Let requests load and unload adapters (/v1/load_lora_adapter, /v1/unload_lora_adapter): every client with access
    /// can then make the server read any folder
    #[arg(
        long,
        env = "HALYARD_ALLOW_RUNTIME_LORA_UPDATING",
        default_value_t = false,
        requires = "enable_lora"
    )]
    allow_runtime_lora_updating: bool,
    /// A plugin that finds the adapters of model names that are not known yet, with its configuration; may be repeated:
    /// they are asked in this order
    #[arg(
        long = "lora-resolver",
        value_name = "NAME[:KEY=VALUE,…]",
        env = "HALYARD_LORA_RESOLVER",
        requires = "enable_lora"
    )]
    resolvers: Vec<ChosenHook>,
}

/// Resolvers that were loaded and not yet started.
pub type LoadedResolvers = Vec<(String, Arc<dyn LoraResolverFactory>, String)>;

impl LoraServeArgs {
    /// Whether requests may load and unload adapters.
    pub fn allows_updates(&self) -> bool {
        self.allow_runtime_lora_updating
    }

    /// Loads the chosen resolvers. Blocks.
    ///
    /// # Errors
    /// A name that is not known, a plugin that does not load.
    pub fn load(&self, catalog: &Catalog) -> Result<LoadedResolvers, ServerError> {
        let load = |hook: &ChosenHook| {
            let plugin = catalog.load(catalog.find(Kind::LoraResolver, &hook.name)?)?;
            tracing::info!(lora_resolver = hook.name, path = ?plugin.path(), "loaded");
            Ok((hook.name.clone(), plugin.lora_resolver_factory()?, hook.config.clone()))
        };
        self.resolvers.iter().map(load).collect()
    }
}

/// Starts loaded resolvers for a model's adapters; `None` where there are none. Blocks.
///
/// # Errors
/// A configuration that one refuses.
pub fn start_resolvers(loaded: LoadedResolvers, base_model: &str) -> Result<Option<LoraResolvers>, ServerError> {
    if loaded.is_empty() {
        return Ok(None);
    }
    LoraResolvers::create(loaded, base_model.to_owned(), ResolverSettings::default())
        .map(Some)
        .map_err(|(name, source)| ServerError::LoraResolver { name, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_are_named_in_both_ways() {
        let module = LoraModule {
            name: "sql".to_owned(),
            path: "/a=b".into(),
        };
        assert_eq!("sql=/a=b".parse(), Ok(module.clone()));
        assert_eq!(
            r#"{"name": "sql", "path": "/a=b", "base_model_name": "x"}"#.parse(),
            Ok(module)
        );
        for bad in ["sql", "=/a", "sql=", r#"{"name": "sql"}"#] {
            assert!(bad.parse::<LoraModule>().is_err(), "{bad}");
        }
    }
}
