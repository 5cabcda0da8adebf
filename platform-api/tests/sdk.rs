//! The helpers for plugins in C: compiled as C99 and as C++17 without a warning, and run.

use std::path::PathBuf;
use std::process::Command;

/// Compiles `tests/c/sdk.c` and runs it; what it printed, if it failed.
fn run(compiler: &str, language: &str, standard: &str) -> Result<(), String> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("sdk-{standard}"));
    let built = Command::new(compiler)
        .args(["-x", language, &format!("-std={standard}")])
        .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-I"])
        .arg(folder.join("include"))
        .arg(folder.join("tests/c/sdk.c"))
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap_or_else(|e| panic!("{compiler} is needed for this test: {e}"));
    if !built.status.success() {
        return Err(String::from_utf8_lossy(&built.stderr).into_owned());
    }
    let ran = Command::new(&program).output().expect("it was built");
    match ran.status.success() {
        true => Ok(()),
        false => Err(format!("{}: {}", ran.status, String::from_utf8_lossy(&ran.stdout))),
    }
}

#[test]
fn helpers_keep_the_rules_in_c99() {
    assert_eq!(run("cc", "c", "c99"), Ok(()));
}

#[test]
fn helpers_keep_the_rules_in_cpp17() {
    assert_eq!(run("g++", "c++", "c++17"), Ok(()));
}
