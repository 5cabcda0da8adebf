//! Finds, verifies, loads and chooses plugins, and gives them back as the contract's traits.
//!
//! The only crate that opens libraries. It never reads the environment (search paths are given to it), never searches
//! the working directory or a model's folder, and runs no foreign code before a library's manifest has been read and
//! checked.
//!
//! Reading order: [`search`] (where), [`elf`] and [`manifest`] (facts in the file), [`catalog`] (all candidates),
//! [`load`] (the stages), [`select`] (choosing a platform), [`wire`] (the traits over the tables), [`report`] (tables
//! and JSON).

pub mod allow_list;
pub mod catalog;
mod cpu_features;
pub mod elf;
pub mod error;
mod host_table;
pub mod isolation;
pub mod load;
pub mod manifest;
pub mod report;
pub mod search;
pub mod select;
mod watch;
pub mod wire;

pub use allow_list::AllowList;
pub use catalog::{Candidate, Catalog};
pub use error::{PluginError, Rejection, Stage, StageFailure, StageReport};
pub use isolation::{IsolatedStatLogger, IsolatedStatLoggerFactory, IsolationOptions, run_hook_child};
pub use load::Plugin;
pub use manifest::{Kind, Manifest};
pub use report::{InspectReport, PlatformReport, PluginReport, inspect, platform_reports, plugin_reports};
pub use search::{SearchPath, Source};
pub use select::{Selected, select_platform};
pub use wire::{
    HostIoProcessorFactory, HostLogitsProcessorFactory, HostLoraResolverFactory, HostPlatform, HostStatLoggerFactory,
};
