//! The answer of `/metrics`: first the server's own few metrics, which do not depend on plugins, then those of stat
//! loggers. vLLM's metrics come from the stat logger `prometheus`.

pub mod families;
pub mod sleep;
pub mod text_format;

use std::fmt;

use halyard_engine::StatsSnapshot;
use halyard_hooks::{HookReport, SinkReport, SinkState};
use halyard_request_hooks::{IoProcessors, LogitsProcessors};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::http::response_store::StoreFigures;
use crate::kv_events::KvEventFigures;

/// The content type of [`openmetrics`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The end of an OpenMetrics text; one that a sink wrote is taken off, as the host's comes last.
const END: &str = "# EOF\n";

/// The answer of a scrape, as OpenMetrics text; `others` count connections and more, `stored` responses.
///
/// # Errors
/// When formatting fails, which would be a defect.
pub fn openmetrics(
    stats: StatsSnapshot,
    hooks: HookReport,
    (io, logits): (&IoProcessors, &LogitsProcessors),
    kv_events: Option<KvEventFigures>,
    others: impl IntoIterator<Item = Box<dyn Collector>>,
    stored: Option<StoreFigures>,
    shown: &[String],
) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    io.register_metrics(&mut registry);
    logits.register_metrics(&mut registry);
    registry.register_collector(Box::new(Own {
        stats,
        hooks,
        kv_events,
        stored,
    }));
    for collector in others {
        registry.register_collector(collector);
    }
    let mut text = String::new();
    encode_registry(&mut text, &registry)?;
    for sink in shown {
        let sink = sink.strip_suffix(END).unwrap_or(sink);
        text.push_str(sink);
        if !sink.is_empty() && !sink.ends_with('\n') {
            text.push('\n');
        }
    }
    encode_eof(&mut text)?;
    Ok(text)
}

/// The server's own metrics at one moment.
#[derive(Debug)]
struct Own {
    stats: StatsSnapshot,
    hooks: HookReport,
    /// Events of the prefix cache, where they are published.
    kv_events: Option<KvEventFigures>,
    /// Stored responses, where they are stored.
    stored: Option<StoreFigures>,
}

impl Own {
    /// A metric of every sink, labelled with its name and what `values` adds.
    fn of_sinks<const N: usize>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help, kind): (&str, &str, MetricType),
        values: impl Fn(&SinkReport) -> [(Option<(&'static str, &'static str)>, u64); N],
    ) -> fmt::Result {
        let is_counter = matches!(kind, MetricType::Counter);
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for sink in &self.hooks.sinks {
            for (label, value) in values(sink) {
                let mut labels = vec![("sink", sink.name.as_str())];
                labels.extend(label);
                let encoder = family.encode_family(&labels)?;
                if is_counter {
                    ConstCounter::new(value).encode(encoder)?;
                } else {
                    ConstGauge::new(value as i64).encode(encoder)?;
                }
            }
        }
        Ok(())
    }
}

