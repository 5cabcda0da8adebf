//! Clients of other projects, from their registries: installed once into a folder of the target, by name and version.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a command and returns what it printed.
///
/// # Errors
/// Its words, when it fails.
pub fn output(command: &mut Command, step: &str) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{step}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{step} failed:\n{text}\n{errors}"))
}

/// A Python with these packages, in a virtual environment under `folder`.
///
/// # Errors
/// Why it cannot be had.
pub fn python_with(folder: &Path, packages: &[&str]) -> Result<PathBuf, String> {
    let folder = folder.join(packages.join("+"));
    let python = folder.join("bin").join("python");
    installed_once(&folder, || {
        let make = ["-m", "venv", "--clear"];
        let mut venv = Command::new("python3");
        output(venv.args(make).arg(&folder), "making a virtual environment")?;
        let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        let mut pip = Command::new(&python);
        output(pip.args(install).args(packages), "installing packages")
    })?;
    Ok(python)
}

/// A folder in which Node finds these packages, under `folder`.
///
/// # Errors
/// Why it cannot be had.
pub fn node_with(folder: &Path, packages: &[&str]) -> Result<PathBuf, String> {
    let folder = folder.join(packages.join("+").replace('/', "_"));
    installed_once(&folder, || {
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let install = [
            "install",
            "--silent",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "--prefix",
        ];
        let mut npm = Command::new("npm");
        output(npm.args(install).arg(&folder).args(packages), "installing packages")
    })?;
    Ok(folder)
}

/// Installs into a folder, unless that has been done. Tests that want the same folder at the same time wait for the
/// first of them.
fn installed_once(folder: &Path, install: impl FnOnce() -> Result<String, String>) -> Result<(), String> {
    let words = |error: std::io::Error| format!("{}: {error}", folder.display());
    let parent = folder.parent().unwrap_or(folder);
    std::fs::create_dir_all(parent).map_err(words)?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let lock = std::fs::File::create(parent.join(format!("{name}.lock"))).map_err(words)?;
    lock.lock().map_err(words)?;
    let done = folder.join("installed");
    if !done.exists() {
        install()?;
        std::fs::write(done, "").map_err(words)?;
    }
    Ok(())
}
