//! The error of an option's value, for parts that the command line configures and that know nothing of commands.

/// A value that an option cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option}: {message}")]
pub struct OptionError {
    /// The flag.
    pub option: &'static str,
    /// Value, limit, remedy.
    pub message: String,
}
