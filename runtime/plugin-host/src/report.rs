//! What `platforms`, `plugins list` and `plugins inspect` show, as data for a table or JSON.

use std::path::{Path, PathBuf};

use halyard_platform_api::{Capabilities, DeviceInfo, Platform};
use serde::Serialize;

use crate::catalog::Catalog;
use crate::elf::{ElfFacts, sha256_of};
use crate::error::{PluginError, Stage, StageFailure};
use crate::load;
use crate::manifest::{Kind, Manifest};
use crate::search::Source;

/// A device of a platform.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceReport {
    /// Its index, for the flag that chooses one.
    pub index: u32,
    /// Product name.
    pub name: String,
    /// Driver, instruction set.
    pub detail: String,
    /// Memory in bytes.
    pub total_memory_bytes: u64,
    /// Free memory in bytes; none when the device could not be opened.
    pub free_memory_bytes: Option<u64>,
    /// Why the device could not be opened.
    pub reason: Option<String>,
    /// Names of the claimed abilities.
    pub capabilities: Vec<String>,
    /// Activation types.
    pub compute_dtypes: Vec<String>,
    /// KV cache types.
    pub kv_dtypes: Vec<String>,
    /// Names of the attention backends, highest priority first.
    pub attention_backends: Vec<String>,
}

/// A platform and its devices, or why there are none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlatformReport {
    /// Name.
    pub name: String,
    /// Version.
    pub version: String,
    /// One line of description.
    pub about: String,
    /// Declared priority.
    pub priority: i32,
    /// Its library.
    pub path: PathBuf,
    /// The devices.
    pub devices: Vec<DeviceReport>,
    /// Why it cannot be used.
    pub reason: Option<String>,
}

/// A plugin file on the search path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PluginReport {
    /// Name; the file's for one without a readable manifest.
    pub name: String,
    /// Kind.
    pub kind: Option<Kind>,
    /// Version.
    pub version: Option<String>,
    /// Its library.
    pub path: PathBuf,
    /// Where it was found.
    pub source: Option<Source>,
    /// The library that came first with the same name.
    pub shadowed_by: Option<PathBuf>,
    /// Why it cannot be used, as far as the file tells.
    pub reason: Option<String>,
}

/// What a library says of itself, read without running it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InspectReport {
    /// The library.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its SHA-256, for an allow-list.
    pub sha256: String,
    /// Machine, word size, byte order.
    pub architecture: String,
    /// Whether it is this machine's.
    pub runs_here: bool,
    /// Libraries that it needs.
    pub needed: Vec<String>,
    /// Its manifests: kind, name, versions, entry symbol, processor features.
    pub manifests: Vec<Manifest>,
}

/// Every platform on the search path, by name; loads each and opens its devices.
pub fn platform_reports(catalog: &Catalog) -> Vec<PlatformReport> {
    let mut reports: Vec<PlatformReport> = catalog
        .usable(Kind::Platform)
        .map(|candidate| {
            let found = catalog.load(candidate).and_then(|plugin| {
                let platform = plugin.platform()?;
                let devices = load::devices(&plugin, &*platform)?;
                Ok(device_reports(&*platform, &devices))
            });
            let (devices, reason) = match found {
                Ok(devices) => (devices, None),
                Err(error) => (Vec::new(), Some(error.to_string())),
            };
            PlatformReport {
                name: candidate.manifest.name.clone(),
                version: candidate.manifest.version.clone(),
                about: candidate.manifest.about.clone(),
                priority: candidate.manifest.priority,
                path: candidate.path.clone(),
                devices,
                reason,
            }
        })
        .collect();
    reports.sort_by(|a, b| a.name.cmp(&b.name));
    reports
}

fn device_reports(platform: &dyn Platform, devices: &[DeviceInfo]) -> Vec<DeviceReport> {
    (0..)
        .zip(devices)
        .map(|(index, info)| {
            let opened = platform.open(index).and_then(|device| {
                let mut backends = device.attention().backends();
                backends.sort_by_key(|b| std::cmp::Reverse(b.priority));
                let names = backends.into_iter().map(|b| b.name).collect();
                Ok((device.memory()?.free_bytes, names))
            });
            let (free_memory_bytes, attention_backends, reason) = match opened {
                Ok((free, names)) => (Some(free), names, None),
                Err(error) => (None, Vec::new(), Some(error.to_string())),
            };
            DeviceReport {
                index,
                name: info.name.clone(),
                detail: info.detail.clone(),
                total_memory_bytes: info.total_memory_bytes,
                free_memory_bytes,
                reason,
                capabilities: Capabilities::NAMES
                    .iter()
                    .filter(|(_, capability)| info.capabilities.has(*capability))
                    .map(|(name, _)| name.to_string())
                    .collect(),
                compute_dtypes: info.compute_dtypes.iter().map(|d| format!("{d:?}")).collect(),
                kv_dtypes: info.kv_dtypes.iter().map(|d| format!("{d:?}")).collect(),
                attention_backends,
            }
        })
        .collect()
}

/// Every plugin on the search path, broken ones included. Runs none.
pub fn plugin_reports(catalog: &Catalog) -> Vec<PluginReport> {
    let mut reports: Vec<PluginReport> = catalog
        .candidates()
        .iter()
        .map(|candidate| PluginReport {
            name: candidate.manifest.name.clone(),
            kind: Some(candidate.manifest.kind),
            version: Some(candidate.manifest.version.clone()),
            path: candidate.path.clone(),
            source: Some(candidate.source),
            shadowed_by: candidate.shadowed_by.clone(),
            reason: catalog.check(candidate).err().map(|e| e.to_string()),
        })
        .collect();
    reports.extend(catalog.failures().map(|failure| {
        PluginReport {
            name: failure
                .path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            kind: None,
            version: None,
            path: failure.path.clone(),
            source: None,
            shadowed_by: None,
            reason: Some(failure.to_string()),
        }
    }));
    reports
}

/// What the library at `path` says of itself.
///
/// # Errors
/// [`PluginError::Stage`] for a file that is no plugin.
pub fn inspect(path: &Path) -> Result<InspectReport, PluginError> {
    let failure = |stage, expected: &str, found: String| StageFailure {
        stage,
        plugin: None,
        path: path.to_path_buf(),
        expected: expected.to_string(),
        found,
        remedy: "give a plugin's shared library (.so)".to_string(),
    };
    let readable = |e: std::io::Error| failure(Stage::Found, "a readable library file", e.to_string());
    let path_found = std::fs::canonicalize(path).map_err(readable)?;
    let elf = ElfFacts::read(&path_found).map_err(|e| failure(Stage::Found, "an ELF shared library", e.to_string()))?;
    let section = elf.manifest_section.as_deref().ok_or_else(|| {
        let found = "a library without one".to_string();
        failure(Stage::Manifest, "a section `.halyard.manifest`", found)
    })?;
    let manifests = Manifest::parse_section(section)
        .map_err(|found| failure(Stage::Manifest, "manifests as JSON objects", found))?;
    let architecture = elf.architecture();
    Ok(InspectReport {
        bytes: std::fs::metadata(&path_found).map_err(readable)?.len(),
        sha256: sha256_of(&path_found).map_err(readable)?,
        runs_here: architecture == ElfFacts::host_architecture() && elf.is_shared,
        architecture,
        needed: elf.needed,
        manifests,
        path: path_found,
    })
}
