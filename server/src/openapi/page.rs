//! The files of the page at `/docs/`, as they are in the program. They hold no fact of this server, so that they can
//! be read without a key: the page asks for the document, with the key. Styles and tools are those of the page at
//! `/ui/`.

use std::sync::LazyLock;

use crate::ui::assets::{Asset, CSS, HTML, SCRIPT, SVG};

static FILES: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    macro_rules! files {
        ($($name:literal in $folder:literal: $kind:expr),* $(,)?) => {
            [$(($name, $kind, include_bytes!(concat!("../../", $folder, "/", $name)).as_slice())),*]
        };
    }
    let files = files![
        "index.html" in "openapi/page": HTML,
        "docs.css" in "openapi/page": CSS,
        "docs.js" in "openapi/page": SCRIPT,
        "schema.js" in "openapi/page": SCRIPT,
        "style.css" in "ui": CSS,
        "icon.svg" in "ui": SVG,
        "api.js" in "ui": SCRIPT,
        "dom.js" in "ui": SCRIPT,
    ];
    files.into_iter().map(Asset::new).collect()
});

/// Every file.
pub fn files() -> &'static [Asset] {
    &FILES
}

/// The file of a name below `/docs/`; the empty name is the page.
pub fn file(name: &str) -> Option<&'static Asset> {
    let name = if name.is_empty() { "index.html" } else { name };
    FILES.iter().find(|file| file.name == name)
}

/// Whether a path is the page or one of its files.
pub fn has(path: &str) -> bool {
    path == "/docs" || path.strip_prefix("/docs/").is_some_and(|name| file(name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_served() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi/page");
        for entry in std::fs::read_dir(folder).expect("the page's folder") {
            let name = entry.expect("readable").file_name();
            assert!(file(name.to_str().expect("text")).is_some(), "{name:?}");
        }
        assert!(has("/docs") && has("/docs/") && has("/docs/docs.js"));
        assert!(!has("/docs/app.js") && !has("/docsx") && !has("/docs/../v1/models"));
    }

    #[test]
    fn no_file_names_a_foreign_host_or_writes_markup() {
        for file in files() {
            let text = std::str::from_utf8(file.bytes).expect("text");
            // The name of SVG's namespace is no address that a browser asks.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for forbidden in ["http://", "https://", "innerHTML", "outerHTML", "insertAdjacentHTML"] {
                assert!(!text.contains(forbidden), "{} has {forbidden}", file.name);
            }
            let is_long = |line: &str| line.chars().count() > 120;
            assert!(!text.lines().any(is_long), "{} has a long line", file.name);
        }
    }
}
