//! Records as measurements. Names and buckets of `gen_ai.*` are those of OpenTelemetry's semantic conventions for
//! generative AI (1.37); what they have no name for is `halyard.*`.

use std::sync::Arc;

use halyard_platform_api::hooks::{FinishedRecord, LoraRecord, REJECTION_REASONS, StartRecord, StatRecord};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Gauge, Histogram, Meter, MeterProvider as _};
use opentelemetry_sdk::metrics::SdkMeterProvider;

use crate::operation;

/// Buckets of `gen_ai.server.request.duration`, seconds.
const DURATION_BUCKETS: &[f64] = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
];
/// Buckets of `gen_ai.server.time_per_output_token`, seconds.
const OUTPUT_TOKEN_BUCKETS: &[f64] = &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5];
/// Buckets of `gen_ai.server.time_to_first_token`, seconds.
const FIRST_TOKEN_BUCKETS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
];

/// The instruments of one engine.
pub struct Instruments {
    model: Arc<str>,
    request_duration: Histogram<f64>,
    time_to_first_token: Histogram<f64>,
    time_per_output_token: Histogram<f64>,
    queue_time: Histogram<f64>,
    tokens: Counter<u64>,
    running: Gauge<u64>,
    waiting: Gauge<u64>,
    preemptions: Counter<u64>,
    kv_cache_usage: Gauge<f64>,
    prefix_queries: Counter<u64>,
    prefix_hits: Counter<u64>,
    external_queries: Counter<u64>,
    external_hits: Counter<u64>,
    offload_stores: Counter<u64>,
    offload_loads: Counter<u64>,
    rejections: Counter<u64>,
    lora_running: Gauge<u64>,
    lora_waiting: Gauge<u64>,
}

impl Instruments {
    /// The instruments of `meters`, for the model that `start` names.
    pub fn new(meters: &SdkMeterProvider, start: &StartRecord) -> Instruments {
        let meter = meters.meter("halyard");
        let count = |name, unit, about| meter.u64_counter(name).with_unit(unit).with_description(about).build();
        let gauge = |name, unit, about| meter.u64_gauge(name).with_unit(unit).with_description(about).build();
        Instruments {
            model: start.model.clone(),
            request_duration: seconds(
                &meter,
                "gen_ai.server.request.duration",
                "From a request's arrival to its last token.",
                DURATION_BUCKETS,
            ),
            time_to_first_token: seconds(
                &meter,
                "gen_ai.server.time_to_first_token",
                "From a request's arrival to its first token.",
                FIRST_TOKEN_BUCKETS,
            ),
            time_per_output_token: seconds(
                &meter,
                "gen_ai.server.time_per_output_token",
                "Mean time between a request's tokens after the first.",
                OUTPUT_TOKEN_BUCKETS,
            ),
            queue_time: seconds(
                &meter,
                "halyard.request.queue.duration",
                "From a request's arrival to its admission.",
                DURATION_BUCKETS,
            ),
            tokens: count("halyard.tokens", "{token}", "Tokens computed, by type."),
            running: gauge(
                "halyard.requests.running",
                "{request}",
                "Sequences that own a device row.",
            ),
            waiting: gauge("halyard.requests.waiting", "{request}", "Sequences that wait for one."),
            preemptions: count("halyard.preemptions", "{preemption}", "Sequences preempted."),
            kv_cache_usage: meter
                .f64_gauge("halyard.kv_cache.usage")
                .with_unit("1")
                .with_description("Share of the KV blocks in use.")
                .build(),
            prefix_queries: count(
                "halyard.prefix_cache.queries",
                "{token}",
                "Prompt tokens looked up in the prefix cache.",
            ),
            prefix_hits: count("halyard.prefix_cache.hits", "{token}", "Prompt tokens found there."),
            external_queries: count(
                "halyard.external_prefix_cache.queries",
                "{token}",
                "Prompt tokens looked up in host memory.",
            ),
            external_hits: count(
                "halyard.external_prefix_cache.hits",
                "{token}",
                "Prompt tokens found in host memory.",
            ),
            offload_stores: count(
                "halyard.kv_offload.store",
                "By",
                "Bytes of KV blocks copied to host memory.",
            ),
            offload_loads: count(
                "halyard.kv_offload.load",
                "By",
                "Bytes of KV blocks copied from host memory.",
            ),
            rejections: count(
                "halyard.requests.rejected",
                "{request}",
                "Requests that were not taken, by reason.",
            ),
            lora_running: gauge(
                "halyard.lora.running",
                "{request}",
                "Sequences that run with an adapter.",
            ),
            lora_waiting: gauge(
                "halyard.lora.waiting",
                "{request}",
                "Sequences that wait and want an adapter.",
            ),
        }
    }

