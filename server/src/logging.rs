//! Logs to standard error, as text or as JSON lines, panics of any thread too. Standard output is
//! left to results.

use std::cell::Cell;
use std::io::IsTerminal;
use std::panic::PanicHookInfo;
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use crate::option_error::OptionError;

/// `--log-format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines of text.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The first arguments of [`start`].
static CHOSEN: OnceLock<(String, LogFormat)> = OnceLock::new();
/// The filter in use, and how to put another into its place.
static FILTER: OnceLock<Mutex<(String, Replace)>> = OnceLock::new();

type Replace = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send>;

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
pub fn start(filter: &str, format: LogFormat) -> Result<(), OptionError> {
    let parsed = parse(filter).map_err(|message| OptionError {
        option: "--log-level",
        message,
    })?;
    // Only tests start twice in one process.
    let _ = CHOSEN.set((filter.to_owned(), format));
    let builder = tracing_subscriber::fmt().with_writer(std::io::stderr);
    macro_rules! start {
        ($builder:expr) => {{
            let builder = $builder.with_env_filter(parsed).with_filter_reloading();
            let handle = builder.reload_handle();
            let replace: Replace = Box::new(move |filter| handle.reload(filter).map_err(|error| error.to_string()));
            (builder.try_init(), replace)
        }};
    }
    let (started, replace) = match format {
        LogFormat::Text => start!(builder.with_ansi(std::io::stderr().is_terminal()).with_target(false)),
        LogFormat::Json => start!(builder.json().flatten_event(true)),
    };
    if started.is_ok() {
        let _ = FILTER.set(Mutex::new((filter.to_owned(), replace)));
    }
    log_panics();
    Ok(())
}

/// The filter in use; none where logging was not started.
pub fn level() -> Option<String> {
    let filter = FILTER.get()?.lock().unwrap_or_else(PoisonError::into_inner);
    Some(filter.0.clone())
}

/// Logs by another filter from now on; the one before.
///
/// # Errors
/// In words: a filter that does not parse, or a process that does not log.
pub fn set_level(filter: &str) -> Result<String, String> {
    let parsed = parse(filter)?;
    let Some(current) = FILTER.get() else {
        return Err("this process does not log".to_owned());
    };
    let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
    (current.1)(parsed)?;
    Ok(std::mem::replace(&mut current.0, filter.to_owned()))
}

fn parse(filter: &str) -> Result<EnvFilter, String> {
    EnvFilter::try_new(filter)
        .map_err(|error| format!("`{filter}`: {error}; give error, warn, info, debug, trace, or target=level pairs"))
}

/// From now on a panic of any thread is one line of the log, and with RUST_BACKTRACE also what Rust prints.
fn log_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        let with_backtrace = std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0");
        std::panic::set_hook(Box::new(move |info| {
            thread_local!(static LOGGING: Cell<bool> = const { Cell::new(false) });
            // The log itself may be what panics.
            if LOGGING.replace(true) {
                return usual(info);
            }
            let thread = std::thread::current();
            let location = info.location().map(ToString::to_string).unwrap_or_default();
            tracing::error!(
                location,
                thread = thread.name().unwrap_or("?"),
                "panic: {}",
                message(info)
            );
            LOGGING.set(false);
            if with_backtrace {
                usual(info);
            }
        }));
    });
}

/// A panic's message, in one line.
fn message(info: &PanicHookInfo<'_>) -> String {
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a text").replace('\n', " ")
}
