//! Reading this repository: which files belong to it, their texts, and what cargo says of its packages.
//!
//! Untracked files that git does not ignore count too, so that a rule speaks before the commit and not after it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A text file of the repository.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// Relative to the root, with `/`.
    pub path: String,
    /// Contents.
    pub text: String,
}

/// The repository's root.
pub fn root() -> PathBuf {
    // Cargo names the package at run time too: a test built in one checkout and reused from a shared target folder in
    // another must look at the other.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    here.ancestors().nth(2).unwrap_or(&here).to_path_buf()
}

/// Every text file; binary ones (NUL or not UTF-8) are left out. Pictures come without a text: links name them.
///
/// # Errors
/// A folder that cannot be listed.
pub fn text_files(root: &Path) -> std::io::Result<Vec<SourceFile>> {
    let paths = match git_paths(root) {
        Some(paths) => paths,
        None => walk(root)?,
    };
    let read = |path: String| {
        // A file that is deleted but still in the index is no longer part of the tree.
        let bytes = std::fs::read(root.join(&path)).ok()?;
        if path.ends_with(".png") {
            let text = String::new();
            return Some(SourceFile { path, text });
        }
        let text = String::from_utf8(bytes).ok()?;
        (!text.contains('\0')).then_some(SourceFile { path, text })
    };
    Ok(paths.into_iter().filter_map(read).collect())
}

/// Tracked and not ignored files; `None` where this is no git checkout.
fn git_paths(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut paths: Vec<String> = text
        .split('\0')
        .filter(|path| !path.is_empty())
        .map(str::to_string)
        .collect();
    paths.sort();
    paths.dedup();
    (output.status.success() && !paths.is_empty()).then_some(paths)
}

/// The same for an unpacked archive: everything but build output and hidden folders other than `.ci` and `.github`.
fn walk(root: &Path) -> std::io::Result<Vec<String>> {
    let (mut folders, mut paths) = (vec![root.to_path_buf()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let hidden = name.to_string_lossy().starts_with('.') && name != ".ci" && name != ".github";
            if entry.file_type()?.is_dir() {
                if !hidden && name != "target" && name != "__pycache__" {
                    folders.push(entry.path());
                }
            } else if let Ok(path) = entry.path().strip_prefix(root) {
                paths.push(path.to_string_lossy().into_owned());
            }
        }
    }
    paths.sort();
    Ok(paths)
}

/// What `cargo metadata` says of the workspace's own packages.
///
/// # Errors
/// Cargo's own words.
pub fn metadata(root: &Path) -> Result<serde_json::Value, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())
}
