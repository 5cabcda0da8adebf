//! A span for each finished request, and under it one for each phase: queue, prefill, decode. The client's
//! `traceparent`, if it sent one, is the parent. Name and attributes are vLLM's (`SpanAttributes` of its
//! vllm/tracing/utils.py, seconds), so that dashboards made for it go on. Beside them stand those of OpenTelemetry's
//! semantic conventions for generative AI (1.37), which name some of the same things otherwise.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use halyard_platform_api::hooks::{FINISH_REASONS, FinishedRecord, StartRecord};
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider};

use crate::config::Config;
use crate::instruments::to_seconds;
use crate::operation;
use crate::outbox::{CountedSpans, Counts};

/// The span of a request, as vLLM names it.
const REQUEST_SPAN: &str = "llm_request";

/// Makes and sends spans.
pub struct Spans {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
    counts: Arc<Counts>,
    max_queued: usize,
    model: Arc<str>,
}

impl Spans {
    /// Spans that leave through `exporter`.
    pub fn new(
        exporter: SpanExporter,
        config: &Config,
        resource: Resource,
        start: &StartRecord,
        counts: Arc<Counts>,
    ) -> Spans {
        // The SDK drops silently when its queue is full; ours is smaller by a batch, so that only we drop, and count
        // it.
        let batch = 512;
        let batching = BatchConfigBuilder::default()
            .with_max_queue_size(config.max_queued_spans + batch)
            .with_max_export_batch_size(batch)
            .with_scheduled_delay(Duration::from_millis(config.span_delay_ms));
        let exporter = CountedSpans::new(exporter, counts.clone());
        let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batching.build());
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.sample_ratio)));
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_sampler(sampler)
            .with_span_processor(processor.build())
            .build();
        Spans {
            tracer: provider.tracer("halyard"),
            provider,
            propagator: TraceContextPropagator::new(),
            counts,
            max_queued: config.max_queued_spans,
            model: start.model.clone(),
        }
    }

    /// Sends what is left.
    pub fn shutdown(&self) -> OTelSdkResult {
        self.provider.shutdown()
    }

    /// Makes the spans of a finished request.
    pub fn record(&self, finished: &FinishedRecord) {
        let phases = phases(finished);
        let spans = 1 + phases.len();
        if !self.counts.admit(spans, self.max_queued) {
            return;
        }
        let parent = self.parent(finished);
        let model = if finished.lora_name.is_empty() {
            &self.model
        } else {
            &finished.lora_name
        };
        let operation = operation(&finished.request_id);
        let start = instant(finished.arrival_unix_ns);
        let builder = SpanBuilder::from_name(REQUEST_SPAN)
            .with_kind(SpanKind::Server)
            .with_start_time(start)
            .with_attributes(attributes(finished, operation, model));
        let mut span = self.tracer.build_with_context(builder, &parent);
        if finished.reason == 3 {
            span.set_status(Status::Error {
                description: Cow::Owned(finished.detail.to_string()),
            });
        }
        if !span.span_context().is_sampled() {
            self.counts.release(spans);
            return;
        }
        let context = parent.with_remote_span_context(span.span_context().clone());
        for phase in phases {
            let builder = SpanBuilder::from_name(phase.name)
                .with_kind(SpanKind::Internal)
                .with_start_time(start + phase.from);
            let mut child = self.tracer.build_with_context(builder, &context);
            child.end_with_timestamp(start + phase.to);
        }
        span.end_with_timestamp(start + Duration::from_nanos(finished.total_ns));
    }

    /// The client's context; an empty one without or with a malformed `traceparent`.
    fn parent(&self, finished: &FinishedRecord) -> Context {
        let headers = [
            ("traceparent", &finished.trace_parent),
            ("tracestate", &finished.trace_state),
        ];
        let carrier: HashMap<String, String> = headers
            .into_iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect();
        self.propagator.extract_with_context(&Context::new(), &carrier)
    }
}

struct Phase {
    name: &'static str,
    from: Duration,
    to: Duration,
}

