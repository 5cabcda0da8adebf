//! The repository's invariants as code: the map's arrows and the rules that every file keeps.
//!
//! Owns the rules and how they read the tree; `tests/tree.rs` holds this tree to them, `tests/planted.rs` shows that
//! each one catches what it is for. A rule is a pure function from text to findings; only [`tree`] touches files.

pub mod arrows;
pub mod circles;
pub mod code;
pub mod documents;
pub mod rules;
pub mod test_files;
pub mod tree;

use std::fmt;

/// One place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// File, relative to the repository's root.
    pub path: String,
    /// Line, from 1; 0: the file as a whole.
    pub line: usize,
    /// What was found and what to do instead.
    pub message: String,
}

impl Finding {
    /// A finding at a line.
    pub fn new(path: &str, line: usize, message: impl Into<String>) -> Finding {
        Finding {
            path: path.to_string(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}
