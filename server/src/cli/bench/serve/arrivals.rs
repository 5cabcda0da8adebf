//! When requests are sent: times between them from a gamma distribution whose shape is the burstiness, at one rate or
//! at one that grows, as vLLM's bench has it.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand_distr::{Distribution, Gamma};

use super::rate::Rate;
use crate::error::ServerError;

/// The time of each of `count` requests after the start. Of a finite constant rate they are stretched so that the last
/// one comes after `count / rate` seconds, as vLLM's are: random times would else miss the rate by a few percent.
pub(super) fn times(count: u32, rate: Rate, burstiness: f64, seed: u64) -> Result<Vec<Duration>, ServerError> {
    if rate == Rate::Constant(f64::INFINITY) {
        return Ok(vec![Duration::ZERO; count as usize]);
    }
    // Of mean 1; the rate scales it.
    let gamma = Gamma::new(burstiness, 1.0 / burstiness).map_err(|error| ServerError::Option {
        option: "--burstiness",
        message: format!("{burstiness}: {error}"),
    })?;
    let mut random = StdRng::seed_from_u64(seed);
    let mut at = 0.0;
    let mut times = Vec::with_capacity(count as usize);
    for index in 0..count {
        at += gamma.sample(&mut random) / rate.at(index, count);
        times.push(at);
    }
    let stretch = match rate {
        Rate::Constant(rate) if at > 0.0 => f64::from(count) / rate / at,
        Rate::Constant(_) => 0.0,
        Rate::RampUp { .. } => 1.0,
    };
    Ok(times
        .into_iter()
        .map(|at| Duration::from_secs_f64(at * stretch))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::bench::serve::rate::RampUpStrategy;

    /// Spread of the gaps over their mean.
    fn unevenness(burstiness: f64) -> f64 {
        let times = times(4000, Rate::Constant(10.0), burstiness, 7).expect("times");
        let last = times.last().expect("some").as_secs_f64();
        assert!((last - 400.0).abs() < 1e-6, "the rate is kept: {last}");
        assert!(times.is_sorted());
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        variance.sqrt() / mean
    }

    #[test]
    fn burstiness_is_the_shape_of_a_gamma_distribution() {
        // The coefficient of variation of a gamma distribution is 1 / sqrt(shape).
        for shape in [0.25, 1.0, 4.0, 100.0] {
            let (found, expected) = (unevenness(shape), 1.0 / f64::sqrt(shape));
            assert!(
                (found / expected - 1.0).abs() < 0.15,
                "shape {shape}: {found}, expected {expected}"
            );
        }
    }

    #[test]
    fn without_a_rate_all_come_at_once() {
        let all = Rate::Constant(f64::INFINITY);
        assert_eq!(times(3, all, 1.0, 0).expect("times"), [Duration::ZERO; 3]);
        let two = || times(5, Rate::Constant(2.0), 1.0, 3).expect("times");
        assert_eq!(two(), two(), "seeded");
    }

    #[test]
    fn a_rate_grows_by_numbers_or_by_a_factor() {
        // Nearly even times: the gaps are those of the rate.
        let gaps = |strategy| {
            let rate = Rate::RampUp {
                strategy,
                start: 1.0,
                end: 16.0,
            };
            let times = times(5, rate, 1e6, 1).expect("times");
            let at = |index: usize| times[index].as_secs_f64();
            (1..5)
                .map(|index| 1.0 / (at(index) - at(index - 1)))
                .collect::<Vec<f64>>()
        };
        for (strategy, expected) in [
            (RampUpStrategy::Linear, [4.75, 8.5, 12.25, 16.0]),
            (RampUpStrategy::Exponential, [2.0, 4.0, 8.0, 16.0]),
        ] {
            for (found, expected) in gaps(strategy).into_iter().zip(expected) {
                assert!(
                    (found / expected - 1.0).abs() < 0.02,
                    "{strategy:?}: {found}, not {expected}"
                );
            }
        }
    }
}
