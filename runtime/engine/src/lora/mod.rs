//! LoRA adapters of a running engine: all by name ([`registry`]), one with its state ([`adapter`]), and copying into
//! device slots ([`loader`]). The scheduler decides which adapter goes into which slot; steps only name slots.

pub(crate) mod adapter;
pub(crate) mod core;
pub(crate) mod loader;
pub(crate) mod registry;

use std::path::PathBuf;

use halyard_models::ModelError;
use serde::Serialize;
use thiserror::Error;

/// Longest name of an adapter in bytes: it is a label of metrics and a part of answers.
const MAX_NAME_BYTES: usize = 256;

/// Where an adapter comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterSource {
    /// A folder that PEFT wrote.
    Folder(PathBuf),
    /// Random values for every target: for measuring.
    Dummy {
        /// Rank.
        rank: u32,
        /// Same seed, same values.
        seed: u64,
    },
}

/// Where an adapter's matrices are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Residency {
    /// In its file only.
    Disk,
    /// In host memory.
    Host,
    /// In a slot of the device.
    Device,
}

/// An adapter and its counters.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AdapterStatus {
    /// The name that requests give as model.
    pub name: String,
    /// Its folder; `None` for a dummy.
    pub path: Option<PathBuf>,
    /// Largest rank of its linears.
    pub rank: u32,
    /// Bytes of its matrices in host memory.
    pub bytes: u64,
    /// Where it is now.
    pub residency: Residency,
    /// Sequences that own or owned a device row and have not ended.
    pub num_running: u64,
    /// Sequences that never had one yet.
    pub num_waiting: u64,
    /// Sequences since it was added.
    pub requests_total: u64,
    /// Of these, found it on the device when they came.
    pub device_hits_total: u64,
    /// Copies into a device slot.
    pub device_loads_total: u64,
    /// Times it was read from its file, the first time included.
    pub disk_reads_total: u64,
    /// Seconds that all reads and copies took together.
    pub load_seconds_total: f64,
}

impl AdapterStatus {
    /// Adds the counters that the same adapter has in another engine.
    pub(crate) fn add(&mut self, other: &AdapterStatus) {
        self.residency = self.residency.max(other.residency);
        self.num_running += other.num_running;
        self.num_waiting += other.num_waiting;
        self.requests_total += other.requests_total;
        self.device_hits_total += other.device_hits_total;
        self.device_loads_total += other.device_loads_total;
        self.disk_reads_total += other.disk_reads_total;
        self.load_seconds_total += other.load_seconds_total;
    }
}

/// Why an adapter was not added, removed or found.
#[derive(Debug, Error)]
pub enum AdapterError {
    /// The engine serves none.
    #[error("this server runs without LoRA; start it with --enable-lora")]
    Disabled,
    /// A name that cannot be one.
    #[error("adapter name `{name}` {limit}")]
    BadName {
        /// What was given, cut to a length that can be shown.
        name: String,
        /// The fault.
        limit: &'static str,
    },
    /// The name is taken.
    #[error("an adapter `{name}` is there already; unload it first, or choose another name")]
    Exists {
        /// The name.
        name: String,
    },
    /// There is none of that name.
    #[error("there is no adapter `{name}`; {}", known_names(.known))]
    Unknown {
        /// The name.
        name: String,
        /// Those that are there, some of them.
        known: Vec<String>,
    },
    /// Its files are wrong for this server or this model.
    #[error(transparent)]
    Files(#[from] ModelError),
    /// Its file is another one than when it was added.
    #[error("{path}: the file has changed since the adapter `{name}` was loaded; unload the adapter and load it again")]
    Changed {
        /// The name.
        name: String,
        /// The folder.
        path: PathBuf,
    },
    /// A bug: loading it ended in a panic, which is in the log.
    #[error("adapter `{name}`: loading it failed with a panic; see the log")]
    Panicked {
        /// The name.
        name: String,
    },
    /// The device did not take it.
    #[error("adapter `{name}`: device: {error}")]
    Device {
        /// The name.
        name: String,
        /// What the device says.
        error: halyard_platform_api::Error,
    },
}

fn known_names(known: &[String]) -> String {
    match known {
        [] => "none is loaded".to_string(),
        some => format!("loaded are: {}", some.join(", ")),
    }
}

/// Whether a name can be an adapter's.
///
/// # Errors
/// [`AdapterError::BadName`].
pub(crate) fn check_name(name: &str) -> Result<(), AdapterError> {
    let limit = if name.is_empty() {
        "is empty"
    } else if name.len() > MAX_NAME_BYTES {
        "is longer than 256 bytes"
    } else if name.chars().any(char::is_control) {
        "holds a control character"
    } else {
        return Ok(());
    };
    let name = name.chars().take(64).flat_map(char::escape_debug).collect();
    Err(AdapterError::BadName { name, limit })
}
