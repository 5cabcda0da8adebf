//! Certificates that change while a server serves, by SIGHUP and by the watching of their files: what is open goes on
//! to its end, what is new gets the new ones, and files that cannot be used change nothing and are told by name. The
//! client holds real TLS connections and says which certificate it was shown.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::common::Authority;
use halyard_e2e::scripted::ScriptedModel;
use halyard_e2e::{Server, TestFolder, fixture};
use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned};
use serde_json::{Value, json};

/// Tokens of the answer during which certificates change.
const TOKENS: u64 = 100;

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn der(file: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(file).expect("a certificate")
}

/// A client that trusts these authorities, and shows its certificate where it has one.
fn client(trusted: &[&Authority], own: Option<&(PathBuf, PathBuf)>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for authority in trusted {
        roots.add(der(&authority.file)).expect("an authority");
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    Arc::new(match own {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => builder
            .with_client_auth_cert(vec![der(cert)], PrivateKeyDer::from_pem_file(key).expect("a key"))
            .expect("a pair"),
    })
}

/// A kept-alive connection.
struct Connection(BufReader<StreamOwned<ClientConnection, TcpStream>>);

impl Connection {
    fn open(server: &Server, config: &Arc<ClientConfig>) -> Connection {
        let address = server.url.strip_prefix("https://").expect("TLS");
        let tcp = TcpStream::connect(address).expect("connects");
        tcp.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let name = ServerName::try_from("127.0.0.1").expect("an address");
        let session = ClientConnection::new(Arc::clone(config), name).expect("a session");
        Connection(BufReader::new(StreamOwned::new(session, tcp)))
    }

    /// Sends a request; the status of its answer, whose head is read away.
    fn send(&mut self, method: &str, path: &str, body: Option<&Value>) -> io::Result<u16> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: \
             {}\r\n\r\n",
            body.len()
        );
        self.0.get_mut().write_all(format!("{head}{body}").as_bytes())?;
        let status = self.line()?;
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        status.ok_or_else(|| io::Error::other("no status line"))
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    /// Headers of an answer, in small letters.
    fn head(&mut self) -> io::Result<Vec<(String, String)>> {
        let mut head = Vec::new();
        loop {
            let line = self.line()?;
            match line.split_once(':') {
                Some((name, value)) => head.push((name.to_ascii_lowercase(), value.trim().to_owned())),
                None => return Ok(head),
            }
        }
    }

    /// A piece of a chunked answer; empty at its end.
    fn chunk(&mut self) -> io::Result<String> {
        let size = usize::from_str_radix(&self.line()?, 16).map_err(io::Error::other)?;
        let mut bytes = vec![0; size];
        self.0.read_exact(&mut bytes)?;
        self.line()?;
        String::from_utf8(bytes).map_err(io::Error::other)
    }

    /// The status and body of an answer that is not streamed.
    fn ask(&mut self, method: &str, path: &str) -> io::Result<(u16, String)> {
        let status = self.send(method, path, None)?;
        let head = self.head()?;
        let length = head.iter().find(|(name, _)| name == "content-length");
        let mut body = vec![0; length.and_then(|(_, length)| length.parse().ok()).unwrap_or(0)];
        self.0.read_exact(&mut body)?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    /// The server's certificate; whether this session goes on with the keys of an earlier one.
    fn shown(&self) -> (CertificateDer<'static>, bool) {
        let session = &self.0.get_ref().conn;
        let shown = session.peer_certificates().expect("a handshake")[0].clone();
        (
            shown.into_owned(),
            session.handshake_kind() == Some(HandshakeKind::Resumed),
        )
    }
}

/// What a new connection is shown; it is served.
fn shown_to_new(server: &Server, config: &Arc<ClientConfig>) -> (CertificateDer<'static>, bool) {
    let mut new = Connection::open(server, config);
    let (status, _) = new.ask("GET", "/health").expect("an answer");
    assert_eq!(status, 200);
    new.shown()
}

fn is_refused(server: &Server, config: &Arc<ClientConfig>) -> bool {
    // With TLS 1.3 a client knows when it reads.
    Connection::open(server, config).ask("GET", "/health").is_err()
}

/// Puts files in the place of others, whole, the key first.
fn replace(old: &(PathBuf, PathBuf), new: &(PathBuf, PathBuf)) {
    std::fs::rename(&new.1, &old.1).expect("replaced");
    std::fs::rename(&new.0, &old.0).expect("replaced");
}

/// An answer begins on a connection of certificate A, and its tokens are held; the certificate becomes B; the answer
/// goes on there to its end, and so does the connection.
fn a_stream_outlives_its_certificate(name: &str, flags: &[&str], reload: impl FnOnce(&Server)) {
    let folder = TestFolder::new(name);
    let (first, second) = (Authority::new(&folder.0, "first"), Authority::new(&folder.0, "second"));
    let old = first.sign(&folder.0, "old", ServerAuth);
    let new = second.sign(&folder.0, "new", ServerAuth);
    let (old_shown, new_shown) = (der(&old.0), der(&new.0));
    let endless = "again ".repeat(TOKENS as usize);
    let model = ScriptedModel::with_template_of(&fixture("../"), "qwen3", &[("Never stop.", &endless)]);
    let tls = [
        "--server-dev-mode",
        "--ssl-certfile",
        text(&old.0),
        "--ssl-keyfile",
        text(&old.1),
    ];
    let server = Server::scripted(&model, &[&tls[..], flags].concat());
    let trusting = client(&[&first, &second], None);

    let mut control = Connection::open(&server, &trusting);
    assert_eq!(control.ask("POST", "/pause?mode=keep").expect("an answer").0, 200);
    let mut held = Connection::open(&server, &trusting);
    let body = json!({
        "model": "scripted",
        "messages": [{"role": "user", "content": "Never stop."}],
        "stream": true,
        "stream_options": {"include_usage": true},
        "max_tokens": TOKENS,
        "ignore_eos": true,
    });
    assert_eq!(
        held.send("POST", "/v1/chat/completions", Some(&body))
            .expect("an answer"),
        200
    );
    held.head().expect("a head");

    replace(&old, &new);
    reload(&server);
    // A session that could go on with the keys of an earlier one would not see the new certificate.
    assert_eq!(shown_to_new(&server, &trusting), (new_shown, false));
    assert_eq!((held.shown().0, control.shown().0), (old_shown.clone(), old_shown));

    assert_eq!(control.ask("POST", "/resume").expect("an answer").0, 200);
    let mut answer = String::new();
    loop {
        match held.chunk().expect("the answer goes on").as_str() {
            "" => break,
            piece => answer.push_str(piece),
        }
    }
    assert!(answer.trim_end().ends_with("data: [DONE]"), "{answer}");
    let events = answer.lines().filter_map(|line| line.strip_prefix("data: {"));
    let events: Vec<Value> = events
        .map(|rest| serde_json::from_str(&format!("{{{rest}")).expect("JSON"))
        .collect();
    let usage = events
        .iter()
        .find_map(|event| event["usage"]["completion_tokens"].as_u64());
    assert_eq!(usage, Some(TOKENS));
    assert_eq!(held.ask("GET", "/v1/models").expect("kept alive").0, 200);
}

#[test]
fn a_stream_outlives_its_certificate_at_a_signal() {
    a_stream_outlives_its_certificate("certificates-signal", &[], |server| {
        server.signal("HUP");
        server.until_logged("SIGHUP: certificates reloaded", 1);
    });
}

#[test]
fn a_stream_outlives_its_certificate_when_files_are_watched() {
    a_stream_outlives_its_certificate("certificates-watched", &["--enable-ssl-refresh"], |server| {
        server.until_logged("certificates reloaded: their files changed", 1);
    });
}

/// Files that cannot be used: what is wrong, the file, and what the line says besides its name.
#[test]
fn broken_files_change_nothing_and_are_told_by_name() {
    let folder = TestFolder::new("certificates-broken");
    let authority = Authority::new(&folder.0, "authority");
    let pair = authority.sign(&folder.0, "server", ServerAuth);
    let other = authority.sign(&folder.0, "other", ServerAuth);
    let (good, shown) = (std::fs::read(&pair.0).expect("a file"), der(&pair.0));
    let good_key = std::fs::read(&pair.1).expect("a file");
    let server = Server::tiny(&["--ssl-certfile", text(&pair.0), "--ssl-keyfile", text(&pair.1)]);
    let trusting = client(&[&authority], None);
    let not_der = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec();
    let other_key = std::fs::read(&other.1).expect("a file");
    let half = good[..good.len() / 2].to_vec();
    let broken: [(&Path, Option<Vec<u8>>, &str); 6] = [
        (
            &pair.0,
            Some(b"no certificate\n".to_vec()),
            "there is no certificate in it",
        ),
        (&pair.0, Some(half), "--ssl-certfile"),
        (&pair.0, Some(not_der), "--ssl-certfile"),
        (&pair.0, None, "No such file"),
        (&pair.1, Some(other_key), "--ssl-keyfile"),
        (&pair.1, Some(Vec::new()), "no private key"),
    ];
    let told = "SIGHUP: the certificates stay as they were";
    for (at, (file, content, why)) in broken.iter().enumerate() {
        match content {
            Some(content) => std::fs::write(file, content).expect("written"),
            None => std::fs::remove_file(file).expect("removed"),
        }
        server.signal("HUP");
        let lines = server.until_logged(told, at + 1);
        assert_eq!(lines.len(), at + 1, "one line each: {lines:?}");
        let line = &lines[at];
        assert!(line.contains(text(file)) && line.contains(why), "{why}: {line}");
        assert_eq!(shown_to_new(&server, &trusting).0, shown, "{why}");
        std::fs::write(&pair.0, &good).expect("written");
        std::fs::write(&pair.1, &good_key).expect("written");
    }
    server.signal("HUP");
    server.until_logged("SIGHUP: the files of certificates are as they were", 1);
    server.signal("TERM");
    let (status, log) = server.wait();
    assert_eq!(status, Some(0), "{log}");
    assert_eq!(log.matches(told).count(), broken.len(), "{log}");
}

/// Authorities of clients change like the server's own certificate: connections of those that were trusted go on, new
/// ones are refused, by a session of before too.
#[test]
fn authorities_of_clients_change_for_new_connections() {
    let folder = TestFolder::new("certificates-clients");
    let servers = Authority::new(&folder.0, "servers");
    let (first, second) = (Authority::new(&folder.0, "first"), Authority::new(&folder.0, "second"));
    let pair = servers.sign(&folder.0, "server", ServerAuth);
    let trusted = folder.0.join("trusted.pem");
    std::fs::copy(&first.file, &trusted).expect("copied");
    let own = ["--ssl-certfile", text(&pair.0), "--ssl-keyfile", text(&pair.1)];
    let asked = [
        "--ssl-ca-certs",
        text(&trusted),
        "--enable-ssl-refresh",
        "--ssl-cert-reqs",
    ];
    let server = Server::tiny(&[&own[..], &asked, &["2"]].concat());
    let of_first = client(&[&servers], Some(&first.sign(&folder.0, "one", ClientAuth)));
    let of_second = client(&[&servers], Some(&second.sign(&folder.0, "two", ClientAuth)));
    let of_none = client(&[&servers], None);

    let mut held = Connection::open(&server, &of_first);
    assert_eq!(held.ask("GET", "/health").expect("an answer").0, 200);
    assert!(
        shown_to_new(&server, &of_first).1,
        "a client may go on with an earlier session"
    );
    assert!(is_refused(&server, &of_second) && is_refused(&server, &of_none));

    std::fs::write(&trusted, "nobody").expect("written");
    let lines = server.until_logged("the certificates stay as they were", 1);
    assert!(
        lines[0].contains("--ssl-ca-certs") && lines[0].contains(text(&trusted)),
        "{lines:?}"
    );
    assert!(!is_refused(&server, &of_first), "as before");

    std::fs::copy(&second.file, folder.0.join("new.pem")).expect("copied");
    std::fs::rename(folder.0.join("new.pem"), &trusted).expect("replaced");
    server.until_logged("certificates reloaded: their files changed", 1);
    assert!(is_refused(&server, &of_first), "also with a session of before");
    assert!(!is_refused(&server, &of_second) && is_refused(&server, &of_none));
    assert_eq!(held.ask("GET", "/health").expect("it goes on").0, 200);
    server.signal("TERM");
    let (_, log) = server.wait();
    assert_eq!(log.matches("the certificates stay as they were").count(), 1, "{log}");

    // 1: none need be shown, and one that is shown must be right.
    let server = Server::tiny(&[&own[..], &asked, &["1"]].concat());
    assert!(!is_refused(&server, &of_none) && !is_refused(&server, &of_second));
    assert!(is_refused(&server, &of_first));
}
