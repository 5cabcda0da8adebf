//! The official `openai` Python package against a running server. Installs it into a virtual environment of its own in
//! the target folder, once.

use std::path::{Path, PathBuf};
use std::process::Command;

use halyard_e2e::Server;

const PACKAGE: &str = "openai==1.109.1";

fn run(command: &mut Command, step: &str) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{step}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{step} failed:\n{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

fn python_with_openai() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(PACKAGE);
    let python = folder.join("bin").join("python");
    let done = folder.join("installed");
    if !done.exists() {
        run(
            Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder),
            "making a virtual environment",
        );
        let install = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            PACKAGE,
        ];
        run(Command::new(&python).args(install), "installing the openai package");
        std::fs::write(done, "").expect("writes");
    }
    python
}

#[test]
fn the_official_client_agrees() {
    let python = python_with_openai();
    let server = Server::tiny(&["--api-key", "sesame", "--api-key", "other"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("openai_client.py");
    let text = run(
        Command::new(python).arg(script).args([&server.url, "sesame", "tiny"]),
        "the script",
    );
    assert!(text.contains("agrees"), "{text}");
}
