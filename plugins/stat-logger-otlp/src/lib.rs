//! A stat logger that sends metrics and traces to an OpenTelemetry collector, as OTLP over HTTP with protobuf bodies.
//!
//! Records become measurements ([`instruments`]) and, for each finished request, a span with its phases ([`spans`]). Both leave on threads
//! of the OpenTelemetry SDK: a collector that is slow or down holds up neither a call of this logger nor the server. What it costs is
//! counted ([`outbox`]) and shown on the server's metrics route. Metrics are totals, so none is lost while the collector is away; spans
//! are kept up to `max_queued_spans`.
//!
//! HTTP and not gRPC: the exporter shares its HTTP client with the server's own crates, where gRPC would bring a second stack (tonic).

mod instruments;
mod outbox;
mod spans;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use halyard_platform_api::hooks::{Batch, StartRecord, StatLogger, StatLoggerFactory, StatRecord};
use halyard_platform_api::{Error, Result};
use opentelemetry::KeyValue;
use opentelemetry_otlp::{
    MetricExporter, Protocol, RetryPolicy, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use serde::Deserialize;

use instruments::Instruments;
use outbox::{CountedMetrics, Counts};
use spans::Spans;

halyard_platform_api::export_stat_logger! {
    name: "otlp",
    version: env!("CARGO_PKG_VERSION"),
    about: "metrics and traces to an OpenTelemetry collector, by OTLP over HTTP",
    factory: OtlpFactory,
}

/// Makes the loggers.
pub struct OtlpFactory;

/// The configuration's keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Config {
    /// The collector; `/v1/metrics` and `/v1/traces` are appended.
    endpoint: String,
    /// Sent with each request, such as a collector's key.
    headers: HashMap<String, String>,
    /// `service.name` of everything that is sent.
    service_name: String,
    /// Whether to send metrics.
    metrics: bool,
    /// Whether to send spans.
    traces: bool,
    /// How often metrics are sent, milliseconds.
    interval_ms: u64,
    /// How long spans may wait to be sent, milliseconds.
    span_delay_ms: u64,
    /// How long the collector may take for one request, milliseconds.
    timeout_ms: u64,
    /// Spans that may wait for the collector; more are dropped and counted.
    max_queued_spans: usize,
    /// Share of requests that are traced where the client sent no trace context, 0 to 1.
    sample_ratio: f64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            endpoint: "http://localhost:4318".to_string(),
            headers: HashMap::new(),
            service_name: "halyard".to_string(),
            metrics: true,
            traces: true,
            interval_ms: 10_000,
            span_delay_ms: 1_000,
            timeout_ms: 2_000,
            max_queued_spans: 8_192,
            sample_ratio: 1.0,
        }
    }
}

