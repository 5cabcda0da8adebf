//! A request's body on its way in: it has a deadline that moves on with the bytes that come, and takes part in a bound on the bytes
//! of all unfinished bodies. What is wrong comes as an error of the body; `body.rs` turns it into an answer.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::StatusCode;
use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::connections::{Connection, Receiving};
use super::error::ApiError;
use super::limits::ConnectionLimits;

/// Why a body was not read to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// It comes too slowly, or not at all.
    #[error(
        "the body did not come in time: {received} bytes in {elapsed_s} s; a body has {timeout_s} s and one more for each {rate} bytes \
         (--request-body-timeout, --request-body-min-rate)"
    )]
    Late {
        /// Bytes that came.
        received: u64,
        /// Waited for.
        elapsed_s: u64,
        /// `--request-body-timeout`.
        timeout_s: u64,
        /// `--request-body-min-rate`.
        rate: u64,
    },
    /// Unfinished bodies hold all the memory that they may.
    #[error(
        "the server holds {limit} bytes of requests whose bodies are still coming, and no more (--max-pending-body-bytes); try again"
    )]
    NoRoom {
        /// `--max-pending-body-bytes`.
        limit: usize,
    },
}

impl From<&BodyError> for ApiError {
    fn from(error: &BodyError) -> Self {
        let message = error.to_string();
        match error {
            BodyError::Late { .. } => ApiError::new(StatusCode::REQUEST_TIMEOUT, message).with_code("body_timeout"),
            BodyError::NoRoom { .. } => ApiError {
                retry_after_s: Some(1),
                ..ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).with_code("too_many_bodies")
            },
        }
    }
}

/// Bytes of bodies that are still coming, and how many bodies were given up.
#[derive(Debug, Default)]
pub struct PendingBodies {
    bytes: AtomicUsize,
    /// Bodies that came too slowly.
    pub late: AtomicUsize,
    /// Bodies that there was no room for.
    pub no_room: AtomicUsize,
}

/// A body with its deadline.
pub(super) struct TimedBody<B> {
    inner: B,
    limits: Arc<ConnectionLimits>,
    pending: Arc<PendingBodies>,
    /// Time in which more was asked for and nothing was there. A handler that does not ask yet does not use up its client's time.
    waited: Duration,
    waiting_since: Option<Instant>,
    received: u64,
    /// Bytes counted in [`PendingBodies::bytes`].
    held: usize,
    sleep: Option<Pin<Box<Sleep>>>,
    receiving: Option<Receiving>,
}

impl<B: Body> TimedBody<B> {
    pub(super) fn new(
        inner: B,
        limits: &Arc<ConnectionLimits>,
        pending: &Arc<PendingBodies>,
        connection: &Arc<Connection>,
    ) -> TimedBody<B> {
        TimedBody {
            receiving: (!inner.is_end_stream()).then(|| Receiving::start(connection)),
            inner,
            limits: Arc::clone(limits),
            pending: Arc::clone(pending),
            waited: Duration::ZERO,
            waiting_since: None,
            received: 0,
            held: 0,
            sleep: None,
        }
    }
}

impl<B> TimedBody<B> {
    /// The moment at which the body is late, if nothing comes from now on.
    fn deadline(&mut self) -> Instant {
        let earned = self.received / self.limits.body_rate.max(1);
        let allowed = self.limits.body_timeout + Duration::from_secs(earned);
        let since = *self.waiting_since.get_or_insert_with(Instant::now);
        since + allowed.saturating_sub(self.waited)
    }

    /// Something came.
    fn end_of_wait(&mut self) {
        self.waited += self
            .waiting_since
            .take()
            .map_or(Duration::ZERO, |since| since.elapsed());
    }

    /// Counts `bytes` more as held, if there is room.
    fn hold(&mut self, bytes: usize) -> bool {
        let before = self.pending.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.held += bytes;
        before.saturating_add(bytes) <= self.limits.pending_body_bytes
    }

    fn release(&mut self) {
        self.pending
            .bytes
            .fetch_sub(std::mem::take(&mut self.held), Ordering::Relaxed);
        self.receiving = None;
    }
}

impl<B> Drop for TimedBody<B> {
    fn drop(&mut self) {
        self.release();
    }
}

impl<B> Body for TimedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<axum::BoxError>,
{
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_frame(cx);
        if polled.is_ready() {
            this.end_of_wait();
        }
        match polled {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Buf::remaining);
                this.received += bytes as u64;
                if !this.hold(bytes) {
                    this.release();
                    this.pending.no_room.fetch_add(1, Ordering::Relaxed);
                    let limit = this.limits.pending_body_bytes;
                    return Poll::Ready(Some(Err(BodyError::NoRoom { limit }.into())));
                }
                if this.inner.is_end_stream() {
                    this.release();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(end) => {
                this.release();
                Poll::Ready(end.map(|result| result.map_err(Into::into)))
            }
            Poll::Pending => {
                let deadline = this.deadline();
                let sleep = this
                    .sleep
                    .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
                if sleep.deadline() != deadline {
                    sleep.as_mut().reset(deadline);
                }
                std::task::ready!(sleep.as_mut().poll(cx));
                this.end_of_wait();
                this.release();
                this.pending.late.fetch_add(1, Ordering::Relaxed);
                let late = BodyError::Late {
                    received: this.received,
                    elapsed_s: this.waited.as_secs(),
                    timeout_s: this.limits.body_timeout.as_secs(),
                    rate: this.limits.body_rate,
                };
                Poll::Ready(Some(Err(late.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The reason in an error's chain, if it is one of this file's.
pub(super) fn body_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a BodyError> {
    std::iter::successors(Some(error), |error| error.source()).find_map(|error| error.downcast_ref())
}
