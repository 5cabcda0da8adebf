//! One connection over a pipe in memory, with a clock that the tests set: each deadline, each bound, and connections
//! that must not be closed.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::{get, post};
use bytes::Bytes;
use futures::StreamExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::body::read_object;
use super::connections::{Admission, Connections, EndReason};
use super::handshake::serve_accepted;
use super::limits::ConnectionLimits;
use super::transport::Transport;
use crate::api_error::ApiError;

/// A server's end of one connection.
struct Served {
    client: DuplexStream,
    transport: Arc<Transport>,
    ended: JoinHandle<Option<EndReason>>,
    stop: watch::Sender<bool>,
    /// Each write of the server.
    writes: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// Notes what is written at once.
struct Recorded(DuplexStream, Arc<Mutex<Vec<Vec<u8>>>>);

impl AsyncRead for Recorded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Recorded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.0).poll_write(cx, buf);
        if let Poll::Ready(Ok(count)) = &polled {
            self.1.lock().expect("one writer").push(buf[..*count].to_vec());
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

fn limits() -> ConnectionLimits {
    ConnectionLimits {
        header_timeout: Duration::from_secs(10),
        body_timeout: Duration::from_secs(20),
        body_rate: 1000,
        keep_alive: Duration::from_secs(40),
        write_timeout: Duration::from_secs(80),
        ..ConnectionLimits::default()
    }
}

async fn read(request: Request) -> Result<String, ApiError> {
    let (parts, body) = request.into_parts();
    read_object(&parts.headers, body, 16 << 20)
        .await
        .map(|_| "read".to_owned())
}

fn routes() -> Router {
    let endless = || async {
        let zeros = futures::stream::repeat_with(|| Ok::<_, io::Error>(Bytes::from(vec![0; 4096])));
        Body::from_stream(zeros)
    };
    let later = async |request: Request| {
        tokio::time::sleep(Duration::from_secs(100)).await;
        read(request).await
    };
    Router::new()
        .route("/later", post(later))
        .route("/hello", get(|| async { "hello" }))
        .route("/endless", get(endless))
        .route("/read", post(read))
}

fn serve(limits: ConnectionLimits, router: Router) -> Served {
    let transport = Arc::new(Transport::new(limits, Default::default(), None));
    let peer = SocketAddr::from(([127, 0, 0, 1], 9));
    let Admission::Open(slot, _) = transport.connections.admit(peer, &transport.limits) else {
        panic!("no place");
    };
    let (client, server) = tokio::io::duplex(16 << 10);
    let (stop, stopping) = watch::channel(false);
    let writes = Arc::new(Mutex::new(Vec::new()));
    let io = Recorded(server, Arc::clone(&writes));
    let serving = Arc::clone(&transport);
    let ended =
        tokio::spawn(async move { serve_accepted(io, router, serving, Arc::clone(&slot.connection), stopping).await });
    Served {
        client,
        transport,
        ended,
        stop,
        writes,
    }
}

impl Served {
    async fn send(&mut self, text: &str) {
        self.client.write_all(text.as_bytes()).await.expect("taken");
    }

    /// Reads up to `end`.
    async fn read_until(&mut self, end: &str) -> String {
        let mut text = Vec::new();
        while !text.ends_with(end.as_bytes()) {
            text.push(self.client.read_u8().await.unwrap_or_else(|error| {
                panic!("{error} after {}", String::from_utf8_lossy(&text));
            }));
        }
        String::from_utf8(text).expect("text")
    }
}

/// Why a connection ended. Waits for an hour of the paused clock, which is longer than every deadline here.
async fn reason_of(ended: JoinHandle<Option<EndReason>>) -> Option<EndReason> {
    let ended = tokio::time::timeout(Duration::from_secs(3600), ended).await;
    ended.expect("the connection ends").expect("no panic")
}

/// Seconds until the connection ended, and why.
async fn end_of(served: Served) -> (u64, Option<EndReason>) {
    let start = Instant::now();
    let Served { client, ended, .. } = served;
    let reason = reason_of(ended).await;
    drop(client);
    (start.elapsed().as_secs(), reason)
}

#[tokio::test(start_paused = true)]
async fn what_never_becomes_a_request_ends_by_its_deadline() {
    let silent = serve(limits(), routes());
    assert_eq!(end_of(silent).await, (10, Some(EndReason::HeaderTimeout)));
    let mut half = serve(limits(), routes());
    half.send("GET /hello HTTP/1.1\r\nhost: a\r\n").await;
    assert_eq!(end_of(half).await, (10, Some(EndReason::HeaderTimeout)));
    // A byte now and then does not help.
    let mut trickle = serve(limits(), routes());
    let start = Instant::now();
    for byte in "GET /hello HTTP/1.1\r\nx: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy".chars() {
        if trickle.client.write_all(&[byte as u8]).await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(reason_of(trickle.ended).await, Some(EndReason::HeaderTimeout));
    assert!(start.elapsed() < Duration::from_secs(13), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_kept_connection_serves_again_and_ends_when_idle() {
    let mut served = serve(limits(), routes());
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(9)).await;
        served.send("GET /hello HTTP/1.1\r\nhost: a\r\n\r\n").await;
        served.read_until("hello").await;
    }
    assert_eq!(end_of(served).await, (40, Some(EndReason::Idle)));
    let mut served = serve(limits(), routes());
    served.send("GET /hello HTTP/1.1\r\nhost: a\r\n\r\n").await;
    served.read_until("hello").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    served.send("GET /he").await;
    assert_eq!(end_of(served).await, (10, Some(EndReason::HeaderTimeout)));
}

const UPLOAD: &str =
    "POST /read HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 200000\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn a_body_that_stops_or_trickles_gets_408() {
    let mut stopped = serve(limits(), routes());
    stopped.send(UPLOAD).await;
    let start = Instant::now();
    let answer = stopped.read_until("}}").await;
    assert_eq!(start.elapsed().as_secs(), 20);
    assert!(
        answer.starts_with("HTTP/1.1 408 ") && answer.contains("body_timeout"),
        "{answer}"
    );
    let mut trickle = serve(limits(), routes());
    trickle.send(UPLOAD).await;
    let (mut reader, mut writer) = tokio::io::split(trickle.client);
    let start = Instant::now();
    let sending = tokio::spawn(async move {
        while writer.write_all(&[b' '; 100]).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let mut answer = vec![0; 12];
    reader.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(answer, b"HTTP/1.1 408");
    // 100 bytes a second earn a tenth of a second each.
    assert!((20..=24).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    assert_eq!(
        trickle.transport.late_bodies.load(std::sync::atomic::Ordering::Relaxed),
        1
    );
    drop(reader);
    sending.await.expect("ends");
}

#[tokio::test(start_paused = true)]
async fn a_long_upload_that_keeps_its_rate_is_read() {
    let mut served = serve(limits(), routes());
    served.send(UPLOAD).await;
    served.send("{\"a\": \"").await;
    for _ in 0..199 {
        served.send(&"x".repeat(1000)).await;
        tokio::time::sleep(Duration::from_millis(1050)).await;
    }
    served.send(&"x".repeat(1000 - 9)).await;
    served.send("\"}").await;
    let answer = served.read_until("read").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_reads_late_does_not_use_up_its_clients_time() {
    let mut served = serve(limits(), routes());
    served
        .send(&UPLOAD.replace("/read", "/later").replace("200000", "40000"))
        .await;
    let (mut reader, mut writer) = tokio::io::split(served.client);
    let sending = tokio::spawn(async move {
        let body = format!("{{\"a\": \"{}\"}}", "x".repeat(40_000 - 9));
        // More than fits between the two: the rest leaves when the handler reads.
        writer.write_all(body.as_bytes()).await.expect("taken");
        writer
    });
    let mut answer = vec![0; 12];
    reader.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(answer, b"HTTP/1.1 200");
    drop(sending.await.expect("no panic"));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_ends_and_one_that_reads_slowly_does_not() {
    let mut served = serve(limits(), routes());
    served.send("GET /endless HTTP/1.1\r\nhost: a\r\n\r\n").await;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        let mut some = vec![0; 16 << 10];
        served.client.read_exact(&mut some).await.expect("it goes on");
    }
    let (seconds, reason) = end_of(served).await;
    assert_eq!(reason, Some(EndReason::WriteTimeout));
    assert!((79..=81).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn frames_leave_as_they_are_made_each_in_one_write() {
    let (frames, source) = mpsc::unbounded_channel::<&'static str>();
    let source = Arc::new(Mutex::new(Some(source)));
    let streamed = move || {
        let source = source.lock().expect("one request").take().expect("one request");
        let frames = futures::stream::unfold(source, |mut source| async { Some((source.recv().await?, source)) });
        async { Body::from_stream(frames.map(Ok::<_, io::Error>)) }
    };
    let mut served = serve(limits(), Router::new().route("/stream", get(streamed)));
    served.send("GET /stream HTTP/1.1\r\nhost: a\r\n\r\n").await;
    // The head leaves before there is a token.
    served.read_until("\r\n\r\n").await;
    let before = served.writes.lock().expect("one writer").len();
    for frame in ["data: one\n\n", "data: two\n\n", "data: three\n\n"] {
        frames.send(frame).expect("a reader");
        served.read_until(&format!("{frame}\r\n")).await;
    }
    // What is made at the same time leaves together.
    frames.send("data: last\n\n").expect("a reader");
    frames.send("data: [DONE]\n\n").expect("a reader");
    drop(frames);
    served.read_until("0\r\n\r\n").await;
    let writes = served.writes.lock().expect("one writer").split_off(before);
    let texts: Vec<String> = writes
        .into_iter()
        .map(|write| String::from_utf8(write).expect("text"))
        .collect();
    assert_eq!(texts.len(), 4, "{texts:?}");
    assert_eq!(texts[0], "B\r\ndata: one\n\n\r\n");
    assert_eq!(texts[1], "B\r\ndata: two\n\n\r\n");
    assert_eq!(texts[2], "D\r\ndata: three\n\n\r\n");
    assert!(texts[3].ends_with("[DONE]\n\n\r\n0\r\n\r\n"), "{texts:?}");
}

#[tokio::test]
async fn heads_of_20_kb_pass_and_larger_ones_are_refused() {
    let mut served = serve(limits(), routes());
    let long = "x".repeat(20_000);
    served
        .send(&format!("GET /hello HTTP/1.1\r\nhost: a\r\nlong: {long}\r\n\r\n"))
        .await;
    assert!(served.read_until("hello").await.starts_with("HTTP/1.1 200 "));
    let huge = "x".repeat(70_000);
    let _ = served
        .client
        .write_all(format!("GET /hello HTTP/1.1\r\nlong: {huge}\r\n\r\n").as_bytes())
        .await;
    assert!(served.read_until("\r\n\r\n").await.starts_with("HTTP/1.1 431 "));
    let mut served = serve(limits(), routes());
    let many: String = (0..300).map(|n| format!("h{n}: 1\r\n")).collect();
    let _ = served
        .client
        .write_all(format!("GET /hello HTTP/1.1\r\n{many}\r\n").as_bytes())
        .await;
    assert!(served.read_until("\r\n\r\n").await.starts_with("HTTP/1.1 431 "));
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_idle_connections_and_lets_answers_finish() {
    let silent = serve(limits(), routes());
    // Until the connection has begun to wait.
    tokio::time::sleep(Duration::from_millis(1)).await;
    silent.stop.send(true).expect("it listens");
    let (seconds, reason) = end_of(silent).await;
    assert_eq!((seconds, reason), (0, None));
    let mut uploading = serve(limits(), routes());
    uploading.send(&UPLOAD.replace("200000", "2")).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    uploading.stop.send(true).expect("it listens");
    tokio::time::sleep(Duration::from_secs(1)).await;
    uploading.send("{}").await;
    assert!(uploading.read_until("read").await.starts_with("HTTP/1.1 200 "));
    assert_eq!(end_of(uploading).await, (0, None));
}

/// A client of HTTP/2 and the end of its connection.
async fn http2(
    served: Served,
) -> (
    h2::client::SendRequest<Bytes>,
    JoinHandle<Result<(), h2::Error>>,
    JoinHandle<Option<EndReason>>,
) {
    // No window: answers with a body wait for ever.
    let handshake = h2::client::Builder::new()
        .initial_window_size(0)
        .handshake(served.client);
    let (client, connection) = handshake.await.expect("HTTP/2");
    // The server's side does not stop.
    std::mem::forget(served.stop);
    (client, tokio::spawn(connection), served.ended)
}

fn get_request(path: &str) -> axum::http::Request<()> {
    axum::http::Request::get(format!("http://a{path}"))
        .body(())
        .expect("a request")
}

/// One frame of HTTP/2 (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A whole GET request: HEADERS with END_STREAM and END_HEADERS, its fields from the static table (RFC 7541, appendix
/// A).
fn raw_get(stream: u32, path: &str) -> Vec<u8> {
    let mut fields = vec![
        0x82,
        0x86,
        0x41,
        1,
        b'a',
        0x04,
        u8::try_from(path.len()).expect("short"),
    ];
    fields.extend(path.as_bytes());
    frame(1, 5, stream, &fields)
}

/// Says what a client says first, then `flood`; everything that the server writes until it closes.
async fn flood_with(served: Served, flood: Vec<u8>) -> (Vec<u8>, Option<EndReason>) {
    let (mut reader, mut writer) = tokio::io::split(served.client);
    let writing = tokio::spawn(async move {
        let _ = writer.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        let _ = writer.write_all(&frame(4, 0, 0, &[])).await;
        // The server stops reading when it has had enough.
        let _ = writer.write_all(&flood).await;
        writer
    });
    let mut answered = Vec::new();
    reader.read_to_end(&mut answered).await.expect("a pipe");
    drop(writing.await.expect("no panic"));
    (answered, served.ended.await.expect("no panic"))
}

/// The error code of the GOAWAY frame that ends a server's words.
fn goaway(mut bytes: &[u8]) -> Option<u32> {
    let mut code = None;
    while let Some((head, rest)) = bytes.split_at_checked(9) {
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        if head[3] == 7 {
            code = Some(u32::from_be_bytes(rest[4..8].try_into().expect("4 bytes")));
        }
        bytes = &rest[len..];
    }
    code
}

const ENHANCE_YOUR_CALM: u32 = 11;

#[tokio::test]
async fn a_reset_flood_ends_its_own_connection() {
    let pairs = (0..10_000u32).flat_map(|n| {
        let stream = 2 * n + 1;
        [raw_get(stream, "/endless"), frame(3, 0, stream, &8u32.to_be_bytes())].concat()
    });
    let pairs = pairs.collect();
    let patient = ConnectionLimits {
        header_timeout: Duration::from_secs(600),
        ..limits()
    };
    let mut other = serve(patient, routes());
    let (answered, reason) = flood_with(serve(limits(), routes()), pairs).await;
    assert_eq!((goaway(&answered), reason), (Some(ENHANCE_YOUR_CALM), None));
    other.send("GET /hello HTTP/1.1\r\nhost: a\r\n\r\n").await;
    other.read_until("hello").await;
}

#[tokio::test]
async fn ten_thousand_streams_are_bounded() {
    let running = Arc::new(Mutex::new((0, 0)));
    let counted = Arc::clone(&running);
    let wait = move || {
        let mut count = counted.lock().expect("short");
        *count = (count.0 + 1, count.1.max(count.0 + 1));
        let guard = one_less_at_end(Arc::clone(&counted));
        async move {
            let _guard = guard;
            std::future::pending::<String>().await
        }
    };
    let few = ConnectionLimits {
        http2_streams: 100,
        ..limits()
    };
    let streams = (0..10_000u32).flat_map(|n| raw_get(2 * n + 1, "/wait")).collect();
    let served = serve(few, Router::new().route("/wait", get(wait)));
    let (answered, _) = flood_with(served, streams).await;
    // After so many refused streams the connection ends, and what ran on it.
    assert_eq!(goaway(&answered), Some(ENHANCE_YOUR_CALM));
    // Each stream has a task, which ends in its turn.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(*running.lock().expect("short"), (0, 100));
}

/// Counts one less when dropped.
fn one_less_at_end(count: Arc<Mutex<(u32, u32)>>) -> impl Drop + Send {
    struct Guard(Arc<Mutex<(u32, u32)>>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.lock().expect("short").0 -= 1;
        }
    }
    Guard(count)
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_window_stays_shut_ends_its_connection() {
    let (client, connection, ended) = http2(serve(limits(), routes())).await;
    let start = Instant::now();
    let mut client = client.ready().await.expect("open");
    let (answer, _) = client.send_request(get_request("/endless"), true).expect("sent");
    let answer = answer.await.expect("a head");
    assert_eq!(reason_of(ended).await, Some(EndReason::WriteTimeout));
    assert!((79..=81).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    drop(answer);
    let _ = connection.await;
}

#[tokio::test(start_paused = true)]
async fn beyond_the_bound_only_probes_are_answered() {
    let one = ConnectionLimits {
        connections: 1,
        ..limits()
    };
    let transport = Arc::new(Transport::new(one, Default::default(), None));
    let all: &Arc<Connections> = &transport.connections;
    let router = routes().route("/health", get(|| async { "fine" }));
    let peer = SocketAddr::from(([127, 0, 0, 1], 9));
    let mut clients = Vec::new();
    let (_stop, stopping) = watch::channel(false);
    for request in [
        "GET /endless HTTP/1.1\r\nhost: a\r\n\r\n",
        "GET /health HTTP/1.1\r\nhost: a\r\n\r\n",
        "GET /hello HTTP/1.1\r\nhost: a\r\n\r\n",
    ] {
        let Admission::Open(slot, evicted) = all.admit(peer, &transport.limits) else {
            panic!("no place");
        };
        assert_eq!(evicted, None);
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let (router, transport, stopping) = (router.clone(), Arc::clone(&transport), stopping.clone());
        tokio::spawn(async move {
            serve_accepted(server, router, transport, Arc::clone(&slot.connection), stopping).await;
            drop(slot);
        });
        client.write_all(request.as_bytes()).await.expect("taken");
        let mut head = vec![0; 12];
        client.read_exact(&mut head).await.expect("an answer");
        clients.push((String::from_utf8(head).expect("text"), client));
    }
    let heads: Vec<&str> = clients.iter().map(|(head, _)| head.as_str()).collect();
    assert_eq!(heads, ["HTTP/1.1 200", "HTTP/1.1 200", "HTTP/1.1 503"]);
    let mut rest = String::new();
    let (_, mut refused) = clients.pop().expect("three");
    refused.read_to_string(&mut rest).await.expect("closed afterwards");
    assert!(
        rest.contains("connection: close") && rest.contains("too_many_connections"),
        "{rest}"
    );
}