impl Config {
    fn parse(text: &str) -> Result<Config> {
        let config: Config =
            serde_json::from_str(text).map_err(|error| Error::invalid(format!("configuration {text}: {error}")))?;
        let refused = |key: &str, what: String| Err(Error::invalid(format!("configuration key `{key}`: {what}")));
        let endpoint = config.endpoint.as_str();
        if !endpoint.starts_with("http://") {
            let what = format!("{endpoint:?} must begin with http://; for https put a collector beside the server");
            return refused("endpoint", what);
        }
        for (key, value, most) in [
            ("interval_ms", config.interval_ms, 3_600_000),
            ("span_delay_ms", config.span_delay_ms, 60_000),
            ("timeout_ms", config.timeout_ms, 60_000),
            ("max_queued_spans", config.max_queued_spans as u64, 1 << 20),
        ] {
            if value == 0 || value > most {
                return refused(key, format!("{value} is not 1 to {most}"));
            }
        }
        if !(0.0..=1.0).contains(&config.sample_ratio) {
            return refused("sample_ratio", format!("{} is not 0 to 1", config.sample_ratio));
        }
        Ok(config)
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    fn url(&self, signal: &str) -> String {
        format!("{}/v1/{signal}", self.endpoint.trim_end_matches('/'))
    }
}

impl StatLoggerFactory for OtlpFactory {
    fn create(&self, config: &str) -> Result<Box<dyn StatLogger>> {
        let mut logger = Otlp {
            config: Config::parse(config)?,
            counts: Arc::new(Counts::default()),
            pipeline: None,
        };
        // A wrong endpoint or header is an error now, not with the first record.
        logger.connect(&StartRecord::default())?;
        logger.pipeline = None;
        Ok(Box::new(logger))
    }
}

struct Otlp {
    config: Config,
    counts: Arc<Counts>,
    // Made with the first record, which tells what stands in the resource.
    pipeline: Option<Pipeline>,
}

struct Pipeline {
    meters: Option<SdkMeterProvider>,
    instruments: Option<Instruments>,
    spans: Option<Spans>,
}

impl Otlp {
    fn connect(&mut self, start: &StartRecord) -> Result<&mut Pipeline> {
        let config = &self.config;
        let resource = resource(config, start);
        let failed = |error: &dyn std::fmt::Display| Error::invalid(format!("endpoint {}: {error}", config.endpoint));
        let mut pipeline = Pipeline {
            meters: None,
            instruments: None,
            spans: None,
        };
        if config.metrics {
            let exporter = MetricExporter::builder()
                .with_http()
                .with_endpoint(config.url("metrics"))
                .with_protocol(Protocol::HttpBinary)
                .with_timeout(config.timeout())
                .with_headers(config.headers.clone())
                .with_retry_policy(RetryPolicy::disabled())
                .build()
                .map_err(|error| failed(&error))?;
            let exporter = CountedMetrics::new(exporter, self.counts.clone());
            let reader = PeriodicReader::builder(exporter).with_interval(Duration::from_millis(config.interval_ms));
            let meters = SdkMeterProvider::builder()
                .with_resource(resource.clone())
                .with_reader(reader.build())
                .build();
            pipeline.instruments = Some(Instruments::new(&meters, start));
            pipeline.meters = Some(meters);
        }
        if config.traces {
            let exporter = SpanExporter::builder()
                .with_http()
                .with_endpoint(config.url("traces"))
                .with_protocol(Protocol::HttpBinary)
                .with_timeout(config.timeout())
                .with_headers(config.headers.clone())
                .with_retry_policy(RetryPolicy::disabled())
                .build()
                .map_err(|error| failed(&error))?;
            pipeline.spans = Some(Spans::new(exporter, config, resource, start, self.counts.clone()));
        }
        Ok(self.pipeline.insert(pipeline))
    }

    fn log(&mut self, record: &StatRecord) -> Result<()> {
        if let StatRecord::Start(start) = record {
            self.connect(start)?;
            return Ok(());
        }
        let pipeline = match &mut self.pipeline {
            Some(pipeline) => pipeline,
            None => self.connect(&StartRecord::default())?,
        };
        if let Some(instruments) = &mut pipeline.instruments {
            instruments.record(record);
        }
        if let (Some(spans), StatRecord::Finished(finished)) = (&pipeline.spans, record) {
            spans.record(finished);
        }
        Ok(())
    }
}

impl StatLogger for Otlp {
    fn log_batch(&mut self, batch: &Batch<'_>) -> Result<()> {
        batch.records.iter().try_for_each(|record| self.log(record))
    }

    fn expose(&mut self) -> Result<Option<String>> {
        Ok(Some(self.counts.exposition()))
    }
}

impl Drop for Pipeline {
    /// Sends what is left, for at most the configured time a signal.
    fn drop(&mut self) {
        let ends = [
            self.meters.take().map(|meters| meters.shutdown()),
            self.spans.as_ref().map(Spans::shutdown),
        ];
        for error in ends.into_iter().flatten().filter_map(std::result::Result::err) {
            halyard_platform_api::log::warn("otlp", &format!("sending what was left: {error}"));
        }
    }
}

fn resource(config: &Config, start: &StartRecord) -> Resource {
    let attributes = [
        ("service.version", &start.version),
        ("halyard.platform", &start.platform),
        ("halyard.device", &start.device),
        ("halyard.dtype", &start.dtype),
    ];
    let attributes = attributes.into_iter().filter(|(_, value)| !value.is_empty());
    Resource::builder_empty()
        .with_service_name(config.service_name.clone())
        .with_attributes(attributes.map(|(key, value)| KeyValue::new(key, value.to_string())))
        .build()
}

/// What kind of request it was, from its id: the only trace of the route in a record.
fn operation(request_id: &str) -> &'static str {
    if request_id.starts_with("chatcmpl") {
        "chat"
    } else {
        "text_completion"
    }
}
