//! `halyard platforms` and `halyard plugins`: lists plugins and their facts, explains why one cannot be used, tests one
//! ([`test`]), and writes the start of a new one ([`new`]).

mod new;
mod test;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use halyard_hooks::{Reloaded, SinkReport, SinkState};
use halyard_plugin_host::{
    Catalog, InspectReport, PlatformReport, PluginReport, StageReport, inspect, platform_reports, plugin_reports,
};
use serde::Serialize;
use serde_json::json;

use super::args::PluginArgs;
use super::units::show_bytes;
use crate::client::{ClientError, ServerClient};
use crate::error::ServerError;

/// Flags of `halyard platforms`.
#[derive(Args, Debug)]
pub struct PlatformsArgs {
    #[command(flatten)]
    plugins: PluginArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// `halyard plugins …`.
#[derive(Debug, Subcommand)]
pub enum PluginsCommand {
    /// Every plugin on the search path, also those that are broken or shadowed; with --url the stat loggers of a
    /// running server
    List(ListArgs),
    /// Put a newer library in the place of a stat logger that a server runs, without losing a record or a request
    Reload {
        /// Name of the stat logger
        name: String,
        #[command(flatten)]
        server: ServerArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Show the facts in a library's file, without running it
    Inspect {
        /// The library
        file: PathBuf,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Each stage of loading a plugin, up to the one that fails
    Why {
        /// Name of a plugin, or of a library file without its ending
        name: String,
        #[command(flatten)]
        plugins: PluginArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Give a stat logger recorded records, without a server: each call, its time, and what failed
    Test(test::TestArgs),
    /// Write a project for a new plugin, which builds without Halyard's sources
    New(new::NewArgs),
}

/// Flags of `halyard plugins list`.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// A running server: shows its stat loggers and their state
    #[arg(long, value_name = "URL", env = "HALYARD_URL", help_heading = "Server")]
    url: Option<String>,
    /// Key for the server
    #[arg(
        long,
        value_name = "KEY",
        env = "HALYARD_API_KEY",
        hide_env_values = true,
        help_heading = "Server"
    )]
    api_key: Option<String>,
    #[command(flatten)]
    plugins: PluginArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Which server to ask.
#[derive(Args, Debug)]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// The server
    #[arg(
        long,
        value_name = "URL",
        env = "HALYARD_URL",
        default_value = "http://127.0.0.1:8000"
    )]
    url: String,
    /// Key for the server
    #[arg(long, value_name = "KEY", env = "HALYARD_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
}

/// How to print.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Print JSON
    #[arg(long, env = "HALYARD_JSON", default_value_t = false)]
    json: bool,
}

/// Runs `halyard platforms`.
///
/// # Errors
/// A lock file that cannot be used, a library given by itself that does not load.
pub fn run_platforms(args: &PlatformsArgs) -> Result<(), ServerError> {
    let catalog = discover(&args.plugins)?;
    let reports = platform_reports(&catalog);
    print_as(args.output, &reports, |reports| {
        if reports.is_empty() {
            say!("no platform plugin was found; give --plugin FILE or --plugin-dir FOLDER");
        }
        reports.iter().for_each(print_platform);
    })
}

/// Runs `halyard plugins`.
///
/// # Errors
/// A name or file that is not a plugin.
pub fn run_plugins(command: &PluginsCommand) -> Result<(), ServerError> {
    match command {
        PluginsCommand::List(args) if args.url.is_some() => {
            let url = args.url.as_deref().unwrap_or_default();
            let client = ServerClient::new(url, args.api_key.clone())?;
            let answer = super::runtime()?.block_on(client.get_json("/admin/plugins"))?;
            let sinks: Vec<SinkReport> = serde_json::from_value(answer["stat_loggers"].clone())
                .map_err(|error| ClientError::Broken(format!("the list of stat loggers: {error}")))?;
            print_as(args.output, &sinks, |sinks| sinks.iter().for_each(print_sink))
        }
        PluginsCommand::Reload { name, server, output } => {
            let client = ServerClient::new(&server.url, server.api_key.clone())?;
            let asked = json!({ "name": name });
            let answer = super::runtime()?.block_on(client.post_json("/admin/plugins/reload", &asked))?;
            let reloaded: Reloaded = serde_json::from_value(answer)
                .map_err(|error| ClientError::Broken(format!("the answer to the reload: {error}")))?;
            print_as(*output, &reloaded, |reloaded| {
                say!(
                    "{}: version {} runs in the place of {} (generation {}, after {} records)",
                    reloaded.name,
                    reloaded.new_version,
                    reloaded.old_version,
                    reloaded.generation,
                    reloaded.delivered_before
                );
            })
        }
        PluginsCommand::List(args) => {
            let catalog = Catalog::discover(&args.plugins.search_path()?);
            print_as(args.output, &plugin_reports(&catalog), |reports| {
                reports.iter().for_each(print_plugin)
            })
        }
        PluginsCommand::Inspect { file, output } => print_as(*output, &inspect(file)?, print_inspection),
        PluginsCommand::Test(args) => test::run(args),
        PluginsCommand::New(args) => new::run(args),
        PluginsCommand::Why { name, plugins, output } => {
            let catalog = Catalog::discover(&plugins.search_path()?);
            print_as(*output, &catalog.why(name)?, |stages| {
                stages.iter().for_each(print_stage)
            })
        }
    }
}

