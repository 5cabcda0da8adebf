//! The largest numbers that a configuration may hold, and the error of a field out of range. A larger number means a
//! damaged file: sizes computed from it could overflow or exhaust memory.

use std::path::Path;

use crate::error::{ModelError, Result};

/// Tokens of a vocabulary.
pub(crate) const VOCAB_SIZE: usize = 1 << 22;
/// Width of the residual stream and of the feed-forward layer.
pub(crate) const WIDTH: usize = 1 << 20;
/// Layers.
pub(crate) const LAYERS: usize = 2048;
/// Heads of a layer.
pub(crate) const HEADS: usize = 8192;
/// Values of a head.
pub(crate) const HEAD_DIM: usize = 4096;
/// Experts of a layer.
pub(crate) const EXPERTS: usize = 2048;
/// Positions.
pub(crate) const POSITIONS: usize = 1 << 27;

/// Refuses a number that is 0 or above `most`.
pub(super) fn in_range(path: &Path, field: &str, value: usize, most: usize) -> Result<()> {
    if value == 0 || value > most {
        return Err(bad(path, field, value, format!("from 1 to {most}")));
    }
    Ok(())
}

/// The error of a field; `path` is the file to blame.
pub(crate) fn bad(path: &Path, field: &str, value: impl ToString, limit: String) -> ModelError {
    ModelError::BadField {
        path: path.to_path_buf(),
        field: field.to_owned(),
        value: value.to_string(),
        limit,
    }
}
