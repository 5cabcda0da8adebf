//! The stat loggers of a server: choosing, loading and reloading them. `runtime/hooks` delivers the records.
//!
//! `prometheus` and `log-line` are linked into the program, so that `/metrics` answers where no plugin is installed;
//! they pass through the same tables as a loaded library, and a reload takes their library from the search path.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use halyard_hooks::{HookError, HookReport, Hub, HubConfig, Isolation, RecordSender, Reloaded, SinkSource, SinkSpec};
use halyard_platform_api::hooks::{StartRecord, StatLoggerFactory as _};
use halyard_plugin_host::{Catalog, Kind, Plugin, PluginError, SearchPath};

use crate::isolation::{self, IsolationMode};
use crate::metrics::families;

/// How long a scrape waits for sinks' texts.
const SCRAPE_PATIENCE: Duration = Duration::from_secs(2);
/// How long the end waits for sinks' last records.
const END_PATIENCE: Duration = Duration::from_secs(3);

/// Stat loggers that are linked into the program.
pub const LINKED: [&str; 2] = ["prometheus", "log-line"];

/// Why stat loggers could not be started or reloaded.
#[derive(Debug, thiserror::Error)]
pub enum StatLoggerError {
    /// The plugin.
    #[error(transparent)]
    Plugin(#[from] PluginError),
    /// The sink.
    #[error(transparent)]
    Hook(#[from] HookError),
}

/// A stat logger to run: its name, and its configuration as a JSON object.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenSink {
    /// The plugin's name.
    pub name: String,
    /// A JSON object.
    pub config: String,
    /// Where it runs; those that are linked run in this process in any case.
    pub isolation: IsolationMode,
}

/// The running stat loggers: the same ones for each engine, as each of them counts for one.
pub struct Hooks {
    /// One an engine.
    hubs: Vec<Arc<Hub>>,
    search: SearchPath,
    chosen: BTreeMap<String, ChosenSink>,
}

impl Hooks {
    /// Loads and starts `chosen`. Blocks for as long as making them takes.
    ///
    /// # Errors
    /// A name that is no stat logger, a library that does not load, a configuration that it refuses.
    pub fn start(
        catalog: &Catalog,
        search: SearchPath,
        chosen: &[ChosenSink],
        config: HubConfig,
    ) -> Result<Hooks, StatLoggerError> {
        Hooks::start_with(catalog, search, chosen, config, vec![None])
    }

    /// The same for each engine, with a sink of the server's own behind them, which is no plugin: `own` has one entry
    /// an engine.
    ///
    /// # Errors
    /// As [`Hooks::start`].
    pub fn start_with(
        catalog: &Catalog,
        search: SearchPath,
        chosen: &[ChosenSink],
        config: HubConfig,
        own: Vec<Option<SinkSpec>>,
    ) -> Result<Hooks, StatLoggerError> {
        let spec = |sink: &ChosenSink| {
            let source = match (linked(&sink.name), sink.isolation) {
                (Some(plugin), _) => in_process(&plugin?, &sink.config)?,
                (None, IsolationMode::None) => {
                    let plugin = catalog.load(catalog.find(Kind::StatLogger, &sink.name)?)?;
                    in_process(&plugin, &sink.config)?
                }
                (None, IsolationMode::Process) => isolated(catalog, &sink.name, &sink.config)?,
            };
            Ok::<_, StatLoggerError>(SinkSpec {
                name: sink.name.clone(),
                source,
            })
        };
        let specs = chosen.iter().map(spec).collect::<Result<Vec<_>, _>>()?;
        let start = |own: Option<SinkSpec>| Hub::start(specs.iter().cloned().chain(own).collect(), config);
        Ok(Hooks {
            hubs: own.into_iter().map(start).collect::<Result<_, _>>()?,
            search,
            chosen: chosen.iter().map(|sink| (sink.name.clone(), sink.clone())).collect(),
        })
    }

    /// The end of engine `index`, counted from 0 in this process.
    pub fn sender(&self, index: usize) -> RecordSender {
        self.hubs[index].sender()
    }

