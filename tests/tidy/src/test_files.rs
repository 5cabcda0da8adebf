//! Every file of tests runs: where a package has all its tests in one program (`autotests = false`), the program names
//! each file beside it. A file that it does not name would never be compiled.

use crate::Finding;
use crate::tree::SourceFile;

/// Holds all packages to it.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    let manifests = files.iter().filter(|file| file.text.contains("\nautotests = false\n"));
    manifests.flat_map(|manifest| unnamed(manifest, files)).collect()
}

/// The files beside a package's programs of tests that none of these names.
fn unnamed(manifest: &SourceFile, files: &[SourceFile]) -> Vec<Finding> {
    let folder = manifest.path.trim_end_matches("Cargo.toml");
    let beside = files.iter().filter_map(|file| {
        let name = file.path.strip_prefix(folder)?.strip_prefix("tests/")?;
        let name = name.strip_suffix(".rs").or_else(|| name.strip_suffix("/mod.rs"))?;
        (!name.contains('/')).then_some((name, file))
    });
    let (programs, rest): (Vec<_>, Vec<_>) =
        beside.partition(|(name, _)| manifest.text.contains(&format!("\npath = \"tests/{name}.rs\"\n")));
    let is_named = |name: &str| {
        let module = format!("\nmod {name};\n");
        programs.iter().any(|(_, program)| program.text.contains(&module))
    };
    let lost = rest.into_iter().filter(|(name, _)| !is_named(name));
    lost.map(|(name, file)| {
        let message = format!("no program of tests names it, so it never runs: add `mod {name};`");
        Finding::new(&file.path, 0, message)
    })
    .collect()
}
