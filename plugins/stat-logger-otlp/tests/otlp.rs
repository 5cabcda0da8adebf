//! The logger, linked, against a small collector of our own that parses what arrives: values, attributes and times are
//! those of the records, and an unreachable or slow collector costs only drops, which are counted.

mod support;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::time::Instant;

use halyard_platform_api::Status;
use halyard_platform_api::hooks::{
    CacheRecord, FinishedRecord, IterationRecord, RejectedRecord, SchedulerRecord, StatLogger, StatRecord,
};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::{Metric, metric::Data, number_data_point};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

use support::{
    ARRIVAL, Arrived, DEADLINE, arrived, collector, counter, factory, finished, give, logger, settled, start,
};

fn attributes(all: &[KeyValue]) -> BTreeMap<&str, String> {
    let show = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        Value::DoubleValue(number) => number.to_string(),
        Value::ArrayValue(array) => format!("{:?}", array.values.iter().map(|v| v.value.clone()).collect::<Vec<_>>()),
        other => format!("{other:?}"),
    };
    let shown = all
        .iter()
        .filter_map(|kv| Some((kv.key.as_str(), show(kv.value.as_ref()?.value.as_ref()?))));
    shown.collect()
}

fn spans(requests: &[Arrived]) -> Vec<Span> {
    let parse = |arrived: &Arrived| ExportTraceServiceRequest::decode(&arrived.body[..]).expect("protobuf");
    requests
        .iter()
        .map(parse)
        .flat_map(|request| request.resource_spans)
        .flat_map(|resource| resource.scope_spans)
        .flat_map(|scope| scope.spans)
        .collect()
}

