//! Libraries as the server loads them: found, checked stage by stage, opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use halyard_platform_api::{Device, OpenOptions, Platform};
use halyard_plugin_host::{Candidate, Catalog, Kind, SearchPath};
use sha2::{Digest, Sha256};

use crate::command_line::{CheckArgs, LibraryArgs};

/// Whom a report is of.
pub struct Facts {
    /// The file.
    pub library: PathBuf,
    /// Its sum.
    pub sha256: String,
    /// The platform's name.
    pub platform: String,
    /// Its version.
    pub version: String,
    /// The device's name.
    pub device: String,
}

impl Facts {
    /// A line for people.
    pub fn text(&self) -> String {
        let Facts {
            platform,
            version,
            device,
            sha256,
            ..
        } = self;
        format!(
            "{platform} {version} on {device}, {} (sha256 {sha256})",
            self.library.display()
        )
    }
}

/// The platform of a library.
fn platform(file: &Path) -> Result<(Arc<dyn Platform>, String, String), String> {
    let search = SearchPath {
        plugins: vec![file.to_path_buf()],
        ..SearchPath::default()
    };
    let catalog = Catalog::discover(&search);
    let of_platform = |candidate: &&Candidate| candidate.manifest.kind == Kind::Platform;
    let Some(candidate) = catalog.candidates().iter().find(of_platform) else {
        let failures: Vec<String> = catalog.failures().map(ToString::to_string).collect();
        return Err(match failures.is_empty() {
            true => format!("{}: there is no platform in it", file.display()),
            false => failures.join("; "),
        });
    };
    let plugin = catalog.load(candidate).map_err(|e| e.to_string())?;
    let platform = plugin.platform().map_err(|e| e.to_string())?;
    Ok((
        platform,
        candidate.manifest.name.clone(),
        candidate.manifest.version.clone(),
    ))
}

fn options(library: &LibraryArgs, index: u32) -> Result<OpenOptions, String> {
    let mut options = OpenOptions::of(index);
    for text in &library.options {
        options = options.with_text(text).map_err(|e| format!("--platform-option: {e}"))?;
    }
    Ok(options)
}

/// The device to check.
pub fn device(library: &LibraryArgs) -> Result<Arc<dyn Device>, String> {
    let (platform, ..) = platform(&library.file)?;
    let opened = platform.open_with(&options(library, library.device)?);
    opened.map_err(|e| format!("device {}: {e}", library.device))
}

/// The devices that join for collectives: `--ranks`, or all; fewer than two are none.
pub fn ranks(args: &CheckArgs) -> Result<Vec<Arc<dyn Device>>, String> {
    let (platform, ..) = platform(&args.library.file)?;
    let count = platform.devices().map_err(|e| e.to_string())?.len() as u32;
    let ranks = args.ranks.unwrap_or(match count {
        0 | 1 => 0,
        several => several.min(4),
    });
    let open = |rank: u32| {
        let opened = platform.open_with(&options(&args.library, rank % count.max(1))?);
        opened.map_err(|e| format!("rank {rank}: {e}"))
    };
    (0..ranks).map(open).collect()
}

/// The reference's library, beside this program as cargo builds it or in `../lib/halyard` as packages have it.
fn reference() -> Result<PathBuf, String> {
    const NAME: &str = "libhalyard_reference.so";
    let program = std::env::current_exe().and_then(|path| path.canonicalize());
    let program = program.map_err(|e| e.to_string())?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let packaged = folder.parent().map(|prefix| prefix.join("lib/halyard").join(NAME));
    let places: Vec<PathBuf> = [folder.join(NAME)].into_iter().chain(packaged).collect();
    match places.iter().find(|place| place.is_file()) {
        Some(found) => Ok(found.clone()),
        None => {
            let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
            let places = places.join(", nor ");
            Err(format!("the oracle: there is no {places} (--oracle names its library)"))
        }
    }
}

/// The device to compare with.
pub fn oracle(args: &CheckArgs) -> Result<Arc<dyn Device>, String> {
    let file = match &args.oracle {
        Some(file) => file.clone(),
        None => reference()?,
    };
    let (platform, ..) = platform(&file).map_err(|e| format!("the oracle: {e} (--oracle names its library)"))?;
    platform.open(0).map_err(|e| format!("the oracle: {e}"))
}

/// Whom the report is of. Opens the device.
pub fn facts(library: &LibraryArgs) -> Result<Facts, String> {
    let bytes = std::fs::read(&library.file).map_err(|e| format!("{}: {e}", library.file.display()))?;
    let (_, platform, version) = platform(&library.file)?;
    Ok(Facts {
        library: library.file.clone(),
        sha256: Sha256::digest(&bytes)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect(),
        platform,
        version,
        device: device(library)?.info().name.clone(),
    })
}
