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

/// What every user of the machine may write so that another plugin is loaded: the folder, one of those above it, or a
/// library in it.
pub(crate) fn open_to_all(folder: &Path, libraries: &[PathBuf]) -> Option<PathBuf> {
    const OTHERS_WRITE: u32 = 0o002;
    // In such a folder (/tmp) only owners rename and remove what is there.
    const STICKY: u32 = 0o1000;
    let mode = |path: &Path| std::fs::metadata(path).map_or(0, |data| data.permissions().mode());
    let folder = folder.canonicalize().ok()?;
    let above = folder.ancestors().skip(1);
    let open_above = above.filter(|path| mode(path) & (OTHERS_WRITE | STICKY) == OTHERS_WRITE);
    let inside = std::iter::once(folder.as_path()).chain(libraries.iter().map(PathBuf::as_path));
    let mut open = inside.filter(|path| mode(path) & OTHERS_WRITE != 0).chain(open_above);
    open.next().map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, create_dir_all, remove_dir_all, set_permissions, write};

    use super::*;

    #[test]
    fn what_everybody_writes_is_seen() {
        let above = std::env::temp_dir().join(format!("halyard-writable-{}", std::process::id()));
        let folder = above.join("plugins");
        let library = folder.join("libplugin.so");
        create_dir_all(&folder).expect("a folder");
        write(&library, "").expect("ours");
        let above = above.canonicalize().expect("a folder");
        let folder = above.join("plugins");
        let cases: [(u32, u32, u32, Option<&Path>); 8] = [
            (0o755, 0o755, 0o644, None),
            (0o775, 0o775, 0o664, None),
            (0o755, 0o777, 0o644, Some(&folder)),
            (0o755, 0o1777, 0o644, Some(&folder)),
            (0o777, 0o755, 0o644, Some(&above)),
            (0o1777, 0o755, 0o644, None),
            (0o755, 0o755, 0o666, Some(&library)),
            (0o777, 0o777, 0o777, Some(&folder)),
        ];
        for (mode_above, mode, mode_inside, expected) in cases {
            for (path, mode) in [(&above, mode_above), (&folder, mode), (&library, mode_inside)] {
                set_permissions(path, Permissions::from_mode(mode)).expect("ours");
            }
            let found = open_to_all(&folder, std::slice::from_ref(&library));
            assert_eq!(found.as_deref(), expected, "{mode_above:o} {mode:o} {mode_inside:o}");
        }
        remove_dir_all(&above).expect("ours");
    }
}