/// The phases that the request came to, from its arrival on.
fn phases(finished: &FinishedRecord) -> Vec<Phase> {
    let mut phases = Vec::with_capacity(3);
    let mut from = Duration::ZERO;
    for (name, ns) in [
        ("queue", finished.queue_ns),
        ("prefill", finished.prefill_ns),
        ("decode", finished.decode_ns),
    ] {
        let to = from + Duration::from_nanos(ns);
        // A request that was never admitted has been in the queue only.
        if ns > 0 || name == "queue" {
            phases.push(Phase { name, from, to });
        }
        from = to;
    }
    phases
}

fn attributes(finished: &FinishedRecord, operation: &'static str, model: &Arc<str>) -> Vec<KeyValue> {
    let mut all = vllm_attributes(finished);
    let reason = FINISH_REASONS.get(finished.reason as usize).copied();
    let reason: StringValue = reason.unwrap_or("other").into();
    all.extend([
        KeyValue::new("gen_ai.operation.name", operation),
        KeyValue::new("gen_ai.provider.name", "halyard"),
        KeyValue::new("gen_ai.request.model", model.clone()),
        KeyValue::new("gen_ai.response.model", model.clone()),
        KeyValue::new("gen_ai.response.id", finished.request_id.clone()),
        KeyValue::new(
            "gen_ai.response.finish_reasons",
            Value::Array(Array::String(vec![reason])),
        ),
        KeyValue::new("gen_ai.usage.input_tokens", whole(finished.prompt_tokens)),
        KeyValue::new("gen_ai.usage.cache_read.input_tokens", whole(finished.cached_tokens)),
        KeyValue::new("gen_ai.usage.output_tokens", whole(finished.generation_tokens)),
        KeyValue::new("gen_ai.request.choice.count", i64::from(finished.num_samples)),
        KeyValue::new("halyard.preemptions", i64::from(finished.num_preemptions)),
    ]);
    if finished.num_samples > 1 {
        // The samples of a request have a span each, with the same request id.
        all.push(KeyValue::new("halyard.sample.index", i64::from(finished.sample_index)));
    }
    all
}

/// What vLLM's span of a request has. It leaves out a temperature of 0, which is said here.
fn vllm_attributes(finished: &FinishedRecord) -> Vec<KeyValue> {
    let mut all = vec![
        KeyValue::new("gen_ai.request.id", finished.request_id.clone()),
        KeyValue::new("gen_ai.request.n", i64::from(finished.num_samples)),
        KeyValue::new("gen_ai.usage.prompt_tokens", whole(finished.prompt_tokens)),
        KeyValue::new("gen_ai.usage.completion_tokens", whole(finished.generation_tokens)),
        KeyValue::new("gen_ai.latency.time_in_queue", to_seconds(finished.queue_ns)),
        KeyValue::new("gen_ai.latency.time_in_model_prefill", to_seconds(finished.prefill_ns)),
        KeyValue::new("gen_ai.latency.time_in_model_decode", to_seconds(finished.decode_ns)),
        // From the first admission to the last token.
        KeyValue::new(
            "gen_ai.latency.time_in_model_inference",
            to_seconds(finished.prefill_ns.saturating_add(finished.decode_ns)),
        ),
        KeyValue::new("gen_ai.latency.e2e", to_seconds(finished.total_ns)),
    ];
    if finished.first_token_ns != 0 {
        let seconds = to_seconds(finished.first_token_ns);
        all.push(KeyValue::new("gen_ai.latency.time_to_first_token", seconds));
    }
    if finished.max_tokens != 0 {
        all.push(KeyValue::new("gen_ai.request.max_tokens", whole(finished.max_tokens)));
    }
    // 0: a host that does not tell them.
    if finished.top_p != 0.0 {
        all.push(KeyValue::new("gen_ai.request.temperature", finished.temperature));
        all.push(KeyValue::new("gen_ai.request.top_p", finished.top_p));
    }
    all
}

/// A count as attributes hold it.
fn whole(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn instant(unix_ns: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(unix_ns)
}
