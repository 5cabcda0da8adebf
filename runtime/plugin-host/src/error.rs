//! The crate's errors. A failed load names its stage, the file, what was expected, what was found, and what to do.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::manifest::Kind;

/// The steps of a load, in order. No foreign code runs before `opened`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// The file is there and a library.
    Found,
    /// Its manifest is readable and of an ABI version that this host loads.
    Manifest,
    /// The allow-list, if there is one, has it.
    Allowed,
    /// Built for this machine, whose processor has the features it needs.
    Architecture,
    /// The libraries that it needs are there.
    Libraries,
    /// The system's loader took it.
    Opened,
    /// Its entry symbol is there.
    Entry,
    /// Versions fit and every required function is there.
    Negotiated,
    /// Its instance runs.
    Started,
    /// It has a device (platforms only).
    Devices,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Found => "found",
            Stage::Manifest => "manifest",
            Stage::Allowed => "allowed",
            Stage::Architecture => "architecture",
            Stage::Libraries => "libraries",
            Stage::Opened => "opened",
            Stage::Entry => "entry",
            Stage::Negotiated => "negotiated",
            Stage::Started => "started",
            Stage::Devices => "devices",
        })
    }
}

/// A stage that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{}stage `{stage}`, {}: expected {expected}; found {found}; {remedy}", self.prefix(), path.display())]
pub struct StageFailure {
    /// Where.
    pub stage: Stage,
    /// The plugin's name, once the manifest gave it.
    pub plugin: Option<String>,
    /// The library; `(linked)` for a linked plugin.
    pub path: PathBuf,
    /// What the host needs.
    pub expected: String,
    /// What there is.
    pub found: String,
    /// What to do.
    pub remedy: String,
}

impl StageFailure {
    fn prefix(&self) -> String {
        match &self.plugin {
            Some(name) => format!("plugin `{name}`, "),
            None => String::new(),
        }
    }
}

/// One line of `plugins why`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StageReport {
    /// Which stage.
    pub stage: Stage,
    /// It passed.
    pub passed: bool,
    /// What was found, and for a failed stage what was expected and what to do.
    pub detail: String,
}

impl From<&StageFailure> for StageReport {
    fn from(failure: &StageFailure) -> StageReport {
        StageReport {
            stage: failure.stage,
            passed: false,
            detail: format!(
                "{}: expected {}; found {}; {}",
                failure.path.display(),
                failure.expected,
                failure.found,
                failure.remedy
            ),
        }
    }
}

/// A platform that was not chosen, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rejection {
    /// Its name.
    pub name: String,
    /// Its library.
    pub path: Option<PathBuf>,
    /// Why not.
    pub reason: String,
}

/// The error of this crate's functions.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// A plugin did not load.
    #[error(transparent)]
    Stage(Box<StageFailure>),

    /// No plugin of this kind has the name asked for.
    #[error(
        "no {kind} plugin is named `{asked}`{}; known: {}{}",
        nearest_words(nearest),
        known_words(known),
        folder_words(searched)
    )]
    UnknownName {
        /// The kind asked for.
        kind: Kind,
        /// The name asked for.
        asked: String,
        /// The most similar known name.
        nearest: Option<String>,
        /// All known names of the kind.
        known: Vec<String>,
        /// Where was looked.
        searched: Vec<PathBuf>,
    },

    /// No plugin of any kind, and no file of the folders, has the name asked for.
    #[error(
        "no plugin of any kind, and no library of these folders, is named `{asked}`{}; found: {}{}",
        nearest_words(nearest),
        known_words(found),
        folder_words(searched)
    )]
    UnknownPlugin {
        /// The name asked for.
        asked: String,
        /// The most similar name that was found.
        nearest: Option<String>,
        /// Plugins with their kinds, and files that are none.
        found: Vec<String>,
        /// Where was looked.
        searched: Vec<PathBuf>,
    },

    /// No platform was named and none is usable.
    #[error("no platform is usable{}{}", rejection_words(rejected), folder_words(searched))]
    NoPlatform {
        /// Each known platform and its reason.
        rejected: Vec<Rejection>,
        /// Where was looked.
        searched: Vec<PathBuf>,
    },

    /// An allow-list that cannot be used.
    #[error("allow-list {}: {reason}", path.display())]
    AllowList {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },

    /// A plugin of another kind than the one wanted.
    #[error("plugin `{name}` is a {found} plugin, not a {wanted}")]
    WrongKind {
        /// Its name.
        name: String,
        /// The kind it is.
        found: Kind,
        /// The kind wanted.
        wanted: Kind,
    },
}

impl From<StageFailure> for PluginError {
    fn from(failure: StageFailure) -> PluginError {
        PluginError::Stage(Box::new(failure))
    }
}

impl From<Box<StageFailure>> for PluginError {
    fn from(failure: Box<StageFailure>) -> PluginError {
        PluginError::Stage(failure)
    }
}

fn nearest_words(nearest: &Option<String>) -> String {
    nearest
        .as_ref()
        .map(|name| format!("; did you mean `{name}`?"))
        .unwrap_or_default()
}

fn known_words(known: &[String]) -> String {
    if known.is_empty() {
        "none".to_string()
    } else {
        known.join(", ")
    }
}

fn folder_words(searched: &[PathBuf]) -> String {
    if searched.is_empty() {
        return "; no folder was searched: give --plugin FILE or --plugin-dir FOLDER".to_string();
    }
    let folders: Vec<String> = searched.iter().map(|p| p.display().to_string()).collect();
    format!("; searched: {}", folders.join(", "))
}

fn rejection_words(rejected: &[Rejection]) -> String {
    if rejected.is_empty() {
        return ": no platform plugin was found".to_string();
    }
    rejected
        .iter()
        .map(|r| format!("\n  {}: {}", r.name, r.reason))
        .collect()
}
