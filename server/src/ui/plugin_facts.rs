//! The plugins on the search path for the page: each file's stages of loading up to where its code would run, and how
//! this server uses it. Reads files; loads and runs none.

use std::path::PathBuf;

use halyard_platform_api::{Capabilities, DeviceInfo};
use halyard_plugin_host::{Catalog, Kind, Rejection, SearchPath, StageReport};
use serde::Serialize;

/// A device that the model is on.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceFacts {
    /// Product name.
    pub name: String,
    /// Driver, instruction set.
    pub detail: String,
    /// Memory in bytes.
    pub total_memory_bytes: u64,
    /// Whether host and device share it.
    pub unified_memory: bool,
    /// Cores or multiprocessors.
    pub num_compute_units: u32,
    /// Names of the claimed abilities.
    pub capabilities: Vec<&'static str>,
}

impl DeviceFacts {
    /// Of a device as its platform describes it.
    pub(super) fn new(info: &DeviceInfo) -> DeviceFacts {
        let claimed = Capabilities::NAMES
            .iter()
            .filter(|(_, one)| info.capabilities.has(*one));
        DeviceFacts {
            name: info.name.clone(),
            detail: info.detail.clone(),
            total_memory_bytes: info.total_memory_bytes,
            unified_memory: info.unified_memory,
            num_compute_units: info.num_compute_units,
            capabilities: claimed.map(|(name, _)| *name).collect(),
        }
    }
}

/// What this server does with a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PluginUse {
    /// It is loaded and used.
    InUse,
    /// Its file passes every check; nothing asked for it, or another platform was chosen.
    NotUsed,
    /// A file of the same name comes before it on the search path.
    Shadowed,
    /// A stage of loading refused it.
    Refused,
}

/// A plugin file on the search path.
#[derive(Clone, Debug, Serialize)]
pub struct PluginFacts {
    /// Name; the file's for one without a readable manifest.
    pub name: String,
    /// Kind.
    pub kind: Option<Kind>,
    /// Version.
    pub version: Option<String>,
    /// One line of description.
    pub about: Option<String>,
    /// Its library.
    pub path: PathBuf,
    /// What this server does with it.
    pub state: PluginUse,
    /// Why it is not used, in a sentence.
    pub reason: Option<String>,
    /// The stages of loading, up to the one that fails or to where the library's code would run.
    pub stages: Vec<StageReport>,
}

/// Every plugin of `search`, by name; `used` names those that run, `rejected` the platforms that were not chosen. Reads
/// the files: blocks.
pub fn plugin_facts(search: &SearchPath, used: &[(Kind, String)], rejected: &[Rejection]) -> Vec<PluginFacts> {
    let catalog = Catalog::discover(search);
    let mut facts: Vec<PluginFacts> = Vec::new();
    for candidate in catalog.candidates() {
        let manifest = &candidate.manifest;
        let stages = catalog.file_stages(candidate);
        let failed = stages.iter().find(|stage| !stage.passed);
        let is_used = used
            .iter()
            .any(|(kind, name)| *kind == manifest.kind && *name == manifest.name);
        let (state, reason) = match (&candidate.shadowed_by, failed) {
            (Some(first), _) => (PluginUse::Shadowed, Some(format!("{} comes first", first.display()))),
            (None, Some(failed)) => (PluginUse::Refused, Some(failed.detail.clone())),
            (None, None) if is_used => (PluginUse::InUse, None),
            (None, None) => (
                PluginUse::NotUsed,
                Some(why_not_used(manifest.kind, &manifest.name, rejected)),
            ),
        };
        facts.push(PluginFacts {
            name: manifest.name.clone(),
            kind: Some(manifest.kind),
            version: Some(manifest.version.clone()),
            about: Some(manifest.about.clone()),
            path: candidate.path.clone(),
            state,
            reason,
            stages,
        });
    }
    facts.extend(catalog.failures().map(|failure| {
        let name = failure.path.file_name().unwrap_or_default();
        PluginFacts {
            name: name.to_string_lossy().into_owned(),
            kind: None,
            version: None,
            about: None,
            path: failure.path.clone(),
            state: PluginUse::Refused,
            reason: Some(failure.to_string()),
            stages: vec![failure.into()],
        }
    }));
    facts.sort_by(|a, b| (a.kind.is_none(), &a.name).cmp(&(b.kind.is_none(), &b.name)));
    facts
}

fn why_not_used(kind: Kind, name: &str, rejected: &[Rejection]) -> String {
    let known = rejected.iter().find(|rejection| rejection.name == name);
    match (kind, known) {
        (Kind::Platform, Some(rejection)) => rejection.reason.clone(),
        (Kind::Platform, None) => "another platform was asked for by name".to_owned(),
        _ => "no flag of this server names it".to_owned(),
    }
}
