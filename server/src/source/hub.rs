//! Models of the hub: `halyard-hub` lists and fetches the files; downloads are resumed, checked, and kept under the
//! repository's name. If all files are in the cache, `halyard-hub` is not started; in offline mode it never is.

use std::fs;
use std::path::{Path, PathBuf};

use halyard_models::LoadFormat;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use super::file::{Incoming, blocking, has_size, lock_folder, sha256_of};
use super::hub_lines::{Answer, Request};
use super::hub_program::HubProgram;
use super::select::{Selection, select, select_tokenizer};
use super::{SourceError, SourceSettings};

/// Times a broken download is resumed before giving up.
const MAX_ATTEMPTS: u32 = 4;

/// The files of a finished download. Written last, so it proves that all of them are complete.
#[derive(Debug, Deserialize, Serialize)]
struct Complete {
    repo: String,
    commit: String,
    model_file: Option<String>,
    files: Vec<CompleteFile>,
}

#[derive(Debug, Deserialize, Serialize)]
struct CompleteFile {
    name: String,
    bytes: u64,
    sha256: Option<String>,
}

/// The files wanted from a repository.
#[derive(Clone, Copy)]
enum Wanted<'a> {
    Model {
        quantization: Option<&'a str>,
        format: LoadFormat,
    },
    Tokenizer,
}

impl Wanted<'_> {
    fn select(self, repo: &str, names: &[String]) -> Result<Selection, SourceError> {
        match self {
            Wanted::Model { quantization, format } => select(repo, names, quantization, format),
            Wanted::Tokenizer => select_tokenizer(repo, names),
        }
    }

    fn marker_name(self) -> String {
        let kind = match self {
            Wanted::Tokenizer => "tokenizer".to_owned(),
            Wanted::Model { quantization, format } => match (quantization, format) {
                (Some(quantization), _) => quantization.to_ascii_lowercase(),
                (None, LoadFormat::Auto) => "auto".to_owned(),
                (None, LoadFormat::Safetensors) => "safetensors".to_owned(),
                (None, LoadFormat::Gguf) => "gguf".to_owned(),
                (None, LoadFormat::Dummy) => "dummy".to_owned(),
            },
        };
        format!(".halyard-{kind}.json")
    }
}

/// Fetches the model of `repo`, or finds it here. Returns its folder or GGUF file.
///
/// # Errors
/// [`SourceError`].
pub async fn fetch(
    settings: &SourceSettings,
    repo: &str,
    quantization: Option<&str>,
    format: LoadFormat,
) -> Result<PathBuf, SourceError> {
    fetch_wanted(settings, repo, Wanted::Model { quantization, format }).await
}

/// Fetches the tokenizer of `repo` and the files that belong to it, or finds them in the cache. Returns their folder.
///
/// # Errors
/// [`SourceError`].
pub async fn fetch_tokenizer(settings: &SourceSettings, repo: &str) -> Result<PathBuf, SourceError> {
    fetch_wanted(settings, repo, Wanted::Tokenizer).await
}

