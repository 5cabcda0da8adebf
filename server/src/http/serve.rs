//! A server from its first connection to its end: drained on a signal. Knows no route.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::accept::accept_until;
use super::listeners::Listener;
use super::routes::router;
use super::state::AppState;

/// Time for the last bytes to reach clients once the engine has ended.
const LAST_BYTES: Duration = Duration::from_secs(3);

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
    listeners: Vec<Listener>,
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
    let mut tasks = accept_until(listeners, app, Arc::clone(&transport), stopping, stop).await;
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