impl Collector for Own {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut counter = |name: &str, help: &str, value: u64| {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(metric)
        };
        counter("halyard:steps", "Engine steps", self.stats.steps_total)?;
        counter(
            "halyard:replayed_steps",
            "Engine steps run from recordings",
            self.stats.replayed_steps_total,
        )?;
        counter(
            "halyard:nonfinite_logits",
            "Sequences that ended because the model's logits were NaN or infinite",
            self.stats.nonfinite_logits_total,
        )?;
        counter(
            "halyard:empty_distributions",
            "Sequences that ended because their constraints left no token",
            self.stats.empty_distributions_total,
        )?;
        counter(
            "halyard:hook_engine_waits",
            "Times that the engine waited while it handed records to the hooks",
            self.hooks.engine_waits,
        )?;
        if let Some(events) = self.kv_events {
            counter(
                "halyard:kv_event_batches",
                "Batches of KV cache events that were published",
                events.published,
            )?;
            counter(
                "halyard:kv_event_batches_dropped",
                "Batches of KV cache events that were lost because the queue was full",
                events.dropped,
            )?;
            counter(
                "halyard:kv_event_batches_skipped",
                "Batches of KV cache events that slow subscribers lost, of all together",
                events.skipped,
            )?;
            let (name, help) = (
                "halyard:kv_event_subscribers",
                "Connected subscribers of KV cache events",
            );
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(i64::try_from(events.subscribers).unwrap_or(i64::MAX)).encode(metric)?;
        }
        if let Some(stored) = self.stored {
            for (name, help, value) in [
                ("halyard:stored_responses", "Stored responses", stored.responses),
                ("halyard:stored_response_bytes", "Their bytes", stored.bytes),
            ] {
                let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(metric)?;
            }
        }
        let encoder = &mut encoder;
        let (counter, gauge) = (MetricType::Counter, MetricType::Gauge);
        let accepted = ("halyard:hook_accepted", "Records for the sink", counter);
        self.of_sinks(encoder, accepted, |sink| [(None, sink.accepted)])?;
        let delivered = ("halyard:hook_delivered", "Records that the sink took in time", counter);
        self.of_sinks(encoder, delivered, |sink| [(None, sink.delivered)])?;
        let dropped = ("halyard:hook_dropped", "Records that the sink lost", counter);
        self.of_sinks(encoder, dropped, |sink| [(None, sink.dropped)])?;
        let pending = ("halyard:hook_pending", "Records on their way to the sink", gauge);
        self.of_sinks(encoder, pending, |sink| [(None, sink.pending)])?;
        let failures = (
            "halyard:hook_failures",
            "Failed calls of the sink, by what happened",
            counter,
        );
        self.of_sinks(encoder, failures, |sink| {
            [
                (Some(("reason", "error")), sink.failures.error),
                (Some(("reason", "panic")), sink.failures.panic),
                (Some(("reason", "crash")), sink.failures.crash),
                (Some(("reason", "timeout")), sink.failures.timeout),
                (Some(("reason", "start")), sink.failures.start),
            ]
        })?;
        let quarantines = (
            "halyard:hook_quarantines",
            "Times that the sink was put into quarantine",
            counter,
        );
        self.of_sinks(encoder, quarantines, |sink| [(None, sink.quarantines)])?;
        let quarantined = ("halyard:hook_quarantined", "1: the sink rests or is stuck", gauge);
        self.of_sinks(encoder, quarantined, |sink| {
            let out = matches!(sink.state, SinkState::Quarantined | SinkState::Stuck);
            [(None, u64::from(out))]
        })?;
        let stuck = ("halyard:hook_stuck", "1: a call of the sink has not returned", gauge);
        self.of_sinks(encoder, stuck, |sink| {
            [(None, u64::from(sink.state == SinkState::Stuck))]
        })?;
        let generation = (
            "halyard:hook_generation",
            "How often the sink's library was loaded",
            gauge,
        );
        self.of_sinks(encoder, generation, |sink| [(None, sink.generation.into())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use halyard_hooks::{FailureCounts, Isolation};

    #[derive(Debug)]
    struct NoConnections;

    impl Collector for NoConnections {
        fn encode(&self, _: DescriptorEncoder<'_>) -> fmt::Result {
            Ok(())
        }
    }

    #[test]
    fn the_servers_own_metrics_come_first_and_the_text_ends_once() {
        let sink = SinkReport {
            name: "slow".to_owned(),
            version: "1".to_owned(),
            path: None,
            isolation: Isolation::Process,
            generation: 2,
            state: SinkState::Stuck,
            retry_in_s: None,
            accepted: 9,
            delivered: 4,
            dropped: 3,
            pending: 2,
            failures: FailureCounts {
                timeout: 1,
                crash: 2,
                ..FailureCounts::default()
            },
            quarantines: 1,
            last_error: None,
        };
        let report = HookReport {
            engine_waits: 0,
            sinks: vec![sink],
        };
        let stats = StatsSnapshot {
            steps_total: 7,
            nonfinite_logits_total: 5,
            empty_distributions_total: 6,
            ..StatsSnapshot::default()
        };
        let shown = [
            "# TYPE a gauge\na 1\n# EOF\n".to_owned(),
            "b 2".to_owned(),
            String::new(),
        ];
        let stored = StoreFigures { responses: 3, bytes: 4 };
        let io = IoProcessors::default();
        let connections: [Box<dyn Collector>; 1] = [Box::new(NoConnections)];
        let hooks = (&io, &LogitsProcessors::default());
        let text = openmetrics(stats, report, hooks, None, connections, Some(stored), &shown).expect("formats");
        for line in [
            "halyard:steps_total 7",
            "halyard:nonfinite_logits_total 5",
            "halyard:empty_distributions_total 6",
            "halyard:hook_engine_waits_total 0",
            "halyard:hook_accepted_total{sink=\"slow\"} 9",
            "halyard:hook_delivered_total{sink=\"slow\"} 4",
            "halyard:hook_dropped_total{sink=\"slow\"} 3",
            "halyard:hook_pending{sink=\"slow\"} 2",
            "halyard:hook_failures_total{sink=\"slow\",reason=\"timeout\"} 1",
            "halyard:hook_failures_total{sink=\"slow\",reason=\"crash\"} 2",
            "halyard:hook_failures_total{sink=\"slow\",reason=\"panic\"} 0",
            "halyard:hook_quarantined{sink=\"slow\"} 1",
            "halyard:hook_stuck{sink=\"slow\"} 1",
            "halyard:hook_generation{sink=\"slow\"} 2",
            "halyard:stored_responses 3",
            "halyard:stored_response_bytes 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("io_processor"), "there is none\n{text}");
        assert!(text.ends_with("\na 1\nb 2\n# EOF\n"), "{text}");
        assert_eq!(text.matches("# EOF").count(), 1);
    }
}
