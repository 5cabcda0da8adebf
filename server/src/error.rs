//! Errors of commands, and their exit status: 2 for what the operator can change (usage, selection, model, port), 1 for
//! a failure while running.

use std::io;

use halyard_engine::EngineError;
use halyard_models::ModelError;
use halyard_plugin_host::PluginError;

use crate::client::ClientError;
use crate::hooks::StatLoggerError;
use crate::http::auth::KeyFileError;
use crate::http::limits::FileLimitError;
use crate::http::listeners::BindError;
use crate::http::tls::TlsError;
use crate::option_error::OptionError;
use crate::source::SourceError;

/// A command's failure.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// An option's value.
    #[error("{option}: {message}")]
    Option {
        /// The flag.
        option: &'static str,
        /// Value, limit, remedy.
        message: String,
    },
    /// No platform, a misspelt one, a plugin that does not load.
    #[error(transparent)]
    Plugin(#[from] PluginError),
    /// The chosen device.
    #[error("device {index} of platform {platform}: {source}")]
    Device {
        /// Platform.
        platform: String,
        /// `--device`.
        index: u32,
        /// The platform's reason.
        source: halyard_platform_api::Error,
    },
    /// A stat logger that does not start.
    #[error("--stat-logger: {0}")]
    StatLogger(#[from] StatLoggerError),
    /// An IO processor that does not start.
    #[error("--io-processor {name}: {source}")]
    IoProcessor {
        /// Its name.
        name: String,
        /// Its reason.
        source: halyard_platform_api::Error,
    },
    /// A logits processor that does not start.
    #[error("--logits-processor {name}: {source}")]
    LogitsProcessor {
        /// Its name.
        name: String,
        /// Its reason.
        source: halyard_platform_api::Error,
    },
    /// A hook's process that was not started by a server.
    #[error(transparent)]
    HookChild(#[from] halyard_plugin_host::isolation::HookChildError),
    /// A test of a plugin that did not pass; what failed was printed.
    #[error("{0}")]
    TestFailed(String),
    /// A LoRA resolver that does not start.
    #[error("--lora-resolver {name}: {source}")]
    LoraResolver {
        /// Its name.
        name: String,
        /// Its reason.
        source: halyard_platform_api::Error,
    },
    /// No model.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A model that cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// An engine that does not start.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The socket.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The file of keys.
    #[error(transparent)]
    KeyFile(#[from] KeyFileError),
    /// The limit of open files.
    #[error(transparent)]
    FileLimit(#[from] FileLimitError),
    /// Talking to a server.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The engine's refusal of a request of `chat` or `complete`.
    #[error("{0}")]
    Refused(String),
    /// A batch that ended before its last line.
    #[error("{0}")]
    Batch(String),
    /// The system's refusal.
    #[error("{action}: {source}")]
    Io {
        /// The operation.
        action: &'static str,
        /// The reason.
        source: io::Error,
    },
}

impl From<OptionError> for ServerError {
    fn from(OptionError { option, message }: OptionError) -> Self {
        ServerError::Option { option, message }
    }
}

impl ServerError {
    /// Wraps a refusal of the system.
    pub fn io(action: &'static str) -> impl FnOnce(io::Error) -> ServerError {
        move |source| ServerError::Io { action, source }
    }

    /// The process's exit status.
    pub fn exit_status(&self) -> u8 {
        match self {
            ServerError::Engine(EngineError::Thread(_))
            | ServerError::Io { .. }
            | ServerError::Batch(_)
            | ServerError::Client(_)
            | ServerError::TestFailed(_) => 1,
            _ => 2,
        }
    }
}
