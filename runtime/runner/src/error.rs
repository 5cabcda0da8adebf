//! Why a model cannot be loaded onto a device, or a step cannot run.

use thiserror::Error;

/// An error of loading, or of running on the device.
#[derive(Debug, Error)]
pub enum RunnerError {
    /// From the device.
    #[error("device: {0}")]
    Device(#[from] halyard_platform_api::Error),
    /// From the model files.
    #[error(transparent)]
    Model(#[from] halyard_models::ModelError),
    /// Ops that the platform lacks.
    #[error("this platform cannot run the model; missing:\n{}", .missing.join("\n"))]
    MissingOps {
        /// One line an op, with its reason.
        missing: Vec<String>,
    },
    /// Weights and KV do not fit.
    #[error("{arithmetic}")]
    DoesNotFit {
        /// The needed memory, the free memory, and sizes that would fit.
        arithmetic: String,
    },
    /// The model's first steps give no numbers.
    #[error("{model}: the logits of a warm-up step are {reason}")]
    NotFinite {
        /// The model's name.
        model: String,
        /// What they are, and what to do.
        reason: String,
    },
    /// A configuration value.
    #[error("{name}: {message}")]
    Config {
        /// Option.
        name: &'static str,
        /// Value, limit, remedy.
        message: String,
    },
    /// Tensor parallelism: what failed, by rank.
    #[error("tensor parallelism: {0}")]
    Ranks(String),
    /// A thread that could not be started or that panicked.
    #[error("engine thread: {0}")]
    Thread(String),
    /// Two parts of this crate or of the platform disagree.
    #[error("internal error: {0}")]
    Internal(&'static str),
}
