//! The accept loop: takes connections off the listeners, sets their options, finds each a place, and survives running
//! out of descriptors. Serves nothing itself.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::either::Either;

use super::connections::{Admission, Connections};
use super::handshake::serve_accepted;
use super::listeners::{Listener, Listeners, Stream};
use super::peer::Peer;
use super::transport::{LogGate, Transport};

/// After an error that only time or an ended connection can heal.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Between two log lines about the same trouble.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Accepts until `stop` resolves, then closes the listeners. The connections go on in the set; it aborts them when
/// dropped.
pub(super) async fn accept_until(
    listeners: Vec<Listener>,
    router: Router,
    transport: Arc<Transport>,
    stopping: watch::Receiver<bool>,
    stop: impl Future<Output = ()>,
) -> JoinSet<()> {
    let mut stop = pin!(stop);
    let mut tasks = JoinSet::new();
    let mut listeners = Listeners::new(listeners);
    let full = LogGate::new(LOG_EVERY);
    let failing = LogGate::new(LOG_EVERY);
    loop {
        // The set keeps ended tasks until they are asked for.
        while tasks.try_join_next().is_some() {}
        let accepted = tokio::select! {
            biased;
            () = &mut stop => return tasks,
            accepted = accept_one(&mut listeners, &transport) => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                transport.count_accept_error();
                if let Some(times) = failing.pass() {
                    tracing::error!(
                        times,
                        "cannot accept connections: {error}; if open files ran out, raise `ulimit -n`"
                    );
                }
                transport.connections.spare_one();
                pause(&transport.connections).await;
                continue;
            }
        };
        match transport.connections.admit(peer, &transport.limits) {
            Admission::Open(slot, evicted) => {
                if let Some(evicted) = evicted
                    && let Some(times) = full.pass()
                {
                    let limit = transport.limits.connections;
                    tracing::warn!(
                        limit, times, last = %evicted,
                        "all connections are taken: those that wait longest are closed; --max-connections and `ulimit \
                         -n` set the bound"
                    );
                }
                let (router, transport) = (router.clone(), Arc::clone(&transport));
                let stopping = stopping.clone();
                tasks.spawn(async move {
                    let connection = Arc::clone(&slot.connection);
                    let reason = serve_accepted(stream, router, Arc::clone(&transport), connection, stopping).await;
                    if let Some(reason) = reason {
                        transport.count_ended(reason);
                        tracing::debug!(%peer, reason = reason.label(), "connection closed");
                    }
                    // After the socket, whose descriptor it counts.
                    drop(slot);
                });
            }
            Admission::Refused => {
                transport.count_refused_by_limit();
                drop(stream);
            }
        }
    }
}

/// The next connection with its options set, once there are descriptors for it.
async fn accept_one(listeners: &mut Listeners, transport: &Transport) -> io::Result<(Stream, Peer)> {
    loop {
        transport.connections.descriptors_free(&transport.limits).await;
        match listeners.accept().await {
            // The client left before it was accepted.
            Err(error) if is_the_clients(&error) => {}
            accepted => return accepted.inspect(|(stream, _)| prepare(stream)),
        }
    }
}

fn is_the_clients(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    )
}

/// Waits for a descriptor to come free, but not long: other parts of the process free them too.
async fn pause(connections: &Connections) {
    let _ = tokio::time::timeout(ACCEPT_PAUSE, connections.one_ended()).await;
}

/// Options of an accepted socket. Each step's tokens leave at once: Nagle's algorithm would hold a frame back until the
/// client has acknowledged the one before, 40 ms later.
fn prepare(stream: &Stream) {
    if let Either::Left(stream) = stream
        && let Err(error) = stream.set_nodelay(true)
    {
        tracing::debug!(%error, "TCP_NODELAY is not set");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::http::listeners::{BoundSocket, Place};

    #[tokio::test]
    async fn nagle_is_off_on_accepted_sockets() {
        let listener = BoundSocket::bind("127.0.0.1", 0).expect("a free port").listen();
        let listener = listener.expect("listens");
        let Place::Tcp(address) = listener.place().expect("bound") else {
            panic!("TCP");
        };
        let client = tokio::net::TcpStream::connect(address);
        let transport = Transport::default();
        let mut listeners = Listeners::new(vec![listener]);
        let (accepted, _client) = tokio::join!(accept_one(&mut listeners, &transport), client);
        let (Either::Left(stream), _) = accepted.expect("accepts") else {
            panic!("TCP");
        };
        assert!(stream.nodelay().expect("getsockopt"));
    }
}