    /// Engine `index` has loaded.
    pub fn engine_started(&self, index: usize, start: &StartRecord) {
        self.hubs[index].engine_started(start);
    }

    /// Where plugins are looked for.
    pub fn search(&self) -> &SearchPath {
        &self.search
    }

    /// How the sinks stand; each with the counts of all engines.
    pub fn report(&self) -> HookReport {
        let mut report = self.hubs[0].report();
        for hub in &self.hubs[1..] {
            report.add(hub.report());
        }
        report
    }

    /// The texts of sinks for `/metrics`; of several engines, each metric once with the samples of all. Blocks, but not
    /// for long.
    pub fn expose(&self) -> Vec<String> {
        let [hub] = &*self.hubs else {
            let texts = self.hubs.iter().flat_map(|hub| hub.expose(SCRAPE_PATIENCE));
            return vec![families::merged(&texts.collect::<Vec<_>>())];
        };
        hub.expose(SCRAPE_PATIENCE)
    }

    /// Looks for the plugin `name` on the search path again and puts it, with the same configuration, in the place of
    /// the one that runs, without losing a record. Blocks.
    ///
    /// # Errors
    /// No such sink, no library on the search path, a library that does not load or start; the old one goes on then.
    pub fn reload(&self, name: &str) -> Result<Reloaded, StatLoggerError> {
        let chosen = self.chosen.get(name);
        let config = chosen.map_or("{}", |sink| sink.config.as_str());
        let report = self.report();
        let names = report.sinks.iter().map(|sink| sink.name.as_str());
        if !names.clone().any(|sink| sink == name) {
            return Err(HookError::unknown(name, names).into());
        }
        let catalog = Catalog::discover(&self.search);
        let process = chosen.is_some_and(|sink| sink.isolation == IsolationMode::Process) && !LINKED.contains(&name);
        let source = if process {
            isolated(&catalog, name, config)?
        } else {
            in_process(&catalog.load_again(catalog.find(Kind::StatLogger, name)?)?, config)?
        };
        // Of several engines the first one's result: the library is the same.
        let mut reloaded = self.hubs[0].reload(name, source.clone())?;
        for hub in &self.hubs[1..] {
            reloaded.delivered_before += hub.reload(name, source.clone())?.delivered_before;
        }
        Ok(reloaded)
    }

    /// Gives sinks what is queued and ends them. Blocks for a few seconds at most.
    pub fn shutdown(&self) {
        std::thread::scope(|scope| {
            for hub in &self.hubs[1..] {
                scope.spawn(|| hub.shutdown(END_PATIENCE));
            }
            self.hubs[0].shutdown(END_PATIENCE);
        });
    }
}

/// The plugin of that name that is part of this program.
fn linked(name: &str) -> Option<Result<Plugin, PluginError>> {
    let plugin = match name {
        "prometheus" => halyard_stat_logger_prometheus::plugin(),
        "log-line" => halyard_stat_logger_log_line::plugin(),
        _ => return None,
    };
    Some(Plugin::from_linked(plugin))
}

/// Loggers of a plugin, each in a process of its own. The library is never opened in this one.
fn isolated(catalog: &Catalog, name: &str, config: &str) -> Result<SinkSource, PluginError> {
    let candidate = catalog.find(Kind::StatLogger, name)?;
    let (factory, config) = (catalog.isolate(candidate, isolation::options())?, config.to_owned());
    Ok(SinkSource {
        version: candidate.manifest.version.clone(),
        path: Some(candidate.path.clone()),
        isolation: Isolation::Process,
        make: Arc::new(move || factory.create(&config)),
    })
}

/// Loggers of a loaded plugin, called in this process.
fn in_process(plugin: &Plugin, config: &str) -> Result<SinkSource, PluginError> {
    let (factory, config) = (plugin.stat_logger_factory()?, config.to_owned());
    Ok(SinkSource {
        version: plugin.manifest().version.clone(),
        path: plugin.path().map(std::path::Path::to_path_buf),
        isolation: Isolation::Thread,
        make: Arc::new(move || factory.create(&config)),
    })
}
