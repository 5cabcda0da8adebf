//! The sockets of events: who connected, what each subscribed to, and answers to those who ask for past batches. A peer
//! that does not read, or never says what it is, loses its connection; none can hold up another one.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::timeout;

use super::config::{Address, Endpoint, KvEventsConfig};
use super::stream::Stream;
use crate::zmtp::{Peer, Received, SocketKind, ZmtpError, put_first_frame, put_message};

/// For a peer to say what it is.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// For a peer to take a message.
const STALL: Duration = Duration::from_secs(10);
/// Between attempts to reach a subscriber.
const RECONNECT: Duration = Duration::from_secs(1);
/// After the system refused a connection, such as for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Connections of one socket.
const MAX_PEERS: usize = 64;
/// Topics that one subscriber may name.
const MAX_TOPICS: usize = 64;
/// Past batches go out in pieces of about this size.
const WRITE_BYTES: usize = 64 << 10;
/// The number that ends an answer with past batches: -1.
const END: [u8; 8] = [0xff; 8];

/// Listens, or connects, and serves from then on. The settings come back with the ports that the system chose where
/// they said 0.
///
/// # Errors
/// The place and the system's reason.
pub(super) async fn open(config: &KvEventsConfig, shared: &Arc<Stream>) -> Result<KvEventsConfig, String> {
    let mut opened = config.clone();
    let (kind, endpoint) = (SocketKind::Publisher, Endpoint::of_publisher(&config.endpoint)?);
    match endpoint {
        Endpoint::Bind(address) => opened.endpoint = listen(address, kind, Arc::clone(shared)).await?.to_string(),
        Endpoint::Connect(address) => {
            tracing::info!(endpoint = %address, topic = shared.topic, "KV cache events go to a subscriber");
            tokio::spawn(keep_connected(address, Arc::clone(shared)));
        }
    }
    if let Some(replay) = &config.replay_endpoint {
        let place = listen(Address::parse(replay)?, SocketKind::Router, Arc::clone(shared)).await?;
        opened.replay_endpoint = Some(place.to_string());
    }
    Ok(opened)
}

/// The place comes back with the port that is listened on.
async fn listen(address: Address, kind: SocketKind, shared: Arc<Stream>) -> Result<Address, String> {
    let permits = Arc::new(Semaphore::new(MAX_PEERS));
    match &address {
        Address::Tcp(host, port) => {
            let here = if host == "*" { "0.0.0.0" } else { host };
            let bound = TcpListener::bind((here, *port)).await;
            let place = bound.and_then(|listener| Ok((listener.local_addr()?, listener)));
            let (place, listener) = place.map_err(|error| refused(&address, &error))?;
            tracing::info!(endpoint = %format!("tcp://{place}"), ?kind, topic = shared.topic, "KV cache events");
            tokio::spawn(async move {
                loop {
                    let accepted = listener.accept().await.map(|(stream, _)| undelayed(stream));
                    admit(accepted, kind, &permits, &shared).await;
                }
            });
            return Ok(Address::Tcp(host.clone(), place.port()));
        }
        Address::Ipc(path) => {
            remove_abandoned(path).await;
            let listener = UnixListener::bind(path).map_err(|error| refused(&address, &error))?;
            tracing::info!(endpoint = %address, ?kind, topic = shared.topic, "KV cache events");
            tokio::spawn(async move {
                loop {
                    let accepted = listener.accept().await.map(|(stream, _)| stream);
                    admit(accepted, kind, &permits, &shared).await;
                }
            });
        }
    }
    Ok(address)
}

/// Batches are small, and each goes out at once.
fn undelayed(stream: TcpStream) -> TcpStream {
    let _ = stream.set_nodelay(true);
    stream
}

fn refused(address: &Address, error: &std::io::Error) -> String {
    format!("{address}: {error}; choose another place, or end what listens there")
}

/// A socket that nobody listens on is one of a server that has ended.
async fn remove_abandoned(path: &Path) {
    use std::os::unix::fs::FileTypeExt as _;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let refusal = UnixStream::connect(path).await.err().map(|error| error.kind());
    if is_socket && refusal == Some(std::io::ErrorKind::ConnectionRefused) {
        let _ = std::fs::remove_file(path);
    }
}

