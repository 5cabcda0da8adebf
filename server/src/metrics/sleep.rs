//! vLLM's gauge of where an engine's weights are. The engine says it when it is asked, so no stat logger needs to.

use std::fmt;

use halyard_engine::{Replicas, SleepState};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

/// The states of all copies of a model at one moment.
#[derive(Debug)]
pub struct SleepStates {
    model: String,
    /// Of the first copy.
    first_rank: u32,
    states: Vec<SleepState>,
}

impl SleepStates {
    /// Those of `engines`, with vLLM's labels: the served name, and the engine's number, counted from `first_rank`.
    pub fn of(engines: &Replicas, model: &str, first_rank: u32) -> SleepStates {
        SleepStates {
            model: model.to_owned(),
            first_rank,
            states: engines.engines().iter().map(|engine| engine.sleep_state()).collect(),
        }
    }
}

impl Collector for SleepStates {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; \
                    weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2";
        let mut family = encoder.encode_descriptor("vllm:engine_sleep_state", help, None, MetricType::Gauge)?;
        for (engine, present) in (self.first_rank..).zip(&self.states) {
            let engine = engine.to_string();
            for state in SleepState::ALL {
                let labels = [
                    ("model_name", self.model.as_str()),
                    ("engine", engine.as_str()),
                    ("sleep_state", state.name()),
                ];
                ConstGauge::new(i64::from(state == *present)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
