//! The error of an option with a wrong value. Modules that the command line configures return it; they do not depend on
//! the commands.

/// A value that an option cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option}: {message}")]
pub struct OptionError {
    /// The flag.
    pub option: &'static str,
    /// Value, limit, remedy.
    pub message: String,
}