#[test]
fn a_finished_request_is_a_span_with_its_phases() {
    let (receiver, url) = collector(true);
    let mut logger = logger(serde_json::json!({
        "endpoint": url, "headers": {"x-key": "sesame"}, "service_name": "shop", "metrics": false,
        "span_delay_ms": 60_000,
        "resource_attributes": {"service.name": "other", "service.version": "mine", "k8s.pod.name": "shop-0"},
    }));
    let traced = FinishedRecord {
        trace_parent: "00-0123456789abcdef0123456789abcdef-00f067aa0ba902b7-01".into(),
        trace_state: "vendor=a7,other=1".into(),
        temperature: 0.7,
        top_p: 0.9,
        ..finished()
    };
    let never_admitted = FinishedRecord {
        reason: 3,
        queue_ns: 5_000_000,
        total_ns: 5_000_000,
        arrival_unix_ns: ARRIVAL,
        request_id: "cmpl-2".into(),
        detail: "the device is gone".into(),
        lora_name: "poet".into(),
        ..FinishedRecord::default()
    };
    let unsampled = FinishedRecord {
        trace_parent: "00-1123456789abcdef0123456789abcdef-00f067aa0ba902b7-00".into(),
        ..finished()
    };
    let records = [traced, never_admitted, unsampled].map(StatRecord::Finished);
    give(&mut *logger, &[&[start()][..], &records].concat());
    let shown = logger.expose().expect("shown").expect("a text");
    assert!(shown.contains("halyard:otlp_queued_spans 6\n"), "{shown}");
    drop(logger);
    let requests = arrived(&receiver, "/v1/traces");
    assert_eq!(requests[0].headers["x-key"], "sesame");
    assert_eq!(requests[0].headers["content-type"], "application/x-protobuf");
    let first = ExportTraceServiceRequest::decode(&requests[0].body[..]).expect("protobuf");
    let resource = first.resource_spans[0].resource.clone().expect("a resource");
    let resource = attributes(&resource.attributes);
    assert_eq!(
        (resource["service.name"].as_str(), resource["service.version"].as_str()),
        ("shop", "mine"),
        "what is configured goes before what the server knows"
    );
    assert_eq!(resource["k8s.pod.name"], "shop-0");
    assert_eq!(resource["halyard.platform"], "cpu 0.1.0");

    let spans = spans(&requests);
    assert_eq!(spans.len(), 6, "{spans:?}");
    let chat = spans
        .iter()
        .find(|span| span.name == "llm_request" && span.status.as_ref().is_none_or(|status| status.code == 0))
        .expect("the first request");
    assert_eq!(chat.trace_state, "vendor=a7,other=1");
    assert_eq!(
        chat.trace_id,
        0x0123_4567_89ab_cdef_0123_4567_89ab_cdef_u128.to_be_bytes()
    );
    assert_eq!(chat.parent_span_id, 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes());
    assert_eq!(chat.kind, 2, "a server's span");
    assert_eq!(
        (chat.start_time_unix_nano, chat.end_time_unix_nano),
        (ARRIVAL, ARRIVAL + 900_000_000)
    );
    let of = attributes(&chat.attributes);
    for (key, value) in [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "halyard"),
        ("gen_ai.request.model", "tiny"),
        ("gen_ai.response.id", "chatcmpl-1"),
        ("gen_ai.usage.input_tokens", "40"),
        ("gen_ai.usage.cache_read.input_tokens", "16"),
        ("gen_ai.usage.output_tokens", "9"),
        ("gen_ai.request.choice.count", "1"),
        // vLLM's names.
        ("gen_ai.request.id", "chatcmpl-1"),
        ("gen_ai.request.n", "1"),
        ("gen_ai.request.temperature", "0.7"),
        ("gen_ai.request.top_p", "0.9"),
        ("gen_ai.request.max_tokens", "9"),
        ("gen_ai.usage.prompt_tokens", "40"),
        ("gen_ai.usage.completion_tokens", "9"),
        ("gen_ai.latency.time_in_queue", "0.1"),
        ("gen_ai.latency.time_to_first_token", "0.3"),
        ("gen_ai.latency.time_in_model_prefill", "0.2"),
        ("gen_ai.latency.time_in_model_decode", "0.6"),
        ("gen_ai.latency.time_in_model_inference", "0.8"),
        ("gen_ai.latency.e2e", "0.9"),
    ] {
        assert_eq!(of.get(key).map(String::as_str), Some(value), "{key}");
    }
    assert!(!of.contains_key("halyard.sample.index"), "there is one");
    assert!(of["gen_ai.response.finish_reasons"].contains("\"length\""), "{of:?}");
    let phase = |name: &str| {
        let mine = |span: &&Span| span.name == name && span.parent_span_id == chat.span_id;
        let span = spans
            .iter()
            .find(mine)
            .unwrap_or_else(|| panic!("no {name} under the first request"));
        assert_eq!(span.trace_id, chat.trace_id);
        (span.start_time_unix_nano - ARRIVAL, span.end_time_unix_nano - ARRIVAL)
    };
    assert_eq!(phase("queue"), (0, 100_000_000));
    assert_eq!(phase("prefill"), (100_000_000, 300_000_000));
    assert_eq!(phase("decode"), (300_000_000, 900_000_000));

    let failed = spans
        .iter()
        .find(|span| span.name == "llm_request" && span.span_id != chat.span_id)
        .expect("the second");
    let of = attributes(&failed.attributes);
    assert_eq!(
        (
            of["gen_ai.operation.name"].as_str(),
            of["gen_ai.response.model"].as_str()
        ),
        ("text_completion", "poet")
    );
    for key in [
        "gen_ai.request.temperature",
        "gen_ai.request.max_tokens",
        "gen_ai.latency.time_to_first_token",
    ] {
        assert_eq!(of.get(key), None, "the record does not say it");
    }
    let status = failed.status.clone().expect("a status");
    assert_eq!((status.code, status.message.as_str()), (2, "the device is gone"));
    assert!(failed.parent_span_id.is_empty());
    assert_eq!(
        spans
            .iter()
            .filter(|span| span.parent_span_id == failed.span_id)
            .count(),
        1,
        "it only queued"
    );
}