pub(super) fn discover(plugins: &PluginArgs) -> Result<Catalog, ServerError> {
    let catalog = Catalog::discover(&plugins.search_path()?);
    match catalog.explicit_failure() {
        Some(failure) => Err(ServerError::Plugin(failure.clone().into())),
        None => Ok(catalog),
    }
}

pub(super) fn print_as<T: Serialize>(output: OutputArgs, report: &T, text: impl FnOnce(&T)) -> Result<(), ServerError> {
    if output.json {
        let json = serde_json::to_string_pretty(report).map_err(std::io::Error::from);
        say!("{}", json.map_err(ServerError::io("writing JSON"))?);
    } else {
        text(report);
    }
    Ok(())
}

pub(super) fn print_platform(report: &PlatformReport) {
    say!(
        "{} {} (priority {}): {}",
        report.name,
        report.version,
        report.priority,
        report.about
    );
    say!("  from {}", report.path.display());
    if let Some(reason) = &report.reason {
        say!("  no device: {reason}");
    }
    for device in &report.devices {
        say!("  device {}: {}", device.index, device.name);
        say!("    {}", device.detail);
        let free = device
            .free_memory_bytes
            .map_or_else(String::new, |free| format!(", {} free", show_bytes(free)));
        say!("    memory        {}{free}", show_bytes(device.total_memory_bytes));
        say!(
            "    computes in   {}; KV cache in {}",
            device.compute_dtypes.join(", "),
            device.kv_dtypes.join(", ")
        );
        say!("    attention     {}", device.attention_backends.join(", "));
        say!(
            "    capabilities  {}",
            if device.capabilities.is_empty() {
                "none".to_owned()
            } else {
                device.capabilities.join(", ")
            }
        );
        if let Some(reason) = &device.reason {
            say!("    cannot be opened: {reason}");
        }
    }
}

pub(super) fn print_plugin(report: &PluginReport) {
    let kind = report.kind.map_or_else(|| "broken".to_owned(), |kind| kind.to_string());
    say!(
        "{} {} ({kind}) {}",
        report.name,
        report.version.as_deref().unwrap_or("-"),
        report.path.display()
    );
    if let Some(first) = &report.shadowed_by {
        say!("  shadowed by {}", first.display());
    }
    if let Some(reason) = &report.reason {
        say!("  {reason}");
    }
}

fn print_sink(sink: &SinkReport) {
    let from = sink
        .path
        .as_ref()
        .map_or_else(|| "(in the program)".to_owned(), |path| path.display().to_string());
    let state = match sink.state {
        SinkState::Active => "active",
        SinkState::Quarantined => "quarantined",
        SinkState::Stuck => "stuck",
        SinkState::Ended => "ended",
    };
    let retry = sink
        .retry_in_s
        .map_or_else(String::new, |s| format!(", tried again in {s:.0} s"));
    say!("{} {} ({state}{retry}) {from}", sink.name, sink.version);
    say!(
        "  {} records: {} delivered, {} dropped, {} pending; runs in a {}, generation {}",
        sink.accepted,
        sink.delivered,
        sink.dropped,
        sink.pending,
        sink.isolation,
        sink.generation
    );
    if let Some(error) = &sink.last_error {
        let failures = sink.failures;
        say!(
            "  failed calls: {} errors, {} panics, {} crashes, {} past the deadline, {} starts; quarantined {} times",
            failures.error,
            failures.panic,
            failures.crash,
            failures.timeout,
            failures.start,
            sink.quarantines
        );
        say!("  last: {error}");
    }
}

fn print_inspection(report: &InspectReport) {
    say!("{}", report.path.display());
    say!("  {} bytes, sha256 {}", report.bytes, report.sha256);
    say!(
        "  {}{}",
        report.architecture,
        if report.runs_here {
            ""
        } else {
            ", which does not run here"
        }
    );
    say!(
        "  needs {}",
        if report.needed.is_empty() {
            "no libraries".to_owned()
        } else {
            report.needed.join(", ")
        }
    );
    for manifest in &report.manifests {
        say!(
            "  {} {} {} (ABI {}, entry {}, priority {})",
            manifest.kind,
            manifest.name,
            manifest.version,
            manifest.abi,
            manifest.entry,
            manifest.priority
        );
        say!("    {}", manifest.about);
    }
}

fn print_stage(stage: &StageReport) {
    say!(
        "{:<13} {} {}",
        stage.stage.to_string(),
        if stage.passed { "ok    " } else { "FAILED" },
        stage.detail
    );
}
