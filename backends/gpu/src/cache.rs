//! Cache files: in which folder, and each written whole or not at all. A start without them is slower, not different.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use halyard_platform_api::OpenOptions;

/// Writes a cache file whole or not at all, its folders too; other writers of it, in this process or another, do no
/// harm. A cache that cannot be written costs time, not correctness, so failures are not reported.
pub fn write_whole(path: &Path, bytes: &[u8]) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let Some(folder) = path.parent() else { return };
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let part = path.with_extension(format!("{}.{number}.part", std::process::id()));
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&part, bytes))
        .and_then(|()| std::fs::rename(&part, path));
    if written.is_err() {
        // Best effort as well: what is left over is never read.
        let _ = std::fs::remove_file(&part);
    }
}

/// The folder of a platform's cache files: the one that the device is opened with; else by the environment as
/// `variable` reads it, where `HALYARD_CACHE_DIR` names the folder of all platforms (empty: nothing is kept, `None`);
/// else `halyard` in `$XDG_CACHE_HOME` or `~/.cache`.
pub fn cache_folder(
    platform: &str,
    options: &OpenOptions,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Option<PathBuf> {
    if let Some(folder) = &options.cache_dir {
        return Some(folder.join(platform));
    }
    if let Some(folder) = variable("HALYARD_CACHE_DIR") {
        return (!folder.is_empty()).then(|| PathBuf::from(folder).join(platform));
    }
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    Some(caches?.join("halyard").join(platform))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_lies_where_the_operator_says_or_where_caches_lie() {
        let folder = |set: &[(&str, &str)]| {
            let find = |name: &str| set.iter().find(|(key, _)| *key == name);
            let variable = |name: &str| find(name).map(|(_, value)| OsString::from(value));
            cache_folder("vendor", &OpenOptions::default(), variable)
        };
        let all = [
            ("HALYARD_CACHE_DIR", "here"),
            ("XDG_CACHE_HOME", "/caches"),
            ("HOME", "/home/a"),
        ];
        assert_eq!(folder(&all), Some(PathBuf::from("here/vendor")));
        assert_eq!(folder(&all[1..]), Some(PathBuf::from("/caches/halyard/vendor")));
        assert_eq!(folder(&all[2..]), Some(PathBuf::from("/home/a/.cache/halyard/vendor")));
        // By the specification of XDG_CACHE_HOME relative paths do not count.
        assert_eq!(
            folder(&[("XDG_CACHE_HOME", "caches"), all[2]]),
            Some(PathBuf::from("/home/a/.cache/halyard/vendor"))
        );
        assert_eq!(folder(&[("HALYARD_CACHE_DIR", ""), all[1]]), None);
        assert_eq!(folder(&[]), None);
        let named = OpenOptions::default().in_cache(Some(Path::new("/named")));
        let empty = |_: &str| Some(OsString::new());
        assert_eq!(
            cache_folder("vendor", &named, empty),
            Some(PathBuf::from("/named/vendor"))
        );
    }
}