fn metrics(requests: &[Arrived]) -> BTreeMap<String, Metric> {
    let last = requests.last().expect("an export");
    let request = ExportMetricsServiceRequest::decode(&last.body[..]).expect("protobuf");
    let scopes = request
        .resource_metrics
        .into_iter()
        .flat_map(|resource| resource.scope_metrics);
    scopes
        .flat_map(|scope| scope.metrics)
        .map(|metric| (metric.name.clone(), metric))
        .collect()
}

/// The values of a sum or gauge, by the value of attribute `by`.
fn numbers(metric: &Metric, by: &str) -> BTreeMap<String, f64> {
    let points = match metric.data.as_ref().expect("data") {
        Data::Sum(sum) => &sum.data_points,
        Data::Gauge(gauge) => &gauge.data_points,
        other => panic!("{} is {other:?}", metric.name),
    };
    let value = |value: &Option<number_data_point::Value>| match value {
        Some(number_data_point::Value::AsInt(number)) => *number as f64,
        Some(number_data_point::Value::AsDouble(number)) => *number,
        None => panic!("{} has no value", metric.name),
    };
    points
        .iter()
        .map(|point| {
            let key = attributes(&point.attributes).get(by).cloned().unwrap_or_default();
            (key, value(&point.value))
        })
        .collect()
}

#[test]
fn records_are_metrics_with_the_conventions_names() {
    let (receiver, url) = collector(true);
    let mut logger = logger(serde_json::json!({"endpoint": url + "/", "traces": false, "interval_ms": 3_600_000}));
    let iteration = IterationRecord {
        prompt_tokens: 40,
        generation_tokens: 3,
        ..IterationRecord::default()
    };
    let scheduler = SchedulerRecord {
        num_running: 5,
        num_waiting: 2,
        num_preempted: 1,
        ..SchedulerRecord::default()
    };
    let cache = CacheRecord {
        usage: 0.25,
        prefix_queries: 40,
        prefix_hits: 16,
        ..CacheRecord::default()
    };
    let one = [
        StatRecord::Scheduler(scheduler),
        StatRecord::Iteration(iteration),
        StatRecord::Cache(cache),
        StatRecord::Finished(finished()),
        StatRecord::Rejected(RejectedRecord::default()),
    ];
    give(&mut *logger, &[start()]);
    give(&mut *logger, &one);
    give(&mut *logger, &one);
    drop(logger);
    let all = metrics(&arrived(&receiver, "/v1/metrics"));
    let tokens = numbers(&all["halyard.tokens"], "gen_ai.token.type");
    assert_eq!((tokens["input"], tokens["output"]), (80.0, 6.0));
    assert_eq!(numbers(&all["halyard.requests.running"], "")[""], 5.0);
    assert_eq!(numbers(&all["halyard.requests.waiting"], "")[""], 2.0);
    assert_eq!(numbers(&all["halyard.preemptions"], "")[""], 2.0);
    assert_eq!(numbers(&all["halyard.kv_cache.usage"], "")[""], 0.25);
    assert_eq!(numbers(&all["halyard.prefix_cache.hits"], "")[""], 32.0);
    assert_eq!(numbers(&all["halyard.requests.rejected"], "reason")["queue_full"], 2.0);
    for (name, sum, bound) in [
        ("gen_ai.server.request.duration", 1.8, 0.01),
        ("gen_ai.server.time_to_first_token", 0.6, 0.001),
        ("gen_ai.server.time_per_output_token", 0.15, 0.01),
        ("halyard.request.queue.duration", 0.2, 0.01),
    ] {
        let metric = &all[name];
        assert_eq!(metric.unit, "s");
        let Some(Data::Histogram(histogram)) = &metric.data else {
            panic!("{name} is no histogram");
        };
        let point = &histogram.data_points[0];
        assert_eq!((point.count, point.explicit_bounds[0]), (2, bound), "{name}");
        assert!(
            (point.sum.expect("a sum") - sum).abs() < 1e-9,
            "{name}: {:?}",
            point.sum
        );
        let of = attributes(&point.attributes);
        assert_eq!(
            (
                of["gen_ai.operation.name"].as_str(),
                of["gen_ai.request.model"].as_str()
            ),
            ("chat", "tiny")
        );
    }
}

