//! `halyard plugins new`: writes a project that builds a plugin without Halyard's sources. What it needs of them, the
//! contract or its C header, comes out of this program and is written beside it. Each kind of plugin has its files in a
//! module of its own ([`stat_logger`], [`platform`]).

mod contract;
mod platform;
mod stat_logger;

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::error::ServerError;

const HEADER: &str = include_str!("../../../../platform-api/include/halyard.h");
/// Longest name of a plugin.
const MAX_NAME: usize = 40;

/// Flags of `halyard plugins new`.
#[derive(Args, Debug)]
pub struct NewArgs {
    /// What to make
    kind: NewKind,
    /// Its name, as --stat-logger or --platform will take it: a letter, then letters, digits and single hyphens, in
    /// lower case
    name: String,
    #[command(flatten)]
    how: HowArgs,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Project")]
struct HowArgs {
    /// Folder to write, which must not exist; without it one of the plugin's name
    #[arg(long, value_name = "DIR", env = "HALYARD_NEW_PATH")]
    path: Option<PathBuf>,
    /// Language of the sources
    #[arg(long, value_name = "LANGUAGE", env = "HALYARD_NEW_LANGUAGE", value_enum, default_value_t = Language::Rust)]
    language: Language,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum NewKind {
    /// A sink of metrics and requests
    StatLogger,
    /// A kind of hardware: its devices, memory, queues and first ops
    Platform,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Language {
    /// A cargo project
    Rust,
    /// C files and a Makefile
    C,
}

/// A project before it is written.
struct Project {
    /// How it is built, in its folder.
    build: &'static str,
    /// What to run there afterwards.
    next: Vec<String>,
    /// Paths below the folder, and texts.
    files: Vec<(String, String)>,
    /// The contract's sources beside them.
    contract: Vec<(String, Cow<'static, [u8]>)>,
}

/// What templates name.
struct Names<'a> {
    name: &'a str,
    /// How it is built, in its folder.
    build: &'static str,
    /// The library that comes out, relative to its folder.
    library: String,
}

/// Writes the project.
///
/// # Errors
/// A name that cannot be one, a folder that exists or cannot be written. Nothing is left of a project that could not be
/// finished.
pub fn run(args: &NewArgs) -> Result<(), ServerError> {
    check_name(&args.name).map_err(|message| ServerError::Option {
        option: "NAME",
        message,
    })?;
    let project = match (args.kind, args.how.language) {
        (NewKind::StatLogger, Language::Rust) => stat_logger::in_rust(&args.name),
        (NewKind::StatLogger, Language::C) => stat_logger::in_c(&args.name),
        (NewKind::Platform, Language::C) => platform::in_c(&args.name),
        (NewKind::Platform, Language::Rust) => platform::in_rust(&args.name),
    };
    let folder = args.how.path.clone().unwrap_or_else(|| PathBuf::from(&args.name));
    let refused = |reason: String| ServerError::Option {
        option: "--path",
        message: format!("{}: {reason}", folder.display()),
    };
    match fs::create_dir(&folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(refused("it exists; give a folder that does not".to_owned()));
        }
        Err(error) => return Err(refused(format!("the folder cannot be made: {error}"))),
    }
    if let Err(error) = project.write(&folder) {
        // The first error tells more than one of cleaning up after it.
        let _ = fs::remove_dir_all(&folder);
        return Err(refused(format!("writing the project: {error}")));
    }
    say!("Wrote {}. Next:", folder.display());
    say!("  cd {} && {}", folder.display(), project.build);
    project.next.iter().for_each(|line| say!("  {line}"));
    Ok(())
}

/// A name that is good for a manifest, a crate, a symbol and a file at once.
fn check_name(name: &str) -> Result<(), String> {
    let starts = name.starts_with(|c: char| c.is_ascii_lowercase());
    let plain = name
        .chars()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if starts && plain && !name.ends_with('-') && !name.contains("--") && name.len() <= MAX_NAME {
        return Ok(());
    }
    Err(format!(
        "{name:?} is not a letter followed by letters, digits and single hyphens, in lower case, at most {MAX_NAME}, \
         such as `my-sink`"
    ))
}

/// A name as part of a symbol or a file.
fn symbol(name: &str) -> String {
    name.replace('-', "_")
}

impl Names<'_> {
    /// A template with its names in place.
    fn fill(&self, template: &str) -> String {
        template
            .replace("{{name}}", self.name)
            .replace("{{symbol}}", &symbol(self.name))
            .replace("{{version}}", env!("CARGO_PKG_VERSION"))
            .replace("{{build}}", self.build)
            .replace("{{library}}", &self.library)
    }
}

impl Project {
    fn write(&self, folder: &Path) -> io::Result<()> {
        let texts = self.files.iter().map(|(path, text)| (path, text.as_bytes()));
        for (path, contents) in texts.chain(self.contract.iter().map(|(path, bytes)| (path, &**bytes))) {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap_or(folder))?;
            fs::write(path, contents)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::check_name;

    #[test]
    fn names_that_cannot_be_crate_symbol_and_file_are_refused() {
        for good in ["a", "my-sink", "sink2", "a-1"] {
            assert_eq!(check_name(good), Ok(()));
        }
        let long = "a".repeat(41);
        for bad in [
            "", "-a", "a-", "a--b", "2a", "A", "a b", "a/b", "..", "a.b", "ä", "a_b", &long,
        ] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
