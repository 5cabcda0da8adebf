//! The metrics and what each record does to them. Names, labels and help follow vllm/v1/metrics/loggers.py; what vLLM
//! does not have begins with `halyard:`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use halyard_platform_api::hooks::{
    CacheRecord, FINISH_REASONS, FinishedRecord, IterationRecord, LoraRecord, REJECTION_REASONS, SchedulerRecord,
    StartRecord, StatRecord,
};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::buckets::Buckets;

type Labels = Vec<(&'static str, String)>;
type FloatGauge = Gauge<f64, AtomicU64>;
type FloatCounter = Counter<f64, AtomicU64>;

/// All metrics of one engine.
pub struct Metrics {
    registry: Registry,
    max_loras: u32,
    loras: BTreeMap<u32, LoraRecord>,
    running: Gauge,
    waiting: Gauge,
    waiting_by_reason: Family<Labels, Gauge>,
    preemptions: Counter,
    kv_usage: FloatGauge,
    prefix_queries: Counter,
    prefix_hits: Counter,
    external: [Counter; 2],
    offload_bytes: [Counter; 2],
    offload_blocks: [Counter; 2],
    offload_evictions: Counter,
    offload_usage: FloatGauge,
    prompt_tokens: Counter,
    prompt_tokens_cached: Counter,
    prompt_tokens_by_source: Family<Labels, Counter>,
    generation_tokens: Counter,
    success: Family<Labels, Counter>,
    rejected: Family<Labels, Counter>,
    lora_info: Family<Labels, FloatGauge>,
    lora_running: Family<Labels, Gauge>,
    lora_waiting: Family<Labels, Gauge>,
    lora_residency: Family<Labels, Gauge>,
    lora_bytes: Family<Labels, Gauge>,
    lora_load_seconds: Family<Labels, FloatCounter>,
    lora_requests: Family<Labels, Counter>,
    lora_loads: Family<Labels, Counter>,
    lora_reads: Family<Labels, Counter>,
    lora_hits: Family<Labels, Counter>,
    iteration_tokens: Histogram,
    first_token: Histogram,
    inter_token: Histogram,
    per_output_token: Histogram,
    e2e: Histogram,
    queue: Histogram,
    inference: Histogram,
    prefill: Histogram,
    decode: Histogram,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
    request_max_generation_tokens: Histogram,
    request_prefill_computed: Histogram,
    params_n: Histogram,
    params_max_tokens: Histogram,
    num_preemptions: Histogram,
}

/// Registers metrics under their names.
struct Registering(Registry);

impl Registering {
    fn counter(&mut self, name: &str, help: &str) -> Counter {
        let counter = Counter::default();
        self.0.register(name, help, counter.clone());
        counter
    }

    fn gauge(&mut self, name: &str, help: &str) -> Gauge {
        let gauge = Gauge::default();
        self.0.register(name, help, gauge.clone());
        gauge
    }

    fn float(&mut self, name: &str, help: &str) -> FloatGauge {
        let gauge = FloatGauge::default();
        self.0.register(name, help, gauge.clone());
        gauge
    }

    fn histogram(&mut self, name: &str, help: &str, bounds: &[f64]) -> Histogram {
        let histogram = Histogram::new(bounds.iter().copied());
        self.0.register(name, help, histogram.clone());
        histogram
    }

    fn counters(&mut self, name: &str, help: &str) -> Family<Labels, Counter> {
        let family = Family::default();
        self.0.register(name, help, family.clone());
        family
    }

    fn float_counters(&mut self, name: &str, help: &str) -> Family<Labels, FloatCounter> {
        let family = Family::default();
        self.0.register(name, help, family.clone());
        family
    }

    fn gauges(&mut self, name: &str, help: &str) -> Family<Labels, Gauge> {
        let family = Family::default();
        self.0.register(name, help, family.clone());
        family
    }

    fn floats(&mut self, name: &str, help: &str) -> Family<Labels, FloatGauge> {
        let family = Family::default();
        self.0.register(name, help, family.clone());
        family
    }
}

fn one(name: &'static str, value: &str) -> Labels {
    vec![(name, value.to_string())]
}

impl Metrics {
    /// Metrics labelled with the model's name and the engine's number, all at zero.
    pub fn new(start: &StartRecord, buckets: &Buckets) -> Metrics {
        let label = |name: &'static str, value: String| (Cow::Borrowed(name), Cow::Owned(value));
        let labels = [
            label("model_name", start.model.to_string()),
            label("engine", start.engine_index.to_string()),
        ];
        let mut r = Registering(Registry::with_labels(labels.into_iter()));
        let tokens = buckets.request_tokens(start.max_model_len);
        let (latency, between) = (&buckets.request_latency, &buckets.inter_token_latency);
        let cache: Labels = vec![
            ("block_size", start.block_size.to_string()),
            ("cache_dtype", start.kv_cache_dtype.to_string()),
            // Python's words, as vLLM has them.
            (
                "enable_prefix_caching",
                ["False", "True"][usize::from(start.prefix_caching != 0)].to_owned(),
            ),
            ("num_gpu_blocks", start.num_blocks.to_string()),
        ];
        r.gauges("vllm:cache_config_info", "The KV cache")
            .get_or_create(&cache)
            .set(1);
        let metrics = Metrics {
            max_loras: start.max_loras,
            loras: BTreeMap::new(),
            running: r.gauge("vllm:num_requests_running", "Requests that own a device row"),
            waiting: r.gauge("vllm:num_requests_waiting", "Requests that wait for one"),
            waiting_by_reason: r.gauges("vllm:num_requests_waiting_by_reason", "Requests that wait, by reason"),
            preemptions: r.counter("vllm:num_preemptions", "Preemptions"),
            kv_usage: r.float("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 1 is all"),
            prefix_queries: r.counter("vllm:prefix_cache_queries", "Prompt tokens looked up"),
            prefix_hits: r.counter("vllm:prefix_cache_hits", "Prompt tokens found on the device"),
            external: [
                r.counter(
                    "vllm:external_prefix_cache_queries",
                    "Prompt tokens looked up in host memory, as they were not found on the device",
                ),
                r.counter("vllm:external_prefix_cache_hits", "Prompt tokens found in host memory"),
            ],
            offload_bytes: [
                r.counter(
                    "vllm:kv_offload_store_bytes",
                    "Bytes of KV blocks copied to host memory",
                ),
                r.counter(
                    "vllm:kv_offload_load_bytes",
                    "Bytes of KV blocks copied from host memory",
                ),
            ],
            offload_blocks: [
                r.counter("halyard:kv_offload_store_blocks", "KV blocks copied to host memory"),
                r.counter("halyard:kv_offload_load_blocks", "KV blocks copied from host memory"),
            ],
            offload_evictions: r.counter(
                "vllm:kv_offload_block_eviction",
                "KV blocks that host memory lost to others",
            ),
            offload_usage: r.float(
                "vllm:kv_offload_cpu_cache_usage_perc",
                "Share of the KV blocks of host memory that hold something, 1 is all",
            ),
            prompt_tokens: r.counter("vllm:prompt_tokens", "Prompt tokens processed, cached ones included"),
            prompt_tokens_cached: r.counter("vllm:prompt_tokens_cached", "Prompt tokens from the prefix cache"),
            prompt_tokens_by_source: r
                .counters("vllm:prompt_tokens_by_source", "Prompt tokens, by where they come from"),
            generation_tokens: r.counter("vllm:generation_tokens", "Tokens generated"),
            success: r.counters("vllm:request_success", "Requests that ended, by reason"),
            rejected: r.counters(
                "halyard:rejected_requests",
                "Requests that the engine did not take, by reason",
            ),
            lora_info: r.floats(
                "vllm:lora_requests_info",
                "Adapters of running and waiting requests; the value is when, seconds since 1970",
            ),
            lora_running: r.gauges(
                "halyard:lora_requests_running",
                "Sequences of an adapter that have had a device row",
            ),
            lora_waiting: r.gauges(
                "halyard:lora_requests_waiting",
                "Sequences of an adapter that have had none yet",
            ),
            lora_residency: r.gauges(
                "halyard:lora_residency",
                "Where an adapter is: 0 its file only, 1 host memory, 2 a device slot",
            ),
            lora_bytes: r.gauges("halyard:lora_bytes", "Bytes of an adapter's matrices"),
            lora_load_seconds: r.float_counters(
                "halyard:lora_load_seconds",
                "Time of all reads and copies of an adapter",
            ),
            lora_requests: r.counters("halyard:lora_requests", "Sequences with an adapter"),
            lora_loads: r.counters("halyard:lora_device_loads", "Copies of an adapter into a slot"),
            lora_reads: r.counters("halyard:lora_disk_reads", "Reads of an adapter's file"),
            lora_hits: r.counters(
                "halyard:lora_device_hits",
                "Of an adapter's sequences, found it in its slot",
            ),
            iteration_tokens: r.histogram(
                "vllm:iteration_tokens_total",
                "Tokens of an engine step",
                &buckets.iteration_tokens,
            ),
            first_token: r.histogram(
                "vllm:time_to_first_token_seconds",
                "Arrival to first token",
                &buckets.time_to_first_token,
            ),
            inter_token: r.histogram(
                "vllm:inter_token_latency_seconds",
                "Between tokens of a sample",
                between,
            ),
            per_output_token: r.histogram(
                "vllm:request_time_per_output_token_seconds",
                "Mean time of an output token of a request",
                between,
            ),
            e2e: r.histogram("vllm:e2e_request_latency_seconds", "Arrival to end", latency),
            queue: r.histogram("vllm:request_queue_time_seconds", "Arrival to admission", latency),
            inference: r.histogram("vllm:request_inference_time_seconds", "Admission to end", latency),
            prefill: r.histogram("vllm:request_prefill_time_seconds", "Admission to first token", latency),
            decode: r.histogram("vllm:request_decode_time_seconds", "First token to last", latency),
            request_prompt_tokens: r.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request", &tokens),
            request_generation_tokens: r.histogram(
                "vllm:request_generation_tokens",
                "Tokens generated for a request",
                &tokens,
            ),
            request_max_generation_tokens: r.histogram(
                "vllm:request_max_num_generation_tokens",
                "Most tokens of a request's samples",
                &tokens,
            ),
            request_prefill_computed: r.histogram(
                "vllm:request_prefill_kv_computed_tokens",
                "Prompt tokens of a request that were computed, not cached",
                &tokens,
            ),
            params_n: r.histogram("vllm:request_params_n", "The parameter n", &buckets.request_params_n),
            params_max_tokens: r.histogram("vllm:request_params_max_tokens", "The parameter max_tokens", &tokens),
            num_preemptions: r.histogram(
                "vllm:request_num_preemptions",
                "Preemptions of a request",
                &buckets.request_num_preemptions,
            ),
            registry: r.0,
        };
        if start.max_loras > 0 {
            metrics.tell_adapters(start.unix_ns);
        }
        for reason in FINISH_REASONS {
            let _ = metrics.success.get_or_create(&one("finished_reason", reason));
        }
        for reason in REJECTION_REASONS {
            let _ = metrics.rejected.get_or_create(&one("reason", reason));
        }
        metrics
    }

    /// The text, without `# EOF`.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode_registry(&mut text, &self.registry)?;
        Ok(text)
    }

    /// Takes note of a record.
    pub fn observe(&mut self, record: &StatRecord) {
        match record {
            StatRecord::Scheduler(record) => self.scheduler(record),
            StatRecord::Iteration(record) => self.iteration(record),
            StatRecord::Finished(record) => self.finished(record),
            StatRecord::Cache(record) => self.cache(record),
            StatRecord::Lora(record) => self.lora(record),
            StatRecord::Rejected(record) => {
                if let Some(reason) = REJECTION_REASONS.get(record.reason as usize) {
                    self.rejected.get_or_create(&one("reason", reason)).inc();
                }
            }
            StatRecord::Start(_) | StatRecord::Shutdown(_) => {}
        }
    }

    fn scheduler(&self, record: &SchedulerRecord) {
        self.running.set(record.num_running.into());
        self.waiting.set(record.num_waiting.into());
        self.waiting_by_reason
            .get_or_create(&one("reason", "capacity"))
            .set(record.num_waiting.into());
        self.preemptions.inc_by(record.num_preempted.into());
    }

    fn iteration(&self, record: &IterationRecord) {
        self.iteration_tokens
            .observe((record.prompt_tokens + record.generation_tokens) as f64);
        self.prompt_tokens.inc_by(record.prompt_tokens + record.cached_tokens);
        self.prompt_tokens_cached.inc_by(record.cached_tokens);
        for (source, tokens) in [
            ("local_compute", record.prompt_tokens),
            (
                "local_cache_hit",
                record.cached_tokens.saturating_sub(record.external_tokens),
            ),
            ("external_kv_transfer", record.external_tokens),
        ] {
            self.prompt_tokens_by_source
                .get_or_create(&one("source", source))
                .inc_by(tokens);
        }
        self.generation_tokens.inc_by(record.generation_tokens);
        for first in record.first_token_ns.iter() {
            self.first_token.observe(seconds(*first));
        }
        for (time, count) in record.inter_token_ns.iter().zip(record.inter_token_counts.iter()) {
            (0..*count).for_each(|_| self.inter_token.observe(seconds(*time)));
        }
    }

    fn finished(&self, record: &FinishedRecord) {
        if let Some(reason) = FINISH_REASONS.get(record.reason as usize) {
            self.success.get_or_create(&one("finished_reason", reason)).inc();
        }
        self.e2e.observe(seconds(record.total_ns));
        self.queue.observe(seconds(record.queue_ns));
        if record.first_token_ns > 0 {
            self.inference
                .observe(seconds(record.total_ns - record.queue_ns.min(record.total_ns)));
            self.prefill.observe(seconds(record.prefill_ns));
            self.decode.observe(seconds(record.decode_ns));
        }
        if record.generation_tokens > 1 {
            self.per_output_token.observe(seconds(record.inter_token_ns));
        }
        self.request_prompt_tokens.observe(record.prompt_tokens as f64);
        self.request_prefill_computed
            .observe(record.prompt_tokens.saturating_sub(record.cached_tokens) as f64);
        self.request_generation_tokens.observe(record.generation_tokens as f64);
        self.num_preemptions.observe(record.num_preemptions.into());
        if record.max_tokens > 0 {
            self.params_max_tokens.observe(record.max_tokens as f64);
        }
        if record.ends_request != 0 {
            self.params_n.observe(record.num_samples.into());
            self.request_max_generation_tokens
                .observe(record.max_sample_tokens as f64);
        }
    }

    fn cache(&self, record: &CacheRecord) {
        self.kv_usage.set(record.usage);
        self.prefix_queries.inc_by(record.prefix_queries);
        self.prefix_hits.inc_by(record.prefix_hits);
        for (counter, more) in [
            (&self.external[0], record.external_queries),
            (&self.external[1], record.external_hits),
            (&self.offload_bytes[0], record.store_bytes),
            (&self.offload_bytes[1], record.load_bytes),
            (&self.offload_blocks[0], record.store_blocks),
            (&self.offload_blocks[1], record.load_blocks),
            (&self.offload_evictions, record.evicted_blocks),
        ] {
            counter.inc_by(more);
        }
        self.offload_usage.set(record.external_usage);
    }

    fn lora(&mut self, record: &LoraRecord) {
        let before = self.loras.insert(record.lora_id, record.clone()).unwrap_or_default();
        let labels = one("lora", &record.name);
        self.lora_running.get_or_create(&labels).set(record.num_running.into());
        self.lora_waiting.get_or_create(&labels).set(record.num_waiting.into());
        let residency = i64::from(record.residency) - 1;
        self.lora_residency.get_or_create(&labels).set(residency);
        self.lora_bytes.get_or_create(&labels).set(record.weight_bytes as i64);
        let load_ns = record.load_ns.saturating_sub(before.load_ns);
        self.lora_load_seconds.get_or_create(&labels).inc_by(seconds(load_ns));
        for (counters, now, then) in [
            (&self.lora_requests, record.requests_total, before.requests_total),
            (&self.lora_loads, record.loads_total, before.loads_total),
            (&self.lora_reads, record.disk_reads_total, before.disk_reads_total),
            (&self.lora_hits, record.hits_total, before.hits_total),
        ] {
            counters.get_or_create(&labels).inc_by(now.saturating_sub(then));
        }
        if record.residency == 0 {
            self.forget(record.lora_id, &labels);
        }
        self.tell_adapters(record.unix_ns);
    }

    /// An unloaded adapter leaves, so that names that come and go do not pile up.
    fn forget(&mut self, lora_id: u32, labels: &Labels) {
        let gone = self.loras.remove(&lora_id);
        // Another adapter may have the name by now.
        if gone.is_some_and(|gone| self.loras.values().any(|lora| lora.name == gone.name)) {
            return;
        }
        for gauges in [
            &self.lora_running,
            &self.lora_waiting,
            &self.lora_residency,
            &self.lora_bytes,
        ] {
            gauges.remove(labels);
        }
        for counters in [&self.lora_requests, &self.lora_loads, &self.lora_reads, &self.lora_hits] {
            counters.remove(labels);
        }
        self.lora_load_seconds.remove(labels);
    }

    /// vLLM's gauge: its labels name the adapters, its value is the time, which shows the newest of several label sets.
    fn tell_adapters(&self, unix_ns: u64) {
        let names = |wanted: fn(&LoraRecord) -> bool| {
            let wanted = self.loras.values().filter(|lora| wanted(lora));
            wanted.map(|lora| &*lora.name).collect::<Vec<_>>().join(",")
        };
        let info: Labels = vec![
            ("max_lora", self.max_loras.to_string()),
            ("running_lora_adapters", names(|lora| lora.num_running > 0)),
            ("waiting_lora_adapters", names(|lora| lora.num_waiting > 0)),
        ];
        self.lora_info.clear();
        self.lora_info.get_or_create(&info).set(seconds(unix_ns));
    }
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}
