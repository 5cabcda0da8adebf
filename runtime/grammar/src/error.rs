//! Why a constraint is not taken.

use std::time::Duration;

/// Why a constraint is not taken. The texts name the field of [`crate::Constraint`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GrammarError {
    /// Larger than a limit.
    #[error("{field}: {what} is {found}; at most {limit} are taken: {remedy}")]
    TooLarge {
        /// The kind of constraint.
        field: &'static str,
        /// What was counted.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many may be.
        limit: usize,
        /// What to do.
        remedy: &'static str,
    },
    /// No constraint of its kind, or one with a feature that is not supported.
    #[error("{field}: {reason}")]
    Invalid {
        /// The kind of constraint.
        field: &'static str,
        /// What is wrong, and where.
        reason: String,
    },
    /// Compiling takes too long.
    #[error("{field}: it was not compiled within {limit:?}; send a simpler one")]
    Late {
        /// The kind of constraint.
        field: &'static str,
        /// The time that it had.
        limit: Duration,
    },
    /// Too many are compiled at once.
    #[error("{waiting} constraints wait to be compiled, the limit; retry after 1 s")]
    Busy {
        /// Constraints that wait.
        waiting: usize,
    },
    /// The model's tokenizer or vocabulary does not allow constraints.
    #[error("structured output is not possible with this model: {0}")]
    Model(String),
}

impl GrammarError {
    pub(crate) fn invalid(field: &'static str, reason: impl Into<String>) -> GrammarError {
        let reason = reason.into();
        GrammarError::Invalid { field, reason }
    }
}

/// An error of the library without what it says about itself.
pub(crate) fn shortened(error: &str) -> String {
    let end = ["<state>", "<non-verbose/>", "<backtrace>"]
        .iter()
        .filter_map(|mark| error.find(mark))
        .min();
    let text = error[..end.unwrap_or(error.len())].trim();
    // Behind a regular expression's fault comes the place in a grammar that nobody wrote.
    let fault_end = text
        .find("\nerror: ")
        .map(|at| at + 1 + text[at + 1..].find('\n').unwrap_or(text.len() - at - 1));
    let text = &text[..fault_end.unwrap_or(text.len())];
    // The library catches its own panics; what they say is for its authors.
    if text.starts_with("panic: ") {
        tracing::warn!("the grammar library panicked: {text}");
        return "the grammar library fails on it".to_string();
    }
    if let Some(keys) = text.strip_prefix("Unimplemented keys: ") {
        return format!("the keywords {keys} are not supported; leave them out");
    }
    match text {
        "NoExtensionBias" | "NoExtension" => "no token of the model goes on with a text that fits".to_string(),
        text if text.starts_with("oneOf constraints are not supported") => {
            "oneOf is supported where its options exclude each other, by type or by a const of a required property; \
             use anyOf"
                .to_string()
        }
        text => match text.char_indices().nth(600) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text.to_string(),
        },
    }
}
