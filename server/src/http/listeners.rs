//! The listening sockets of a server: bound before the model loads (a port in use fails at once), accepting when it has
//! loaded. They are TCP or Unix sockets, its own or passed by a service manager.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::task::Poll;

use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;

use super::peer::Peer;
use super::unix_socket::{SocketFile, UnixSocket, UnixSocketError};

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// An accepted socket.
pub(super) type Stream = Either<TcpStream, UnixStream>;

/// Why a socket could not be had.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// A name without an address.
    #[error("--host {host}: {source}; give an address of this machine, such as 127.0.0.1 or 0.0.0.0")]
    Host {
        /// As given.
        host: String,
        /// The resolver's reason.
        source: io::Error,
    },
    /// Two hosts that mean the same address.
    #[error("--host {host} and --host {other} are both {address} on one port; give one of them")]
    Twice {
        /// As given.
        host: String,
        /// The other.
        other: String,
        /// What both contain.
        address: IpAddr,
    },
    /// The port is in use.
    #[error("port {port} of {host} is in use; stop what listens there or choose another --port (0 takes a free one)")]
    PortInUse {
        /// As given.
        host: String,
        /// As given.
        port: u16,
    },
    /// A socket that a service manager passed.
    #[error("the socket that was passed cannot be used: {0}")]
    Passed(io::Error),
    /// A Unix socket.
    #[error(transparent)]
    Unix(#[from] UnixSocketError),
    /// Anything else, such as a port that needs rights.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// Resolved.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
}

/// A bound socket that does not listen yet: clients are refused, not left hanging, while the model loads. One that a
/// service manager passes listens already, and its clients wait.
pub struct BoundSocket(Bound);

enum Bound {
    Tcp {
        socket: TcpSocket,
        host: String,
        address: SocketAddr,
    },
    Unix(UnixSocket),
    PassedTcp(std::net::TcpListener),
    PassedUnix(std::os::unix::net::UnixListener),
}

