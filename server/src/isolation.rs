//! Whether a hook runs in this process or in a child process of its own. The child is this program with a hidden
//! command; it logs as the server does.

use std::path::PathBuf;
use std::time::Duration;

use halyard_plugin_host::IsolationOptions;

use crate::logging;

/// Where a hook runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IsolationMode {
    /// In the server: the quickest way, and a crash of the hook is the server's.
    #[default]
    None,
    /// In a process of its own.
    Process,
}

/// Variables that hold keys.
const KEY_VARIABLES: [&str; 6] = [
    "HALYARD_API_KEY",
    "VLLM_API_KEY",
    "HALYARD_CLIENT_API_KEY",
    "HALYARD_HF_TOKEN",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
];

/// Children of this program.
pub fn options() -> IsolationOptions {
    let (level, format) = logging::chosen();
    let args = ["hook-child", "--log-level", level, "--log-format", format].map(Into::into);
    IsolationOptions {
        // Shorter than what the delivery gives the making of a logger.
        start_deadline: Duration::from_secs(9),
        // A hook has no use for keys; in a process of its own it shall not find them.
        removed_variables: KEY_VARIABLES.map(Into::into).into(),
        // Not its path: a newer program may stand there by now.
        ..IsolationOptions::new(PathBuf::from("/proc/self/exe"), args.into())
    }
}
