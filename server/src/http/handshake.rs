//! The beginning of an accepted connection: TLS where the server has it, within the deadlines of every connection, then
//! HTTP.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::connection::{Watched, serve_connection};
use super::connections::{Connection, EndReason};
use super::tls::Tls;
use super::transport::Transport;

/// Serves an accepted socket until it ends.
pub(super) async fn serve_accepted<I>(
    io: I,
    router: Router,
    transport: Arc<Transport>,
    connection: Arc<Connection>,
    stopping: watch::Receiver<bool>,
) -> Option<EndReason>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = Watched::new(io, &connection);
    let Some(tls) = transport.tls.clone() else {
        return serve_connection(io, router, transport, connection, stopping).await;
    };
    match shake_hands(io, &tls, &transport, &connection, stopping.clone()).await {
        Ok(io) => serve_connection(io, router, transport, connection, stopping).await,
        Err(reason) => reason,
    }
}

type Encrypted<I> = tokio_rustls::server::TlsStream<Watched<I>>;

/// A handshake has no request yet, so the deadline of a first head is its deadline too.
async fn shake_hands<I>(
    io: Watched<I>,
    tls: &Tls,
    transport: &Transport,
    connection: &Arc<Connection>,
    mut stopping: watch::Receiver<bool>,
) -> Result<Encrypted<I>, Option<EndReason>>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let limits = &*transport.limits;
    // What waits in the session for the socket counts as an answer's bytes that wait for their client.
    let bound = limits.head_bytes;
    let accepting = TlsAcceptor::from(tls.config()).accept_with(io, |session| session.set_buffer_limit(Some(bound)));
    let deadline = async {
        loop {
            match connection.deadline(limits) {
                Some((at, reason)) if at <= tokio::time::Instant::now() => return reason,
                Some((at, _)) => tokio::time::sleep_until(at).await,
                None => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
    };
    let accepted = tokio::select! {
        biased;
        accepted = accepting => accepted,
        () = connection.evicted() => return Err(Some(EndReason::Evicted)),
        _ = stopping.wait_for(|stop| *stop) => return Err(None),
        reason = deadline => return Err(Some(reason)),
    };
    let stream = accepted.map_err(|error| {
        transport.count_failed_handshake();
        tracing::debug!(peer = %connection.peer, %error, "TLS handshake failed");
        None
    })?;
    // With a certificate that an authority of the operator signed.
    if stream.get_ref().1.peer_certificates().is_some() {
        connection.trust();
    }
    Ok(stream)
}
