//! Writes cache files atomically: to a temporary file in the same folder, checked, then renamed. So every file in the
//! cache under its final name has been checked.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::SourceError;

/// Bytes read at once when hashing.
const CHUNK_BYTES: usize = 1 << 20;

/// A file on its way in. Dropped without [`Incoming::finish`], what was written stays for a later resume.
pub struct Incoming {
    file: File,
    part: PathBuf,
    target: PathBuf,
    hash: Sha256,
    /// Bytes written so far.
    pub written: u64,
}

impl Incoming {
    /// Opens `target`'s part file, whose name carries `version` so that versions never mix, and goes on after the bytes
    /// that are already there.
    ///
    /// # Errors
    /// [`SourceError::Io`].
    pub fn open(target: &Path, version: &str) -> Result<Self, SourceError> {
        let name = target
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let version: String = version.chars().filter(char::is_ascii_alphanumeric).take(16).collect();
        let part = target.with_file_name(format!(".{name}.{version}.part"));
        let mut file = File::options()
            .read(true)
            .append(true)
            .create(true)
            .open(&part)
            .map_err(SourceError::io(&part))?;
        let mut hash = Sha256::new();
        let written = hash_into(&mut file, &mut hash).map_err(SourceError::io(&part))?;
        Ok(Incoming {
            file,
            part,
            target: target.to_owned(),
            hash,
            written,
        })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// [`SourceError::Io`], such as a full disk.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        self.file.write_all(bytes).map_err(SourceError::io(&self.part))?;
        self.hash.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Forgets everything written.
    ///
    /// # Errors
    /// [`SourceError::Io`].
    pub fn restart(&mut self) -> Result<(), SourceError> {
        self.file.set_len(0).map_err(SourceError::io(&self.part))?;
        self.hash = Sha256::new();
        self.written = 0;
        Ok(())
    }

    /// Checks size and, where known, sha256, and puts the file in its place.
    ///
    /// # Errors
    /// [`SourceError::Mismatch`], after which the bytes are gone; [`SourceError::Io`].
    pub fn finish(self, bytes: u64, sha256: Option<&str>) -> Result<PathBuf, SourceError> {
        let found = hex(&self.hash.finalize());
        let mismatch = |property, expected: String, found: String| {
            // A failing removal leaves a file that the next run hashes and refuses again.
            let _ = fs::remove_file(&self.part);
            Err(SourceError::Mismatch {
                file: self.target.display().to_string(),
                property,
                expected,
                found,
            })
        };
        if self.written != bytes {
            return mismatch("size", bytes.to_string(), self.written.to_string());
        }
        if let Some(expected) = sha256.filter(|expected| !expected.eq_ignore_ascii_case(&found)) {
            return mismatch("sha256", expected.to_owned(), found);
        }
        self.file.sync_all().map_err(SourceError::io(&self.part))?;
        fs::rename(&self.part, &self.target).map_err(SourceError::io(&self.target))?;
        Ok(self.target)
    }
}

/// Whether `path` is a file of `bytes` bytes.
pub fn has_size(path: &Path, bytes: u64) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == bytes)
}

/// Creates a folder and takes its lock, so that two processes never write the same download. Blocks.
///
/// # Errors
/// [`SourceError::Io`].
pub fn lock_folder(folder: &Path) -> Result<File, SourceError> {
    fs::create_dir_all(folder).map_err(SourceError::io(folder))?;
    let path = folder.join(".lock");
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(SourceError::io(&path))?;
    file.lock().map_err(SourceError::io(&path))?;
    Ok(file)
}

/// Runs work that blocks off the runtime, so that a signal is still heard.
///
/// # Errors
/// Those of the work.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SourceError> + Send + 'static,
) -> Result<T, SourceError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(SourceError::Package(format!("a background task failed: {error}"))))
}

/// The checksum of a file, in hexadecimal.
///
/// # Errors
/// [`SourceError::Io`].
pub fn sha256_of(path: &Path) -> Result<String, SourceError> {
    let mut file = File::open(path).map_err(SourceError::io(path))?;
    let mut hash = Sha256::new();
    hash_into(&mut file, &mut hash).map_err(SourceError::io(path))?;
    Ok(hex(&hash.finalize()))
}

fn hash_into(file: &mut File, hash: &mut Sha256) -> std::io::Result<u64> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut total = 0;
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok(total);
        }
        hash.update(&buffer[..count]);
        total += count as u64;
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A folder that goes when dropped.
    pub(crate) struct TestFolder(pub PathBuf);

    impl TestFolder {
        pub(crate) fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("halyard-{name}-{}", uuid::Uuid::new_v4().simple()));
            fs::create_dir_all(&folder).expect("a temporary folder");
            TestFolder(folder)
        }
    }

    impl Drop for TestFolder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn goes_on_after_an_interruption() {
        let folder = TestFolder::new("resume");
        let target = folder.0.join("model.gguf");
        let mut first = Incoming::open(&target, "v1").expect("opens");
        first.write(b"ab").expect("writes");
        drop(first);
        let mut second = Incoming::open(&target, "v1").expect("opens");
        assert_eq!(second.written, 2);
        second.write(b"c").expect("writes");
        assert!(!target.exists(), "nothing stands in its place before it is checked");
        second.finish(3, Some(ABC)).expect("matches");
        assert_eq!(fs::read(&target).expect("stands"), b"abc");
        assert_eq!(
            Incoming::open(&target, "v2").expect("opens").written,
            0,
            "versions never mix"
        );
    }

    #[test]
    fn wrong_bytes_never_take_their_place() {
        let folder = TestFolder::new("mismatch");
        let target = folder.0.join("model.gguf");
        for (bytes, size, property) in [(b"abd", 3, "sha256"), (b"abc", 4, "size")] {
            let mut incoming = Incoming::open(&target, "v1").expect("opens");
            assert_eq!(incoming.written, 0, "the refused bytes are gone");
            incoming.write(bytes).expect("writes");
            match incoming.finish(size, Some(ABC)) {
                Err(SourceError::Mismatch { property: found, .. }) => assert_eq!(found, property),
                other => panic!("expected a mismatch of {property}, found {other:?}"),
            }
            assert!(!target.exists());
        }
    }
}