impl BoundSocket {
    /// Binds `host`:`port`; port 0 takes a free one. Must be called inside a runtime.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind(host: &str, port: u16) -> Result<Self, BindError> {
        BoundSocket::bind_address(host, resolve(host, port)?, false)
    }

    /// Binds a port of each host; with port 0 the others take the first one's. Must be called inside a runtime.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind_all(hosts: &[String], port: u16) -> Result<Vec<Self>, BindError> {
        let addresses: Vec<SocketAddr> = hosts.iter().map(|host| resolve(host, port)).collect::<Result<_, _>>()?;
        for (index, address) in addresses.iter().enumerate() {
            let covers = |other: &SocketAddr| {
                let (one, other) = (address.ip(), other.ip());
                one.is_ipv4() == other.is_ipv4() && (one == other || one.is_unspecified() || other.is_unspecified())
            };
            if let Some(other) = addresses[..index].iter().position(covers) {
                let both = [address.ip(), addresses[other].ip()];
                let narrow = both.into_iter().find(|ip| !ip.is_unspecified());
                return Err(BindError::Twice {
                    host: hosts[other].clone(),
                    other: hosts[index].clone(),
                    address: narrow.unwrap_or(both[0]),
                });
            }
        }
        // `::` takes IPv4 connections as well, unless another socket is there for them.
        let only_v6 = addresses.iter().any(SocketAddr::is_ipv4);
        let mut bound: Vec<BoundSocket> = Vec::with_capacity(hosts.len());
        for (host, mut address) in hosts.iter().zip(addresses) {
            if let Some(first) = bound.first().and_then(BoundSocket::address) {
                address.set_port(first.port());
            }
            bound.push(BoundSocket::bind_address(host, address, only_v6)?);
        }
        Ok(bound)
    }

    fn bind_address(host: &str, address: SocketAddr, only_v6: bool) -> Result<Self, BindError> {
        let error = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::PortInUse {
                host: host.to_owned(),
                port: address.port(),
            },
            _ => BindError::Bind { address, source },
        };
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()
        } else {
            TcpSocket::new_v6()
        }
        .map_err(error)?;
        // Without it a restart within a minute finds its own old connections in the way.
        socket.set_reuseaddr(true).map_err(error)?;
        if address.is_ipv6() && only_v6 {
            rustix::net::sockopt::set_ipv6_v6only(&socket, true).map_err(|errno| error(errno.into()))?;
        }
        socket.bind(address).map_err(error)?;
        let address = socket.local_addr().map_err(error)?;
        Ok(BoundSocket(Bound::Tcp {
            socket,
            host: host.to_owned(),
            address,
        }))
    }

    /// Takes a path for a Unix socket.
    ///
    /// # Errors
    /// [`BindError::Unix`].
    pub fn bind_unix(path: &Path) -> Result<Self, BindError> {
        Ok(BoundSocket(Bound::Unix(UnixSocket::bind(path)?)))
    }

    /// Takes a TCP listener that was passed to this process.
    ///
    /// # Errors
    /// [`BindError::Passed`].
    pub fn passed(listener: std::net::TcpListener) -> Result<Self, BindError> {
        listener.set_nonblocking(true).map_err(BindError::Passed)?;
        let address = listener.local_addr().map_err(BindError::Passed)?;
        tracing::info!(%address, "listening on the socket that was passed, in place of --host and --port");
        Ok(BoundSocket(Bound::PassedTcp(listener)))
    }

    /// Takes a Unix listener that was passed to this process. Its file belongs to whoever made it.
    ///
    /// # Errors
    /// [`BindError::Passed`].
    pub fn passed_unix(listener: std::os::unix::net::UnixListener) -> Result<Self, BindError> {
        listener.set_nonblocking(true).map_err(BindError::Passed)?;
        let address = listener.local_addr().map_err(BindError::Passed)?;
        tracing::info!(
            ?address,
            "listening on the socket that was passed, in place of --host and --port"
        );
        Ok(BoundSocket(Bound::PassedUnix(listener)))
    }

    fn address(&self) -> Option<SocketAddr> {
        match &self.0 {
            Bound::Tcp { address, .. } => Some(*address),
            Bound::PassedTcp(listener) => listener.local_addr().ok(),
            Bound::Unix(_) | Bound::PassedUnix(_) => None,
        }
    }

    /// Whether only this machine can reach it.
    pub fn is_local(&self) -> bool {
        self.address()
            .is_none_or(|address| address.ip().to_canonical().is_loopback())
    }

    /// Starts to listen.
    ///
    /// # Errors
    /// [`BindError::PortInUse`] when another process was faster.
    pub fn listen(self) -> Result<Listener, BindError> {
        match self.0 {
            Bound::Tcp { socket, host, address } => {
                let listening = socket.listen(BACKLOG).map_err(|source| match source.kind() {
                    io::ErrorKind::AddrInUse => BindError::PortInUse {
                        host,
                        port: address.port(),
                    },
                    _ => BindError::Bind { address, source },
                });
                Ok(Listener::Tcp(listening?))
            }
            Bound::PassedTcp(listener) => TcpListener::from_std(listener)
                .map(Listener::Tcp)
                .map_err(BindError::Passed),
            Bound::Unix(socket) => {
                let (listener, file) = socket.listen()?;
                let listener = UnixListener::from_std(listener).map_err(BindError::Passed)?;
                Ok(Listener::Unix(listener, Some(file)))
            }
            Bound::PassedUnix(listener) => UnixListener::from_std(listener)
                .map(|listener| Listener::Unix(listener, None))
                .map_err(BindError::Passed),
        }
    }
}

fn resolve(host: &str, port: u16) -> Result<SocketAddr, BindError> {
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, port));
    }
    let unknown = |source| BindError::Host {
        host: host.to_owned(),
        source,
    };
    let mut addresses = (host, port).to_socket_addrs().map_err(unknown)?;
    addresses
        .next()
        .ok_or_else(|| unknown(io::Error::from(io::ErrorKind::NotFound)))
}

/// A socket that accepts.
#[derive(Debug)]
pub enum Listener {
    /// An address of the network.
    Tcp(TcpListener),
    /// A path; its file is removed with this, where it is the server's.
    Unix(UnixListener, Option<SocketFile>),
}

/// A place that clients can reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Address and port.
    Tcp(SocketAddr),
    /// A path.
    Unix(PathBuf),
}

impl Listener {
    /// Where clients reach it.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn place(&self) -> io::Result<Place> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().map(Place::Tcp),
            Listener::Unix(_, Some(file)) => Ok(Place::Unix(file.path().to_owned())),
            Listener::Unix(listener, None) => {
                let address = listener.local_addr()?;
                Ok(Place::Unix(address.as_pathname().unwrap_or(Path::new("@")).to_owned()))
            }
        }
    }

    fn poll_accept(&self, cx: &mut std::task::Context<'_>) -> Poll<io::Result<(Stream, Peer)>> {
        match self {
            Listener::Tcp(listener) => listener
                .poll_accept(cx)
                .map_ok(|(stream, address)| (Either::Left(stream), Peer::Tcp(address))),
            Listener::Unix(listener, _) => listener
                .poll_accept(cx)
                .map_ok(|(stream, _)| (Either::Right(stream), Peer::Unix)),
        }
    }
}

