//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use halyard_conformance::PARTS;

/// Joining several devices is a part of this program only.
pub const COLLECTIVES: &str = "collectives";

/// Every part.
pub const PART_NAMES: [&str; PARTS.len() + 1] = {
    let mut all = [COLLECTIVES; PARTS.len() + 1];
    let mut i = 0;
    while i < PARTS.len() {
        all[i] = PARTS[i];
        i += 1;
    }
    all
};

/// Checks a platform's library: every op against the reference, and what docs/abi.md rules of memory, queues and
/// recordings. Exit status: 0 all passed, 1 something failed, 2 the library cannot be checked
#[derive(Debug, Parser)]
#[command(name = "halyard-conformance", version)]
pub struct Cli {
    /// What to do; a library alone is checked
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// The arguments of this process; a library's name in place of a command means `check`.
    pub fn read() -> Cli {
        let mut arguments: Vec<OsString> = std::env::args_os().collect();
        let names = ["check", "support", "part", "help"];
        let is_file =
            |first: &OsString| !names.iter().any(|name| first == name) && !first.as_encoded_bytes().starts_with(b"-");
        if arguments.get(1).is_some_and(is_file) {
            arguments.insert(1, "check".into());
        }
        Cli::parse_from(arguments)
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the suites; the same as a library alone
    Check(CheckArgs),
    /// Which ops run, in which types and formats, and why others do not; computes nothing
    Support(SupportArgs),
    /// One part, for the process that started this one
    #[command(hide = true)]
    Part(PartArgs),
}

/// The library and its device.
#[derive(Args, Clone, Debug)]
pub struct LibraryArgs {
    /// The platform's library
    pub file: PathBuf,
    /// Which of its devices
    #[arg(long, value_name = "INDEX", default_value_t = 0)]
    pub device: u32,
    /// A setting of the platform; may be repeated
    #[arg(long = "platform-option", value_name = "KEY=VALUE")]
    pub options: Vec<String>,
}

/// `check`.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    #[command(flatten)]
    pub library: LibraryArgs,
    /// The library to compare with; without it libhalyard_reference.so beside this program, or in ../lib/halyard
    #[arg(long, value_name = "FILE")]
    pub oracle: Option<PathBuf>,
    /// Only rows whose op and variant hold this text; may be repeated, all must be there. A|B: one of them; !A: not it
    #[arg(long, value_name = "TEXT")]
    pub filter: Vec<String>,
    /// Only this part; may be repeated
    #[arg(long = "part", value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(PART_NAMES))]
    pub parts: Vec<String>,
    /// An op that runs in no type fails; without this it is listed as missing
    #[arg(long)]
    pub strict: bool,
    /// With --strict, an op that may be missing; may be repeated
    #[arg(long, value_name = "OP", requires = "strict")]
    pub may_lack: Vec<String>,
    /// Devices that join for the collectives; without it all, up to 4. More than there are: several handles of one
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(2..=16))]
    pub ranks: Option<u32>,
    /// Threads that share the rows of a part, each with a handle of the device
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub jobs: u64,
    /// Seconds that one part may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600,
        value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub deadline: u64,
    /// Seed of all inputs
    #[arg(long, value_name = "NUMBER", default_value_t = 0x5EED)]
    pub seed: u64,
    /// One JSON object in place of the table
    #[arg(long)]
    pub json: bool,
}

/// `support`.
#[derive(Args, Clone, Debug)]
pub struct SupportArgs {
    #[command(flatten)]
    pub library: LibraryArgs,
    /// One JSON object in place of the table
    #[arg(long)]
    pub json: bool,
}

/// `part`.
#[derive(Args, Clone, Debug)]
pub struct PartArgs {
    #[command(flatten)]
    pub check: CheckArgs,
    /// Its name
    #[arg(long)]
    pub name: String,
    /// File for the rows, a JSON object a line; of two lines of one row the later one holds
    #[arg(long)]
    pub rows: PathBuf,
    /// File that says what is being done
    #[arg(long)]
    pub progress: PathBuf,
}
