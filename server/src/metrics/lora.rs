//! LoRA adapters in `/metrics`: vLLM's info gauge, and a family of gauges and counters with a label for each adapter. Read when scraped.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use halyard_engine::{AdapterStatus, Residency};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Reads the engine's adapters when scraped.
pub(super) struct LoraMetrics {
    pub(super) adapters: Box<dyn Fn() -> Vec<AdapterStatus> + Send + Sync>,
    pub(super) max_loras: u32,
}

impl fmt::Debug for LoraMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoraMetrics")
    }
}

type Gauge = fn(&AdapterStatus) -> f64;
type Counter = fn(&AdapterStatus) -> f64;

const GAUGES: [(&str, &str, Gauge); 4] = [
    (
        "halyard:lora_requests_running",
        "Sequences of an adapter that have had a device row",
        |a| a.num_running as f64,
    ),
    (
        "halyard:lora_requests_waiting",
        "Sequences of an adapter that have had none yet",
        |a| a.num_waiting as f64,
    ),
    (
        "halyard:lora_residency",
        "Where an adapter is: 0 its file only, 1 host memory, 2 a device slot",
        |a| match a.residency {
            Residency::Disk => 0.0,
            Residency::Host => 1.0,
            Residency::Device => 2.0,
        },
    ),
    ("halyard:lora_bytes", "Bytes of an adapter's matrices", |a| {
        a.bytes as f64
    }),
];

const COUNTERS: [(&str, &str, Counter); 5] = [
    ("halyard:lora_requests", "Sequences with an adapter", |a| {
        a.requests_total as f64
    }),
    (
        "halyard:lora_device_hits",
        "Of these, found it in its slot when they came",
        |a| a.device_hits_total as f64,
    ),
    ("halyard:lora_device_loads", "Copies of an adapter into a slot", |a| {
        a.device_loads_total as f64
    }),
    ("halyard:lora_disk_reads", "Reads of an adapter's file", |a| {
        a.disk_reads_total as f64
    }),
    (
        "halyard:lora_load_seconds",
        "Time of all reads and copies of an adapter",
        |a| a.load_seconds_total,
    ),
];

impl Collector for LoraMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let adapters = (self.adapters)();
        let names = |counts: Gauge| -> String {
            let named = adapters.iter().filter(|adapter| counts(adapter) > 0.0);
            named.map(|adapter| adapter.name.as_str()).collect::<Vec<_>>().join(",")
        };
        let labels = [
            ("max_lora", self.max_loras.to_string()),
            ("running_lora_adapters", names(|a| a.num_running as f64)),
            ("waiting_lora_adapters", names(|a| a.num_waiting as f64)),
        ];
        // As in vLLM the value is the time, so that of several label sets the newest can be told.
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0.0, |d| d.as_secs_f64());
        let help = "Adapters with requests that run or wait";
        let mut info = encoder.encode_descriptor("vllm:lora_requests_info", help, None, MetricType::Gauge)?;
        ConstGauge::new(now).encode(info.encode_family(&labels)?)?;
        for (name, help, value) in GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for adapter in &adapters {
                let label = [("lora", adapter.name.as_str())];
                ConstGauge::new(value(adapter)).encode(family.encode_family(&label)?)?;
            }
        }
        for (name, help, value) in COUNTERS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for adapter in &adapters {
                let label = [("lora", adapter.name.as_str())];
                ConstCounter::new(value(adapter)).encode(family.encode_family(&label)?)?;
            }
        }
        Ok(())
    }
}
