//! Counts what leaves for the collector and what does not, around the SDK's exporters.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry_otlp::{MetricExporter, SpanExporter};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::trace::SpanData;

use crate::transport::Failure;

/// Counts of spans and metric exports by their outcome. Spans: made = exported + dropped + queued, always.
#[derive(Debug, Default)]
pub struct Counts {
    queued_spans: AtomicUsize,
    exported_spans: AtomicU64,
    dropped_spans: AtomicU64,
    exports: AtomicU64,
    failed_exports: AtomicU64,
    // So that the log has a line for a change and not for each failure.
    failing: AtomicBool,
    // How the last request failed before it was answered; none after an answer.
    failure: Mutex<Option<Failure>>,
}

impl Counts {
    /// Reserves `spans` places in a queue of `most`. False: the queue is full, and they count as dropped.
    pub fn admit(&self, spans: usize, most: usize) -> bool {
        let taken = self
            .queued_spans
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |queued| {
                (queued + spans <= most).then_some(queued + spans)
            });
        if taken.is_err() {
            self.dropped_spans.fetch_add(spans as u64, Ordering::Relaxed);
        }
        taken.is_ok()
    }

    /// Returns the places of spans that are not sent: an unsampled request's.
    pub fn release(&self, spans: usize) {
        self.queued_spans.fetch_sub(spans, Ordering::Relaxed);
    }

    /// A request was answered, or failed before.
    pub fn reached(&self, failure: Option<Failure>) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    /// The words of a failure that waiting does not mend, while requests fail so.
    pub fn refusal(&self) -> Option<String> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        Some(failure.as_ref().filter(|failure| failure.is_tls)?.words.clone())
    }

    fn spans_left(&self, spans: usize, result: &OTelSdkResult) {
        self.queued_spans.fetch_sub(spans, Ordering::Relaxed);
        let counter = if result.is_ok() {
            &self.exported_spans
        } else {
            &self.dropped_spans
        };
        counter.fetch_add(spans as u64, Ordering::Relaxed);
        self.tell(result);
    }

    fn metrics_left(&self, result: &OTelSdkResult) {
        let counter = if result.is_ok() {
            &self.exports
        } else {
            &self.failed_exports
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.tell(result);
    }

    fn tell(&self, result: &OTelSdkResult) {
        let was_failing = self.failing.swap(result.is_err(), Ordering::Relaxed);
        match result {
            Err(error) if !was_failing => {
                // The SDK says no more than that the network failed.
                let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let words = failure.map_or_else(|| error.to_string(), |failure| failure.words);
                halyard_platform_api::log::warn(
                    "otlp",
                    &format!("the collector takes nothing: {words}; see halyard:otlp_* on the metrics route"),
                );
            }
            Ok(()) if was_failing => halyard_platform_api::log::info("otlp", "the collector takes data again"),
            _ => {}
        }
    }

    /// The counters as OpenMetrics text.
    pub fn exposition(&self) -> String {
        let at = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        format!(
            "# HELP halyard:otlp_spans Spans by what became of them.\n\
             # TYPE halyard:otlp_spans counter\n\
             halyard:otlp_spans_total{{outcome=\"exported\"}} {}\n\
             halyard:otlp_spans_total{{outcome=\"dropped\"}} {}\n\
             # HELP halyard:otlp_queued_spans Spans that wait for the collector.\n\
             # TYPE halyard:otlp_queued_spans gauge\n\
             halyard:otlp_queued_spans {}\n\
             # HELP halyard:otlp_metric_exports Exports of metrics by what became of them.\n\
             # TYPE halyard:otlp_metric_exports counter\n\
             halyard:otlp_metric_exports_total{{outcome=\"exported\"}} {}\n\
             halyard:otlp_metric_exports_total{{outcome=\"failed\"}} {}\n",
            at(&self.exported_spans),
            at(&self.dropped_spans),
            self.queued_spans.load(Ordering::Relaxed),
            at(&self.exports),
            at(&self.failed_exports),
        )
    }
}

/// A span exporter that counts.
#[derive(Debug)]
pub struct CountedSpans {
    exporter: SpanExporter,
    counts: Arc<Counts>,
}

impl CountedSpans {
    /// Counts what goes through `exporter`.
    pub fn new(exporter: SpanExporter, counts: Arc<Counts>) -> CountedSpans {
        CountedSpans { exporter, counts }
    }
}

impl opentelemetry_sdk::trace::SpanExporter for CountedSpans {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let result = self.exporter.export(batch).await;
        self.counts.spans_left(spans, &result);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// A metric exporter that counts.
pub struct CountedMetrics {
    exporter: MetricExporter,
    counts: Arc<Counts>,
}

impl CountedMetrics {
    /// Counts what goes through `exporter`.
    pub fn new(exporter: MetricExporter, counts: Arc<Counts>) -> CountedMetrics {
        CountedMetrics { exporter, counts }
    }
}

impl fmt::Debug for CountedMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountedMetrics").finish_non_exhaustive()
    }
}

impl PushMetricExporter for CountedMetrics {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let result = self.exporter.export(metrics).await;
        self.counts.metrics_left(&result);
        result
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.exporter.temporality()
    }
}
