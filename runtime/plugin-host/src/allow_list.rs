//! The allow-list (`plugins.lock`): when there is one, only libraries with a listed SHA-256 load.
//!
//! TOML: a table `plugins` from a library's path, its file name or its plugin's name to the hexadecimal SHA-256 of the
//! file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::PluginError;

/// The libraries that may load.
#[derive(Clone, Debug)]
pub struct AllowList {
    path: PathBuf,
    plugins: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    plugins: BTreeMap<String, String>,
}

impl AllowList {
    /// Reads the list at `path`.
    ///
    /// # Errors
    /// [`PluginError::AllowList`] for a missing or malformed file.
    pub fn read(path: &Path) -> Result<AllowList, PluginError> {
        let text = std::fs::read_to_string(path).map_err(|e| PluginError::AllowList {
            path: path.to_path_buf(),
            reason: e.to_string(),
        })?;
        AllowList::parse(&text, path)
    }

    /// The list of a TOML text; `path` is for messages.
    ///
    /// # Errors
    /// [`PluginError::AllowList`] for a malformed text, naming key and value.
    pub fn parse(text: &str, path: &Path) -> Result<AllowList, PluginError> {
        let broken = |reason: String| PluginError::AllowList {
            path: path.to_path_buf(),
            reason,
        };
        let document: Document = toml::from_str(text).map_err(|e| broken(e.to_string()))?;
        for (key, value) in &document.plugins {
            if value.len() != 64 || !value.chars().all(|c| c.is_ascii_hexdigit()) {
                return Err(broken(format!(
                    "`{key}` = {value:?} is not a SHA-256 of 64 hexadecimal digits"
                )));
            }
        }
        Ok(AllowList {
            path: path.to_path_buf(),
            plugins: document.plugins,
        })
    }

    /// Where the list stands.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether `library` with `sha256` may load: every entry that names it must have this sum, and there must be one.
    ///
    /// # Errors
    /// What was found, in words.
    pub fn check(&self, library: &Path, plugin: &str, sha256: &str) -> Result<(), String> {
        let file_name = library.file_name().unwrap_or_default().to_string_lossy();
        let keys = [&*library.to_string_lossy(), &*file_name, plugin];
        let mut listed = false;
        for (key, sum) in &self.plugins {
            if keys.contains(&key.as_str()) {
                listed = true;
                if !sum.eq_ignore_ascii_case(sha256) {
                    return Err(format!("sha256 {sha256}; `{key}` is listed with {sum}"));
                }
            }
        }
        if listed {
            Ok(())
        } else {
            Err(format!("sha256 {sha256}, which is not listed"))
        }
    }
}
