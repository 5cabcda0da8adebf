//! The metrics of `GET /metrics` under vLLM's names, labels and buckets, since dashboards, routers and autoscalers read
//! those. Keeps counters and histograms of the records, and writes them as OpenMetrics text when asked.
//!
//! Configuration: `{"custom_histogram_buckets": {"request_latency": [0.1, 1.0]}}` replaces the bounds of a family of
//! histograms, as vLLM's `--custom-histogram-buckets` does.

mod buckets;
mod metrics;

use halyard_platform_api::hooks::{Batch, StatLogger, StatLoggerFactory, StatRecord};
use halyard_platform_api::{Error, Result, Status};
use serde::Deserialize;

use buckets::Buckets;
use metrics::Metrics;

halyard_platform_api::export_stat_logger! {
    name: "prometheus",
    version: env!("CARGO_PKG_VERSION"),
    about: "the metrics of GET /metrics, under vLLM's names",
    factory: PrometheusFactory,
}

/// Makes the loggers.
pub struct PrometheusFactory;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default)]
    custom_histogram_buckets: std::collections::BTreeMap<String, Vec<f64>>,
}

impl StatLoggerFactory for PrometheusFactory {
    fn create(&self, config: &str) -> Result<Box<dyn StatLogger>> {
        let config: Config = serde_json::from_str(config).map_err(|e| {
            Error::invalid(format!(
                "configuration {config}: {e}; the only key is `custom_histogram_buckets`, an object of lists of numbers"
            ))
        })?;
        let buckets = Buckets::new(&config.custom_histogram_buckets).map_err(Error::invalid)?;
        Ok(Box::new(Prometheus { buckets, metrics: None }))
    }
}

/// The sink. What it shows has the model's name as a label, so there is nothing to show before the start record.
struct Prometheus {
    buckets: Buckets,
    metrics: Option<Metrics>,
}

impl StatLogger for Prometheus {
    fn log_batch(&mut self, batch: &Batch<'_>) -> Result<()> {
        for record in batch.records {
            match (record, &mut self.metrics) {
                // The start record may come twice; counters go on then.
                (StatRecord::Start(start), none @ None) => *none = Some(Metrics::new(start, &self.buckets)),
                (record, Some(metrics)) => metrics.observe(record),
                (_, None) => {}
            }
        }
        Ok(())
    }

    fn expose(&mut self) -> Result<Option<String>> {
        let Some(metrics) = &self.metrics else {
            return Ok(None);
        };
        let text = metrics.text();
        text.map(Some)
            .map_err(|e| Error::new(Status::Internal, format!("metrics cannot be written as text: {e}")))
    }
}
