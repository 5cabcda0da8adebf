//! A histogram of durations with buckets in equal ratios: eight to a doubling, so that a quantile is within 5 % of the
//! true one, in a kilobyte.

/// Buckets to a doubling.
const PER_DOUBLING: f64 = 8.0;
/// Binary logarithm of the first bucket's lower bound in nanoseconds: 1 µs.
const FIRST_LOG2_NS: f64 = 10.0;
/// Buckets: up to 2^40 ns, 18 minutes. Longer durations are in the last one.
const NUM_BUCKETS: usize = 240;

/// Counts of durations.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    counts: Box<[u32; NUM_BUCKETS]>,
    largest_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            counts: Box::new([0; NUM_BUCKETS]),
            largest_ns: 0,
        }
    }
}

impl Histogram {
    /// Counts a duration `times` times.
    pub(super) fn add(&mut self, ns: u64, times: u64) {
        let place = ((ns.max(1) as f64).log2() - FIRST_LOG2_NS) * PER_DOUBLING;
        let bucket = place.clamp(0.0, (NUM_BUCKETS - 1) as f64) as usize;
        let count = &mut self.counts[bucket];
        *count = count.saturating_add(u32::try_from(times).unwrap_or(u32::MAX));
        self.largest_ns = self.largest_ns.max(ns);
    }

    /// Adds another one's counts.
    pub(super) fn merge(&mut self, other: &Histogram) {
        for (count, more) in self.counts.iter_mut().zip(other.counts.iter()) {
            *count = count.saturating_add(*more);
        }
        self.largest_ns = self.largest_ns.max(other.largest_ns);
    }

    /// How many durations there are.
    pub(super) fn count(&self) -> u64 {
        self.counts.iter().map(|count| u64::from(*count)).sum()
    }

    /// The longest duration in milliseconds.
    pub(super) fn largest_ms(&self) -> f64 {
        self.largest_ns as f64 / 1e6
    }

    /// The duration in milliseconds that a `share` (0 to 1) of all is not above; none without durations.
    pub(super) fn quantile_ms(&self, share: f64) -> Option<f64> {
        let count = self.count();
        let rank = ((share * count as f64).ceil() as u64).max(1);
        let mut below = 0;
        let bucket = self.counts.iter().position(|count| {
            below += u64::from(*count);
            below >= rank
        })?;
        Some(middle_ms(bucket).min(self.largest_ms()))
    }

    /// Buckets that are not empty: the middle in milliseconds, and the count.
    pub(super) fn buckets(&self) -> Vec<(f64, u32)> {
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(bucket, count)| (middle_ms(bucket), *count)).collect()
    }
}

/// The geometric middle of a bucket in milliseconds, to three digits after the point.
fn middle_ms(bucket: usize) -> f64 {
    let ns = 2f64.powf(FIRST_LOG2_NS + (bucket as f64 + 0.5) / PER_DOUBLING);
    (ns / 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_five_percent() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile_ms(0.5), None);
        for ms in 1..=1000u64 {
            histogram.add(ms * 1_000_000, 1);
        }
        for (share, true_ms) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0)] {
            let found = histogram.quantile_ms(share).expect("durations");
            assert!((found / true_ms - 1.0).abs() < 0.05, "{share}: {found}");
        }
        assert_eq!(histogram.count(), 1000);
        assert_eq!(histogram.largest_ms(), 1000.0);
    }

    #[test]
    fn durations_beyond_the_buckets_are_in_the_outer_ones() {
        let mut histogram = Histogram::default();
        histogram.add(0, 2);
        histogram.add(u64::MAX, 3);
        assert_eq!(histogram.buckets().iter().map(|(_, count)| count).sum::<u32>(), 5);
        assert_eq!(histogram.buckets().len(), 2);
        let mut both = Histogram::default();
        both.merge(&histogram);
        both.merge(&histogram);
        assert_eq!(both.count(), 10);
    }
}
