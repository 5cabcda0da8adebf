//! A bounds-checked reader over the bytes of a GGUF file. Every read names what it reads, so that a
//! damaged file is reported by part and offset. It never allocates by a count it has not checked.

use std::path::Path;

use crate::error::{ModelError, Result};

/// Longest accepted string in bytes (chat templates and vocabulary entries are far below it).
const MAX_STRING_BYTES: u64 = 16 << 20;

pub(super) struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(path: &'a Path, bytes: &'a [u8]) -> Self {
        Self {
            path,
            bytes,
            position: 0,
        }
    }

    pub(super) fn path(&self) -> &'a Path {
        self.path
    }

    pub(super) fn position(&self) -> u64 {
        self.position as u64
    }

    fn remaining(&self) -> u64 {
        (self.bytes.len() - self.position) as u64
    }

    /// An error about the part that starts at `offset`.
    pub(super) fn malformed(
        &self,
        part: impl Into<String>,
        offset: u64,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> ModelError {
        ModelError::Malformed {
            path: self.path.to_path_buf(),
            part: part.into(),
            offset,
            expected: expected.into(),
            found: found.into(),
        }
    }

    /// Checks that `needed` bytes are left for `part`.
    pub(super) fn demand(&self, needed: u64, part: &str) -> Result<()> {
        if needed <= self.remaining() {
            return Ok(());
        }
        Err(ModelError::Truncated {
            path: self.path.to_path_buf(),
            part: part.to_owned(),
            offset: self.position(),
            needed,
            available: self.remaining(),
        })
    }

    pub(super) fn take(&mut self, len: u64, part: &str) -> Result<&'a [u8]> {
        self.demand(len, part)?;
        let start = self.position;
        self.position += len as usize;
        Ok(&self.bytes[start..self.position])
    }

    pub(super) fn array<const N: usize>(&mut self, part: &str) -> Result<[u8; N]> {
        let mut value = [0; N];
        value.copy_from_slice(self.take(N as u64, part)?);
        Ok(value)
    }

    pub(super) fn u32(&mut self, part: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(part)?))
    }

    pub(super) fn u64(&mut self, part: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(part)?))
    }

    /// A u64 length, then that many bytes of UTF-8.
    pub(super) fn string(&mut self, part: &str) -> Result<&'a str> {
        let offset = self.position();
        let len = self.u64(part)?;
        if len > MAX_STRING_BYTES {
            return Err(self.malformed(
                format!("length of {part}"),
                offset,
                format!("at most {MAX_STRING_BYTES} bytes"),
                len.to_string(),
            ));
        }
        let bytes = self.take(len, part)?;
        std::str::from_utf8(bytes).map_err(|error| {
            self.malformed(
                part,
                offset + 8 + error.valid_up_to() as u64,
                "UTF-8 text",
                "other bytes",
            )
        })
    }

    /// A u64 count of things of at least `min_bytes` each, checked against what is left of the file.
    pub(super) fn count(&mut self, min_bytes: u64, part: &str) -> Result<usize> {
        let offset = self.position();
        let count = self.u64(part)?;
        let most = self.remaining() / min_bytes;
        if count > most {
            return Err(self.malformed(
                part,
                offset,
                format!("at most {most}, as {} bytes are left of the file", self.remaining()),
                count.to_string(),
            ));
        }
        Ok(count as usize)
    }
}
