//! Read-only memory maps of weight files. The only module of the runtime that maps files, and the only one in this
//! crate with `unsafe`. It knows no file format.
//!
//! A map is never written through. A file that another process shortens while it is mapped makes a
//! later read fault (SIGBUS): model files are written under a temporary name and renamed, so this
//! takes a deliberate overwrite in place.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::error::{ModelError, Result};

/// A whole file, mapped read-only. Pages are loaded when first touched.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    map: Mmap,
    stamp: Stamp,
}

/// Which file it is, and what tells that it was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds of the last write.
    written: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            written: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }

    fn is_file_of(self, other: Stamp) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
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
            stamp: Stamp::of(&metadata),
        })
    }

    /// Whether the map still holds what the file held when it was opened. A file that was removed or replaced under its
    /// name does: the map keeps the former one.
    ///
    /// # Errors
    /// [`ModelError::Io`] for a file that was written to in place.
    pub fn check_unchanged(&self) -> Result<()> {
        let Ok(now) = std::fs::metadata(&self.path).as_ref().map(Stamp::of) else {
            return Ok(());
        };
        if !now.is_file_of(self.stamp) || now == self.stamp {
            return Ok(());
        }
        Err(ModelError::Io {
            path: self.path.clone(),
            source: std::io::Error::other("the file was written to since it was opened"),
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
