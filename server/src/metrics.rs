//! Prometheus metrics under vLLM's names, labels and buckets (vllm/v1/metrics/loggers.py), since dashboards, routers and
//! autoscalers read those. Counters and gauges are read from the engine when scraped; request times are observed here,
//! where chunks leave for the client. Observing never blocks on anything but a short lock.

mod engine;
mod lora;

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, Instant};

use halyard_engine::{AdapterStatus, OutputChunk, SamplingParams, StatsSnapshot};
use halyard_platform_api::Result as ContractResult;
use halyard_platform_api::hooks::{Batch, StatLogger, StatRecord};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use self::engine::EngineStats;
use self::lora::LoraMetrics;

/// What `/metrics` answers with.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const FIRST_TOKEN_S: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
const TOKEN_S: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const REQUEST_S: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
const STEP_TOKENS: [f64; 13] = [
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
];
const SAMPLES: [f64; 5] = [1.0, 2.0, 5.0, 10.0, 20.0];

/// Histograms that only the engine's own records can fill. Made before the engine starts, which takes the logger.
#[derive(Clone)]
pub struct EngineRecords {
    step_tokens: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
}

impl EngineRecords {
    /// Empty histograms.
    pub fn new() -> Self {
        EngineRecords {
            step_tokens: Histogram::new(STEP_TOKENS),
            queue: Histogram::new(REQUEST_S),
            prefill: Histogram::new(REQUEST_S),
            decode: Histogram::new(REQUEST_S),
            inference: Histogram::new(REQUEST_S),
        }
    }
}

impl Default for EngineRecords {
    fn default() -> Self {
        EngineRecords::new()
    }
}

