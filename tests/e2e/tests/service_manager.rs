//! A server under a service manager: it takes the sockets that are passed to it and says when it serves and when it
//! ends, by systemd's protocols.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::time::Duration;

use halyard_e2e::{Server, TestFolder, fixture, halyard, stderr};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};

/// What no answer on any machine takes.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

/// A `serve` command of the tiny model that gets `socket` as the first of `count`.
fn with_socket(socket: &impl AsRawFd, count: u32) -> std::process::Command {
    let mut command = halyard(&["serve", "--platform", "cpu", "--kv-cache-memory-bytes", "16MiB"]);
    command.arg("--model").arg(fixture("llama"));
    command.env("LISTEN_FDS", count.to_string());
    // Not descriptor 3: that would have to be moved in the child.
    command.env("LISTEN_FDS_FIRST_FD", socket.as_raw_fd().to_string());
    command
}

/// Copies of two sockets with numbers that follow each other, as a manager passes them.
fn in_a_row(one: &impl AsFd, other: &impl AsFd) -> [OwnedFd; 2] {
    let copy = |socket: &dyn AsFd, at: RawFd| fcntl_dupfd_cloexec(socket.as_fd(), at).expect("a free descriptor");
    // Other tests of this process open files meanwhile.
    let mut lowest: RawFd = 200;
    loop {
        let first = copy(one, lowest);
        let second = copy(other, first.as_raw_fd() + 1);
        if second.as_raw_fd() == first.as_raw_fd() + 1 {
            for socket in [&first, &second] {
                fcntl_setfd(socket, FdFlags::empty()).expect("the child inherits it");
            }
            return [first, second];
        }
        lowest = second.as_raw_fd();
    }
}

fn message(notify: &UnixDatagram) -> String {
    let mut bytes = [0; 4096];
    let length = notify.recv(&mut bytes).expect("a message before the timeout");
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

#[test]
fn a_passed_socket_is_served_and_the_manager_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    fcntl_setfd(&listener, FdFlags::empty()).expect("the child inherits it");
    let address = listener.local_addr().expect("bound");
    let folder = TestFolder::new("service-manager");
    let path = folder.0.join("notify");
    let notify = UnixDatagram::bind(&path).expect("a socket");
    notify.set_read_timeout(PATIENCE).expect("a timeout");
    let mut command = with_socket(&listener, 1);
    let server = Server::start(command.env("NOTIFY_SOCKET", &path));
    assert_eq!(server.url, format!("http://{address}"), "--port 8000 is not taken");
    assert!(message(&notify).starts_with("STATUS=loading "));
    let ready = message(&notify);
    assert!(
        ready.lines().any(|line| line == "READY=1") && ready.contains(&server.url),
        "{ready}"
    );
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let health = runtime.block_on(reqwest::get(format!("{}/health", server.url)));
    assert_eq!(health.expect("answers").status(), 200);
    server.signal("TERM");
    assert!(message(&notify).lines().any(|line| line == "STOPPING=1"));
    assert_eq!(server.wait().0, Some(0));
    // The manager's own end is open still: the next server gets it.
    assert!(listener.local_addr().is_ok());
}

#[test]
fn sockets_that_a_server_cannot_take_are_refused_by_name() {
    let (udp, _) = UnixDatagram::pair().expect("sockets");
    fcntl_setfd(&udp, FdFlags::empty()).expect("inherited");
    let output = with_socket(&udp, 1).output().expect("runs");
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(
        text.contains("LISTEN_FDS") && text.contains("socket 0") && text.contains("is not a valid tcp socket"),
        "{text}"
    );
}

#[test]
fn several_passed_sockets_are_served_at_once() {
    let address = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let folder = TestFolder::new("passed-two");
    let path = folder.0.join("socket");
    let unix = UnixListener::bind(&path).expect("binds");
    let passed = in_a_row(&address, &unix);
    let server = Server::start(&mut with_socket(&passed[0], 2));
    let address = address.local_addr().expect("bound");
    assert_eq!(server.url, format!("http://{address}"));
    let tcp = TcpStream::connect(address).expect("connects");
    let unix = UnixStream::connect(&path).expect("connects");
    // A socket that nobody serves takes connections as well.
    tcp.set_read_timeout(PATIENCE).expect("a timeout");
    unix.set_read_timeout(PATIENCE).expect("a timeout");
    assert_eq!(health(tcp, "127.0.0.1"), 200);
    assert_eq!(health(unix, "any.name"), 200);
    server.signal("TERM");
    assert_eq!(server.wait().0, Some(0));
}

/// The status of `GET /health` of a host over a connection.
fn health(mut client: impl Read + Write, host: &str) -> u16 {
    let request = format!("GET /health HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    client.write_all(request.as_bytes()).expect("taken");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("answers");
    let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
    status
        .and_then(|status| status.parse().ok())
        .unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn a_passed_unix_socket_is_served_and_its_file_stays() {
    let folder = TestFolder::new("passed-unix");
    let path = folder.0.join("socket");
    let listener = UnixListener::bind(&path).expect("binds");
    fcntl_setfd(&listener, FdFlags::empty()).expect("the child inherits it");
    let server = Server::start(&mut with_socket(&listener, 1));
    assert_eq!(server.url, format!("unix:{}", path.display()));
    assert_eq!(health(UnixStream::connect(&path).expect("connects"), "any.name"), 200);
    server.signal("TERM");
    assert_eq!(server.wait().0, Some(0));
    assert!(path.exists(), "it is the manager's");
}