/// Gives `requests` finished requests, 64 at a time.
fn load(logger: &mut dyn StatLogger, requests: usize) {
    let batch: Vec<StatRecord> = (0..64).map(|_| StatRecord::Finished(finished())).collect();
    for _ in 0..requests / 64 {
        give(logger, &batch);
    }
}

#[test]
fn a_collector_that_is_away_or_refuses_costs_counted_drops() {
    let no_collector = "http://127.0.0.1:1".to_string();
    for url in [no_collector, collector(false).1] {
        let mut logger = logger(serde_json::json!({"endpoint": url, "span_delay_ms": 50, "interval_ms": 50}));
        give(&mut *logger, &[start()]);
        load(&mut *logger, 256);
        assert_eq!(settled(&mut *logger), (0, 4 * 256), "{url}");
        let started = Instant::now();
        while counter(&mut *logger, "halyard:otlp_metric_exports_total{outcome=\"failed\"}") == 0 {
            assert!(started.elapsed() < DEADLINE, "no metrics were tried");
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_collector_that_never_answers_holds_up_nothing_and_all_spans_are_accounted_for() {
    // Connections are taken by the system and never answered.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("bound"));
    let mut waiting = logger(serde_json::json!({
        "endpoint": url, "timeout_ms": 60_000, "max_queued_spans": 1000, "span_delay_ms": 50, "metrics": false,
    }));
    give(&mut *waiting, &[start()]);
    load(&mut *waiting, 6400);
    // Every call has returned, and no request to the collector has: the first spans still hold their places.
    assert_eq!(counter(&mut *waiting, "halyard:otlp_queued_spans"), 1000);
    let dropped = counter(&mut *waiting, "halyard:otlp_spans_total{outcome=\"dropped\"}");
    assert_eq!(dropped, 4 * 6400 - 1000);
    // It goes away, and its connections with it.
    drop(silent);
    assert_eq!(settled(&mut *waiting), (0, 4 * 6400));
}

#[test]
fn the_end_does_not_wait_for_a_collector_that_never_answers() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("bound"));
    let mut ending = logger(serde_json::json!({"endpoint": url, "timeout_ms": 300}));
    give(&mut *ending, &[start()]);
    load(&mut *ending, 640);
    let (ended, end) = channel();
    std::thread::spawn(move || {
        drop(ending);
        let _ = ended.send(());
    });
    end.recv_timeout(DEADLINE).expect("the end waits for the collector");
}

#[test]
fn wrong_configurations_are_refused_by_key() {
    let factory = factory();
    let refused = |config: &str, words: &str| {
        let error = factory.create(config).map(|_| ()).expect_err(words);
        assert_eq!(error.status, Status::InvalidArgument, "{error}");
        assert!(error.message.contains(words), "{error}");
    };
    refused(r#"{"endpont": "x"}"#, "`endpont`");
    refused(
        r#"{"endpoint": "collector:4318"}"#,
        "must begin with http:// or https://",
    );
    refused(r#"{"endpoint": "http://a b"}"#, "http://a b");
    refused(r#"{"interval_ms": 0}"#, "`interval_ms`: 0 is not 1 to 3600000");
    refused(r#"{"protocol": "http/json"}"#, "unknown variant `http/json`");
    refused(
        r#"{"protocol": "grpc", "endpoint": "http://collector:4317/v1/traces"}"#,
        "the path /v1/traces, and gRPC has none",
    );
    refused(r#"{"sample_ratio": 1.5}"#, "`sample_ratio`: 1.5");
    refused(r#"{"max_queued_spans": 99999999}"#, "`max_queued_spans`");
    for config in ["{}", r#"{"protocol": "grpc"}"#] {
        factory.create(config).map(|_| ()).expect("everything has a default");
    }
}
