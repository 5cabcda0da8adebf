//! Where plugins are looked for, and in which order. The first of a name wins; later ones are shadowed and reported.
//!
//! 1. files given one by one (`--plugin`); a broken one is an error
//! 2. folders given (`--plugin-dir`); a missing one is an error
//! 3. the folders of `HALYARD_PLUGIN_PATH`, whose value the server passes in
//! 4. the folder of the program itself
//! 5. user folders, then system folders
//!
//! Never the working directory and never a model's folder: a relative folder in the variable is refused. In folders
//! only `*.so` files with a manifest section count, in order of their names; others are passed over.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::allow_list::AllowList;

/// What to search; the server fills it from flags, environment and platform conventions.
#[derive(Clone, Debug, Default)]
pub struct SearchPath {
    /// Single libraries.
    pub plugins: Vec<PathBuf>,
    /// Folders from flags.
    pub plugin_dirs: Vec<PathBuf>,
    /// The value of `HALYARD_PLUGIN_PATH`: folders separated by `:`.
    pub path_variable: Option<OsString>,
    /// The program's own folder.
    pub program_folder: Option<PathBuf>,
    /// The user's folders.
    pub user_dirs: Vec<PathBuf>,
    /// The system's folders.
    pub system_dirs: Vec<PathBuf>,
    /// What may load; everything without one.
    pub allow_list: Option<AllowList>,
}

/// Which part of the search path a library comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Named itself.
    Explicit,
    /// In a given folder.
    PluginDir,
    /// In a folder of the variable.
    PathVariable,
    /// In the program's folder.
    BesideBinary,
    /// In a user folder.
    User,
    /// In a system folder.
    System,
}

impl SearchPath {
    /// The folders in order, and the entries of the variable that are refused.
    pub(crate) fn folders(&self) -> (Vec<(Source, PathBuf)>, Vec<PathBuf>) {
        let mut folders = Vec::new();
        let mut refused = Vec::new();
        let mut add = |source, all: &[PathBuf]| {
            folders.extend(all.iter().map(|folder| (source, folder.clone())));
        };
        add(Source::PluginDir, &self.plugin_dirs);
        let entries = self.path_variable.iter().flat_map(std::env::split_paths);
        for folder in entries.filter(|f| !f.as_os_str().is_empty()) {
            if folder.is_absolute() {
                add(Source::PathVariable, &[folder]);
            } else {
                refused.push(folder);
            }
        }
        add(Source::BesideBinary, self.program_folder.as_slice());
        add(Source::User, &self.user_dirs);
        add(Source::System, &self.system_dirs);
        (folders, refused)
    }
}

/// The `*.so` files of a folder, by name.
pub(crate) fn libraries_in(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "so") && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Whether every user of the machine may put libraries into a folder, or others into their place.
pub(crate) fn is_world_writable(folder: &Path) -> bool {
    const OTHERS_WRITE: u32 = 0o002;
    std::fs::metadata(folder).is_ok_and(|data| data.permissions().mode() & OTHERS_WRITE != 0)
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, create_dir_all, remove_dir, set_permissions};

    use super::*;

    #[test]
    fn a_folder_that_everybody_writes_is_seen() {
        let folder = std::env::temp_dir().join(format!("halyard-writable-{}", std::process::id()));
        create_dir_all(&folder).expect("a folder");
        for (mode, expected) in [(0o755, false), (0o775, false), (0o777, true), (0o1777, true)] {
            set_permissions(&folder, Permissions::from_mode(mode)).expect("ours");
            assert_eq!(is_world_writable(&folder), expected, "{mode:o}");
        }
        remove_dir(&folder).expect("empty");
    }
}
