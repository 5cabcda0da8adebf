//! The wheel and the tarball as users get them, made by the script that makes releases, of what is built here:
//! installed into a clean environment and an empty folder, they serve, and Python generates.

use std::path::{Path, PathBuf};
use std::process::Command;

use halyard_e2e::{TestFolder, binary, build_with_binary};

/// What ships besides the server, as packages of the workspace.
const SHIPPED: &[&str] = &[
    "halyard-hub",
    "halyard-conformance",
    "halyard-python",
    "halyard-backend-cpu",
    "halyard-backend-cuda",
    "halyard-backend-reference",
    "halyard-backend-rocm",
    "halyard-backend-vulkan",
    "halyard-backend-xpu",
    "halyard-io-processor-redact",
    "halyard-logits-processor-thinking-budget",
    "halyard-lora-resolver-filesystem",
    "halyard-stat-logger-json-lines",
    "halyard-stat-logger-otlp",
];

/// Runs a script of server/packaging.
///
/// # Panics
/// With its output, when it fails.
fn run(script: &str, args: &[&Path]) {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../server/packaging");
    let mut command = Command::new(packaging.join(script));
    let output = command.args(args).output().expect("the script starts");
    let words = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success(),
        "{script}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&words)
    );
}

fn only(folder: &Path, end: &str) -> PathBuf {
    let files = std::fs::read_dir(folder).expect("a folder");
    let mut found = files.filter_map(|file| Some(file.ok()?.path()));
    let found = found.find(|path| path.to_string_lossy().ends_with(end));
    found.unwrap_or_else(|| panic!("no file {end} in {}", folder.display()))
}

#[test]
fn wheel_and_tarball_are_reproducible_install_serve_and_generate() {
    build_with_binary(SHIPPED);
    let built = binary().parent().expect("a folder");
    let folder = TestFolder::new("packages");
    let [first, second] = ["first", "second"].map(|name| folder.0.join(name));
    for out in [&first, &second] {
        let flags = ["--from", "--out"].map(Path::new);
        let parts = ["wheel", "tarball"].map(Path::new);
        let flags = [flags[0], built, flags[1], out.as_path()];
        run("build", &[&flags[..], &parts[..]].concat());
    }
    let read = |path: PathBuf| std::fs::read(path).expect("a package");
    for end in [".whl", ".tar.gz"] {
        let equal = read(only(&first, end)) == read(only(&second, end));
        assert!(equal, "the {end} differs when it is made twice of the same build");
    }
    run("try-wheel", &[&only(&first, ".whl")]);
    run("try-tarball", &[&only(&first, ".tar.gz")]);
}