impl StatLogger for EngineRecords {
    fn log_batch(&mut self, batch: &Batch<'_>) -> ContractResult<()> {
        let seconds = |ns: u64| Duration::from_nanos(ns).as_secs_f64();
        for record in batch.records {
            match record {
                StatRecord::Iteration(step) => self
                    .step_tokens
                    .observe((step.prompt_tokens + step.generation_tokens) as f64),
                StatRecord::Finished(end) => {
                    self.queue.observe(seconds(end.queue_ns));
                    self.inference.observe(seconds(end.total_ns - end.queue_ns));
                    if end.first_token_ns > 0 {
                        self.prefill.observe(seconds(end.prefill_ns));
                        self.decode.observe(seconds(end.decode_ns));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// What the metrics say of the model.
#[derive(Clone, Copy, Debug)]
pub struct ServedModel<'a> {
    /// Its first name.
    pub name: &'a str,
    /// Context in tokens: the bound of token buckets.
    pub max_model_len: u32,
    /// Tokens of a KV block.
    pub block_size: u32,
    /// KV blocks.
    pub num_blocks: u32,
}

/// All metrics of a server.
pub struct Metrics {
    registry: Registry,
    request: RequestHistograms,
}

#[derive(Clone)]
struct RequestHistograms {
    first_token: Histogram,
    inter_token: Histogram,
    per_output_token: Histogram,
    e2e: Histogram,
    prompt_tokens: Histogram,
    generation_tokens: Histogram,
    n: Histogram,
    max_tokens: Histogram,
}

impl Metrics {
    /// Metrics labelled `model_name` and `engine="0"`; `stats` is asked at every scrape.
    pub fn new(
        served: &ServedModel<'_>,
        records: &EngineRecords,
        stats: impl Fn() -> StatsSnapshot + Send + Sync + 'static,
    ) -> Self {
        let label = |name: &'static str, value: &str| (Cow::Borrowed(name), Cow::Owned(value.to_owned()));
        let mut registry = Registry::with_labels([label("model_name", served.name), label("engine", "0")].into_iter());
        registry.register_collector(Box::new(EngineStats {
            stats: Box::new(stats),
            block_size: served.block_size,
            num_blocks: served.num_blocks,
        }));
        let mut histogram = |name: &str, help: &str, histogram: Histogram| {
            registry.register(format!("vllm:{name}"), help, histogram.clone());
            histogram
        };
        let tokens = || Histogram::new(one_two_five(served.max_model_len));
        let request = RequestHistograms {
            first_token: histogram(
                "time_to_first_token_seconds",
                "Arrival to first token",
                Histogram::new(FIRST_TOKEN_S),
            ),
            inter_token: histogram(
                "inter_token_latency_seconds",
                "Between tokens of a sample",
                Histogram::new(TOKEN_S),
            ),
            per_output_token: histogram(
                "request_time_per_output_token_seconds",
                "Mean time of an output token of a request",
                Histogram::new(TOKEN_S),
            ),
            e2e: histogram(
                "e2e_request_latency_seconds",
                "Arrival to end",
                Histogram::new(REQUEST_S),
            ),
            prompt_tokens: histogram("request_prompt_tokens", "Prompt tokens of a request", tokens()),
            generation_tokens: histogram("request_generation_tokens", "Tokens generated for a request", tokens()),
            n: histogram("request_params_n", "The parameter n", Histogram::new(SAMPLES)),
            max_tokens: histogram("request_params_max_tokens", "The parameter max_tokens", tokens()),
        };
        histogram(
            "iteration_tokens_total",
            "Tokens of an engine step",
            records.step_tokens.clone(),
        );
        histogram(
            "request_queue_time_seconds",
            "Arrival to admission",
            records.queue.clone(),
        );
        histogram(
            "request_prefill_time_seconds",
            "Admission to first token",
            records.prefill.clone(),
        );
        histogram(
            "request_decode_time_seconds",
            "First token to end",
            records.decode.clone(),
        );
        histogram(
            "request_inference_time_seconds",
            "Admission to end",
            records.inference.clone(),
        );
        Metrics { registry, request }
    }

    /// Adds LoRA adapters to the scrape, of which `max_loras` fit the device.
    pub fn register_adapters(
        &mut self,
        max_loras: u32,
        adapters: impl Fn() -> Vec<AdapterStatus> + Send + Sync + 'static,
    ) {
        self.registry.register_collector(Box::new(LoraMetrics {
            adapters: Box::new(adapters),
            max_loras,
        }));
    }

    /// The scrape: OpenMetrics text.
    ///
    /// # Errors
    /// When formatting fails, which would be a defect.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// Starts the clock of a request.
    pub fn start_request(&self, prompt_tokens: usize, params: &SamplingParams) -> RequestTimer {
        RequestTimer {
            histograms: self.request.clone(),
            start: Instant::now(),
            first_token: None,
            last_token: vec![None; params.n as usize],
            prompt_tokens,
            n: params.n,
            max_tokens: params.max_tokens,
            generation_tokens: 0,
            num_finished: 0,
            seen: false,
        }
    }
}

/// Observes one request's chunks. A request that is cancelled leaves what was observed until then.
pub struct RequestTimer {
    histograms: RequestHistograms,
    start: Instant,
    first_token: Option<Instant>,
    last_token: Vec<Option<Instant>>,
    prompt_tokens: usize,
    n: u32,
    max_tokens: Option<u32>,
    generation_tokens: u64,
    num_finished: u32,
    seen: bool,
}

impl RequestTimer {
    /// Whether no chunk has come yet.
    pub fn is_first(&self) -> bool {
        !self.seen
    }

    /// Takes note of a chunk that came now.
    pub fn chunk(&mut self, chunk: &OutputChunk) {
        self.seen = true;
        let now = Instant::now();
        let num_tokens = chunk.token_ids.len();
        if num_tokens > 0 {
            self.generation_tokens += num_tokens as u64;
            if self.first_token.is_none() {
                self.first_token = Some(now);
                self.histograms.first_token.observe((now - self.start).as_secs_f64());
            }
            let last = self.last_token.get_mut(chunk.index as usize);
            if let Some(before) = last.and_then(|last| last.replace(now)) {
                // Tokens that came together share the wait.
                let each = (now - before).as_secs_f64() / num_tokens as f64;
                (0..num_tokens).for_each(|_| self.histograms.inter_token.observe(each));
            }
        }
        if chunk.finish.is_some() {
            self.num_finished += 1;
            if self.num_finished == self.n {
                self.finish(now);
            }
        }
    }

    fn finish(&self, now: Instant) {
        let histograms = &self.histograms;
        histograms.e2e.observe((now - self.start).as_secs_f64());
        histograms.prompt_tokens.observe(self.prompt_tokens as f64);
        histograms.generation_tokens.observe(self.generation_tokens as f64);
        histograms.n.observe(f64::from(self.n));
        if let Some(limit) = self.max_tokens {
            histograms.max_tokens.observe(f64::from(limit));
        }
        if let Some(first) = self.first_token.filter(|_| self.generation_tokens > 1) {
            let each = (now - first).as_secs_f64() / (self.generation_tokens - 1) as f64;
            histograms.per_output_token.observe(each);
        }
    }
}

/// vLLM's token buckets: 1, 2, 5, 10, 20, 50, … up to the largest that is at most `limit`.
fn one_two_five(limit: u32) -> impl Iterator<Item = f64> {
    (0..10u32)
        .flat_map(|power| [1u64, 2, 5].map(|mantissa| mantissa * 10u64.pow(power)))
        .take_while(move |value| *value <= u64::from(limit))
        .map(|value| value as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use halyard_platform_api::hooks::{FinishedRecord, IterationRecord};

    fn metrics(records: &EngineRecords) -> Metrics {
        let served = ServedModel {
            name: "tiny",
            max_model_len: 100,
            block_size: 16,
            num_blocks: 7,
        };
        Metrics::new(&served, records, || StatsSnapshot {
            num_running: 3,
            kv_cache_usage: 0.25,
            prompt_tokens_total: 11,
            requests_finished: [5, 4, 3, 2],
            ..StatsSnapshot::default()
        })
    }

    #[test]
    fn token_buckets_are_those_of_vllm() {
        assert_eq!(
            one_two_five(100).collect::<Vec<_>>(),
            [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
        );
        assert_eq!(one_two_five(8192).last(), Some(5000.0));
    }

    #[test]
    fn names_and_labels_are_those_of_vllm() {
        let text = metrics(&EngineRecords::new()).encode().expect("encodes");
        for line in [
            "vllm:num_requests_running{model_name=\"tiny\",engine=\"0\"} 3",
            "vllm:kv_cache_usage_perc{model_name=\"tiny\",engine=\"0\"} 0.25",
            "vllm:cache_config_info{model_name=\"tiny\",engine=\"0\",block_size=\"16\",num_gpu_blocks=\"7\"} 1",
            "vllm:prompt_tokens_total{model_name=\"tiny\",engine=\"0\"} 11",
            "vllm:time_to_first_token_seconds_count{model_name=\"tiny\",engine=\"0\"} 0",
        ] {
            assert!(
                text.lines().any(|found| found.starts_with(line)),
                "{line} is not in\n{text}"
            );
        }
        let aborts = text
            .lines()
            .find(|line| line.contains("finished_reason=\"abort\""))
            .expect("a line for aborts");
        assert!(
            aborts.starts_with("vllm:request_success_total{") && aborts.ends_with(" 3"),
            "{aborts}"
        );
    }

    #[test]
    fn a_request_is_observed_once_when_its_last_sample_ends() {
        let metrics = metrics(&EngineRecords::new());
        let params = SamplingParams {
            n: 2,
            max_tokens: Some(7),
            ..SamplingParams::default()
        };
        let mut timer = metrics.start_request(4, &params);
        let chunk = |index: u32, end: bool| OutputChunk {
            index,
            text: String::new(),
            token_ids: vec![1],
            logprobs: None,
            prompt_logprobs: None,
            num_cached_tokens: 0,
            finish: end.then_some(halyard_engine::FinishReason::Length),
        };
        for (index, end) in [(0, false), (1, false), (0, true)] {
            timer.chunk(&chunk(index, end));
        }
        let count = |text: &str, name: &str| {
            let line = text
                .lines()
                .find(|line| line.starts_with(&format!("vllm:{name}_count")))
                .expect(name);
            line.rsplit(' ').next().expect("a value").to_owned()
        };
        assert_eq!(
            count(&metrics.encode().expect("encodes"), "e2e_request_latency_seconds"),
            "0"
        );
        timer.chunk(&chunk(1, true));
        let text = metrics.encode().expect("encodes");
        assert_eq!(count(&text, "e2e_request_latency_seconds"), "1");
        assert_eq!(count(&text, "time_to_first_token_seconds"), "1");
        assert_eq!(count(&text, "inter_token_latency_seconds"), "2");
        assert!(
            text.contains("vllm:request_generation_tokens_sum{model_name=\"tiny\",engine=\"0\"} 4"),
            "{text}"
        );
    }

    #[test]
    fn engine_records_fill_their_histograms() {
        let mut records = EngineRecords::new();
        let step = IterationRecord {
            prompt_tokens: 30,
            generation_tokens: 2,
            ..IterationRecord::default()
        };
        let end = FinishedRecord {
            queue_ns: 2_000_000_000,
            first_token_ns: 3_000_000_000,
            prefill_ns: 1_000_000_000,
            decode_ns: 3_000_000_000,
            total_ns: 6_000_000_000,
            ..FinishedRecord::default()
        };
        records
            .log_batch(&Batch {
                records: &[StatRecord::Iteration(step), StatRecord::Finished(end)],
                deadline: Duration::from_secs(1),
                num_dropped: 0,
            })
            .expect("never fails");
        let text = metrics(&records).encode().expect("encodes");
        for (name, sum) in [
            ("iteration_tokens_total", "32"),
            ("request_queue_time_seconds", "2"),
            ("request_prefill_time_seconds", "1"),
            ("request_decode_time_seconds", "3"),
            ("request_inference_time_seconds", "4"),
        ] {
            let line = text
                .lines()
                .find(|line| line.starts_with(&format!("vllm:{name}_sum")))
                .expect(name);
            assert!(line.trim_end_matches(".0").ends_with(&format!(" {sum}")), "{line}");
        }
    }
}
