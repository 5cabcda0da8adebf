//! Tests the packages that `server/run` builds for a command line, with a fake `cargo` that records its arguments.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use halyard_e2e::{TestFolder, stderr};

/// Runs `server/run` with variables of its own; the calls of cargo, and what was said.
fn builds(test: &str, args: &str, variables: &[(&str, &str)]) -> (String, String) {
    let folder = TestFolder::new(&format!("run-script-{test}"));
    let program = |path: &str, text: &str| {
        let path = folder.0.join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("written");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).expect("executable");
    };
    let calls = folder.0.join("calls");
    program("bin/cargo", &format!("echo \"$*\" >> {}", calls.display()));
    program("release/halyard", "echo started \"$@\"");
    let path = format!("{}/bin:{}", folder.0.display(), std::env::var("PATH").expect("set"));
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../server/run"));
    command.args(args.split_whitespace()).env("PATH", path);
    for name in ["HALYARD_MODEL", "HALYARD_TOKENIZER", "HALYARD_PLATFORM"] {
        command.env_remove(name);
    }
    // A Python that has pip, unless the test says otherwise.
    command.env("HALYARD_PYTHON", "true").env("CARGO_TARGET_DIR", &folder.0);
    let output = command.envs(variables.iter().copied()).output().expect("bash is there");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        said.trim_end(),
        format!("started serve {args}").trim_end(),
        "{}",
        stderr(&output)
    );
    (
        std::fs::read_to_string(&calls).expect("cargo was called"),
        stderr(&output),
    )
}

#[test]
fn the_hubs_client_is_built_where_something_is_of_the_hub() {
    let no_pip = [("HALYARD_PYTHON", "false")];
    let fixture = "--model tests/fixtures";
    for (args, variables, needed) in [
        ("", &[][..], false),
        ("", &no_pip, true),
        ("--port 8001 --platform cpu", &no_pip, true),
        ("--model org/repo", &[], true),
        ("--model=org/repo:Q4_K_M", &[], true),
        ("org/repo --port 1", &[], true),
        ("", &[("HALYARD_MODEL", "org/repo")], true),
        (fixture, &no_pip, false),
        ("--model tests/fixtures --tokenizer org/repo", &[], true),
        (
            "--model ./no/such --chat-template no/such/file --model /no/such",
            &[],
            false,
        ),
    ] {
        let (calls, said) = builds("hub", args, variables);
        assert_eq!(
            calls.contains("-p halyard-hub"),
            needed,
            "{args:?} {variables:?}: {calls}"
        );
        assert_eq!(said.contains("halyard-hub is not built"), !needed, "{args:?}: {said}");
        // In one call the server would be built with other features.
        assert!(
            calls
                .lines()
                .all(|line| !(line.contains("-p halyard ") && line.contains("-p halyard-hub")))
        );
    }
}

#[test]
fn vulkan_is_built_where_it_is_named() {
    let built = |args, variables| {
        let (calls, said) = builds("vulkan", args, variables);
        let built = calls.contains("-p halyard-backend-vulkan");
        assert_eq!(said.contains("vulkan is not built"), !built, "{said}");
        built
    };
    assert!(built("--platform vulkan", &[]));
    assert!(built("--platform=vulkan", &[]));
    assert!(built("", &[("HALYARD_PLATFORM", "vulkan")]));
    let render_node = std::fs::read_dir("/dev/dri")
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| entry.file_name().to_string_lossy().starts_with("renderD"));
    if render_node {
        println!("skipped: this machine has a GPU's render node");
        return;
    }
    assert!(!built("", &[]), "there is no GPU that it could serve on");
}
