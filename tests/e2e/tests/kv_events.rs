//! KV cache events against listeners of the field: libzmq receives them, msgspec decodes them with vLLM's classes. Both
//! come from pip, once.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use halyard_e2e::clients::{output, python_or_skip};
use halyard_e2e::{Server, TestFolder, free_port, halyard};

const PACKAGES: [&str; 2] = ["msgspec==0.22.0", "pyzmq==27.3.0"];

/// For what happens at once.
const WAIT: Duration = Duration::from_secs(60);

fn python() -> Option<PathBuf> {
    python_or_skip(Path::new(env!("CARGO_TARGET_TMPDIR")), &PACKAGES)
}

fn listen(python: &Path, url: &str, places: [&str; 3]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/kv_events.py");
    let mut command = Command::new(python);
    command.arg(script).arg(url).args(places);
    // vLLM's own file, where somebody has it.
    command.args(std::env::var_os("HALYARD_TEST_VLLM_KV_EVENTS"));
    output(&mut command, "the listener").unwrap_or_else(|error| panic!("{error}"))
}

/// A server whose events go to sockets in `folder`, with so few blocks that old ones go.
fn server(folder: &TestFolder) -> (Server, [String; 2]) {
    let places = ["events", "replay"].map(|name| format!("ipc://{}", folder.0.join(name).display()));
    let config = format!(
        r#"{{"enable_kv_cache_events": true, "endpoint": "{}", "replay_endpoint": "{}", "topic": "kv@test@tiny"}}"#,
        places[0], places[1]
    );
    (
        Server::tiny(&["--kv-events-config", &config, "--num-gpu-blocks-override", "24"]),
        places,
    )
}

#[test]
fn a_router_knows_what_is_cached_and_one_that_comes_late_asks() {
    let Some(python) = python() else { return };
    let folder = TestFolder::new("kv-events");
    let mut known = Vec::new();
    for round in 0..2 {
        let (server, [events, replay]) = server(&folder);
        let text = listen(&python, &server.url, [&events, &replay, "kv@test@tiny"]);
        assert!(text.starts_with("agrees"), "{text}");
        known.push(text);
        server.signal("TERM");
        let (code, log) = server.wait();
        assert_eq!(code, Some(0), "round {round}: {log}");
    }
    assert_eq!(
        known[0], known[1],
        "names of blocks hold beyond a process, and places are free again"
    );
}

/// Over TCP too; and a stranger's announcement of a huge frame ends that connection and nothing else.
#[test]
fn a_stranger_ends_its_own_connection_only() {
    let Some(python) = python() else { return };
    let ports = [free_port(), free_port()];
    let values = [
        ("enable_kv_cache_events", "true".to_owned()),
        ("endpoint", format!("tcp://*:{}", ports[0])),
        ("replay_endpoint", format!("tcp://127.0.0.1:{}", ports[1])),
        ("topic", "t".to_owned()),
    ];
    let mut flags = vec!["--num-gpu-blocks-override=24".to_owned()];
    flags.extend(values.map(|(key, value)| format!("--kv-events-config.{key}={value}")));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::tiny(&flags);
    for port in ports {
        for kind in ["SUB", "DEALER"] {
            let mut greeting = vec![0; 64];
            (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
            greeting[12..16].copy_from_slice(b"NULL");
            let mut ready = b"\x05READY\x0bSocket-Type\0\0\0".to_vec();
            ready.push(kind.len() as u8);
            ready.extend(kind.as_bytes());
            greeting.extend([4, ready.len() as u8]);
            greeting.extend(ready);
            greeting.extend(b"\x02\x3f\xff\xff\xff\xff\xff\xff\xff");
            let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
            stream.write_all(&greeting).expect("it reads");
            stream.set_read_timeout(Some(WAIT)).expect("it takes a limit");
            let mut answer = Vec::new();
            let ended = stream.read_to_end(&mut answer).map_err(|error| error.kind());
            assert!(
                matches!(ended, Ok(_) | Err(ErrorKind::ConnectionReset)),
                "port {port}, {kind}: {ended:?}"
            );
            assert_eq!(
                answer[..10],
                [0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f],
                "it greets, and then ends"
            );
        }
    }
    let places = ports.map(|port| format!("tcp://127.0.0.1:{port}"));
    let text = listen(&python, &server.url, [&places[0], &places[1], "t"]);
    assert!(text.starts_with("agrees"), "{text}");
}

#[test]
fn a_place_that_is_taken_stops_the_start() {
    let taken = std::net::TcpListener::bind("0.0.0.0:0").expect("a port");
    let port = taken.local_addr().expect("its number").port();
    let config = format!(r#"{{"enable_kv_cache_events": true, "endpoint": "tcp://*:{port}"}}"#);
    let model = halyard_e2e::fixture("llama");
    let model = model.to_str().expect("UTF-8");
    let args = ["serve", "--model", model, "--platform", "cpu", "--port", "0"];
    let mut server = halyard(&[&args[..], &["--kv-events-config", &config]].concat());
    let server = server.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut server = server.expect("the binary starts");
    let begun = Instant::now();
    while server.try_wait().expect("a child").is_none() && begun.elapsed() < WAIT {
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = server.kill();
    let ended = server.wait_with_output().expect("it has ended");
    let words = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code().is_some_and(|code| code != 0), "{words}");
    assert!(
        words.contains("--kv-events-config: tcp://*:") && words.contains("in use"),
        "{words}"
    );
}
