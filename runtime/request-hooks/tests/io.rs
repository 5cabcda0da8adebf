//! The chain of IO processors: order, verdicts, limits, deadlines, and what stays whole after a panic.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use halyard_platform_api::io_processor::{IoOpened, IoOutputs, IoProcessor, IoProcessorFactory, IoRequest, IoVerdict};
use halyard_platform_api::{Error, Result, Status};
use halyard_plugin_host::Plugin;
use halyard_request_hooks::{Failed, IoProcessors, IoSettings};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

mod marking {
    halyard_platform_api::export_io_processor! {
        name: "marking", version: "1", about: "writes its mark", factory: super::MarkingFactory,
    }
}

/// Request objects not yet dropped, of processors whose mark begins with `drop-`.
static LIVE: AtomicUsize = AtomicUsize::new(0);

struct MarkingFactory;
/// Appends its mark to the body's `path` and to each output text.
struct Marking(String);

impl IoProcessorFactory for MarkingFactory {
    fn create(&self, config: &str) -> Result<Arc<dyn IoProcessor>> {
        let config: Value = serde_json::from_str(config).map_err(|error| Error::invalid(error.to_string()))?;
        let mark = config["mark"]
            .as_str()
            .ok_or_else(|| Error::invalid("the key `mark` is missing"))?;
        Ok(Arc::new(Marking(mark.to_owned())))
    }
}

impl IoProcessor for Marking {
    fn open(&self, request: &IoRequest<'_>) -> Result<IoOpened> {
        let mut body: Value = serde_json::from_str(request.body).expect("the host sends JSON");
        assert_ne!(body["panic"], self.0, "as asked");
        if body["reject"] == self.0 {
            return Ok(IoOpened {
                verdict: IoVerdict::Reject {
                    status: 451,
                    reason: format!("{} says no", self.0),
                },
                outputs: None,
            });
        }
        let path = body["path"].as_str().unwrap_or_default().to_owned() + &self.0;
        body["path"] = Value::from(path);
        if self.0.starts_with("drop-") {
            LIVE.fetch_add(1, Ordering::SeqCst);
        }
        Ok(IoOpened {
            verdict: IoVerdict::Rewrite(body.to_string()),
            outputs: Some(Box::new(MarkingOutputs(self.0.clone()))),
        })
    }
}

/// Calls that hang may go on.
static LET_GO: Mutex<Vec<&str>> = Mutex::new(Vec::new());

