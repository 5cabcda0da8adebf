//! The files of the page, as they are in the program. They are the same for every server of a version: they hold no
//! fact of this one, so that they can be read without a key.

use std::sync::LazyLock;

use sha2::{Digest, Sha256};

/// A file of the page.
pub struct Asset {
    /// Its name below `/ui/`.
    pub name: &'static str,
    /// Its type.
    pub content_type: &'static str,
    /// Its bytes.
    pub bytes: &'static [u8],
    /// A strong entity tag, with its quotes: of the bytes.
    pub etag: String,
}

pub(crate) const HTML: &str = "text/html; charset=utf-8";
pub(crate) const CSS: &str = "text/css; charset=utf-8";
pub(crate) const SCRIPT: &str = "text/javascript; charset=utf-8";
pub(crate) const SVG: &str = "image/svg+xml";

macro_rules! files {
    ($($name:literal: $kind:expr),* $(,)?) => {
        [$(($name, $kind, include_bytes!(concat!("../../ui/", $name)).as_slice())),*]
    };
}

static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    let files = files![
        "index.html": HTML,
        "style.css": CSS,
        "icon.svg": SVG,
        "app.js": SCRIPT,
        "api.js": SCRIPT,
        "chart.js": SCRIPT,
        "dom.js": SCRIPT,
        "format.js": SCRIPT,
        "lane.js": SCRIPT,
        "live.js": SCRIPT,
        "playground.js": SCRIPT,
        "requests.js": SCRIPT,
        "system.js": SCRIPT,
        "tokens.js": SCRIPT,
    ];
    files.into_iter().map(Asset::new).collect()
});

impl Asset {
    /// A file of a name and a type.
    pub(crate) fn new((name, content_type, bytes): (&'static str, &'static str, &'static [u8])) -> Asset {
        let digest = Sha256::digest(bytes);
        let hex: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        Asset {
            name,
            content_type,
            bytes,
            etag: format!("\"{hex}\""),
        }
    }
}

/// The file of a name below `/ui/`; the empty name is the page.
pub fn asset(name: &str) -> Option<&'static Asset> {
    let name = if name.is_empty() { "index.html" } else { name };
    ASSETS.iter().find(|asset| asset.name == name)
}

/// Every file.
pub fn assets() -> &'static [Asset] {
    &ASSETS
}

/// Whether a path is the page or one of its files.
pub fn has(path: &str) -> bool {
    path == "/ui" || path.strip_prefix("/ui/").is_some_and(|name| asset(name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_served() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("ui");
        let files = std::fs::read_dir(folder).expect("the page's folder");
        let mut found: Vec<String> = files
            .map(|file| file.expect("readable").file_name().to_string_lossy().into_owned())
            .collect();
        let mut served: Vec<&str> = assets().iter().map(|asset| asset.name).collect();
        found.sort();
        served.sort_unstable();
        assert_eq!(found, served);
    }

    #[test]
    fn no_file_names_a_foreign_host_or_writes_markup() {
        for asset in assets() {
            let text = std::str::from_utf8(asset.bytes).expect("text");
            // The name of SVG's namespace is no address that a browser asks.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for forbidden in [
                "http://",
                "https://",
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "localStorage",
            ] {
                assert!(!text.contains(forbidden), "{} has {forbidden}", asset.name);
            }
            assert!(
                text.lines().all(|line| line.chars().count() <= 120),
                "{} has a long line",
                asset.name
            );
            assert!(text.lines().count() <= 700, "{} is too long", asset.name);
        }
    }

    #[test]
    fn paths_beside_the_files_are_not_the_pages() {
        assert!(has("/ui") && has("/ui/") && has("/ui/app.js"));
        assert!(!has("/ui/data") && !has("/ui/system") && !has("/ui/../v1/models") && !has("/uix"));
    }
}