    /// Measures a record.
    pub fn record(&mut self, record: &StatRecord) {
        let token = |kind| [KeyValue::new("gen_ai.token.type", kind)];
        match record {
            StatRecord::Scheduler(scheduler) => {
                self.running.record(u64::from(scheduler.num_running), &[]);
                self.waiting.record(u64::from(scheduler.num_waiting), &[]);
                self.preemptions.add(u64::from(scheduler.num_preempted), &[]);
            }
            StatRecord::Iteration(iteration) => {
                self.tokens.add(iteration.prompt_tokens, &token("input"));
                self.tokens.add(iteration.generation_tokens, &token("output"));
            }
            StatRecord::Finished(finished) => self.finished(finished),
            StatRecord::Cache(cache) => {
                self.kv_cache_usage.record(cache.usage, &[]);
                self.prefix_queries.add(cache.prefix_queries, &[]);
                self.prefix_hits.add(cache.prefix_hits, &[]);
                self.external_queries.add(cache.external_queries, &[]);
                self.external_hits.add(cache.external_hits, &[]);
                self.offload_stores.add(cache.store_bytes, &[]);
                self.offload_loads.add(cache.load_bytes, &[]);
            }
            StatRecord::Lora(lora) => self.lora(lora),
            StatRecord::Rejected(rejected) => {
                let reason = rejection(rejected.reason);
                self.rejections.add(1, &[KeyValue::new("reason", reason)]);
            }
            StatRecord::Start(_) | StatRecord::Shutdown(_) => {}
        }
    }

    fn finished(&self, finished: &FinishedRecord) {
        let model = if finished.lora_name.is_empty() {
            &self.model
        } else {
            &finished.lora_name
        };
        let mut attributes = vec![
            KeyValue::new("gen_ai.operation.name", operation(&finished.request_id)),
            KeyValue::new("gen_ai.provider.name", "halyard"),
            KeyValue::new("gen_ai.request.model", model.clone()),
            KeyValue::new("gen_ai.response.model", model.clone()),
        ];
        if finished.reason == 3 {
            attributes.push(KeyValue::new("error.type", "_OTHER"));
        }
        self.request_duration.record(to_seconds(finished.total_ns), &attributes);
        self.queue_time.record(to_seconds(finished.queue_ns), &attributes);
        if finished.first_token_ns != 0 {
            self.time_to_first_token
                .record(to_seconds(finished.first_token_ns), &attributes);
        }
        if finished.generation_tokens >= 2 {
            self.time_per_output_token
                .record(to_seconds(finished.inter_token_ns), &attributes);
        }
    }

    fn lora(&self, lora: &LoraRecord) {
        let adapter = [KeyValue::new("halyard.lora.name", lora.name.clone())];
        self.lora_running.record(u64::from(lora.num_running), &adapter);
        self.lora_waiting.record(u64::from(lora.num_waiting), &adapter);
    }
}

fn seconds(meter: &Meter, name: &'static str, about: &'static str, buckets: &[f64]) -> Histogram<f64> {
    let builder = meter.f64_histogram(name).with_unit("s").with_description(about);
    builder.with_boundaries(buckets.to_vec()).build()
}

/// Nanoseconds in seconds.
pub fn to_seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A rejection's reason in a word.
fn rejection(reason: u32) -> &'static str {
    REJECTION_REASONS.get(reason as usize).copied().unwrap_or("other")
}
