//! Files that only save time: written whole or not at all.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes a cache file whole or not at all, its folders too; other writers of it, in this process or another, do no harm. A cache that cannot be
/// written costs time, not correctness, so failures are not told.
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