/// Does not come back before [`LetGo`] of this text is dropped.
fn hang(text: &str) {
    while !LET_GO.lock().expect("no thread panics with it").contains(&text) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Lets the calls of its text go on at a test's end, however it ends: a runtime waits for them.
struct LetGo(&'static str);

impl Drop for LetGo {
    fn drop(&mut self) {
        LET_GO.lock().expect("no thread panics with it").push(self.0);
    }
}

struct MarkingOutputs(String);

impl IoOutputs for MarkingOutputs {
    fn push(&mut self, _: u32, text: &str) -> Result<String> {
        match text {
            text if text.starts_with("hang") => hang(text),
            "refuse" => return Err(Error::new(Status::Denied, "not that")),
            _ => {}
        }
        Ok(format!("{text}{}", self.0))
    }

    fn finish(&mut self, choice: u32) -> Result<String> {
        Ok(format!("|{}{choice}", self.0))
    }
}

impl Drop for MarkingOutputs {
    fn drop(&mut self) {
        if self.0.starts_with("drop-") {
            LIVE.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Processors with time enough for calls that do not hang.
fn processors(marks: &[&str], max_bytes: u64) -> IoProcessors {
    processors_within(Duration::from_secs(60), marks, max_bytes)
}

fn processors_within(timeout: Duration, marks: &[&str], max_bytes: u64) -> IoProcessors {
    let plugin = Plugin::from_linked(marking::plugin()).expect("it loads");
    let factory = plugin.io_processor_factory().expect("its kind");
    let chosen = marks.iter().map(|mark| {
        (
            mark.to_string(),
            Arc::clone(&factory),
            json!({"mark": mark}).to_string(),
        )
    });
    let settings = IoSettings { timeout, max_bytes };
    IoProcessors::create(chosen.collect(), settings).expect("they start")
}

const ROUTE: &str = "/v1/completions";

#[tokio::test]
async fn bodies_pass_in_order_and_texts_in_the_opposite_one() {
    let processors = processors(&["a", "b", "c"], 1 << 10);
    let (body, mut run) = processors
        .open(ROUTE, "1", json!({"z": 1, "path": "", "n": 2.5}))
        .await
        .expect("passes");
    assert_eq!(
        body.to_string(),
        r#"{"z":1,"path":"abc","n":2.5}"#,
        "fields keep their order"
    );
    assert_eq!(run.output(0, "x".to_owned(), false).await.expect("passes"), "xcba");
    // What one gives back at the end, the next one is pushed before its own end.
    assert_eq!(
        run.output(1, "y".to_owned(), true).await.expect("passes"),
        "yc|c1b|b1a|a1"
    );
    assert_eq!(run.output(0, String::new(), true).await.expect("passes"), "|c0b|b0a|a0");
}

#[tokio::test]
async fn without_processors_nothing_is_called() {
    let none = IoProcessors::default();
    assert!(none.is_empty());
    let (body, run) = none.open(ROUTE, "1", json!({"a": 1})).await.expect("passes");
    assert!(run.is_passive() && body == json!({"a": 1}));
}

#[tokio::test]
async fn a_refusal_ends_the_request_with_its_status() {
    let processors = processors(&["a", "b", "c"], 1 << 10);
    let refused = processors
        .open(ROUTE, "1", json!({"reject": "b"}))
        .await
        .err()
        .expect("refused");
    assert_eq!((refused.http_status(), refused.code()), (451, "io_processor_rejected"));
    assert!(
        refused.to_string().contains("`b`") && refused.to_string().contains("b says no"),
        "{refused}"
    );
    let (_, mut run) = processors.open(ROUTE, "1", json!({})).await.expect("passes");
    let refused = run.output(0, "refuse".to_owned(), false).await.expect_err("refused");
    assert_eq!(refused.http_status(), 400);
    // The state is gone with the failure: nothing is shown of what comes after.
    let after = run.output(0, "more".to_owned(), true).await.expect_err("over");
    assert_eq!(after.http_status(), 500);
}

#[tokio::test]
async fn a_panic_fails_one_request() {
    let processors = processors(&["a", "b"], 1 << 10);
    for _ in 0..2 {
        let failed = processors
            .open(ROUTE, "1", json!({"panic": "b"}))
            .await
            .err()
            .expect("panics");
        assert_eq!((failed.http_status(), failed.code()), (500, "io_processor_failed"));
        assert!(
            failed.to_string().contains("`b`") && failed.to_string().contains("panicked"),
            "{failed}"
        );
        processors.open(ROUTE, "2", json!({})).await.expect("made anew");
    }
}

#[tokio::test]
async fn a_call_past_its_deadline_and_a_body_past_its_limit_fail() {
    let processors = processors_within(Duration::from_secs(6), &["a"], 40);
    let _let_go = LetGo("hang-a");
    let failed = processors
        .open(ROUTE, "1", json!({"path": "x".repeat(40)}))
        .await
        .err()
        .expect("too long");
    assert!(
        failed.http_status() == 500 && failed.to_string().contains("40 are allowed"),
        "{failed}"
    );
    let (_, mut run) = processors.open(ROUTE, "1", json!({})).await.expect("passes");
    let failed = run.output(0, "hang-a".to_owned(), false).await.expect_err("too slow");
    assert!(
        matches!(failed.what, Failed::Call(_)) && failed.http_status() == 503,
        "{failed}"
    );
    assert!(failed.to_string().contains("did not answer within 6000 ms"), "{failed}");
}

/// What `/metrics` would show.
fn shown(processors: &IoProcessors) -> String {
    let mut registry = Registry::default();
    processors.register_metrics(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).expect("formats");
    text
}

#[tokio::test]
async fn what_processors_do_is_counted_and_nothing_where_there_is_none() {
    assert_eq!(shown(&IoProcessors::default()), "# EOF\n");
    let processors = processors_within(Duration::from_secs(6), &["a", "b"], 40);
    let _let_go = LetGo("hang-b");
    assert!(shown(&processors).contains("errors_total{processor=\"b\",reason=\"busy\"} 0\n"));
    let (_, mut run) = processors.open(ROUTE, "1", json!({})).await.expect("passes");
    run.output(0, "x".to_owned(), true).await.expect("passes");
    for body in [
        json!({"reject": "b"}),
        json!({"panic": "b"}),
        json!({"path": "x".repeat(40)}),
    ] {
        processors.open(ROUTE, "1", body).await.err().expect("ends");
    }
    for text in ["refuse", "hang-b"] {
        let (_, mut run) = processors.open(ROUTE, "1", json!({})).await.expect("passes");
        run.output(0, text.to_owned(), false).await.expect_err("ends");
        run.output(0, "more".to_owned(), false).await.expect_err("over");
    }
    let text = shown(&processors);
    let count = |series: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("halyard:io_processor_")?.strip_prefix(series));
        let value = line.unwrap_or_else(|| panic!("no {series} in\n{text}"));
        value.trim().parse::<u64>().expect("a count")
    };
    // The body that was too long never came to `b`.
    for (processor, requests, texts) in [("a", 6, 1), ("b", 5, 3)] {
        let labels = format!("processor=\"{processor}\"");
        assert_eq!(count(&format!("requests_total{{{labels}}}")), requests);
        assert_eq!(
            count(&format!("call_seconds_count{{{labels},call=\"request\"}}")),
            requests
        );
        assert_eq!(count(&format!("call_seconds_count{{{labels},call=\"text\"}}")), texts);
    }
    for (processor, reason, expected) in [
        ("a", "size", 1),
        ("a", "panic", 0),
        ("b", "panic", 1),
        ("b", "deadline", 1),
        ("b", "size", 0),
        ("b", "error", 0),
    ] {
        let series = format!("errors_total{{processor=\"{processor}\",reason=\"{reason}\"}}");
        assert_eq!(count(&series), expected, "{series}\n{text}");
    }
    assert_eq!(count("refusals_total{processor=\"a\"}"), 0);
    assert_eq!(count("refusals_total{processor=\"b\"}"), 2);
}

#[test]
fn every_request_object_is_dropped_however_the_request_ends() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        let processors = processors(&["drop-a", "drop-b"], 1 << 10);
        drop(processors.open(ROUTE, "1", json!({})).await.expect("passes"));
        let _ = processors.open(ROUTE, "1", json!({"reject": "drop-b"})).await;
        let (_, mut run) = processors.open(ROUTE, "1", json!({})).await.expect("passes");
        let _ = run.output(0, "refuse".to_owned(), false).await;
    });
    // Waits for the threads of calls.
    drop(runtime);
    assert_eq!(LIVE.load(Ordering::SeqCst), 0, "objects were left behind");
}
