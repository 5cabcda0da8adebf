//! What a device is opened with: its index, the operator's options, and a folder for what can be made again.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::abi::limits;
use crate::status::{Error, Result};

const MAX_OPTION_BYTES: usize = limits::MAX_OPTION_BYTES as usize;

/// What a device is opened with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Index in the platform's list.
    pub index: u32,
    /// Keys and values (`--platform-option KEY=VALUE`), each key once.
    options: Vec<(String, String)>,
    /// Folder for compiled kernels and tuned choices; `None`: the platform's own choice.
    pub cache_dir: Option<PathBuf>,
}

impl OpenOptions {
    /// Device `index` without options.
    pub fn of(index: u32) -> OpenOptions {
        OpenOptions {
            index,
            ..OpenOptions::default()
        }
    }

    /// With one option more.
    ///
    /// # Errors
    /// `InvalidArgument` for a key that is not of `a-z 0-9 _ -` or is there already, a value with a line break, or more
    /// than 64 KiB in all.
    pub fn with(mut self, key: &str, value: &str) -> Result<OpenOptions> {
        let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'_' | b'-');
        if key.is_empty() || !key.bytes().all(plain) {
            return Err(Error::invalid(format!(
                "option `{key}`: a key is of the characters a-z 0-9 _ -"
            )));
        }
        if self.get(key).is_some() {
            return Err(Error::invalid(format!("option {key} is given twice")));
        }
        if value.contains('\n') {
            return Err(Error::invalid(format!("option {key}: its value has a line break")));
        }
        self.options.push((key.to_string(), value.to_string()));
        match self.to_text().len() {
            ..=MAX_OPTION_BYTES => Ok(self),
            bytes => Err(Error::invalid(format!(
                "options of {bytes} bytes; at most {MAX_OPTION_BYTES} are taken"
            ))),
        }
    }

    /// In the folder `cache_dir`.
    pub fn in_cache(self, cache_dir: Option<&Path>) -> OpenOptions {
        OpenOptions {
            cache_dir: cache_dir.map(Path::to_path_buf),
            ..self
        }
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.options.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// The value of `key`; without one, what the platform's own variable says.
    pub fn get_or(&self, key: &str, variable: Option<OsString>) -> Option<OsString> {
        self.get(key).map(OsString::from).or(variable)
    }

    /// Whether every option is one of `known`.
    ///
    /// # Errors
    /// `InvalidArgument` naming the option and the known ones.
    pub fn check(&self, known: &[&str]) -> Result<()> {
        match self.options.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some((key, _)) if known.is_empty() => {
                Err(Error::invalid(format!("option {key}: this platform has no options")))
            }
            Some((key, _)) => Err(Error::invalid(format!(
                "option {key}: this platform knows {}",
                known.join(", ")
            ))),
        }
    }

    /// The options as they cross: a line `key=value` each.
    pub fn to_text(&self) -> String {
        self.options
            .iter()
            .map(|(key, value)| format!("{key}={value}\n"))
            .collect()
    }

    /// The options of [`OpenOptions::to_text`].
    ///
    /// # Errors
    /// As [`OpenOptions::with`]; `InvalidArgument` for a line without `=`.
    pub fn with_text(self, text: &str) -> Result<OpenOptions> {
        text.lines().try_fold(self, |options, line| match line.split_once('=') {
            Some((key, value)) => options.with(key, value),
            None => Err(Error::invalid(format!("option `{line}`: write KEY=VALUE"))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_cross_as_they_were_given() {
        let options = OpenOptions::of(2)
            .with("threads", "4")
            .and_then(|o| o.with("path", "/a=b c"));
        let options = options.expect("plain");
        assert_eq!(options.to_text(), "threads=4\npath=/a=b c\n");
        assert_eq!(OpenOptions::of(2).with_text(&options.to_text()), Ok(options.clone()));
        assert_eq!((options.get("path"), options.get("isa")), (Some("/a=b c"), None));
    }

    #[test]
    fn what_cannot_be_an_option_is_named() {
        let long = "x".repeat(MAX_OPTION_BYTES);
        for (text, word) in [
            ("threads\n", "KEY=VALUE"),
            ("Threads=4\n", "Threads"),
            ("=4\n", "``"),
            ("a=1\na=2\n", "twice"),
            (&*format!("a={long}\n"), "at most 65536"),
        ] {
            let error = OpenOptions::of(0).with_text(text).expect_err(word);
            assert!(error.message.contains(word), "{}", error.message);
        }
        assert!(OpenOptions::of(0).with("a", "1\n2").is_err());
        let one = OpenOptions::of(0).with("threads", "4").expect("plain");
        assert_eq!(one.check(&["isa", "threads"]), Ok(()));
        let unknown = |known: &[&str]| one.check(known).expect_err("unknown").message;
        assert_eq!(unknown(&["isa", "x"]), "option threads: this platform knows isa, x");
        assert_eq!(unknown(&[]), "option threads: this platform has no options");
    }
}
