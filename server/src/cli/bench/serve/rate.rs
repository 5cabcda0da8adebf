//! Rates of requests, constant or growing, and how they are written on a command line.

use clap::ValueEnum;

/// One request in three hours: less is a mistake.
const LOWEST_RATE: f64 = 1e-4;

pub(super) fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate >= LOWEST_RATE => Ok(rate),
        _ => Err(format!(
            "`{text}` is not a rate; give requests a second from {LOWEST_RATE} on, or inf"
        )),
    }
}

/// How a rate grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RampUpStrategy {
    /// By the same number of requests a second.
    Linear,
    /// By the same factor.
    Exponential,
}

impl RampUpStrategy {
    pub(super) fn name(self) -> &'static str {
        match self {
            RampUpStrategy::Linear => "linear",
            RampUpStrategy::Exponential => "exponential",
        }
    }
}

/// Requests a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rate {
    /// The same from the first to the last; infinite: all at once.
    Constant(f64),
    /// From `start` at the first request to `end` at the last.
    RampUp {
        strategy: RampUpStrategy,
        start: f64,
        end: f64,
    },
}

impl Rate {
    /// At a request of `count`.
    pub(super) fn at(self, index: u32, count: u32) -> f64 {
        let progress = f64::from(index) / f64::from(count.saturating_sub(1).max(1));
        match self {
            Rate::Constant(rate) => rate,
            Rate::RampUp { strategy, start, end } => match strategy {
                RampUpStrategy::Linear => start + (end - start) * progress,
                RampUpStrategy::Exponential => start * (end / start).powf(progress),
            },
        }
    }
}
