//! How the server handles `halyard-hub`: a program that is missing, ends early, sends garbage or never ends. Also: its
//! command line shows no secret, and it ends with the server.

mod common;

use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{FakeHub, fetch, weights};
use halyard_server::source::SourceSettings;

const PROGRAM: &str = env!("CARGO_BIN_EXE_halyard-hub");

/// A shell script in place of the program.
fn script(hub: &FakeHub, text: &str) -> SourceSettings {
    std::fs::create_dir_all(&hub.folder).expect("a folder");
    let path = hub.folder.join("halyard-hub");
    // By a child: a file that this process has open for writing may be open in a fork of another test, and what is open
    // for writing does not run (ETXTBSY).
    let mut writer = Command::new("sh")
        .args(["-c", "cat > \"$0\" && chmod 700 \"$0\""])
        .arg(&path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut input = writer.stdin.take().expect("piped");
    write!(input, "#!/bin/sh\n{text}\n").expect("a script");
    drop(input);
    assert!(writer.wait().expect("ends").success(), "executable");
    SourceSettings {
        hub_program: path,
        ..hub.settings.clone()
    }
}

/// Waits until `holds`; fails with `condition` after a minute.
async fn eventually(condition: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{condition}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_missing_program_is_named_with_the_command_that_builds_it() {
    let hub = FakeHub::start(&[("m.gguf", &weights(1000))]).await;
    let program = hub.folder.join("not-there");
    let settings = SourceSettings {
        hub_program: program.clone(),
        ..hub.settings.clone()
    };
    let said = fetch(&settings, "org/m")
        .await
        .expect_err("nothing to start")
        .to_string();
    for part in [
        &*program.to_string_lossy(),
        "cargo build --release -p halyard-hub",
        "org/m",
    ] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    assert_eq!(hub.requests(), Vec::<String>::new());
}

#[tokio::test]
async fn the_token_is_in_the_environment_and_not_in_the_arguments() {
    let hub = FakeHub::start(&[("m.gguf", &weights(1000))]).await;
    let seen = hub.folder.join("seen");
    let copy = format!(
        "export HF_HUB_DISABLE_IMPLICIT_TOKEN=1; tr '\\0' ' ' < /proc/$$/cmdline > {}; exec {PROGRAM} \"$@\"",
        seen.display()
    );
    // The hub refuses every request without it.
    fetch(&script(&hub, &copy), "org/m").await.expect("comes");
    let seen = std::fs::read_to_string(&seen).expect("written");
    assert!(seen.contains("org/m") && !seen.contains("secret"), "{seen}");
}

#[tokio::test]
async fn a_program_that_ends_or_talks_nonsense_is_told() {
    let hub = FakeHub::start(&[]).await;
    for (text, part) in [
        ("exit 3", "exit status: 3"),
        ("kill -9 $$", "signal: 9"),
        ("echo nonsense", "halyard-hub ended"),
        ("echo '{\"Bytes\": 5}'; echo '{\"Bytes\": 5}'; cat", "another question"),
        ("echo '{\"Name\": \"m.gguf\"}'", "halyard-hub ended"),
    ] {
        let said = fetch(&script(&hub, text), "org/m").await.expect_err(text).to_string();
        assert!(said.starts_with("org/m: ") && said.contains(part), "{text}: {said}");
    }
}

#[tokio::test]
async fn names_that_lead_out_of_the_folder_are_not_taken() {
    let hub = FakeHub::start(&[]).await;
    let names = ["../m.gguf", "a/m.gguf", ".m.gguf", "..\\\\m.gguf"];
    let lines = names.map(|name| format!("printf '%s\\n' '{{\"Name\": \"{name}\"}}'"));
    let text = format!("{}; echo '\"End\"'; cat", lines.join("; "));
    let said = fetch(&script(&hub, &text), "org/m").await.expect_err("no plain name");
    assert!(said.to_string().contains("holds no files"), "{said}");
}

#[tokio::test]
async fn a_fetch_that_is_given_up_ends_the_program() {
    let hub = FakeHub::start(&[]).await;
    let pid_file = hub.folder.join("pid");
    // It reads nothing: only a signal ends it.
    let settings = script(&hub, &format!("echo $$ > {}; exec sleep 60", pid_file.display()));
    let fetching = tokio::spawn(async move { fetch(&settings, "org/m").await });
    let pid = || std::fs::read_to_string(&pid_file).unwrap_or_default();
    eventually("it was not started", || pid().ends_with('\n')).await;
    let pid = pid();
    assert!(!fetching.is_finished(), "nothing answered");
    fetching.abort();
    eventually("it still runs", || !Path::new("/proc").join(pid.trim()).exists()).await;
}

#[tokio::test]
async fn it_ends_with_the_server_even_while_the_hub_is_silent() {
    // It takes connections and never answers.
    let hub = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("http://{}", hub.local_addr().expect("bound"));
    let mut child = Command::new(PROGRAM)
        .args(["org/m", "info", "text"])
        .env("HF_ENDPOINT", endpoint)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("starts");
    let mut input = child.stdin.take().expect("piped");
    input.write_all(b"{\"Names\":{\"revision\":null}}\n").expect("asked");
    let connection = hub.accept().expect("it asks the hub");
    assert!(
        child.try_wait().expect("can be asked").is_none(),
        "it waits for the hub"
    );
    // As the system closes what a killed server had open.
    drop(input);
    eventually("it outlives its server", || !matches!(child.try_wait(), Ok(None))).await;
    drop(connection);
}

#[test]
fn by_hand_it_says_who_starts_it() {
    let output = Command::new(PROGRAM).output().expect("starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("halyard serve --model org/repo"), "{said}");
}
