//! The file of answers: whole lines only, and under its own name only when the batch is complete.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Why answers cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("writing answers to {}: {source}", path.display())]
pub struct OutputError {
    path: PathBuf,
    source: io::Error,
}

/// The file, under a name with `.partial` behind it until [`Output::finish`]. What is no file (a pipe, a terminal) is
/// written to at once.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    partial: Option<PathBuf>,
    file: File,
    /// Bytes of whole lines.
    length: u64,
}

impl Output {
    /// Makes the file; an earlier partial one is replaced.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn create(path: &Path) -> Result<Output, OutputError> {
        let is_other = std::fs::metadata(path).is_ok_and(|found| !found.is_file());
        let partial = (!is_other).then(|| {
            let mut name = path.as_os_str().to_owned();
            name.push(".partial");
            PathBuf::from(name)
        });
        let writing = partial.as_deref().unwrap_or(path);
        let opened = match &partial {
            Some(partial) => File::create(partial),
            None => OpenOptions::new().write(true).open(path),
        };
        let file = opened.map_err(|source| OutputError {
            path: writing.to_owned(),
            source,
        })?;
        Ok(Output {
            path: path.to_owned(),
            partial,
            file,
            length: 0,
        })
    }

    /// Where lines are now.
    pub fn path(&self) -> &Path {
        self.partial.as_deref().unwrap_or(&self.path)
    }

    /// Writes one line. When it cannot be written whole, a file ends after the line before.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn write(&mut self, line: &Value) -> Result<(), OutputError> {
        let mut bytes = line.to_string().into_bytes();
        bytes.push(b'\n');
        if let Err(source) = self.file.write_all(&bytes) {
            if self.partial.is_some() {
                // The disk that is full has room for less.
                let _ = self.file.set_len(self.length);
            }
            return Err(self.error(source));
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// All lines are there: the file takes its name.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn finish(self) -> Result<(), OutputError> {
        let Some(partial) = &self.partial else {
            return Ok(());
        };
        let finished = self.file.sync_all().and_then(|()| std::fs::rename(partial, &self.path));
        finished.map_err(|source| self.error(source))
    }

    fn error(&self, source: io::Error) -> OutputError {
        OutputError {
            path: self.path().to_owned(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_name_is_taken_when_all_lines_are_there() {
        let path = std::env::temp_dir().join(format!("halyard-batch-{}.jsonl", std::process::id()));
        std::fs::write(&path, "an earlier batch\n").expect("writes");
        let mut output = Output::create(&path).expect("a file");
        output.write(&json!({"a": "1\n2"})).expect("writes");
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "an earlier batch\n");
        let partial = output.path().to_owned();
        assert_eq!(std::fs::read_to_string(&partial).expect("there"), "{\"a\":\"1\\n2\"}\n");
        output.finish().expect("renames");
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "{\"a\":\"1\\n2\"}\n");
        assert!(!partial.exists());
        std::fs::remove_file(&path).expect("was there");
        let error = Output::create(Path::new("/no/such/folder/out.jsonl")).expect_err("no folder");
        assert!(error.to_string().contains("/no/such/folder"), "{error}");
    }

    #[test]
    fn a_device_is_written_to_as_it_is() {
        let mut output = Output::create(Path::new("/dev/full")).expect("a device");
        let error = output.write(&json!(1)).expect_err("full");
        assert!(error.to_string().contains("/dev/full"), "{error}");
    }
}
