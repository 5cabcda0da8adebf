//! The files of a new platform.

use include_dir::{Dir, include_dir};

use super::{HEADER, Names, Project, contract, symbol};

/// Sources that compile as they stand, under the name `plain`, which is in `name.h` alone. Files that end in `.in` are
/// filled.
static C_TEMPLATE: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/src/cli/plugins/template/platform-c");
const SDK: &str = include_str!("../../../../../platform-api/include/halyard_sdk.h");
const RULES: &str = include_str!("../../../../../docs/abi.md");
const OPS: &str = include_str!("../../../../../docs/ops.md");

/// Every file is filled and loses its `.in`.
static RUST_TEMPLATE: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/src/cli/plugins/template/platform-rust");

/// A cargo project with the contract in `vendor/`.
pub(super) fn in_rust(name: &str) -> Project {
    let names = Names {
        name,
        build: "cargo build --release",
        library: format!("target/release/libplatform_{}.so", symbol(name)),
    };
    let template = RUST_TEMPLATE.files().map(|file| {
        let path = file.path().display().to_string();
        let path = path.strip_suffix(".in").unwrap_or(&path);
        let folder = if path.ends_with(".rs") { "src/" } else { "" };
        (
            format!("{folder}{path}"),
            names.fill(&String::from_utf8_lossy(file.contents())),
        )
    });
    let mut files: Vec<(String, String)> = template.collect();
    files.push((".gitignore".to_owned(), "/target\n".to_owned()));
    Project {
        contract: contract::files(&names, "vendor/halyard-platform-api"),
        ..project(&names, files)
    }
}

/// C files with a Makefile, the contract's headers and its pages.
pub(super) fn in_c(name: &str) -> Project {
    let names = Names {
        name,
        build: "make && make test",
        library: format!("lib{}.so", symbol(name)),
    };
    let template = C_TEMPLATE.files().map(|file| {
        let path = file.path().display().to_string();
        let text = &*String::from_utf8_lossy(file.contents());
        match path.strip_suffix(".in") {
            Some(path) => (path.to_owned(), names.fill(text)),
            None if path == "name.h" => (path, named(text, name)),
            None => (path, text.to_owned()),
        }
    });
    let mut files: Vec<(String, String)> = template.collect();
    for (path, text) in [
        (".gitignore", "*.o\n*.so\n/lifecycle\n"),
        ("include/halyard.h", HEADER),
        ("include/halyard_sdk.h", SDK),
    ] {
        files.push((path.to_owned(), text.to_owned()));
    }
    project(&names, files)
}

fn project(names: &Names<'_>, mut files: Vec<(String, String)>) -> Project {
    for (path, text) in [("docs/abi.md", RULES), ("docs/ops.md", OPS)] {
        files.push((path.to_owned(), text.to_owned()));
    }
    let library = &names.library;
    Project {
        build: names.build,
        next: vec![
            format!("halyard platforms --plugin {library}"),
            format!("halyard-conformance {library}"),
        ],
        files,
        contract: Vec::new(),
    }
}

/// `name.h` with another name.
fn named(text: &str, name: &str) -> String {
    text.replace("\"plain\"", &format!("\"{name}\""))
        .replace("plain_entry", &format!("{}_entry", symbol(name)))
}