async fn admit<S>(accepted: std::io::Result<S>, kind: SocketKind, permits: &Arc<Semaphore>, shared: &Arc<Stream>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match (accepted, Arc::clone(permits).try_acquire_owned()) {
        (Ok(stream), Ok(permit)) => {
            let shared = Arc::clone(shared);
            tokio::spawn(async move {
                serve(stream, kind, &shared).await;
                drop(permit);
            });
        }
        (Ok(_), Err(_)) => tracing::warn!(?kind, "KV cache events: a connection beyond {MAX_PEERS} was closed"),
        (Err(error), _) => {
            tracing::warn!(?kind, "KV cache events: accepting a connection failed: {error}");
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

async fn keep_connected(address: Address, shared: Arc<Stream>) {
    let Address::Tcp(host, port) = address else { return };
    let mut was_told = false;
    loop {
        match TcpStream::connect((host.as_str(), port)).await {
            Ok(stream) => {
                was_told = false;
                serve(undelayed(stream), SocketKind::Publisher, &shared).await;
            }
            Err(error) if !was_told => {
                was_told = true;
                tracing::warn!("KV cache events: tcp://{host}:{port}: {error}; it is tried again every second");
            }
            Err(_) => {}
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(stream: S, kind: SocketKind, shared: &Stream) {
    let peer = match timeout(HANDSHAKE, Peer::connect(stream, kind)).await {
        Ok(Ok(peer)) => peer,
        Ok(Err(error)) => {
            tracing::warn!(?kind, "KV cache events: {error}");
            return;
        }
        Err(_) => {
            tracing::warn!(
                ?kind,
                "KV cache events: a peer did not greet within {} s",
                HANDSHAKE.as_secs()
            );
            return;
        }
    };
    let ended = match kind {
        SocketKind::Publisher => {
            shared.subscribers.fetch_add(1, Ordering::Relaxed);
            let ended = feed(peer, shared).await;
            shared.subscribers.fetch_sub(1, Ordering::Relaxed);
            ended
        }
        SocketKind::Router => answer(peer, shared).await,
    };
    match ended {
        Err(ZmtpError::Io(error)) => tracing::debug!(?kind, "KV cache events: a peer is gone: {error}"),
        Err(error) => tracing::warn!(?kind, "KV cache events: a connection was closed: {error}"),
        Ok(()) => {}
    }
}

/// Sends batches to a subscriber until it is gone.
async fn feed<S: AsyncRead + AsyncWrite + Unpin>(mut peer: Peer<S>, shared: &Stream) -> Result<(), ZmtpError> {
    let mut live = shared.live.subscribe();
    let mut topics = Topics::default();
    loop {
        tokio::select! {
            received = peer.recv() => topics.take(&received?)?,
            sent = live.recv() => match sent {
                Ok(sent) if topics.has(&shared.topic) => send(&mut peer, &sent.bytes).await?,
                Ok(_) => {}
                Err(RecvError::Lagged(count)) => {
                    if topics.has(&shared.topic) {
                        shared.skipped.fetch_add(count, Ordering::Relaxed);
                        tracing::warn!(count, "KV cache events: a slow subscriber lost batches");
                    }
                }
                Err(RecvError::Closed) => return Ok(()),
            },
        }
    }
}

/// Answers requests for past batches until the peer is gone.
async fn answer<S: AsyncRead + AsyncWrite + Unpin>(mut peer: Peer<S>, shared: &Stream) -> Result<(), ZmtpError> {
    loop {
        let Received::Message(frames) = peer.recv().await? else {
            continue;
        };
        let start = match &frames[..] {
            [empty, start] if empty.is_empty() => <[u8; 8]>::try_from(&start[..]).ok(),
            _ => None,
        };
        let start = start.ok_or(ZmtpError::Broken(
            "a request for past batches is an empty frame and 8 bytes, the first number",
        ))?;
        let mut out = BytesMut::new();
        for sent in shared.since(u64::from_be_bytes(start)) {
            put_first_frame(&mut out, b"");
            out.extend_from_slice(&sent.bytes);
            if out.len() > WRITE_BYTES {
                send(&mut peer, &out.split()).await?;
            }
        }
        put_message(&mut out, &[b"", b"", &END, b""]);
        send(&mut peer, &out).await?;
    }
}

async fn send<S: AsyncRead + AsyncWrite + Unpin>(peer: &mut Peer<S>, bytes: &[u8]) -> Result<(), ZmtpError> {
    match timeout(STALL, peer.send(bytes)).await {
        Ok(sent) => sent,
        Err(_) => Err(ZmtpError::Broken("it took no message within 10 s")),
    }
}

/// What a subscriber wants: beginnings of topics, as often as it named them.
#[derive(Debug, Default)]
struct Topics(Vec<Bytes>);

impl Topics {
    fn has(&self, topic: &str) -> bool {
        self.0.iter().any(|wanted| topic.as_bytes().starts_with(wanted))
    }

    fn take(&mut self, received: &Received) -> Result<(), ZmtpError> {
        let (is_wanted, topic) = match received {
            Received::Message(frames) => match frames[0].first() {
                Some(1) => (true, frames[0].slice(1..)),
                Some(0) => (false, frames[0].slice(1..)),
                _ => return Ok(()),
            },
            Received::Command(name, topic) if &name[..] == b"SUBSCRIBE" => (true, topic.clone()),
            Received::Command(name, topic) if &name[..] == b"CANCEL" => (false, topic.clone()),
            Received::Command(..) => return Ok(()),
        };
        if !is_wanted {
            if let Some(at) = self.0.iter().position(|named| *named == topic) {
                self.0.swap_remove(at);
            }
        } else if self.0.len() == MAX_TOPICS {
            return Err(ZmtpError::Broken("it named more than 64 topics"));
        } else {
            self.0.push(topic);
        }
        Ok(())
    }
}
