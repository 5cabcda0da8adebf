//! TLS connections over a pipe in memory, with a clock that the tests set: the deadlines of plain ones hold for them.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::connections::{Admission, EndReason};
use super::handshake::serve_accepted;
use super::limits::ConnectionLimits;
use super::peer::Peer;
use super::tls::Tls;
use super::tls::tests::Folder;
use super::transport::Transport;

struct Served {
    client: DuplexStream,
    certificate: CertificateDer<'static>,
    transport: Arc<Transport>,
    ended: JoinHandle<Option<EndReason>>,
    stop: watch::Sender<bool>,
}

fn serve(name: &str) -> Served {
    let limits = ConnectionLimits {
        header_timeout: Duration::from_secs(10),
        keep_alive: Duration::from_secs(40),
        write_timeout: Duration::from_secs(80),
        ..ConnectionLimits::default()
    };
    let folder = Folder::new(name);
    let (files, certificate) = folder.server();
    let mut transport = Transport::new(limits, Default::default(), None);
    transport.tls = Some(Arc::new(Tls::start(files).expect("starts")));
    let transport = Arc::new(transport);
    let Admission::Open(slot, _) = transport.connections.admit(Peer::Unix, &transport.limits) else {
        panic!("no place");
    };
    let endless = || async {
        let zeros = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from(vec![0; 4096])));
        Body::from_stream(zeros)
    };
    let router = Router::new()
        .route("/hello", get(|| async { "hello" }))
        .route("/endless", get(endless));
    let (client, server) = tokio::io::duplex(16 << 10);
    let (stop, stopping) = watch::channel(false);
    let serving = Arc::clone(&transport);
    let ended =
        tokio::spawn(
            async move { serve_accepted(server, router, serving, Arc::clone(&slot.connection), stopping).await },
        );
    Served {
        client,
        certificate,
        transport,
        ended,
        stop,
    }
}

async fn connect(
    client: DuplexStream,
    trusted: CertificateDer<'static>,
) -> tokio_rustls::client::TlsStream<DuplexStream> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted).expect("a certificate");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    TlsConnector::from(Arc::new(config))
        .connect(name, client)
        .await
        .expect("agrees")
}

async fn hello(client: &mut tokio_rustls::client::TlsStream<DuplexStream>) {
    client
        .write_all(b"GET /hello HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .expect("taken");
    let mut text = Vec::new();
    while !text.ends_with(b"hello") {
        text.push(client.read_u8().await.expect("answers"));
    }
}

async fn ends_after(ended: JoinHandle<Option<EndReason>>, since: Instant) -> (Option<EndReason>, u64) {
    let reason = ended.await.expect("no panic");
    (reason, since.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_never_ends_is_cut() {
    // Silent, and with a byte of a ClientHello every second.
    let silent = serve("silent");
    let start = Instant::now();
    assert_eq!(
        ends_after(silent.ended, start).await,
        (Some(EndReason::HeaderTimeout), 10)
    );
    let Served {
        mut client,
        ended,
        stop: _stop,
        ..
    } = serve("slow");
    let start = Instant::now();
    let dripping = tokio::spawn(async move {
        for byte in [22, 3, 1, 1, 0, 1, 0, 0, 252, 3, 3]
            .into_iter()
            .chain(std::iter::repeat(0))
        {
            if client.write_u8(byte).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    assert_eq!(ends_after(ended, start).await, (Some(EndReason::HeaderTimeout), 10));
    dripping.await.expect("it was cut off");
}

#[tokio::test(start_paused = true)]
async fn what_is_no_tls_ends_at_once_and_is_counted() {
    let Served {
        mut client,
        ended,
        transport,
        stop: _stop,
        ..
    } = serve("plain");
    let start = Instant::now();
    client
        .write_all(b"GET /hello HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .expect("taken");
    assert_eq!(ends_after(ended, start).await, (None, 0));
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.expect("an alert");
    assert!(!answer.windows(5).any(|bytes| bytes == b"hello"));
    assert_eq!(transport.failed_handshakes(), 1);
}

#[tokio::test(start_paused = true)]
async fn requests_are_answered_and_an_idle_connection_ends() {
    let Served {
        client,
        certificate,
        ended,
        transport,
        stop: _stop,
        ..
    } = serve("idle");
    let mut client = connect(client, certificate).await;
    for _ in 0..3 {
        hello(&mut client).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
    hello(&mut client).await;
    let start = Instant::now();
    assert_eq!(ends_after(ended, start).await, (Some(EndReason::Idle), 40));
    assert_eq!(transport.failed_handshakes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_head_that_does_not_end_is_cut_after_the_handshake_too() {
    let Served {
        client,
        certificate,
        ended,
        stop: _stop,
        ..
    } = serve("head");
    let start = Instant::now();
    let mut client = connect(client, certificate).await;
    client.write_all(b"GET /hello HTTP/1.1\r\nx: ").await.expect("taken");
    assert_eq!(ends_after(ended, start).await, (Some(EndReason::HeaderTimeout), 10));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_loses_its_connection() {
    let Served {
        client,
        certificate,
        ended,
        stop: _stop,
        ..
    } = serve("taken");
    let mut client = connect(client, certificate).await;
    client
        .write_all(b"GET /endless HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .expect("taken");
    let start = Instant::now();
    let (reason, seconds) = ends_after(ended, start).await;
    assert_eq!(reason, Some(EndReason::WriteTimeout));
    assert!((80..=90).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_does_not_hold_the_end_up() {
    let Served {
        client,
        certificate,
        ended,
        stop,
        ..
    } = serve("draining");
    let _client = connect(client, certificate).await;
    // The server's side of the handshake may end after the client's.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let start = Instant::now();
    stop.send(true).expect("it serves");
    assert_eq!(ends_after(ended, start).await, (None, 0));
    let handshaking = serve("draining-handshake");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let start = Instant::now();
    handshaking.stop.send(true).expect("it serves");
    assert_eq!(ends_after(handshaking.ended, start).await, (None, 0));
}
