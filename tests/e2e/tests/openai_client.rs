//! The official `openai` Python package against a running server. Installs it into a virtual environment of its own in
//! the target folder, once.

use std::path::Path;
use std::process::Command;

use halyard_e2e::Server;
use halyard_e2e::clients::{output, python_or_skip};

#[test]
fn the_official_client_agrees() {
    let Some(python) = python_or_skip(Path::new(env!("CARGO_TARGET_TMPDIR")), &["openai==1.109.1"]) else {
        return;
    };
    let server = Server::tiny(&["--api-key", "sesame", "--api-key", "other"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("openai_client.py");
    let text = output(
        Command::new(python).arg(script).args([&server.url, "sesame", "tiny"]),
        "the script",
    );
    let text = text.unwrap_or_else(|error| panic!("{error}"));
    assert!(text.contains("agrees"), "{text}");
}