/// All sockets of a server, taken in turn: one that many connect to holds no other up.
pub(super) struct Listeners {
    all: Vec<Listener>,
    next: usize,
}

impl Listeners {
    pub(super) fn new(all: Vec<Listener>) -> Listeners {
        Listeners { all, next: 0 }
    }

    /// The next connection of any of them.
    pub(super) async fn accept(&mut self) -> io::Result<(Stream, Peer)> {
        poll_fn(|cx| {
            let count = self.all.len();
            for step in 0..count {
                let at = (self.next + step) % count;
                if let Poll::Ready(accepted) = self.all[at].poll_accept(cx) {
                    self.next = at + 1;
                    return Poll::Ready(accepted);
                }
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags};

    use super::*;

    fn hosts(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn tcp(listener: &Listener) -> SocketAddr {
        match listener.place().expect("bound") {
            Place::Tcp(address) => address,
            place => panic!("{place:?}"),
        }
    }

    #[tokio::test]
    async fn a_port_in_use_is_named() {
        let first = BoundSocket::bind("127.0.0.1", 0)
            .expect("a free port")
            .listen()
            .expect("listens");
        let port = tcp(&first).port();
        let error = BoundSocket::bind("127.0.0.1", port).err().expect("taken");
        assert!(
            matches!(&error, BindError::PortInUse { port: found, .. } if *found == port),
            "{error}"
        );
        assert!(error.to_string().contains(&port.to_string()), "{error}");
    }

    #[tokio::test]
    async fn an_address_of_another_machine_is_refused() {
        let error = BoundSocket::bind("192.0.2.1", 0)
            .err()
            .expect("a documentation address");
        assert!(error.to_string().contains("192.0.2.1"), "{error}");
    }

    #[tokio::test]
    async fn several_hosts_share_a_port_and_are_served_in_turn() {
        let bound = BoundSocket::bind_all(&hosts(&["127.0.0.1", "127.0.0.2"]), 0).expect("free ports");
        let all: Vec<Listener> = bound
            .into_iter()
            .map(|socket| socket.listen().expect("listens"))
            .collect();
        let addresses: Vec<SocketAddr> = all.iter().map(tcp).collect();
        assert_eq!(addresses[0].port(), addresses[1].port());
        let mut listeners = Listeners::new(all);
        let mut clients = Vec::new();
        for address in [addresses[0], addresses[0], addresses[0], addresses[1]] {
            clients.push(TcpStream::connect(address).await.expect("connects"));
        }
        // The system has a connection for each of them, and then the runtime knows it.
        for listener in &listeners.all {
            let Listener::Tcp(listener) = listener else {
                panic!("TCP")
            };
            let fd = listener.as_fd();
            rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).expect("polls");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut of_second = Vec::new();
        for _ in 0..4 {
            let (stream, _) = listeners.accept().await.expect("accepts");
            let Either::Left(stream) = stream else { panic!("TCP") };
            of_second.push(stream.local_addr().expect("bound") == addresses[1]);
        }
        assert!(
            of_second[..2].contains(&true),
            "the second one waits for no queue: {of_second:?}"
        );
    }

    #[tokio::test]
    async fn all_addresses_of_both_families_are_two_sockets() {
        let Ok(bound) = BoundSocket::bind_all(&hosts(&["0.0.0.0", "::"]), 0) else {
            println!("skipped: this machine has no IPv6");
            return;
        };
        let all: Vec<Listener> = bound
            .into_iter()
            .map(|socket| socket.listen().expect("listens"))
            .collect();
        assert_eq!(all.len(), 2);
    }

    #[tokio::test]
    async fn hosts_that_cover_each_other_are_named() {
        for pair in [["127.0.0.1", "127.0.0.1"], ["0.0.0.0", "127.0.0.1"], ["::1", "[::]"]] {
            let error = BoundSocket::bind_all(&hosts(&pair), 0)
                .err()
                .expect("twice")
                .to_string();
            assert!(error.contains(pair[0]) && error.contains(pair[1]), "{error}");
        }
    }
}