/// The folder of a repository's revision. No repository's name holds an @, and a revision's slashes become what no name
/// begins with.
fn folder_of(settings: &SourceSettings, repo: &str) -> Result<PathBuf, SourceError> {
    let name = repo.replace('/', "--");
    let Some(revision) = &settings.revision else {
        return Ok(settings.cache_dir.join(name));
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if revision.is_empty() || revision.len() > 128 || !revision.chars().all(plain) || revision.contains("..") {
        return Err(SourceError::Selection {
            repo: repo.to_owned(),
            reason: format!("--revision {revision} is no branch, tag or commit"),
        });
    }
    Ok(settings
        .cache_dir
        .join(format!("{name}@{}", revision.replace('/', "@"))))
}

async fn fetch_wanted(settings: &SourceSettings, repo: &str, wanted: Wanted<'_>) -> Result<PathBuf, SourceError> {
    let folder = folder_of(settings, repo)?;
    let marker = folder.join(wanted.marker_name());
    if let Some(path) = complete(&folder, &marker) {
        return Ok(path);
    }
    if settings.offline {
        return in_hub_cache(settings, repo, wanted).ok_or_else(|| SourceError::Offline {
            subject: repo.to_owned(),
            looked_in: std::iter::once(folder).chain(settings.hub_cache_dir.clone()).collect(),
        });
    }
    let own_folder = folder.clone();
    let _lock = blocking(move || lock_folder(&own_folder)).await?;
    if let Some(path) = complete(&folder, &marker) {
        return Ok(path);
    }
    let mut hub = HubProgram::start(settings, repo)?;
    let (commit, names) = list(&mut hub, repo, settings.revision.as_deref()).await?;
    let Selection { files, model_file } = wanted.select(repo, &names)?;
    tracing::info!(repo, commit, files = files.len(), folder = %folder.display(), "fetching from the hub");
    let mut done = Vec::with_capacity(files.len());
    for name in files {
        let target = folder.join(&name);
        let remote = metadata(&mut hub, Some(&commit), &name).await?.1;
        download(&mut hub, repo, &commit, &name, &target, &remote).await?;
        done.push(CompleteFile {
            name,
            bytes: remote.bytes,
            sha256: remote.sha256,
        });
    }
    let record = Complete {
        repo: repo.to_owned(),
        commit,
        model_file,
        files: done,
    };
    let text = serde_json::to_vec_pretty(&record).unwrap_or_default();
    let mut incoming = Incoming::open(&marker, "marker")?;
    incoming.restart()?;
    incoming.write(&text)?;
    incoming.finish(text.len() as u64, None)?;
    complete(&folder, &marker).ok_or_else(|| SourceError::Selection {
        repo: repo.to_owned(),
        reason: format!(
            "its files changed in {} while they were fetched; try again",
            folder.display()
        ),
    })
}

/// Fetches one file whose bytes are known beforehand.
///
/// # Errors
/// [`SourceError`]; [`SourceError::Mismatch`] when the hub has other bytes under that name.
pub async fn fetch_pinned(
    settings: &SourceSettings,
    repo: &str,
    commit: &str,
    name: &str,
    target: &Path,
    bytes: u64,
    sha256: &str,
) -> Result<PathBuf, SourceError> {
    let mut hub = HubProgram::start(settings, repo)?;
    let remote = Remote {
        bytes,
        sha256: Some(sha256.to_owned()),
        version: sha256.to_owned(),
    };
    download(&mut hub, repo, commit, name, target, &remote).await
}

/// The model's path when `marker` and every file that it lists are here.
fn complete(folder: &Path, marker: &Path) -> Option<PathBuf> {
    let record: Complete = serde_json::from_slice(&fs::read(marker).ok()?).ok()?;
    let whole = record
        .files
        .iter()
        .all(|file| has_size(&folder.join(&file.name), file.bytes));
    whole.then(|| {
        record
            .model_file
            .map_or_else(|| folder.to_owned(), |name| folder.join(name))
    })
}

/// The snapshot of the revision that Hugging Face's own tools left, if it holds what is asked.
fn in_hub_cache(settings: &SourceSettings, repo: &str, wanted: Wanted<'_>) -> Option<PathBuf> {
    let folder = settings
        .hub_cache_dir
        .as_ref()?
        .join(format!("models--{}", repo.replace('/', "--")));
    let revision = settings.revision.as_deref().unwrap_or("main");
    // A commit has its snapshot at once; branches and tags have a file that names theirs.
    let commit = fs::read_to_string(folder.join("refs").join(revision)).unwrap_or_else(|_| revision.to_owned());
    let snapshot = folder.join("snapshots").join(commit.trim());
    let names = fs::read_dir(&snapshot)
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let chosen = wanted.select(repo, &names.collect::<Vec<_>>()).ok()?;
    Some(
        chosen
            .model_file
            .map_or_else(|| snapshot.clone(), |name| snapshot.join(name)),
    )
}

/// The commit of a revision, or of the main branch, and the names of its root files.
async fn list(hub: &mut HubProgram, repo: &str, revision: Option<&str>) -> Result<(String, Vec<String>), SourceError> {
    let revision = revision.map(str::to_owned);
    hub.ask(&Request::Names {
        revision: revision.clone(),
    })
    .await?;
    let mut names = Vec::new();
    loop {
        match hub.answer().await? {
            // Names become paths below the cache: only plain ones are taken.
            Answer::Name(name) if name.starts_with('.') || name.contains(['/', '\\']) => {}
            Answer::Name(name) => names.push(name),
            Answer::End => break,
            other => return Err(hub.unexpected(&other)),
        }
    }
    let Some(probe) = names.iter().find(|name| *name == "config.json").or(names.first()) else {
        return Err(SourceError::Selection {
            repo: repo.to_owned(),
            reason: "it holds no files".to_owned(),
        });
    };
    Ok((metadata(hub, revision.as_deref(), probe).await?.0, names))
}

/// A file's facts, as the hub announces them.
struct Remote {
    bytes: u64,
    sha256: Option<String>,
    version: String,
}

/// A file's commit and what is announced of it.
async fn metadata(hub: &mut HubProgram, revision: Option<&str>, name: &str) -> Result<(String, Remote), SourceError> {
    hub.ask(&Request::File {
        revision: revision.map(str::to_owned),
        name: name.to_owned(),
    })
    .await?;
    let (commit, bytes, etag) = match hub.answer().await? {
        Answer::File { commit, bytes, etag } => (commit, bytes, etag),
        other => return Err(hub.unexpected(&other)),
    };
    // Large files carry their sha256 as entity tag; small ones a git hash, which says less than their size is worth.
    let is_sha256 = etag.len() == 64 && etag.bytes().all(|byte| byte.is_ascii_hexdigit());
    let remote = Remote {
        bytes,
        sha256: is_sha256.then(|| etag.clone()),
        version: etag,
    };
    Ok((commit, remote))
}

/// Brings one file into its place, resuming what is there of it.
async fn download(
    hub: &mut HubProgram,
    repo: &str,
    commit: &str,
    name: &str,
    target: &Path,
    remote: &Remote,
) -> Result<PathBuf, SourceError> {
    // Without a complete marker a file of the right size may be another commit's: its checksum decides, and a small
    // file that has none is fetched again.
    if has_size(target, remote.bytes)
        && let Some(expected) = &remote.sha256
    {
        let own = target.to_owned();
        if blocking(move || sha256_of(&own)).await?.eq_ignore_ascii_case(expected) {
            return Ok(target.to_owned());
        }
    }
    let (own, version) = (target.to_owned(), remote.version.clone());
    let mut incoming = blocking(move || Incoming::open(&own, &version)).await?;
    if incoming.written > remote.bytes {
        incoming.restart()?;
    }
    let bar = progress_bar(name, remote.bytes);
    for attempt in 1..=MAX_ATTEMPTS {
        if incoming.written == remote.bytes {
            break;
        }
        if incoming.written > 0 {
            tracing::info!(file = name, at = incoming.written, of = remote.bytes, "resuming");
        }
        let before = incoming.written;
        match stream_into(hub, commit, name, &mut incoming, remote.bytes, &bar).await {
            Ok(()) => {}
            // The hub's client has retried the request itself; only a transfer that moved is worth going on with.
            Err(SourceError::Hub { reason, .. }) if attempt < MAX_ATTEMPTS && incoming.written > before => {
                tracing::warn!(file = name, attempt, "the download broke off: {reason}");
            }
            Err(error) => return Err(error),
        }
        if incoming.written > remote.bytes {
            // A source that ignores ranges sent the whole file after our part.
            incoming.restart()?;
        }
    }
    bar.finish_and_clear();
    if incoming.written < remote.bytes {
        return Err(SourceError::Incomplete {
            file: format!("{repo}/{name}"),
            found: incoming.written,
            expected: remote.bytes,
            attempts: MAX_ATTEMPTS,
        });
    }
    let (bytes, sha256) = (remote.bytes, remote.sha256.clone());
    blocking(move || incoming.finish(bytes, sha256.as_deref())).await
}

async fn stream_into(
    hub: &mut HubProgram,
    commit: &str,
    name: &str,
    incoming: &mut Incoming,
    bytes: u64,
    bar: &ProgressBar,
) -> Result<(), SourceError> {
    hub.ask(&Request::Read {
        commit: commit.to_owned(),
        name: name.to_owned(),
        from: incoming.written,
        to: bytes,
    })
    .await?;
    let mut buffer = vec![0; 1 << 18];
    loop {
        let mut left = match hub.answer().await? {
            Answer::Bytes(count) => count,
            Answer::End => return Ok(()),
            other => return Err(hub.unexpected(&other)),
        };
        while left > 0 {
            let count = hub.read(&mut buffer, left).await?;
            // The first bytes beyond the expected size are enough for the error.
            if incoming.written <= bytes {
                incoming.write(&buffer[..count])?;
            }
            bar.set_position(incoming.written);
            left -= count;
        }
    }
}

/// Drawn on a terminal only.
pub(super) fn progress_bar(name: &str, bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(bytes).with_message(name.to_owned());
    let style = ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
