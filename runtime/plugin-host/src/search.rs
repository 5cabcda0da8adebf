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

/// What every user of the machine may write so that another plugin is loaded: a library, its folder, or a folder above
/// that, by the path that was given as by the one that links lead to.
pub(crate) fn open_to_all(libraries: &[PathBuf]) -> Option<PathBuf> {
    const OTHERS_WRITE: u32 = 0o002;
    // In such a folder (/tmp) only owners rename and remove what is there. New libraries may still come into it.
    const STICKY: u32 = 0o1000;
    let is_open = |path: &Path, distance: usize| {
        let mode = std::fs::metadata(path).map_or(0, |data| data.permissions().mode());
        mode & OTHERS_WRITE != 0 && (distance <= 1 || mode & STICKY == 0)
    };
    let paths = libraries
        .iter()
        .flat_map(|library| [std::path::absolute(library), library.canonicalize()]);
    paths.flatten().find_map(|path| {
        let mut parts = path.ancestors().enumerate();
        let (_, open) = parts.find(|(distance, part)| is_open(part, *distance))?;
        Some(open.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, create_dir_all, remove_dir_all, set_permissions, write};

    use super::*;

    #[test]
    fn what_everybody_writes_is_seen() {
        let temporary = std::env::temp_dir().canonicalize().expect("a folder");
        let above = temporary.join(format!("halyard-writable-{}", std::process::id()));
        let folder = above.join("plugins");
        let library = folder.join("libplugin.so");
        create_dir_all(&folder).expect("a folder");
        write(&library, "").expect("ours");
        let set = |modes: [u32; 3]| {
            for (path, mode) in [&above, &folder, &library].into_iter().zip(modes) {
                set_permissions(path, Permissions::from_mode(mode)).expect("ours");
            }
        };
        let found = || open_to_all(std::slice::from_ref(&library));
        set([0o755, 0o755, 0o644]);
        let temporary_is_open = found();
        let cases: [([u32; 3], &PathBuf); 6] = [
            ([0o755, 0o777, 0o644], &folder),
            ([0o755, 0o1777, 0o644], &folder),
            ([0o777, 0o755, 0o644], &above),
            ([0o755, 0o755, 0o666], &library),
            ([0o777, 0o777, 0o644], &folder),
            ([0o777, 0o777, 0o777], &library),
        ];
        for (modes, expected) in cases {
            set(modes);
            assert_eq!(found().as_ref(), Some(expected), "{modes:?}");
        }
        for modes in [[0o775, 0o775, 0o664], [0o1777, 0o755, 0o644]] {
            set(modes);
            assert_eq!(found(), temporary_is_open, "{modes:?}");
        }
        // A link in an open folder to a library that only its owner writes.
        set([0o755, 0o755, 0o644]);
        let open = above.join("open");
        let link = open.join("liblink.so");
        create_dir_all(&open).expect("a folder");
        std::os::unix::fs::symlink(&library, &link).expect("a link");
        set_permissions(&open, Permissions::from_mode(0o777)).expect("ours");
        assert_eq!(open_to_all(&[link]).as_deref(), Some(open.as_path()));
        remove_dir_all(&above).expect("ours");
    }
}
