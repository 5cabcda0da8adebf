//! What the loader's tests share: building libraries from C at test time, and folders of their own.

use std::path::{Path, PathBuf};
use std::process::Command;

use halyard_plugin_host::{AllowList, Catalog, PluginError, SearchPath, Stage, StageFailure};

/// A fresh folder for one test.
pub fn folder(test: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test);
    if path.exists() {
        std::fs::remove_dir_all(&path).expect("an old test folder can be removed");
    }
    std::fs::create_dir_all(&path).expect("a test folder can be made");
    path
}

/// Builds `tests/c/plugin.c` as `folder/file` with the given macros and compiler arguments.
pub fn build_with(folder: &Path, file: &str, macros: &[&str], arguments: &[&str]) -> PathBuf {
    let crate_folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let out = folder.join(file);
    let mut command = Command::new("cc");
    command.args([
        "-std=c99",
        "-Wall",
        "-Werror",
        "-Wno-unused-function",
        "-Wno-unused-const-variable",
    ]);
    command.args(["-O1", "-shared", "-fPIC"]);
    if !macros.iter().any(|m| m.starts_with("FEATURES=")) {
        command.arg("-DFEATURES=\"\"");
    }
    command.args(macros.iter().map(|m| format!("-D{m}")));
    command.arg("-I").arg(crate_folder.join("../../platform-api/include"));
    command
        .arg(crate_folder.join("tests/c/plugin.c"))
        .arg("-o")
        .arg(&out)
        .args(arguments);
    let output = command.output().expect("cc is needed for this test");
    assert!(
        output.status.success(),
        "cc failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    out
}

/// As [`build_with`], without further arguments.
pub fn build(folder: &Path, file: &str, macros: &[&str]) -> PathBuf {
    build_with(folder, file, macros, &[])
}

/// The catalogue of one explicit library.
pub fn catalog_of(library: &Path) -> Catalog {
    catalog_with(library, None)
}

/// The catalogue of one explicit library under an allow-list.
pub fn catalog_with(library: &Path, allow_list: Option<AllowList>) -> Catalog {
    Catalog::discover(&SearchPath {
        plugins: vec![library.to_path_buf()],
        allow_list,
        ..SearchPath::default()
    })
}

/// The failed stage of an error, which must be of `stage` and hold all of `words`.
#[track_caller]
pub fn assert_stage(error: &PluginError, stage: Stage, words: &[&str]) -> StageFailure {
    let PluginError::Stage(failure) = error else {
        panic!("not a stage failure: {error}");
    };
    assert_eq!(failure.stage, stage, "{error}");
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
    assert!(!failure.remedy.is_empty());
    (**failure).clone()
}
