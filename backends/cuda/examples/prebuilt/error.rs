//! What can go wrong.

use std::path::PathBuf;

use thiserror::Error;

/// Why there is no file of kernels.
#[derive(Debug, Error)]
pub enum PrebuiltError {
    /// `models.json` is damaged.
    #[error("models.json: {0}")]
    Models(serde_json::Error),
    /// A name that no model or architecture has.
    #[error("--{flag} {name}: there is none; there are {known}")]
    Unknown {
        /// The flag.
        flag: &'static str,
        /// The name.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// A file cannot be written.
    #[error("{}: {source}", .path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The images do not fit into a file.
    #[error("the file of kernels: {0}")]
    Pack(std::io::Error),
    /// A model does not start.
    #[error("{model} ({way}) on {device}: {message}")]
    Start {
        /// Which.
        model: String,
        /// How it is served.
        way: String,
        /// Where.
        device: String,
        /// What the engine says.
        message: String,
    },
}
