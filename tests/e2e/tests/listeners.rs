//! Where a server listens, asked by clients that we did not write (curl, the official Python client): TLS with
//! certificates of clients that change while it serves, Unix sockets, several addresses, a proxy's path, and options
//! that come from a file.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::Authority;
use halyard_e2e::clients::{output, python_or_skip};
use halyard_e2e::{Server, TestFolder, fixture, halyard, run, stderr};
use rcgen::ExtendedKeyUsagePurpose;

fn curl(args: &[&str]) -> std::process::Output {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "20"]).args(args);
    curl.output().expect("curl is needed for this test")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn python() -> Option<PathBuf> {
    python_or_skip(Path::new(env!("CARGO_TARGET_TMPDIR")), &["openai==1.109.1"])
}

fn client(python: &Path, mode: &str, args: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/listeners.py");
    let printed = output(Command::new(python).arg(script).arg(mode).args(args), "the script");
    let printed = printed.unwrap_or_else(|error| panic!("{error}"));
    assert!(printed.contains("agrees"), "{printed}");
}

#[test]
fn tls_takes_certificates_of_clients_and_changes_its_own_while_it_serves() {
    let Some(python) = python() else { return };
    let folder = TestFolder::new("tls");
    let (servers, clients) = (
        Authority::new(&folder.0, "servers"),
        Authority::new(&folder.0, "clients"),
    );
    let (cert, key) = servers.sign(&folder.0, "server", ExtendedKeyUsagePurpose::ServerAuth);
    let (client_cert, client_key) = clients.sign(&folder.0, "client", ExtendedKeyUsagePurpose::ClientAuth);
    let (wrong_cert, wrong_key) = servers.sign(&folder.0, "stranger", ExtendedKeyUsagePurpose::ClientAuth);
    let (ca, clients_file) = (text(&servers.file), text(&clients.file));
    let server = Server::tiny(&[
        "--ssl-certfile",
        text(&cert),
        "--ssl-keyfile",
        text(&key),
        "--ssl-ca-certs",
        clients_file,
        "--ssl-cert-reqs",
        "2",
        "--enable-ssl-refresh",
    ]);
    assert!(server.url.starts_with("https://127.0.0.1:"), "{}", server.url);
    let url = |path: &str| format!("{}{path}", server.url);
    let with = ["--cacert", ca, "--cert", text(&client_cert), "--key", text(&client_key)];
    for (version, flag) in [("2", "--http2"), ("1.1", "--http1.1")] {
        let asked = [
            "--write-out",
            "%{http_version} %{http_code}",
            "--output",
            "/dev/null",
            flag,
        ];
        let answer = curl(&[&with[..], &asked, &[&url("/v1/models")]].concat());
        assert_eq!(
            String::from_utf8_lossy(&answer.stdout),
            format!("{version} 200"),
            "{}",
            stderr(&answer)
        );
    }
    for refused in [
        &["--cacert", ca][..],
        &["--cacert", ca, "--cert", text(&wrong_cert), "--key", text(&wrong_key)],
        &[&["--tls-max", "1.2"], &["--cacert", ca][..]].concat(),
        &[&["--cacert", clients_file], &with[2..]].concat(),
    ] {
        let answer = curl(&[refused, &[&url("/health")]].concat());
        assert!(!answer.status.success(), "{refused:?}");
    }
    assert!(
        curl(&[&with[..], &["--tls-max", "1.2", "--fail", &url("/health")]].concat())
            .status
            .success()
    );
    let plain = curl(&["--fail", &url("/health").replace("https:", "http:")]);
    assert!(!plain.status.success(), "no plain HTTP");
    client(
        &python,
        "tls",
        &[&server.url, ca, text(&client_cert), text(&client_key)],
    );

    // A connection that was there before the certificate changed goes on; new ones see the new one.
    let others = Authority::new(&folder.0, "others");
    let (new_cert, new_key) = others.sign(&folder.0, "new", ExtendedKeyUsagePurpose::ServerAuth);
    let files = [&new_key, &key, &new_cert, &cert].map(|path| text(path));
    let known = [
        &server.url,
        ca,
        text(&client_cert),
        text(&client_key),
        text(&others.file),
    ];
    client(&python, "refresh", &[&known[..], &files].concat());
    let other = ["--cacert", text(&others.file)];
    let metrics = curl(&[&other[..], &with[2..], &[&url("/metrics")]].concat());
    let metrics = String::from_utf8_lossy(&metrics.stdout).into_owned();
    let failed = metrics
        .lines()
        .find_map(|line| line.strip_prefix("halyard:http_tls_handshakes_failed_total "));
    assert!(
        failed
            .and_then(|count| count.parse::<u32>().ok())
            .is_some_and(|count| count >= 4),
        "{failed:?}"
    );
}

#[test]
fn a_file_of_options_opens_a_unix_socket_and_two_addresses() {
    let Some(python) = python() else { return };
    let folder = TestFolder::new("listeners");
    let socket = folder.0.join("halyard.sock");
    // A server that was killed leaves its file.
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("binds"));
    let config = folder.0.join("halyard.yaml");
    let options = format!(
        "model: {}\nserved-model-name: [tiny]\nplatform: cpu\nkv-cache-memory-bytes: 16MiB\nport: 1\n\
         host: [127.0.0.1, 127.0.0.2]\nuds: {}\nroot-path: /llm\n",
        fixture("llama").display(),
        socket.display()
    );
    std::fs::write(&config, &options).expect("writes");
    let printed = run(&["serve", "--config", text(&config), "--port", "0", "--print-config"]);
    let shown = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert!(
        shown.contains("port: 0  # command line\n") && shown.contains("platform: \"cpu\"  # file, line 3"),
        "{shown}"
    );
    std::fs::write(folder.0.join("wrong.yaml"), "prot: 1\n").expect("writes");
    let wrong = run(&["serve", "--config", text(&folder.0.join("wrong.yaml"))]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        stderr(&wrong).contains("line 1, key `prot`") && stderr(&wrong).contains("--port"),
        "{}",
        stderr(&wrong)
    );

    let server = Server::start(&mut halyard(&["serve", "--config", text(&config), "--port", "0"]));
    let by_unix = ["--fail", "--unix-socket", text(&socket)];
    let second = server.url.replace("127.0.0.1", "127.0.0.2");
    for asked in [
        &["--fail", &format!("{}/v1/models", server.url)][..],
        &["--fail", &format!("{second}/v1/models")],
        &["--fail", &format!("{}/llm/v1/models", server.url)],
        &[&by_unix[..], &["http://localhost/health"]].concat(),
        &[&by_unix[..], &["http://any.name/llm/v1/models"]].concat(),
    ] {
        let answer = curl(asked);
        assert!(answer.status.success(), "{asked:?}: {}", stderr(&answer));
    }
    client(&python, "unix", &[text(&socket)]);
    let live = run(&[
        "serve",
        "--uds",
        text(&socket),
        "--model",
        text(&fixture("llama")),
        "--platform",
        "cpu",
    ]);
    assert_eq!(live.status.code(), Some(2));
    assert!(
        stderr(&live).contains("another server listens there"),
        "{}",
        stderr(&live)
    );
    assert!(
        curl(&[&by_unix[..], &["http://localhost/health"]].concat())
            .status
            .success(),
        "it was left alone"
    );
    server.signal("TERM");
    let (status, log) = server.wait();
    assert_eq!(status, Some(0), "{log}");
    assert!(!socket.exists(), "its file is gone");
    assert!(log.contains("client=unix"), "{log}");
}
