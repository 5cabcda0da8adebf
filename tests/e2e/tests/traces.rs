//! Traces in a collector that is not ours: a server sends its spans to Rotel, over gRPC and over HTTP, and what Rotel
//! writes down of them is read here. Skipped, with the reason, where there is no Rotel.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use halyard_e2e::{Server, TestFolder, build_with_binary, free_port, installed};
use reqwest::Client;
use serde_json::{Value, json};

/// For waits of any kind: far more than anything takes.
const DEADLINE: Duration = Duration::from_secs(60);
/// A span of each request has three below it.
const PHASES: [&str; 3] = ["queue", "prefill", "decode"];

/// A running collector that writes each span down.
struct Collector {
    child: Child,
    grpc_port: u16,
    http_port: u16,
    log: PathBuf,
}

impl Collector {
    fn start(program: &Path, folder: &Path) -> Collector {
        let (grpc_port, http_port) = (free_port(), free_port());
        let log = folder.join("collector.log");
        let mut command = Command::new(program);
        command
            .arg("start")
            .args(["--otlp-grpc-endpoint", &format!("127.0.0.1:{grpc_port}")])
            .args(["--otlp-http-endpoint", &format!("127.0.0.1:{http_port}")])
            .args(["--exporter", "blackhole"])
            .args(["--debug-log", "traces", "--debug-log-verbosity", "detailed"])
            .arg("--pid-file")
            .arg(folder.join("collector.pid"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ROTEL_")) {
            command.env_remove(name);
        }
        let output = std::fs::File::create(&log).expect("a file");
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a file"))
            .stderr(output);
        let child = command.spawn().expect("the collector starts");
        let mut collector = Collector {
            child,
            grpc_port,
            http_port,
            log,
        };
        let begun = Instant::now();
        for port in [grpc_port, http_port] {
            while TcpStream::connect(("127.0.0.1", port)).is_err() {
                let ended = collector.child.try_wait().expect("a child");
                let log = collector.written();
                assert!(ended.is_none() && begun.elapsed() < DEADLINE, "{ended:?}: {log}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        collector
    }

    fn written(&self) -> String {
        let bytes = std::fs::read(&self.log).expect("the collector's output");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The spans of a trace, when there are so many.
    fn trace(&self, trace_id: &str, count: usize) -> Vec<Span> {
        let begun = Instant::now();
        loop {
            let log = self.written();
            let mut spans = spans(&log);
            spans.retain(|span| span.said["Trace ID"] == trace_id);
            if spans.len() >= count {
                assert_eq!(spans.len(), count, "{log}");
                return spans;
            }
            assert!(begun.elapsed() < DEADLINE, "{} spans of {trace_id}: {log}", spans.len());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A span as the collector writes it.
#[derive(Debug, Default)]
struct Span {
    /// `Name : value` lines.
    said: BTreeMap<String, String>,
    /// Values with their types, such as `Int(5)`.
    attributes: BTreeMap<String, String>,
    /// `service.name` and others of its resource.
    resource: BTreeMap<String, String>,
}

/// The spans that are whole in what the collector has written so far.
fn spans(log: &str) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let mut resource = BTreeMap::new();
    let mut in_span = false;
    for line in log.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        if line.starts_with("ResourceSpans #") {
            (resource, in_span) = (BTreeMap::new(), false);
        } else if line.starts_with("ScopeSpans #") {
            in_span = false;
        } else if line.starts_with("Span #") {
            let resource = resource.clone();
            spans.push(Span {
                resource,
                ..Span::default()
            });
            in_span = true;
        } else if let Some((key, value)) = line.trim().strip_prefix("-> ").and_then(|line| line.split_once(": ")) {
            let to = match spans.last_mut().filter(|_| in_span) {
                Some(span) => &mut span.attributes,
                None => &mut resource,
            };
            to.insert(key.to_owned(), value.to_owned());
        } else if let (true, Some(span), Some((key, value))) = (in_span, spans.last_mut(), line.split_once(':')) {
            span.said.insert(key.trim().to_owned(), value.trim().to_owned());
        }
    }
    // The attributes of a phase are none: it is whole when what stands before them is.
    let is_whole = |span: &Span| match span.said.get("Name").map(String::as_str) {
        Some("llm_request") => span.attributes.len() >= ATTRIBUTES.len(),
        _ => span.said.contains_key("End time"),
    };
    spans.retain(is_whole);
    spans
}

/// What a span of a request has, with the types that vLLM gives them; the values that are known beforehand.
const ATTRIBUTES: [(&str, &str); 22] = [
    ("gen_ai.request.n", "Int(1)"),
    ("gen_ai.request.temperature", "Double(0.7)"),
    ("gen_ai.request.top_p", "Double(0.9)"),
    ("gen_ai.request.max_tokens", "Int(6)"),
    ("gen_ai.usage.prompt_tokens", "Int("),
    ("gen_ai.usage.completion_tokens", "Int(6)"),
    ("gen_ai.request.id", "Str("),
    ("gen_ai.latency.time_in_queue", "Double("),
    ("gen_ai.latency.time_to_first_token", "Double("),
    ("gen_ai.latency.time_in_model_prefill", "Double("),
    ("gen_ai.latency.time_in_model_decode", "Double("),
    ("gen_ai.latency.time_in_model_inference", "Double("),
    ("gen_ai.latency.e2e", "Double("),
    // Those of the semantic conventions.
    ("gen_ai.operation.name", "Str("),
    ("gen_ai.provider.name", "Str(halyard)"),
    ("gen_ai.request.model", "Str(tiny)"),
    ("gen_ai.response.model", "Str(tiny)"),
    ("gen_ai.response.id", "Str("),
    ("gen_ai.response.finish_reasons", "Slice(Str(length))"),
    ("gen_ai.usage.input_tokens", "Int("),
    ("gen_ai.usage.output_tokens", "Int(6)"),
    ("gen_ai.usage.cache_read.input_tokens", "Int("),
];

impl Span {
    /// A value without its type.
    fn value(&self, key: &str) -> &str {
        let shown = self.attributes.get(key).unwrap_or_else(|| panic!("no {key}: {self:?}"));
        let (_, value) = shown.split_once('(').expect("a type and a value");
        value.strip_suffix(')').expect("closed")
    }

    fn seconds(&self, latency: &str) -> f64 {
        let value = self.value(&format!("gen_ai.latency.{latency}"));
        value.parse().expect("a number")
    }

    /// When it began and ended, nanoseconds since the Unix epoch.
    fn times(&self) -> (u64, u64) {
        let time = |key: &str| self.said[key].parse().expect("nanoseconds");
        (time("Start time"), time("End time"))
    }
}

fn unix_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(now.as_nanos()).expect("before 2554")
}

/// A request of a client's trace, to its end; the id of its answer and the prompt's tokens.
async fn ask(server: &Server, route: &str, stream: bool, headers: &[(&str, &str)]) -> (String, u64) {
    let mut body = json!({"model": "tiny", "max_tokens": 6, "ignore_eos": true, "temperature": 0.7, "top_p": 0.9,
        "stream": stream});
    match route {
        "/v1/completions" => body["prompt"] = json!([5, 7, 9, 11]),
        _ => body["messages"] = json!([{"role": "user", "content": "Good morning"}]),
    }
    if stream {
        body["stream_options"] = json!({"include_usage": true});
    }
    let mut request = Client::new().post(format!("{}{route}", server.url)).json(&body);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = request.send().await.expect("answers");
    assert_eq!(answer.status(), 200);
    let text = answer.text().await.expect("to its end");
    let last = if stream {
        let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let events: Vec<&str> = events.collect();
        assert_eq!(events.last(), Some(&"[DONE]"), "{text}");
        events[events.len() - 2].to_owned()
    } else {
        text
    };
    let answer: Value = serde_json::from_str(&last).expect("JSON");
    let id = answer["id"].as_str().expect("an id").to_owned();
    (id, answer["usage"]["prompt_tokens"].as_u64().expect("usage"))
}

/// Sends requests to a server with this endpoint, and checks what arrives of them.
async fn spans_arrive(collector: &Collector, endpoint: &str, marker: &str) {
    build_with_binary(&["halyard-stat-logger-otlp"]);
    let server = Server::tiny(&["--otlp-traces-endpoint", endpoint]);
    let cases = [
        ("1", "/v1/completions", false, "text_completion"),
        ("2", "/v1/completions", true, "text_completion"),
        ("3", "/v1/chat/completions", false, "chat"),
        ("4", "/v1/chat/completions", true, "chat"),
    ];
    for (number, route, stream, operation) in cases {
        let trace_id = format!("{marker}{number}{}", "ab".repeat(15));
        let parent = format!("00f067aa0ba902b{number}");
        let trace_parent = format!("00-{trace_id}-{parent}-01");
        let before = unix_ns();
        let headers = [("traceparent", trace_parent.as_str()), ("tracestate", "vendor=a7")];
        let (id, prompt_tokens) = ask(&server, route, stream, &headers).await;
        let after = unix_ns();
        let spans = collector.trace(&trace_id, 4);

        let root = spans.iter().find(|span| span.said["Name"] == "llm_request");
        let root = root.expect("a span of the request");
        assert_eq!(root.said["Parent ID"], parent);
        assert_eq!(root.said["Kind"], "SPAN_KIND_SERVER");
        assert_eq!(root.said["TraceState"], "vendor=a7");
        let status = root.said.get("Status code").map(String::as_str);
        assert!(status.is_none_or(|status| status == "STATUS_CODE_UNSET"), "{root:?}");
        assert_eq!(root.resource["service.name"], "Str(halyard)");
        for (key, start) in ATTRIBUTES {
            let found = root.attributes.get(key).map(String::as_str).unwrap_or_default();
            assert!(found.starts_with(start), "{key} is {found:?}, not {start}");
        }
        assert_eq!(root.value("gen_ai.operation.name"), operation);
        // A completion may have several prompts, numbered in records and in the log.
        let request_id = if operation == "chat" { id } else { format!("{id}-0") };
        for key in ["gen_ai.request.id", "gen_ai.response.id"] {
            assert_eq!(root.value(key), request_id);
        }
        for key in ["gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens"] {
            assert_eq!(root.value(key), prompt_tokens.to_string());
        }

        let (start, end) = root.times();
        assert!(before <= start && start <= end, "{before} {start} {end}");
        // Its length is of another clock than the two ends are.
        assert!(end <= after + 1_000_000_000, "{end} {after}");
        let same = |a: f64, b: f64| (a - b).abs() < 2e-6;
        assert!(same(root.seconds("e2e"), (end - start) as f64 / 1e9), "{root:?}");
        let inference = root.seconds("time_in_model_prefill") + root.seconds("time_in_model_decode");
        assert!(same(root.seconds("time_in_model_inference"), inference), "{root:?}");
        let first = root.seconds("time_in_queue") + root.seconds("time_in_model_prefill");
        assert!(same(root.seconds("time_to_first_token"), first), "{root:?}");
        assert!(root.seconds("time_in_model_decode") > 0.0, "six tokens came");

        // The phases follow each other.
        let mut from = start;
        for name in PHASES {
            let phase = spans.iter().find(|span| span.said["Name"] == name);
            let phase = phase.unwrap_or_else(|| panic!("no {name}: {spans:?}"));
            assert_eq!(phase.said["Parent ID"], root.said["ID"]);
            assert_eq!(phase.said["Kind"], "SPAN_KIND_INTERNAL");
            let (begun, ended) = phase.times();
            assert_eq!(begun, from, "{name}");
            assert!(begun <= ended && ended <= end, "{name}: {spans:?}");
            from = ended;
        }
    }

    // A client that does not want its request traced, and one that says nothing of it.
    let unsampled = format!("{marker}5{}", "ab".repeat(15));
    let trace_parent = format!("00-{unsampled}-00f067aa0ba902b5-00");
    ask(&server, "/v1/completions", false, &[("traceparent", &trace_parent)]).await;
    let (id, _) = ask(&server, "/v1/completions", false, &[]).await;
    let begun = Instant::now();
    let own = loop {
        let wanted = format!("{id}-0");
        let mut all = spans(&collector.written());
        let is_own = |span: &Span| span.said["Name"] == "llm_request" && span.value("gen_ai.request.id") == wanted;
        assert!(all.iter().all(|span| span.said["Trace ID"] != unsampled), "{all:?}");
        if let Some(index) = all.iter().position(is_own) {
            break all.swap_remove(index);
        }
        assert!(begun.elapsed() < DEADLINE, "no span of {id}: {all:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let parent = own.said.get("Parent ID").map(String::as_str).unwrap_or_default();
    assert!(parent.is_empty(), "{own:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_of_the_field_gets_the_spans_of_requests_over_both_protocols() {
    let Some(program) = installed("HALYARD_ROTEL", &["rotel"]) else {
        println!("skipped: no rotel is installed: `tests/setup rotel` fetches it");
        return;
    };
    let folder = TestFolder::new("traces");
    let collector = Collector::start(&program, &folder.0);
    let grpc = format!("grpc://127.0.0.1:{}", collector.grpc_port);
    spans_arrive(&collector, &grpc, "a").await;
    let http = format!("http://127.0.0.1:{}/v1/traces", collector.http_port);
    spans_arrive(&collector, &http, "b").await;
}
