//! OTLP over gRPC, against a collector of our own that answers as a test wants; the one of the field is in tests/e2e.
//! What a call says, over TLS too, and failures: they cost counted drops, and what a person must mend is an error.

mod support;

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use halyard_platform_api::hooks::StatRecord;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message as _;
use rustls::ServerConfig;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

use support::authority::Authority;
use support::{Arrived, collector, counter, finished, give, logger, refusal, settled, start};

/// How a call is answered.
#[derive(Clone, Copy)]
enum Answer {
    /// An empty message, and a status behind it.
    Trailers(&'static str),
    /// A status among the headers, and nothing else.
    AtOnce(&'static str),
    /// As a web server would.
    NoGrpc,
}

impl Answer {
    fn response(self) -> Response<BoxBody<Bytes, Infallible>> {
        let status = |status: &'static str| (HeaderName::from_static("grpc-status"), HeaderValue::from_static(status));
        let empty = Full::new(Bytes::new());
        match self {
            Answer::NoGrpc => Response::new(empty.boxed()),
            Answer::AtOnce(code) => {
                let mut response = Response::new(empty.boxed());
                response.headers_mut().extend([status(code)]);
                response
            }
            Answer::Trailers(code) => {
                let trailers: HeaderMap = [status(code)].into_iter().collect();
                let message = Full::new(Bytes::from_static(&[0; 5]));
                Response::new(message.with_trailers(async move { Some(Ok(trailers)) }).boxed())
            }
        }
    }
}

/// A connection, encrypted or not.
trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// A collector on a free port: what it gets, and its port.
fn grpc_collector(answer: Answer, tls: Option<Arc<ServerConfig>>) -> (Receiver<Arrived>, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    listener.set_nonblocking(true).expect("a socket");
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime
            .expect("a runtime")
            .block_on(accept(listener, answer, tls, sender))
    });
    (receiver, port)
}

async fn accept(listener: TcpListener, answer: Answer, tls: Option<Arc<ServerConfig>>, sender: Sender<Arrived>) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
    let acceptor = tls.map(TlsAcceptor::from);
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, sender) = (acceptor.clone(), sender.clone());
        tokio::spawn(async move {
            let stream: Box<dyn Connection> = match acceptor {
                None => Box::new(stream),
                Some(acceptor) => match acceptor.accept(stream).await {
                    Ok(stream) => Box::new(stream),
                    Err(_) => return,
                },
            };
            let service = service_fn(|request| take(request, answer, sender.clone()));
            // An error is how a client leaves.
            let connection = http2::Builder::new(TokioExecutor::new());
            let _ = connection.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn take(
    request: Request<Incoming>,
    answer: Answer,
    sender: Sender<Arrived>,
) -> Result<Response<BoxBody<Bytes, Infallible>>, hyper::Error> {
    let (parts, body) = request.into_parts();
    let text = |value: &HeaderValue| value.to_str().expect("a text").to_owned();
    let arrived = Arrived {
        path: parts.uri.path().to_owned(),
        headers: parts
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), text(value)))
            .collect(),
        body: body.collect().await?.to_bytes().to_vec(),
    };
    let _ = sender.send(arrived);
    Ok(answer.response())
}

fn request() -> StatRecord {
    StatRecord::Finished(finished())
}

/// The message of a call, behind its prefix.
fn message(arrived: &Arrived) -> &[u8] {
    let (prefix, message) = arrived.body.split_first_chunk::<5>().expect("a prefix");
    let [compressed, length @ ..] = *prefix;
    assert_eq!((compressed, u32::from_be_bytes(length) as usize), (0, message.len()));
    message
}

#[test]
fn both_signals_are_calls_of_their_services() {
    let (receiver, port) = grpc_collector(Answer::Trailers("0"), None);
    let mut logger = logger(json!({
        "protocol": "grpc", "endpoint": format!("http://127.0.0.1:{port}/"), "headers": {"X-Key": "sesame"},
    }));
    give(&mut *logger, &[start(), request()]);
    assert_eq!(settled(&mut *logger), (4, 0));
    drop(logger);
    let calls: Vec<Arrived> = receiver.try_iter().collect();
    for call in &calls {
        for (name, value) in [
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("x-key", "sesame"),
        ] {
            assert_eq!(call.headers.get(name).map(String::as_str), Some(value), "{name}");
        }
    }
    let of = |service: &str| calls.iter().find(|call| call.path.contains(service)).expect(service);
    let traces = of("/opentelemetry.proto.collector.trace.v1.TraceService/Export");
    let traces = ExportTraceServiceRequest::decode(message(traces)).expect("protobuf");
    assert_eq!(traces.resource_spans[0].scope_spans[0].spans.len(), 4);
    let metrics = of("/opentelemetry.proto.collector.metrics.v1.MetricsService/Export");
    let metrics = ExportMetricsServiceRequest::decode(message(metrics)).expect("protobuf");
    assert!(!metrics.resource_metrics[0].scope_metrics[0].metrics.is_empty());
}

#[test]
fn a_call_that_fails_costs_counted_drops_and_is_no_error() {
    for answer in [Answer::Trailers("8"), Answer::AtOnce("16"), Answer::NoGrpc] {
        let (receiver, port) = grpc_collector(answer, None);
        let mut logger = logger(json!({
            "protocol": "grpc", "endpoint": format!("http://127.0.0.1:{port}"), "metrics": false,
        }));
        give(&mut *logger, &[start(), request()]);
        assert_eq!(settled(&mut *logger), (0, 4));
        assert_eq!(receiver.try_iter().count(), 1, "it is not tried again");
        give(&mut *logger, &[request()]);
    }
}

#[test]
fn a_collector_for_http_costs_counted_drops() {
    let (_receiver, url) = collector(true);
    let mut logger = logger(json!({"protocol": "grpc", "endpoint": url, "metrics": false, "span_delay_ms": 20}));
    give(&mut *logger, &[start(), request()]);
    assert_eq!(settled(&mut *logger), (0, 4));
    assert_eq!(counter(&mut *logger, "halyard:otlp_queued_spans"), 0);
}

#[test]
fn a_certificate_is_checked_as_over_http() {
    let (trusted, other) = (Authority::new("grpc-trusted"), Authority::new("grpc-other"));
    let over_http2 = |authority: &Authority| {
        let mut config = (*authority.server("localhost", false)).clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        grpc_collector(Answer::Trailers("0"), Some(Arc::new(config)))
    };
    let settings = |port: u16| {
        json!({"protocol": "grpc", "endpoint": format!("https://localhost:{port}"), "ca_file": trusted.file,
            "metrics": false, "span_delay_ms": 20})
    };
    let (receiver, port) = over_http2(&trusted);
    let mut good = logger(settings(port));
    give(&mut *good, &[start(), request()]);
    assert_eq!(settled(&mut *good), (4, 0));
    assert_eq!(receiver.try_iter().count(), 1);

    let (receiver, port) = over_http2(&other);
    let mut bad = logger(settings(port));
    give(&mut *bad, &[start()]);
    let reason = refusal(&mut *bad);
    assert!(
        reason.contains("UnknownIssuer") && reason.contains("`ca_file`"),
        "{reason}"
    );
    assert_eq!(receiver.try_iter().count(), 0, "something was sent");
}
