//! Commands that look at what is installed, and the two that talk to a model.

use halyard_e2e::{Server, fixture, halyard, library, run, stderr};
use serde_json::Value;

fn json(args: &[&str]) -> Value {
    let output = run(args);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("JSON on standard output")
}

fn text(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn version_and_help_need_no_plugin() {
    assert_eq!(text(&["--version"]), format!("halyard {}\n", env!("CARGO_PKG_VERSION")));
    let help = text(&["serve", "--help"]);
    for heading in [
        "Server:",
        "Platform:",
        "Plugins:",
        "Model:",
        "KV cache:",
        "Scheduling:",
        "Logging:",
    ] {
        assert!(help.contains(heading), "{heading} is not in the help");
    }
    assert!(help.contains("HALYARD_MAX_NUM_SEQS"), "variables are shown");
}

#[test]
fn a_report_of_the_machine_has_platforms_and_no_secret() {
    let mut command = halyard(&["collect-env", "--json"]);
    let output = command
        .env("HALYARD_API_KEY", "sesame")
        .output()
        .expect("the binary starts");
    assert!(output.status.success(), "{}", stderr(&output));
    let shown = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(!shown.contains("sesame"), "{shown}");
    let report: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(report["environment"]["HALYARD_API_KEY"], "set, not shown");
    assert!(
        report["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 0),
        "{shown}"
    );
    let platforms = report["platforms"].as_array().expect("a list");
    assert!(platforms.iter().any(|platform| platform["name"] == "cpu"), "{shown}");
    assert!(text(&["collect-env"]).contains("\nplatforms\ncpu"), "for people");
}

#[test]
fn platforms_lists_the_devices_of_each() {
    let platforms = json(&["platforms", "--json"]);
    let cpu = platforms
        .as_array()
        .expect("a list")
        .iter()
        .find(|platform| platform["name"] == "cpu")
        .expect("the CPU platform");
    assert!(
        cpu["devices"][0]["total_memory_bytes"]
            .as_u64()
            .is_some_and(|bytes| bytes > 0),
        "{cpu}"
    );
    let shown = text(&["platforms"]);
    assert!(shown.contains("cpu") && shown.contains("reference"), "{shown}");
}

#[test]
fn the_cpu_platform_has_as_many_threads_as_its_variable_says() {
    let with = |threads: &str| {
        let output = halyard(&["platforms"]).env("HALYARD_CPU_THREADS", threads).output();
        String::from_utf8(output.expect("the binary starts").stdout).expect("UTF-8")
    };
    assert!(with("3").contains(", 3 threads"), "{}", with("3"));
    assert!(with("none").contains("threads=none (or HALYARD_CPU_THREADS): a device has 1 to 1024 threads"));
}

#[test]
fn plugins_are_listed_inspected_and_explained() {
    let list = json(&["plugins", "list", "--json"]);
    assert!(
        list.as_array()
            .expect("a list")
            .iter()
            .any(|plugin| plugin["name"] == "cpu"),
        "{list}"
    );
    let file = library("cpu");
    let inspected = json(&["plugins", "inspect", file.to_str().expect("a UTF-8 path"), "--json"]);
    assert_eq!(inspected["sha256"].as_str().map(str::len), Some(64));
    assert!(
        inspected["manifests"]
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one["name"] == "cpu")),
        "{inspected}"
    );
    let why = json(&["plugins", "why", "cpu", "--json"]);
    let stages: Vec<&str> = why
        .as_array()
        .expect("stages")
        .iter()
        .filter_map(|stage| stage["stage"].as_str())
        .collect();
    assert_eq!(
        (stages.first(), stages.last()),
        (Some(&"found"), Some(&"devices")),
        "{why}"
    );
    let unknown = run(&["plugins", "why", "cpuu"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("`cpu`"), "{}", stderr(&unknown));
}

#[test]
fn chat_and_complete_say_the_same_through_a_server_and_alone() {
    let server = Server::tiny(&["--api-key", "sesame"]);
    let model = fixture("llama");
    let model = model.to_str().expect("a UTF-8 path");
    for (command, input) in [("chat", "The river"), ("complete", "The river")] {
        let common = [command, input, "--temperature", "0", "--max-tokens", "8"];
        let served = text(&[&common[..], &["--url", &server.url, "--api-key", "sesame"]].concat());
        let alone = text(
            &[
                &common[..],
                &["--platform", "cpu", "--model", model, "--kv-cache-memory-bytes", "1MiB"],
            ]
            .concat(),
        );
        assert!(served.trim().len() > 1, "{command} said {served:?}");
        assert_eq!(served, alone, "{command}");
    }
    let refused = run(&["chat", "hi", "--url", &server.url]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("401"), "{}", stderr(&refused));
}
