//! Hooks in a process of their own: the same library runs in a child, and records reach it over shared memory. A hook
//! that crashes there is a failed call here.
//!
//! The child is this program started again with a hidden command. It gets the shared memory as its standard input and
//! the write end of a pipe as its standard output; it keeps nothing else that the server had open. [`ring`] is the
//! memory, [`process`] the server's side of one child, [`child`] the child's side, [`codec`] the records' form on the
//! way, [`logger`] a stat logger over all of it.

mod child;
mod codec;
mod logger;
mod process;
mod ring;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

pub use child::{HookChildError, run_hook_child};
pub use codec::{decode as record_from_bytes, encode as record_to_bytes, record_from_json, record_to_json};
pub use logger::{IsolatedStatLogger, IsolatedStatLoggerFactory, Vitals};

/// How hooks are run in processes of their own.
#[derive(Clone, Debug)]
pub struct IsolationOptions {
    /// The program that calls [`run_hook_child`]; the server names itself.
    pub program: PathBuf,
    /// Its arguments before the hook's name.
    pub args: Vec<OsString>,
    /// Environment variables that children do not get, such as keys.
    pub removed_variables: Vec<OsString>,
    /// How long a child may take to load the library and make the hook.
    pub start_deadline: Duration,
    /// How long a hook may take for one call. A child that is late is ended.
    pub call_deadline: Duration,
}

impl IsolationOptions {
    /// Children made by `program args…`, with 10 s to start and 5 s for each call.
    pub fn new(program: PathBuf, args: Vec<OsString>) -> IsolationOptions {
        IsolationOptions {
            program,
            args,
            removed_variables: Vec::new(),
            start_deadline: Duration::from_secs(10),
            call_deadline: Duration::from_secs(5),
        }
    }
}
