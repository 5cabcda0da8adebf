//! The listening socket: bound before the model loads (a port in use fails at once), accepting when it has loaded,
//! drained on a signal. Knows no route.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;

use super::accept::accept_until;
use super::routes::router;
use super::state::AppState;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;
/// Time for the last bytes to reach clients once the engine has ended.
const LAST_BYTES: Duration = Duration::from_secs(3);

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
pub struct BoundSocket {
    socket: Socket,
    host: String,
    address: SocketAddr,
}

enum Socket {
    Own(TcpSocket),
    Passed(std::net::TcpListener),
}

impl BoundSocket {
    /// Binds `host`:`port`; port 0 takes a free one. Must be called inside a runtime.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind(host: &str, port: u16) -> Result<Self, BindError> {
        let address = resolve(host, port)?;
        let error = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::PortInUse {
                host: host.to_owned(),
                port,
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
        socket.bind(address).map_err(error)?;
        Ok(BoundSocket {
            socket: Socket::Own(socket),
            host: host.to_owned(),
            address,
        })
    }

    /// Takes a listener that was passed to this process.
    ///
    /// # Errors
    /// [`BindError::Passed`].
    pub fn passed(listener: std::net::TcpListener) -> Result<Self, BindError> {
        listener.set_nonblocking(true).map_err(BindError::Passed)?;
        let address = listener.local_addr().map_err(BindError::Passed)?;
        tracing::info!(%address, "listening on the socket that was passed, in place of --host and --port");
        Ok(BoundSocket {
            socket: Socket::Passed(listener),
            host: address.ip().to_string(),
            address,
        })
    }

    /// Whether only this machine can reach it.
    pub fn is_loopback(&self) -> bool {
        self.address.ip().to_canonical().is_loopback()
    }

    /// Starts to listen.
    ///
    /// # Errors
    /// [`BindError::PortInUse`] when another process was faster.
    pub fn listen(self) -> Result<TcpListener, BindError> {
        let (host, address) = (self.host, self.address);
        let socket = match self.socket {
            Socket::Own(socket) => socket,
            Socket::Passed(listener) => return TcpListener::from_std(listener).map_err(BindError::Passed),
        };
        socket.listen(BACKLOG).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::PortInUse {
                host,
                port: address.port(),
            },
            _ => BindError::Bind { address, source },
        })
    }
}

fn resolve(host: &str, port: u16) -> Result<SocketAddr, BindError> {
    if let Ok(address) = host.parse::<IpAddr>() {
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

/// How a server ends.
#[derive(Clone, Copy, Debug)]
pub struct DrainTimes {
    /// With the port still open: health answers 503, so that load balancers send their clients elsewhere.
    pub delay: Duration,
    /// For running answers to finish, once the port is closed.
    pub drain: Duration,
}

/// Serves until `stop` resolves, then drains: the port stays open for a while, then no new connections, running answers
/// get their time to finish, what is left is aborted with a reason, and the last bytes get a moment to leave.
pub async fn serve(
    listener: TcpListener,
    state: Arc<AppState>,
    stop: impl Future<Output = ()> + Send + 'static,
    times: DrainTimes,
) {
    let engine = state.engine.clone();
    let transport = Arc::clone(&state.transport);
    let app = router(Arc::clone(&state));
    let (stop_sender, stopping) = watch::channel(false);
    let draining = Arc::clone(&transport);
    let stop = async move {
        stop.await;
        draining.start_draining();
        if !times.delay.is_zero() {
            let delay_s = times.delay.as_secs();
            tracing::info!(delay_s, "draining: health answers 503, the port stays open");
            tokio::time::sleep(times.delay).await;
        }
    };
    let mut tasks = accept_until(listener, app, Arc::clone(&transport), stopping, stop).await;
    // Fails only if no connection is left.
    let _ = stop_sender.send(true);
    let running = state.in_flight.load(std::sync::atomic::Ordering::Relaxed);
    tracing::info!(
        running,
        drain_s = times.drain.as_secs(),
        "shutting down: finishing what runs"
    );
    let ended = tokio::task::spawn_blocking(move || engine.shutdown(times.drain)).await;
    if let Err(error) = ended {
        tracing::error!("the engine's shutdown failed: {error}");
    }
    let rest = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_BYTES, rest).await.is_err() {
        let open = transport.connections.count();
        tracing::warn!(open, "clients kept connections open; closing them");
        tasks.shutdown().await;
    }
}

/// Resolves at the first interrupt or termination signal. A second one ends the process at once.
///
/// # Errors
/// When the system refuses signal handlers.
pub fn stop_signal() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => tracing::info!("interrupted; once more ends at once"),
            _ = terminate.recv() => tracing::info!("asked to end; once more ends at once"),
        }
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            tracing::warn!("ending at once: a second signal came");
            std::process::exit(1);
        });
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_in_use_is_named() {
        let first = BoundSocket::bind("127.0.0.1", 0)
            .expect("a free port")
            .listen()
            .expect("listens");
        let port = first.local_addr().expect("bound").port();
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
}
