//! The engine's own counters and gauges, read when `/metrics` is scraped. Keeps nothing between scrapes.

use std::fmt;

use halyard_engine::StatsSnapshot;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Reasons in the order of [`StatsSnapshot::requests_finished`].
const FINISHED: [&str; 4] = ["stop", "length", "abort", "error"];

/// Reads the engine when scraped.
pub(super) struct EngineStats {
    pub(super) stats: Box<dyn Fn() -> StatsSnapshot + Send + Sync>,
    pub(super) block_size: u32,
    pub(super) num_blocks: u32,
}

impl fmt::Debug for EngineStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineStats")
    }
}

impl Collector for EngineStats {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let stats = (self.stats)();
        let mut gauge = |name: &str, help: &str, value: f64| {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)
        };
        gauge(
            "vllm:num_requests_running",
            "Requests that own a device row",
            stats.num_running as f64,
        )?;
        gauge(
            "vllm:num_requests_waiting",
            "Requests that wait for one",
            stats.num_waiting as f64,
        )?;
        gauge(
            "vllm:kv_cache_usage_perc",
            "Share of KV blocks in use, 1 is all",
            stats.kv_cache_usage,
        )?;
        let cache = [
            ("block_size", self.block_size.to_string()),
            ("num_gpu_blocks", self.num_blocks.to_string()),
        ];
        let mut family =
            encoder.encode_descriptor("vllm:cache_config_info", "The KV cache", None, MetricType::Gauge)?;
        ConstGauge::new(1i64).encode(family.encode_family(&cache)?)?;
        let mut counter = |name: &str, help: &str, value: u64| {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(metric)
        };
        counter(
            "vllm:prompt_tokens",
            "Prompt tokens processed",
            stats.prompt_tokens_total,
        )?;
        counter(
            "vllm:generation_tokens",
            "Tokens generated",
            stats.generation_tokens_total,
        )?;
        counter("vllm:num_preemptions", "Preemptions", stats.preemptions_total)?;
        counter(
            "vllm:prefix_cache_queries",
            "Prompt tokens looked up",
            stats.prefix_cache_queries_total,
        )?;
        counter(
            "vllm:prefix_cache_hits",
            "Prompt tokens found",
            stats.prefix_cache_hits_total,
        )?;
        counter("halyard:steps", "Engine steps", stats.steps_total)?;
        counter(
            "halyard:dropped_stat_records",
            "Records that no stat logger had room for",
            stats.dropped_records_total,
        )?;
        let mut family = encoder.encode_descriptor(
            "vllm:request_success",
            "Requests that ended, by reason",
            None,
            MetricType::Counter,
        )?;
        for (reason, count) in FINISHED.iter().zip(stats.requests_finished) {
            let labels = [("finished_reason", *reason)];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
