//! The files of a new stat logger.

use include_dir::{Dir, include_dir};

use super::{HEADER, Names, Project, symbol};

/// The contract's sources as they were when this program was built.
static CONTRACT: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../platform-api/src");
/// The contract's manifest without the workspace that it stands in; a test holds it to the real one.
const CONTRACT_MANIFEST: &str = include_str!("../template/contract.toml.in");
const README: &str = include_str!("../template/README.md.in");
const C_LOGGER: &str = include_str!("../../../../../plugins/stat-logger-c/csv.c");

fn project(names: &Names<'_>, files: Vec<(String, String)>) -> Project {
    let Names { name, build, library } = names;
    Project {
        build,
        next: vec![
            format!("halyard plugins test {library}"),
            format!("halyard serve --plugin {library} --stat-logger {name}"),
        ],
        files: [vec![("README.md".to_owned(), names.fill(README))], files].concat(),
    }
}

/// A cargo project with the contract in `vendor/`.
pub(super) fn in_rust(name: &str) -> Project {
    let names = Names {
        name,
        build: "cargo build --release",
        library: format!("target/release/libstat_logger_{}.so", symbol(name)),
    };
    let mut files = vec![
        (".gitignore".to_owned(), "/target\n".to_owned()),
        (
            "Cargo.toml".to_owned(),
            names.fill(include_str!("../template/Cargo.toml.in")),
        ),
        (
            "src/lib.rs".to_owned(),
            names.fill(include_str!("../template/lib.rs.in")),
        ),
    ];
    files.extend(contract(&names, "vendor/halyard-platform-api"));
    project(&names, files)
}

/// The contract as a package of its own, in `folder`.
fn contract(names: &Names<'_>, folder: &str) -> Vec<(String, String)> {
    let mut files = vec![(format!("{folder}/Cargo.toml"), names.fill(CONTRACT_MANIFEST))];
    let mut folders = vec![&CONTRACT];
    while let Some(next) = folders.pop() {
        folders.extend(next.dirs());
        files.extend(next.files().map(|file| {
            let path = format!("{folder}/src/{}", file.path().display());
            (path, String::from_utf8_lossy(file.contents()).into_owned())
        }));
    }
    files
}

/// The C example with its name in place: in the manifest, the entry symbol and the answer of the entry.
pub(super) fn in_c(name: &str) -> Project {
    let names = Names {
        name,
        build: "make",
        library: format!("lib{}.so", symbol(name)),
    };
    let source = C_LOGGER
        .replace("csv_entry", &format!("{}_entry", symbol(name)))
        .replace("\\\"csv\\\"", &format!("\\\"{name}\\\""))
        .replace("str(\"csv\")", &format!("str(\"{name}\")"))
        .replace("../../platform-api/include", "include")
        .replace("libcsv.so", &names.library)
        .replace("csv.c", &format!("{name}.c"))
        .replace("'csv=", &format!("'{name}="));
    let makefile = names.fill(include_str!("../template/Makefile.in"));
    let files = vec![
        (".gitignore".to_owned(), "*.so\n".to_owned()),
        ("Makefile".to_owned(), makefile),
        ("include/halyard.h".to_owned(), HEADER.to_owned()),
        (format!("{name}.c"), source),
    ];
    project(&names, files)
}

#[cfg(test)]
mod tests {
    use super::CONTRACT_MANIFEST;

    #[test]
    fn the_written_contract_is_built_as_the_real_one() {
        let edition = |manifest: &str| {
            manifest
                .lines()
                .find(|line| line.starts_with("edition"))
                .map(str::to_owned)
        };
        assert_eq!(
            edition(CONTRACT_MANIFEST),
            edition(include_str!("../../../../../Cargo.toml"))
        );
        for manifest in [
            CONTRACT_MANIFEST,
            include_str!("../../../../../platform-api/Cargo.toml"),
        ] {
            let depends = manifest
                .lines()
                .any(|line| line.trim() == "[dependencies]" || line.contains("build ="));
            assert!(
                !depends,
                "the contract builds from its sources alone; write what it needs into new projects too:\n{manifest}"
            );
        }
    }
}
