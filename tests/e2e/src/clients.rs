//! Clients of other projects, from their registries: installed once into a folder of the target, by name and version.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Between attempts to install: a registry that fails once is asked again.
const PAUSES: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(30)];
/// The last package could not be had: the next is asked for once.
static NO_REGISTRY: AtomicBool = AtomicBool::new(false);

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

/// [`python_with`] for a test: where it cannot be had, the test is skipped and says why.
pub fn python_or_skip(folder: &Path, packages: &[&str]) -> Option<PathBuf> {
    python_with(folder, packages)
        .map_err(|reason| println!("skipped: {} cannot be had: {reason}", packages.join(", ")))
        .ok()
}

/// A Python with these packages, in a virtual environment under `folder`.
///
/// # Errors
/// Why it cannot be had.
pub fn python_with(folder: &Path, packages: &[&str]) -> Result<PathBuf, String> {
    let folder = folder.join(packages.join("+"));
    let python = folder.join("bin").join("python");
    installed_once(&folder, || {
        // The machine's own pip installs: one in the environment would take longer to make than most packages.
        let make = ["-m", "venv", "--clear", "--without-pip"];
        let mut venv = Command::new("python3");
        output(venv.args(make).arg(&folder), "making a virtual environment")?;
        let install = ["install", "--quiet", "--disable-pip-version-check", "--no-compile"];
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "--python"]).arg(&python).args(install);
        output(pip.args(packages), "installing packages")
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
            // A registry that stops in the middle of an answer is given up after a minute, not after three times five.
            "--fetch-timeout=60000",
            "--fetch-retries=1",
            "--prefix",
        ];
        let mut npm = Command::new("npm");
        output(npm.args(install).arg(&folder).args(packages), "installing packages")
    })?;
    Ok(folder)
}

/// Installs into a folder, unless that has been done. Tests that want the same folder at the same time wait for the
/// first of them.
fn installed_once(folder: &Path, install: impl Fn() -> Result<String, String>) -> Result<(), String> {
    let words = |error: std::io::Error| format!("{}: {error}", folder.display());
    let parent = folder.parent().unwrap_or(folder);
    std::fs::create_dir_all(parent).map_err(words)?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let lock = std::fs::File::create(parent.join(format!("{name}.lock"))).map_err(words)?;
    lock.lock().map_err(words)?;
    let done = folder.join("installed");
    if !done.exists() {
        let mut outcome = install();
        for pause in PAUSES {
            if outcome.is_ok() || NO_REGISTRY.load(Relaxed) {
                break;
            }
            std::thread::sleep(pause);
            outcome = install();
        }
        NO_REGISTRY.store(outcome.is_err(), Relaxed);
        outcome?;
        std::fs::write(done, "").map_err(words)?;
    }
    Ok(())
}
