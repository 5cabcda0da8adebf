//! The files of a new stat logger.

use super::{HEADER, Names, Project, contract, symbol};

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
        contract: Vec::new(),
    }
}

/// A cargo project with the contract in `vendor/`.
pub(super) fn in_rust(name: &str) -> Project {
    let names = Names {
        name,
        build: "cargo build --release",
        library: format!("target/release/libstat_logger_{}.so", symbol(name)),
    };
    let files = vec![
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
    Project {
        contract: contract::files(&names, "vendor/halyard-platform-api"),
        ..project(&names, files)
    }
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
