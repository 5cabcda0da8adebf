//! A request's body while it arrives, with a deadline that moves on with each byte. A missed deadline is an error of
//! the body; `body.rs` turns it into an answer.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::body_error::BodyError;
use super::connections::{Connection, Receiving};
use super::limits::ConnectionLimits;
use super::transport::Transport;

/// A body with its deadline.
pub(super) struct TimedBody<B> {
    inner: B,
    transport: Arc<Transport>,
    /// Time in which more was asked for and nothing was there. A handler that does not ask yet does not use up its
    /// client's time.
    waited: Duration,
    waiting_since: Option<Instant>,
    received: u64,
    sleep: Option<Pin<Box<Sleep>>>,
    receiving: Option<Receiving>,
}

impl<B: Body> TimedBody<B> {
    pub(super) fn new(inner: B, transport: &Arc<Transport>, connection: &Arc<Connection>) -> TimedBody<B> {
        TimedBody {
            receiving: (!inner.is_end_stream()).then(|| Receiving::start(connection)),
            inner,
            transport: Arc::clone(transport),
            waited: Duration::ZERO,
            waiting_since: None,
            received: 0,
            sleep: None,
        }
    }
}

impl<B> TimedBody<B> {
    fn limits(&self) -> &ConnectionLimits {
        &self.transport.limits
    }

    /// The moment at which the body is late, if nothing comes from now on.
    fn deadline(&mut self) -> Instant {
        let earned = self.received / self.limits().body_rate.max(1);
        let allowed = self.limits().body_timeout + Duration::from_secs(earned);
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
                this.received += frame.data_ref().map_or(0, Buf::remaining) as u64;
                if this.inner.is_end_stream() {
                    this.receiving = None;
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(end) => {
                this.receiving = None;
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
                this.receiving = None;
                this.transport.late_bodies.fetch_add(1, Ordering::Relaxed);
                let late = BodyError::Late {
                    received: this.received,
                    elapsed_s: this.waited.as_secs(),
                    timeout_s: this.limits().body_timeout.as_secs(),
                    rate: this.limits().body_rate,
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
