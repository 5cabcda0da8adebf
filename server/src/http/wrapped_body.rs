//! Wraps an answer's body, to observe each of its frames. Forwards everything else.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

/// The result of polling a body for its next frame.
pub type PolledFrame = Poll<Option<Result<Frame<Bytes>, axum::Error>>>;

/// Stands around a body.
pub trait Wrapper: Unpin {
    /// Asks `inner` for its next frame.
    fn poll_frame(&mut self, inner: &mut Body, cx: &mut Context<'_>) -> PolledFrame;
}

/// A body and its wrapper.
pub struct WrappedBody<W> {
    inner: Body,
    wrapper: W,
}

impl<W> WrappedBody<W> {
    /// Puts `wrapper` around `inner`.
    pub fn new(inner: Body, wrapper: W) -> Self {
        WrappedBody { inner, wrapper }
    }
}

impl<W: Wrapper> HttpBody for WrappedBody<W> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let this = &mut *self;
        this.wrapper.poll_frame(&mut this.inner, cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
