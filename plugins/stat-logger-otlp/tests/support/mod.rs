//! A small collector that keeps what arrives, with or without TLS, and records to send there.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod authority;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use halyard_platform_api::Status;
use halyard_platform_api::hooks::{Batch, FinishedRecord, StartRecord, StatLogger, StatLoggerFactory, StatRecord};
use halyard_plugin_host::Plugin;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// For waits of any kind: far more than anything takes.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// One request to the collector.
pub struct Arrived {
    /// Its path.
    pub path: String,
    /// By name in lower case.
    pub headers: BTreeMap<String, String>,
    /// As it came.
    pub body: Vec<u8>,
}

/// A collector on a free port: what it gets, and its address. `accepts`: it answers 200; otherwise 503.
pub fn collector(accepts: bool) -> (Receiver<Arrived>, String) {
    let (receiver, address) = listen(move |stream, sender| serve(stream, accepts, &sender));
    (receiver, format!("http://{address}"))
}

/// As [`collector`], over TLS with what `config` holds when a connection comes. Its address names the host `localhost`.
pub fn tls_collector(config: Arc<Mutex<Arc<ServerConfig>>>) -> (Receiver<Arrived>, String) {
    let (receiver, address) = listen(move |stream, sender| {
        let config = config.lock().expect("no thread panicked").clone();
        let connection = ServerConnection::new(config).expect("a good configuration");
        serve(StreamOwned::new(connection, stream), true, &sender);
    });
    (receiver, format!("https://localhost:{}", address.port()))
}

/// Gives each connection to a free port to `serve`, on a thread of its own.
pub fn listen(serve: impl Fn(TcpStream, Sender<Arrived>) + Send + Sync + 'static) -> (Receiver<Arrived>, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let (sender, receiver) = channel();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (sender, serve) = (sender.clone(), serve.clone());
            std::thread::spawn(move || serve(stream, sender));
        }
    });
    (receiver, address)
}

/// Answers the requests of a connection until it ends.
fn serve(stream: impl Read + Write, accepts: bool, sender: &Sender<Arrived>) {
    let mut reader = BufReader::new(stream);
    while let Some(arrived) = read_request(&mut reader) {
        let status = if accepts { "200 OK" } else { "503 Service Unavailable" };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        let stream = reader.get_mut();
        let sent = sender.send(arrived).is_ok() && stream.write_all(answer.as_bytes()).is_ok();
        if !sent || stream.flush().is_err() {
            return;
        }
    }
}

fn read_request(reader: &mut impl BufRead) -> Option<Arrived> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|&read| read > 0)?;
    let path = line.split(' ').nth(1)?.to_string();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        headers.insert(name.to_lowercase(), value.to_string());
    }
    let mut body = vec![0; headers.get("content-length")?.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    Some(Arrived { path, headers, body })
}

/// The plugin's factory, through its tables.
pub fn factory() -> Arc<dyn StatLoggerFactory> {
    let plugin = Plugin::from_linked(halyard_stat_logger_otlp::plugin()).expect("it starts");
    plugin.stat_logger_factory().expect("a stat logger")
}

/// A logger with this configuration, patient where it says nothing else.
pub fn logger(mut config: serde_json::Value) -> Box<dyn StatLogger> {
    let settings = config.as_object_mut().expect("an object");
    settings.entry("timeout_ms").or_insert(60_000.into());
    factory().create(&config.to_string()).expect("a good configuration")
}

/// Waits until nothing is queued any more; spans exported and dropped.
pub fn settled(logger: &mut dyn StatLogger) -> (u64, u64) {
    let start = Instant::now();
    while counter(logger, "halyard:otlp_queued_spans") > 0 {
        assert!(start.elapsed() < DEADLINE, "spans wait for ever");
        std::thread::yield_now();
    }
    (
        counter(logger, "halyard:otlp_spans_total{outcome=\"exported\"}"),
        counter(logger, "halyard:otlp_spans_total{outcome=\"dropped\"}"),
    )
}

/// Gives `records`; what the logger answers.
pub fn offer(logger: &mut dyn StatLogger, records: &[StatRecord]) -> halyard_platform_api::Result<()> {
    logger.log_batch(&Batch {
        records,
        deadline: DEADLINE,
        num_dropped: 0,
    })
}

/// Gives `records`, which must be taken.
pub fn give(logger: &mut dyn StatLogger, records: &[StatRecord]) {
    offer(logger, records).expect("taken");
}

/// Gives records until the logger answers an error; its words.
pub fn refusal(logger: &mut dyn StatLogger) -> String {
    let started = Instant::now();
    loop {
        if let Err(error) = offer(logger, &[StatRecord::Finished(finished())]) {
            assert_eq!(error.status, Status::Unavailable, "{error}");
            return error.message;
        }
        assert!(started.elapsed() < DEADLINE, "the error was not reported");
        std::thread::yield_now();
    }
}

/// The first record of each logger.
pub fn start() -> StatRecord {
    StatRecord::Start(StartRecord {
        model: "tiny".into(),
        version: "9.8.7".into(),
        platform: "cpu 0.1.0".into(),
        ..StartRecord::default()
    })
}

/// The wall clock of the records, nanoseconds.
pub const ARRIVAL: u64 = 1_700_000_000_000_000_000;

/// A chat request of 40 + 9 tokens.
pub fn finished() -> FinishedRecord {
    FinishedRecord {
        reason: 1,
        num_samples: 1,
        arrival_unix_ns: ARRIVAL,
        unix_ns: ARRIVAL + 900_000_000,
        prompt_tokens: 40,
        cached_tokens: 16,
        generation_tokens: 9,
        max_tokens: 9,
        queue_ns: 100_000_000,
        prefill_ns: 200_000_000,
        decode_ns: 600_000_000,
        first_token_ns: 300_000_000,
        inter_token_ns: 75_000_000,
        total_ns: 900_000_000,
        request_id: "chatcmpl-1".into(),
        ..FinishedRecord::default()
    }
}

/// Everything that has come for `path` so far.
pub fn arrived(receiver: &Receiver<Arrived>, path: &str) -> Vec<Arrived> {
    receiver.try_iter().filter(|arrived| arrived.path == path).collect()
}

/// A counter of the logger's own text for the metrics route.
pub fn counter(logger: &mut dyn StatLogger, start: &str) -> u64 {
    let text = logger.expose().expect("shown").expect("a text");
    let line = text
        .lines()
        .find(|line| line.starts_with(start))
        .unwrap_or_else(|| panic!("no {start} in {text}"));
    line.rsplit(' ').next().and_then(|n| n.parse().ok()).expect("a number")
}
