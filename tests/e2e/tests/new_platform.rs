//! What an author of a platform has: `plugins new platform`, its Makefile and its first test, and what the program then
//! says of the library. (What its ops compute is in the conformance suite, on the same files.)

use std::path::Path;
use std::process::Output;

use halyard_e2e::{TestFolder, build_project, fixture, run, stderr};
use serde_json::Value;

fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(output)))
}

#[test]
fn a_new_c_platform_builds_passes_its_test_loads_and_says_what_it_lacks() {
    let folder = TestFolder::new("new-c-platform");
    let project = folder.0.join("chip");
    let path = ["--path", text(&project)];
    let made = run(&[&["plugins", "new", "platform", "my-chip", "--language", "c"], &path[..]].concat());
    assert!(made.status.success(), "{}", stderr(&made));
    let told = String::from_utf8_lossy(&made.stdout).into_owned();
    assert!(
        told.contains("make && make test") && told.contains("libmy_chip.so"),
        "{told}"
    );
    let strict = "CFLAGS=-O2 -Wall -Wextra -Wpedantic -Werror";
    build_project(&project, "make", &[strict]);
    build_project(&project, "make", &["test", strict]);
    let library = project.join("libmy_chip.so");
    let inspected = json(&run(&["plugins", "inspect", text(&library), "--json"]));
    let shown = inspected.to_string();
    for word in ["\"my-chip\"", "\"my_chip_entry\"", "\"platform\""] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    let listed = json(&run(&["platforms", "--plugin", text(&library), "--json"])).to_string();
    assert!(
        listed.contains("\"my-chip\"") && listed.contains("plain processor"),
        "{listed}"
    );
    // It has no attention yet: the refusal names what is missing.
    let model = fixture("llama");
    let plugin = ["--plugin", text(&library), "--platform", "my-chip"];
    let serve = run(&[&["serve", "--model", text(&model), "--port", "0"], &plugin[..]].concat());
    assert!(!serve.status.success());
    let words = "attention: this platform has no attention backend";
    assert!(stderr(&serve).contains(words), "{}", stderr(&serve));
}

#[test]
fn a_new_rust_platform_builds_offline_loads_and_says_what_it_lacks() {
    let folder = TestFolder::new("new-rust-platform");
    let project = folder.0.join("chip");
    let made = run(&["plugins", "new", "platform", "my-chip", "--path", text(&project)]);
    assert!(made.status.success(), "{}", stderr(&made));
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    build_project(&project, &cargo, &["build", "--release", "--offline", "--quiet"]);
    let library = project.join("target/release/libplatform_my_chip.so");
    let listed = json(&run(&["platforms", "--plugin", text(&library), "--json"])).to_string();
    assert!(
        listed.contains("\"my-chip\"") && listed.contains("plain loops"),
        "{listed}"
    );
    let model = fixture("llama");
    let plugin = ["--plugin", text(&library), "--platform", "my-chip"];
    let serve = run(&[&["serve", "--model", text(&model), "--port", "0"], &plugin[..]].concat());
    assert!(!serve.status.success());
    assert!(stderr(&serve).contains("attention"), "{}", stderr(&serve));
}
