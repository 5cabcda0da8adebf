//! A LoRA resolver over a folder: the adapter `NAME` is the folder `ROOT/NAME` with its PEFT files. Also the example to
//! copy for a resolver of one's own.
//!
//! Configuration: `{"root": "/srv/adapters"}`. Nothing outside the root is ever answered: names are plain parts
//! (`team/summary` is fine, `..`, absolute paths and hidden parts are not), and neither the folder nor a file in it may
//! be a link that leads out of the root.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use halyard_platform_api::lora_resolver::{LoraQuery, LoraResolver, LoraResolverFactory};
use halyard_platform_api::{Error, Result, Status};
use serde::Deserialize;

halyard_platform_api::export_lora_resolver! {
    name: "filesystem",
    version: env!("CARGO_PKG_VERSION"),
    about: "the adapter NAME is the folder ROOT/NAME",
    factory: FilesystemFactory,
}

/// The file that makes a folder an adapter's.
const CONFIG_FILE: &str = "adapter_config.json";
/// Longest name in bytes.
const MAX_NAME_BYTES: usize = 255;
/// Most parts of a name: `organisation/name`, and one folder more.
const MAX_PARTS: usize = 3;

/// Makes the resolvers.
pub struct FilesystemFactory;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    root: PathBuf,
}

impl LoraResolverFactory for FilesystemFactory {
    fn create(&self, config: &str) -> Result<Arc<dyn LoraResolver>> {
        let config: Config = serde_json::from_str(config).map_err(|e| {
            Error::invalid(format!(
                "configuration {config}: {e}; the only key is `root`, an absolute path of a folder"
            ))
        })?;
        let bad = |found: &dyn std::fmt::Display| {
            let root = config.root.display();
            Error::invalid(format!(
                "configuration key `root`: {root}: {found}; give an absolute path of a readable folder"
            ))
        };
        if !config.root.is_absolute() {
            return Err(bad(&"a relative path"));
        }
        let root = config.root.canonicalize().map_err(|e| bad(&e))?;
        std::fs::read_dir(&root).map_err(|e| bad(&e))?;
        Ok(Arc::new(Filesystem { root }))
    }
}

/// A resolver over one folder.
struct Filesystem {
    /// Without links.
    root: PathBuf,
}

impl LoraResolver for Filesystem {
    fn resolve(&self, query: &LoraQuery<'_>) -> Result<Option<PathBuf>> {
        let name = plain_name(query.name)?;
        let Some(folder) = self.contained(&self.root.join(name), query.name)? else {
            return Ok(None);
        };
        if !folder.is_dir() {
            return Ok(None);
        }
        if self.contained(&folder.join(CONFIG_FILE), query.name)?.is_none() {
            return Ok(None);
        }
        // Whatever the loader will open must lie in the root, too.
        let entries = std::fs::read_dir(&folder).map_err(|e| unreadable(query.name, &e))?;
        for entry in entries {
            let entry = entry.map_err(|e| unreadable(query.name, &e))?;
            self.contained(&entry.path(), query.name)?;
        }
        Ok(Some(folder))
    }
}

impl Filesystem {
    /// The path without links; `None` where nothing is there.
    ///
    /// # Errors
    /// `Denied` for a path whose links lead out of the root; `Unavailable` for one that cannot be read.
    fn contained(&self, path: &Path, name: &str) -> Result<Option<PathBuf>> {
        let real = match path.canonicalize() {
            Ok(real) => real,
            // A link to nowhere counts as nothing; so does a part of the name that is a file.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
            Err(e) => return Err(unreadable(name, &e)),
        };
        // The root itself is no adapter, and a link to it would make every adapter one's own part.
        if real == self.root || !real.starts_with(&self.root) {
            let message =
                format!("the adapter {name:?} leads out of the adapters' folder through a link; it is not served");
            return Err(Error::new(Status::Denied, message));
        }
        Ok(Some(real))
    }
}

fn unreadable(name: &str, error: &std::io::Error) -> Error {
    Error {
        status: Status::Unavailable,
        vendor_code: error.raw_os_error().map_or(0, i64::from),
        message: format!("the adapter {name:?} cannot be read: {error}"),
    }
}

/// The name as a relative path of plain parts.
///
/// # Errors
/// `Denied`, saying which part is not.
fn plain_name(name: &str) -> Result<&Path> {
    let denied = |why: &str| {
        let shown: String = name.chars().take(80).collect();
        let message = format!("the adapter name {shown:?} {why}; send a name such as `summary` or `team/summary`");
        Err(Error::new(Status::Denied, message))
    };
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return denied(&format!("has {} bytes, not 1 to {MAX_NAME_BYTES}", name.len()));
    }
    if name.chars().any(|c| c.is_control() || c == '\\') {
        return denied("has a control character or a backslash");
    }
    if name.split('/').any(|part| part.is_empty() || part.starts_with('.')) {
        return denied("has an empty part, or one that begins with a dot");
    }
    let path = Path::new(name);
    let parts = path.components();
    if !parts.clone().all(|part| matches!(part, Component::Normal(_))) {
        return denied("is not a relative path of plain parts");
    }
    if parts.count() > MAX_PARTS {
        return denied(&format!("has more than {MAX_PARTS} parts"));
    }
    Ok(path)
}
