//! A stat logger that sends metrics and traces to an OpenTelemetry collector, as OTLP over HTTP or gRPC.
//!
//! Records become measurements ([`instruments`]) and, for each finished request, a span with its phases ([`spans`]).
//! Both leave on threads of the OpenTelemetry SDK: a collector that is slow or down holds up neither a call of this
//! logger nor the server. What it costs is counted ([`outbox`]) and shown on the server's metrics route. Metrics are
//! totals, so none is lost while the collector is away; spans are kept up to `max_queued_spans`.
//!
//! The exporter shares its HTTP client with the server's own crates, and gRPC goes through it too ([`grpc`]): tonic
//! would bring a second stack. The way there ([`transport`]) may be TLS. A collector whose certificate is not trusted
//! is an error of this logger, so that it is quarantined and named.

mod config;
mod grpc;
mod instruments;
mod outbox;
mod spans;
mod transport;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use halyard_platform_api::hooks::{Batch, StartRecord, StatLogger, StatLoggerFactory, StatRecord};
use halyard_platform_api::{Error, Result, Status};
use opentelemetry::KeyValue;
use opentelemetry_otlp::{MetricExporter, Protocol, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};

use config::Config;
use instruments::Instruments;
use outbox::{CountedMetrics, Counts};
use spans::Spans;
use transport::Transport;

halyard_platform_api::export_stat_logger! {
    name: "otlp",
    version: env!("CARGO_PKG_VERSION"),
    about: "metrics and traces to an OpenTelemetry collector, by OTLP over HTTP or gRPC",
    factory: OtlpFactory,
}

/// OpenTelemetry's name of the attribute that every collector shows.
const SERVICE_NAME: &str = "service.name";
/// What to do about a collector with which TLS does not work.
const REMEDY: &str =
    "correct the collector's certificate or the name in `endpoint`, or give the file of its authority as `ca_file`";

/// Makes the loggers.
pub struct OtlpFactory;

impl StatLoggerFactory for OtlpFactory {
    fn create(&self, config: &str) -> Result<Box<dyn StatLogger>> {
        let config = Config::parse(config)?;
        let counts = Arc::new(Counts::default());
        let mut logger = Otlp {
            transport: Transport::new(&config, counts.clone())?,
            config,
            counts,
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
    transport: Transport,
    // Made with the first record, which has the resource's attributes.
    pipeline: Option<Pipeline>,
}

struct Pipeline {
    meters: Option<SdkMeterProvider>,
    instruments: Option<Instruments>,
    spans: Option<Spans>,
}

impl Otlp {
    /// The builder of an exporter that sends `signal` to the collector.
    fn reaching<B: WithExportConfig + WithHttpConfig>(&self, builder: B, signal: &str) -> B {
        builder
            .with_http_client(self.transport.clone())
            .with_endpoint(self.config.url(signal))
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(self.config.timeout())
            .with_headers(self.config.headers.clone())
            .with_retry_policy(RetryPolicy::disabled())
    }

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
            let builder = self.reaching(MetricExporter::builder().with_http(), "metrics");
            let exporter = builder.build().map_err(|error| failed(&error))?;
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
            let builder = self.reaching(SpanExporter::builder().with_http(), "traces");
            let exporter = builder.build().map_err(|error| failed(&error))?;
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
        batch.records.iter().try_for_each(|record| self.log(record))?;
        // What could not be sent was counted where it was lost; this is for the operator. The records above were
        // taken all the same, as totals must hold what happened, and as only sending shows that it is mended.
        match self.counts.refusal() {
            None => Ok(()),
            Some(words) => Err(Error::new(
                Status::Unavailable,
                format!("{}: {words}; {REMEDY}", self.config.endpoint),
            )),
        }
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
    let mut attributes = BTreeMap::from([
        (SERVICE_NAME, "halyard".to_owned()),
        ("service.version", start.version.to_string()),
        ("halyard.platform", start.platform.to_string()),
        ("halyard.device", start.device.to_string()),
        ("halyard.dtype", start.dtype.to_string()),
    ]);
    attributes.retain(|_, value| !value.is_empty());
    let given = config.resource_attributes.iter();
    attributes.extend(given.map(|(key, value)| (key.as_str(), value.clone())));
    attributes.extend(config.service_name.clone().map(|name| (SERVICE_NAME, name)));
    let attributes = attributes.into_iter();
    Resource::builder_empty()
        .with_attributes(attributes.map(|(key, value)| KeyValue::new(key.to_owned(), value)))
        .build()
}

/// What kind of request it was, from its id: the only trace of the route in a record. Conversations have several APIs.
fn operation(request_id: &str) -> &'static str {
    if ["chatcmpl-", "msg_", "resp_"]
        .iter()
        .any(|prefix| request_id.starts_with(prefix))
    {
        "chat"
    } else {
        "text_completion"
    }
}
