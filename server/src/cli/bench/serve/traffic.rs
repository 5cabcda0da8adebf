//! Options of how requests come: at a rate that grows over the bench, under names of their own, to which adapters.

use clap::{Args, ValueEnum};
use halyard_models::SplitMix64;

use super::rate::{RampUpStrategy, Rate, parse_rate};
use crate::error::ServerError;

/// Which adapter a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoraAssignment {
    /// Any, by the seed.
    Random,
    /// Each in its turn.
    RoundRobin,
}

/// How requests come.
#[derive(Args, Debug)]
pub struct TrafficArgs {
    /// The rate grows from --ramp-up-start-rps to --ramp-up-end-rps, in place of --request-rate
    #[arg(long, value_name = "NAME", value_enum, requires_all = ["ramp_up_start_rps", "ramp_up_end_rps"])]
    ramp_up_strategy: Option<RampUpStrategy>,
    /// Requests a second at the first request
    #[arg(long, value_name = "NUMBER", value_parser = parse_rate, requires = "ramp_up_strategy")]
    ramp_up_start_rps: Option<f64>,
    /// Requests a second at the last request
    #[arg(long, value_name = "NUMBER", value_parser = parse_rate, requires = "ramp_up_strategy")]
    ramp_up_end_rps: Option<f64>,
    /// Each request is named by this and its number, in the header X-Request-Id; without it by the server
    #[arg(long, value_name = "TEXT")]
    request_id_prefix: Option<String>,
    /// Adapters of the server, one of which each request names as its model
    #[arg(long, value_name = "NAME", num_args = 1..)]
    lora_modules: Vec<String>,
    /// Which adapter a request gets
    #[arg(long, value_name = "NAME", value_enum, default_value_t = LoraAssignment::Random)]
    lora_assignment: LoraAssignment,
    /// Seconds to wait for a server that does not answer yet
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(super) ready_check_timeout_sec: u64,
}

impl TrafficArgs {
    /// The rate of requests, where `constant` is that of --request-rate.
    pub(super) fn rate(&self, constant: f64) -> Rate {
        match (self.ramp_up_strategy, self.ramp_up_start_rps, self.ramp_up_end_rps) {
            (Some(strategy), Some(start), Some(end)) => Rate::RampUp { strategy, start, end },
            _ => Rate::Constant(constant),
        }
    }

    /// Refuses what contradicts itself.
    pub(super) fn check(&self, request_rate: f64) -> Result<(), ServerError> {
        let refuse = |option, message: String| Err(ServerError::Option { option, message });
        let Rate::RampUp { start, end, .. } = self.rate(request_rate) else {
            return Ok(());
        };
        if request_rate.is_finite() {
            let message = "with --ramp-up-strategy the rate comes from --ramp-up-start-rps and --ramp-up-end-rps; \
                           leave --request-rate out";
            return refuse("--request-rate", message.to_owned());
        }
        if !end.is_finite() || start > end {
            let message = format!("{end} is no rate to grow to from {start}; give a number from {start} on");
            return refuse("--ramp-up-end-rps", message);
        }
        Ok(())
    }

    /// The model of each of `count` requests: an adapter, or `base` where none were named.
    pub(super) fn models<'a>(&'a self, base: &'a str, count: usize, seed: u64) -> Vec<&'a str> {
        let mut random = SplitMix64(seed);
        let number = self.lora_modules.len();
        let pick = |at: usize, random: &mut SplitMix64| match (number, self.lora_assignment) {
            (0, _) => base,
            (_, LoraAssignment::RoundRobin) => self.lora_modules[at % number].as_str(),
            (_, LoraAssignment::Random) => self.lora_modules[random.index(number)].as_str(),
        };
        (0..count).map(|at| pick(at, &mut random)).collect()
    }

    /// The name of a request.
    pub(super) fn request_id(&self, index: usize) -> Option<String> {
        self.request_id_prefix.as_ref().map(|prefix| format!("{prefix}{index}"))
    }
}
