//! Files of datasets, read within bounds: what somebody else wrote must not take all of this machine's memory.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Take};
use std::path::{Path, PathBuf};

use crate::error::ServerError;
use crate::source::SourceError;

/// Bytes of a file: ShareGPT's largest has 0.7 GB.
const MAX_FILE_BYTES: u64 = 1 << 30;
/// Bytes of a line: a prompt of a few million tokens.
const MAX_LINE_BYTES: u64 = 16 << 20;
/// Tokens of all prompts that a file asks for, which are held at once: 1 GiB of them.
const MAX_TOKENS: u64 = 256 << 20;

/// A file of `--dataset-path`.
pub(super) struct DatasetFile(PathBuf);

impl DatasetFile {
    pub(super) fn new(path: Option<&Path>) -> DatasetFile {
        DatasetFile(path.unwrap_or(Path::new("")).to_owned())
    }

    #[cfg(test)]
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// An error of the file as a whole.
    pub(super) fn bad(&self, reason: &str) -> ServerError {
        ServerError::Option {
            option: "--dataset-path",
            message: format!("{}: {reason}", self.0.display()),
        }
    }

    /// An error of a line, counted from 1.
    pub(super) fn bad_line(&self, number: usize, reason: &str) -> ServerError {
        self.bad(&format!("line {number}: {reason}"))
    }

    fn open(&self) -> Result<Take<File>, ServerError> {
        let file = File::open(&self.0).map_err(SourceError::io(&self.0))?;
        Ok(file.take(MAX_FILE_BYTES + 1))
    }

    fn too_large(&self) -> ServerError {
        self.bad(&format!("it has more than {MAX_FILE_BYTES} bytes; give a part of it"))
    }

    /// The whole file.
    ///
    /// # Errors
    /// One that cannot be read, is no text or has more than 1 GiB.
    pub(super) fn text(&self) -> Result<String, ServerError> {
        let mut text = String::new();
        let mut file = self.open()?;
        file.read_to_string(&mut text).map_err(SourceError::io(&self.0))?;
        match file.limit() {
            0 => Err(self.too_large()),
            _ => Ok(text),
        }
    }

    /// Its lines with their numbers, without empty ones; only what is asked for is read.
    ///
    /// # Errors
    /// A file that cannot be opened. Of a line: one that cannot be read, is no text or has more than 16 MiB.
    pub(super) fn lines(&self) -> Result<Lines<'_>, ServerError> {
        Ok(Lines {
            file: self,
            reader: BufReader::new(self.open()?),
            number: 0,
        })
    }

    /// Refuses prompts that together have more tokens than are held.
    pub(super) fn check_tokens(&self, tokens: u64) -> Result<(), ServerError> {
        match tokens > MAX_TOKENS {
            true => Err(self.bad(&format!(
                "its prompts have more than {MAX_TOKENS} tokens, which are held at once; take fewer (--num-prompts)"
            ))),
            false => Ok(()),
        }
    }
}

/// The lines of a file.
pub(super) struct Lines<'a> {
    file: &'a DatasetFile,
    reader: BufReader<Take<File>>,
    number: usize,
}

impl Lines<'_> {
    fn read(&mut self) -> Result<Option<String>, ServerError> {
        let mut bytes = Vec::new();
        let mut line = Read::by_ref(&mut self.reader).take(MAX_LINE_BYTES + 1);
        line.read_until(b'\n', &mut bytes)
            .map_err(SourceError::io(&self.file.0))?;
        self.number += 1;
        if bytes.len() as u64 > MAX_LINE_BYTES {
            let reason = format!("it has more than {MAX_LINE_BYTES} bytes; is it a file of lines?");
            return Err(self.file.bad_line(self.number, &reason));
        }
        if self.reader.get_ref().limit() == 0 {
            return Err(self.file.too_large());
        }
        if bytes.is_empty() {
            return Ok(None);
        }
        let text = String::from_utf8(bytes);
        text.map(Some)
            .map_err(|_| self.file.bad_line(self.number, "it is not UTF-8"))
    }
}

impl Iterator for Lines<'_> {
    type Item = Result<(usize, String), ServerError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.read() {
                Ok(Some(line)) if line.trim().is_empty() => {}
                Ok(Some(line)) => return Some(Ok((self.number, line))),
                Ok(None) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A file that goes with the value.
    pub(in super::super) struct Written(pub DatasetFile);

    impl Written {
        pub(in super::super) fn new(name: &str, content: &[u8]) -> Written {
            let path = std::env::temp_dir().join(format!("halyard-dataset-{name}-{}", std::process::id()));
            std::fs::write(&path, content).expect("writes");
            Written(DatasetFile(path))
        }
    }

    impl Drop for Written {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0.0);
        }
    }

    #[test]
    fn lines_are_counted_and_bounded() {
        let file = Written::new("lines", b"a\n\n  \nb");
        let lines: Result<Vec<_>, _> = file.0.lines().expect("opens").collect();
        assert_eq!(lines.expect("text"), [(1, "a\n".to_owned()), (4, "b".to_owned())]);
        let long = Written::new("long", &vec![b'x'; MAX_LINE_BYTES as usize + 1]);
        let error = long
            .0
            .lines()
            .expect("opens")
            .next()
            .expect("a line")
            .expect_err("long");
        assert!(
            error.to_string().contains("line 1: it has more than 16777216 bytes"),
            "{error}"
        );
        let other = Written::new("other", b"a\n\xff\n");
        let error = other
            .0
            .lines()
            .expect("opens")
            .nth(1)
            .expect("a line")
            .expect_err("no text");
        assert!(error.to_string().contains("line 2: it is not UTF-8"), "{error}");
    }

    #[test]
    fn a_file_without_an_end_is_refused() {
        // Sparse: it takes no space.
        let file = Written::new("large", b"");
        let opened = File::options().write(true).open(&file.0.0).expect("opens");
        opened.set_len(MAX_FILE_BYTES + 1).expect("grows");
        let mut lines = file.0.lines().expect("opens");
        assert!(lines.next().expect("a line").is_err(), "a line of zeros");
        assert!(file.0.check_tokens(MAX_TOKENS).is_ok() && file.0.check_tokens(MAX_TOKENS + 1).is_err());
    }
}
