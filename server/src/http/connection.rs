//! Serves one connection: HTTP/1 or 2 over hyper, with deadlines and a check that bytes move. Knows no routes;
//! `connections.rs` decides which connection is closed when there are too many.

use std::convert::Infallible;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderValue, Request, Response, Version, header};
use axum::response::IntoResponse;
use http_body::Body as HttpBody;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::Instant;
use tower::ServiceExt;

use super::auth::OPEN_ROUTES;
use super::connections::{ActiveRequest, Connection, EndReason};
use super::limits::ConnectionLimits;
use super::request_body::TimedBody;
use super::transport::Transport;
use super::wrapped_body::{PolledFrame, WrappedBody, Wrapper};
use crate::api_error::ApiError;

/// HTTP/2: streams that a client reset before they were accepted; more end the connection. h2's default.
const PENDING_RESET_STREAMS: usize = 20;
/// HTTP/2: streams that the server reset for the client's mistakes; more end the connection. h2's default.
const LOCAL_ERROR_RESETS: usize = 1024;
/// HTTP/2: interval of pings to a client with running streams, and the time in which it must answer.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// hyper's settings for all connections of a server.
pub(super) fn http_builder(limits: &ConnectionLimits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // Deadlines are kept by `serve_connection`: hyper's one would also end idle connections.
        .header_read_timeout(None)
        .max_buf_size(limits.head_bytes)
        .max_headers(limits.headers);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.http2_streams)
        .max_pending_accept_reset_streams(PENDING_RESET_STREAMS)
        .max_local_error_reset_streams(LOCAL_ERROR_RESETS)
        .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
        .max_send_buf_size(limits.head_bytes)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL);
    builder
}

/// Serves one connection until it ends by itself, by a deadline, or because its place is needed. Its socket is
/// [`Watched`], perhaps below TLS. `stopping` turns true when the server ends: running answers are finished then, and
/// nothing else.
pub(super) async fn serve_connection<I>(
    io: I,
    router: Router,
    transport: Arc<Transport>,
    connection: Arc<Connection>,
    mut stopping: watch::Receiver<bool>,
) -> Option<EndReason>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let builder = http_builder(&transport.limits);
    let io = TokioIo::new(io);
    let service = {
        let (connection, transport) = (Arc::clone(&connection), Arc::clone(&transport));
        hyper::service::service_fn(move |request| answer(request, &router, &transport, &connection))
    };
    let mut http = pin!(builder.serve_connection(io, service));
    let limits = &*transport.limits;
    let interval = limits.check_interval();
    let mut check = pin!(tokio::time::sleep(interval));
    let mut is_draining = false;
    loop {
        tokio::select! {
            biased;
            ended = http.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(peer = %connection.peer, error, "connection ended");
                }
                return None;
            }
            () = connection.evicted() => return Some(EndReason::Evicted),
            _ = stopping.wait_for(|stop| *stop), if !is_draining => {
                is_draining = true;
                http.as_mut().graceful_shutdown();
                check.as_mut().reset(Instant::now());
            }
            () = check.as_mut() => {
                let now = Instant::now();
                let deadline = connection.deadline(limits);
                if let Some((_, reason)) = deadline.filter(|(at, _)| *at <= now) {
                    return Some(reason);
                }
                // hyper waits for the first request of a connection even then.
                if is_draining && connection.is_silent() {
                    return None;
                }
                let next = now + interval;
                check.as_mut().reset(deadline.map_or(next, |(at, _)| at.min(next)));
            }
        }
    }
}

/// One request: the router's answer, with both bodies watched.
fn answer(
    request: Request<Incoming>,
    router: &Router,
    transport: &Arc<Transport>,
    connection: &Arc<Connection>,
) -> impl Future<Output = Result<Response<WrappedBody<ActiveRequest>>, Infallible>> + Send + use<> {
    // Before the future is first polled: the head is complete.
    let is_http2 = request.version() == Version::HTTP_2;
    let active = ActiveRequest::start(connection, is_http2);
    let mut request = request.map(|body| Body::new(TimedBody::new(body, transport, connection)));
    transport.root_path.take_off(&mut request);
    request.extensions_mut().insert(ConnectInfo(connection.peer));
    request.extensions_mut().insert(Arc::clone(connection));
    let is_probe = connection.is_probe;
    let is_open = OPEN_ROUTES.contains(&request.uri().path()) || request.uri().path() == "/metrics";
    let (router, transport) = (router.clone(), Arc::clone(transport));
    async move {
        let mut response = if is_probe && !is_open {
            transport.count_refused_by_limit();
            too_many_connections(transport.limits.connections).into_response()
        } else {
            let Ok(response) = router.oneshot(request).await;
            response
        };
        if is_probe && !is_http2 {
            response
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        // Not counted as taken before hyper asks for the body: an HTTP/2 window may be closed from the start.
        active.has_given();
        Ok(response.map(|inner| WrappedBody::new(inner, active)))
    }
}

fn too_many_connections(limit: usize) -> ApiError {
    let message = format!(
        "all {limit} connections of this server are being answered (--max-connections); try again, \
         or with fewer connections"
    );
    ApiError::try_again(message).with_code("too_many_connections")
}

/// Notes whether an answer's client takes it.
impl Wrapper for ActiveRequest {
    fn poll_frame(&mut self, inner: &mut Body, cx: &mut Context<'_>) -> PolledFrame {
        // hyper asks only when the connection, or the stream's window, takes more bytes.
        self.is_asked();
        let polled = Pin::new(inner).poll_frame(cx);
        if matches!(polled, Poll::Ready(Some(Ok(_)))) {
            self.has_given();
        }
        polled
    }
}

/// A socket whose progress is recorded.
pub(super) struct Watched<I> {
    inner: I,
    connection: Arc<Connection>,
}

impl<I> Watched<I> {
    pub(super) fn new(inner: I, connection: &Arc<Connection>) -> Watched<I> {
        Watched {
            inner,
            connection: Arc::clone(connection),
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Watched<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.connection.has_read();
        }
        polled
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Watched<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.connection.has_written(polled.is_pending());
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.connection.has_written(polled.is_pending());
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
