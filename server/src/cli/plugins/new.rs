//! `halyard plugins new`: writes a project that builds a plugin without Halyard's sources. What it needs of them, the
//! contract or its C header, comes out of this program and is written beside it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use include_dir::{Dir, include_dir};

use crate::error::ServerError;

/// The contract's sources as they were when this program was built.
static CONTRACT: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../platform-api/src");
const HEADER: &str = include_str!("../../../../platform-api/include/halyard.h");
const C_LOGGER: &str = include_str!("../../../../plugins/stat-logger-c/csv.c");
/// The contract's manifest without the workspace that it stands in; a test holds it to the real one.
const CONTRACT_MANIFEST: &str = include_str!("template/contract.toml.in");
/// Longest name of a plugin.
const MAX_NAME: usize = 40;

/// Flags of `halyard plugins new`.
#[derive(Args, Debug)]
pub struct NewArgs {
    /// What to make
    kind: NewKind,
    /// Its name, as --stat-logger will take it: a letter, then letters, digits and single hyphens, in lower case
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Language {
    /// A cargo project
    Rust,
    /// One C file and a Makefile
    C,
}

/// Writes the project.
///
/// # Errors
/// A name that cannot be one, a folder that exists or cannot be written. Nothing is left of a project that could not be
/// finished.
pub fn run(args: &NewArgs) -> Result<(), ServerError> {
    let NewKind::StatLogger = args.kind;
    check_name(&args.name).map_err(|message| ServerError::Option {
        option: "NAME",
        message,
    })?;
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
    let project = Project {
        name: &args.name,
        language: args.how.language,
    };
    if let Err(error) = project.write(&folder) {
        // The first error tells more than one of cleaning up after it.
        let _ = fs::remove_dir_all(&folder);
        return Err(refused(format!("writing the project: {error}")));
    }
    let (build, library) = (project.build(), project.library());
    say!("Wrote {}. Next:", folder.display());
    say!("  cd {} && {build}", folder.display());
    say!("  halyard plugins test {library}");
    say!("  halyard serve --plugin {library} --stat-logger {}", args.name);
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

struct Project<'a> {
    name: &'a str,
    language: Language,
}

impl Project<'_> {
    fn symbol(&self) -> String {
        self.name.replace('-', "_")
    }

    /// How it is built, in its folder.
    fn build(&self) -> &'static str {
        match self.language {
            Language::Rust => "cargo build --release",
            Language::C => "make",
        }
    }

    /// The library that comes out, relative to its folder.
    fn library(&self) -> String {
        match self.language {
            Language::Rust => format!("target/release/libstat_logger_{}.so", self.symbol()),
            Language::C => format!("lib{}.so", self.symbol()),
        }
    }

    fn fill(&self, template: &str) -> String {
        template
            .replace("{{name}}", self.name)
            .replace("{{lib}}", &format!("stat_logger_{}", self.symbol()))
            .replace("{{version}}", env!("CARGO_PKG_VERSION"))
            .replace("{{build}}", self.build())
            .replace("{{library}}", &self.library())
    }

    fn write(&self, folder: &Path) -> io::Result<()> {
        fs::write(
            folder.join("README.md"),
            self.fill(include_str!("template/README.md.in")),
        )?;
        match self.language {
            Language::Rust => self.write_rust(folder),
            Language::C => self.write_c(folder),
        }
    }

    fn write_rust(&self, folder: &Path) -> io::Result<()> {
        fs::write(folder.join(".gitignore"), "/target\n")?;
        fs::write(
            folder.join("Cargo.toml"),
            self.fill(include_str!("template/Cargo.toml.in")),
        )?;
        fs::create_dir(folder.join("src"))?;
        fs::write(folder.join("src/lib.rs"), self.fill(include_str!("template/lib.rs.in")))?;
        let contract = folder.join("vendor/halyard-platform-api");
        fs::create_dir_all(contract.join("src"))?;
        fs::write(contract.join("Cargo.toml"), self.fill(CONTRACT_MANIFEST))?;
        CONTRACT.extract(contract.join("src"))
    }

    fn write_c(&self, folder: &Path) -> io::Result<()> {
        fs::write(folder.join(".gitignore"), "*.so\n")?;
        fs::write(folder.join("Makefile"), self.fill(include_str!("template/Makefile.in")))?;
        fs::create_dir(folder.join("include"))?;
        fs::write(folder.join("include/halyard.h"), HEADER)?;
        // The example with its name in place: in the manifest, the entry symbol and the answer of the entry.
        let source = C_LOGGER
            .replace("csv_entry", &format!("{}_entry", self.symbol()))
            .replace("\\\"csv\\\"", &format!("\\\"{}\\\"", self.name))
            .replace("str(\"csv\")", &format!("str(\"{}\")", self.name))
            .replace("../../platform-api/include", "include")
            .replace("libcsv.so", &self.library())
            .replace("csv.c", &format!("{}.c", self.name))
            .replace("'csv=", &format!("'{}=", self.name));
        fs::write(folder.join(format!("{}.c", self.name)), source)
    }
}

#[cfg(test)]
mod tests {
    use super::{CONTRACT_MANIFEST, check_name};

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

    #[test]
    fn the_written_contract_is_built_as_the_real_one() {
        let edition = |manifest: &str| {
            manifest
                .lines()
                .find(|line| line.starts_with("edition"))
                .map(str::to_owned)
        };
        assert_eq!(
            edition(CONTRACT_MANIFEST),
            edition(include_str!("../../../../Cargo.toml"))
        );
        for manifest in [CONTRACT_MANIFEST, include_str!("../../../../platform-api/Cargo.toml")] {
            let depends = manifest
                .lines()
                .any(|line| line.trim() == "[dependencies]" || line.contains("build ="));
            assert!(
                !depends,
                "the contract builds from its sources alone; write what it needs into new projects too:\n{manifest}"
            );
        }
    }
}
