//! When requests are sent: times between them from a gamma distribution whose shape is the burstiness, as vLLM's bench
//! has it.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand_distr::{Distribution, Gamma};

use crate::error::ServerError;

/// The time of each of `count` requests after the start. Of a finite rate they are stretched so that the last one comes
/// after `count / rate` seconds, as vLLM's are: random times would else miss the rate by a few percent.
pub(super) fn times(count: u32, rate: f64, burstiness: f64, seed: u64) -> Result<Vec<Duration>, ServerError> {
    if !rate.is_finite() {
        return Ok(vec![Duration::ZERO; count as usize]);
    }
    let gamma = Gamma::new(burstiness, 1.0 / (rate * burstiness)).map_err(|error| ServerError::Option {
        option: "--burstiness",
        message: format!("{burstiness}: {error}"),
    })?;
    let mut random = StdRng::seed_from_u64(seed);
    let mut at = 0.0;
    let mut times = Vec::with_capacity(count as usize);
    for _ in 0..count {
        at += gamma.sample(&mut random);
        times.push(at);
    }
    let stretch = match at > 0.0 {
        true => f64::from(count) / rate / at,
        false => 0.0,
    };
    Ok(times
        .into_iter()
        .map(|at| Duration::from_secs_f64(at * stretch))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spread of the gaps over their mean.
    fn unevenness(burstiness: f64) -> f64 {
        let times = times(4000, 10.0, burstiness, 7).expect("times");
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
        assert_eq!(times(3, f64::INFINITY, 1.0, 0).expect("times"), [Duration::ZERO; 3]);
        assert_eq!(
            times(5, 2.0, 1.0, 3).expect("times"),
            times(5, 2.0, 1.0, 3).expect("times"),
            "seeded"
        );
    }
}
