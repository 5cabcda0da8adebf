//! The hidden command that serves a hook in a process of its own, for the server that started it.

use clap::Args;

use super::args::LogArgs;
use crate::error::ServerError;
use crate::logging;

/// Flags of the hidden command.
#[derive(Args, Debug)]
pub struct HookChildArgs {
    #[command(flatten)]
    log: LogArgs,
    /// The hook; what to load comes through shared memory
    name: String,
}

/// Serves a hook for the server that started this process.
///
/// # Errors
/// [`ServerError::HookChild`] where none did.
pub fn run_hook_child(args: &HookChildArgs) -> Result<(), ServerError> {
    logging::start(&args.log.log_level, args.log.log_format)?;
    tracing::debug!(hook = args.name, "runs in a process of its own");
    Ok(halyard_plugin_host::run_hook_child()?)
}
