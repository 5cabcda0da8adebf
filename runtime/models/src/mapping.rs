//! Read-only memory maps of weight files. The only module of the runtime that maps files, and the only one in this
//! crate with `unsafe`. It knows no file format.
//!
//! A map is never written through. A file that another process shortens while it is mapped makes a
//! later read fault (SIGBUS): model files are written under a temporary name and renamed, so this
//! takes a deliberate overwrite in place.

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::error::{ModelError, Result};

/// A whole file, mapped read-only. Pages are loaded when first touched.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    /// Maps `path`.
    ///
    /// # Errors
    /// [`ModelError::Io`] if it cannot be opened or mapped, [`ModelError::Truncated`] if it is empty.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |source| ModelError::Io {
            path: path.to_path_buf(),
            source,
        };
        let file = File::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(io(std::io::Error::other("not a regular file")));
        }
        if metadata.len() == 0 {
            return Err(ModelError::Truncated {
                path: path.to_path_buf(),
                part: "header".into(),
                offset: 0,
                needed: 8,
                available: 0,
            });
        }
        // SAFETY: the map is private to this object and only read; the module doc names the one
        // hazard (the file shortened in place while mapped) and why model files do not meet it.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(Self {
            path: path.to_path_buf(),
            map,
        })
    }

    /// The file's path as given to [`MappedFile::open`].
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All bytes of the file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}
