//! Errors as Python raises them: bad values are `ValueError`, an engine that has ended or a full queue have classes of
//! their own, the rest is `RuntimeError`. The words are the engine's.

use halyard_engine::{EngineError, SubmitError};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::{PyErr, create_exception};

create_exception!(
    _halyard,
    EngineDeadError,
    PyRuntimeError,
    "The engine has failed or was shut down."
);
create_exception!(
    _halyard,
    QueueFullError,
    PyRuntimeError,
    "As many requests wait as may wait."
);

/// A refused request.
pub fn refused(error: SubmitError) -> PyErr {
    match error {
        SubmitError::QueueFull { .. } => QueueFullError::new_err(error.to_string()),
        SubmitError::ShuttingDown | SubmitError::Dead { .. } => EngineDeadError::new_err(error.to_string()),
        SubmitError::Param(_)
        | SubmitError::Grammar(_)
        | SubmitError::EmptyPrompt
        | SubmitError::PromptTooLong { .. }
        | SubmitError::PromptVocabulary { .. }
        | SubmitError::Adapter(_)
        | SubmitError::HiddenState(_) => PyValueError::new_err(error.to_string()),
    }
}

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An option's value.
    #[error("{name}: {message}")]
    Option {
        /// The keyword.
        name: &'static str,
        /// Value, limit, remedy.
        message: String,
    },
    /// The options as a whole.
    #[error("options: {0}")]
    Options(#[from] serde_json::Error),
    /// No platform.
    #[error(transparent)]
    Plugin(#[from] halyard_plugin_host::PluginError),
    /// The device.
    #[error("device {index} of platform {platform}: {source}")]
    Device {
        /// Platform.
        platform: String,
        /// Index of the device.
        index: u32,
        /// The platform's words.
        source: halyard_platform_api::Error,
    },
    /// Model, memory, engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The system gave no runtime or thread.
    #[error("starting threads: {0}")]
    Threads(#[from] std::io::Error),
}

impl From<StartError> for PyErr {
    fn from(error: StartError) -> PyErr {
        match error {
            StartError::Option { .. } | StartError::Options(_) => PyValueError::new_err(error.to_string()),
            StartError::Engine(EngineError::Model(_) | EngineError::Config { .. }) => {
                PyValueError::new_err(error.to_string())
            }
            _ => PyRuntimeError::new_err(error.to_string()),
        }
    }
}
