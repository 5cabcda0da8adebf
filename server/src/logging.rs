//! Logs to standard error, as text for people or JSON lines for machines. Standard output is left to results.

use std::io::IsTerminal;
use std::sync::OnceLock;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use crate::error::ServerError;

/// `--log-format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What [`start`] was given first.
static CHOSEN: OnceLock<(String, LogFormat)> = OnceLock::new();

/// The values of `--log-level` and `--log-format` that this process logs with, for processes that shall log as it does.
pub fn chosen() -> (&'static str, &'static str) {
    match CHOSEN.get() {
        Some((filter, LogFormat::Json)) => (filter, "json"),
        Some((filter, LogFormat::Text)) => (filter, "text"),
        None => ("info", "text"),
    }
}

/// Starts logging for the whole process; a second call changes nothing.
///
/// # Errors
/// A filter that does not parse.
pub fn start(filter: &str, format: LogFormat) -> Result<(), ServerError> {
    let parsed = EnvFilter::try_new(filter).map_err(|error| ServerError::Option {
        option: "--log-level",
        message: format!("`{filter}`: {error}; give error, warn, info, debug, trace, or target=level pairs"),
    })?;
    // Only tests start twice in one process.
    let _ = CHOSEN.set((filter.to_owned(), format));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Text => builder
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    drop(started);
    Ok(())
}
