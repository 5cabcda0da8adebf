//! The server's resource use, once a second, as CSV; and the check that it does not grow.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::ask::Tally;
use crate::process::Server;

/// One second.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Since the first request.
    pub seconds: f64,
    /// Requests that have ended.
    pub requests: u64,
    /// Resident memory in MiB.
    pub rss_mib: f64,
    /// Open descriptors.
    pub descriptors: f64,
    /// Threads.
    pub threads: f64,
    /// Sequences that run.
    pub running: f64,
    /// Sequences that wait.
    pub waiting: f64,
    /// Share of KV blocks in use.
    pub kv_usage: f64,
}

/// Growth of memory over the second half that may be the allocator's.
const MAX_GROWTH_MIB: f64 = 4.0;
/// The same of large processes, as a share.
const MAX_GROWTH_SHARE: f64 = 0.03;
/// Descriptors and threads come and go with connections: their means may differ by this much.
const MAX_MORE: f64 = 4.0;
/// Fewer samples than this show no trend.
const MIN_SAMPLES: usize = 60;

/// All samples and their file.
pub struct Samples {
    file: File,
    all: Vec<Sample>,
}

impl Samples {
    pub fn new(path: &Path) -> std::io::Result<Samples> {
        let mut file = File::create(path)?;
        writeln!(
            file,
            "seconds,requests,rss_mib,descriptors,threads,running,waiting,kv_usage"
        )?;
        Ok(Samples { file, all: Vec::new() })
    }

    pub async fn take(
        &mut self,
        server: &Server,
        tally: &Tally,
        elapsed: Duration,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let gauges = server.gauges().await?;
        let (rss, descriptors, threads) = server.resources()?;
        let s = Sample {
            seconds: elapsed.as_secs_f64(),
            requests: tally.requests.load(Ordering::Relaxed),
            rss_mib: rss as f64 / f64::from(1 << 20),
            descriptors: descriptors as f64,
            threads: threads as f64,
            running: gauges[0],
            waiting: gauges[1],
            kv_usage: gauges[2],
        };
        writeln!(
            self.file,
            "{:.1},{},{:.2},{},{},{},{},{:.4}",
            s.seconds, s.requests, s.rss_mib, s.descriptors, s.threads, s.running, s.waiting, s.kv_usage
        )?;
        self.all.push(s);
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn all(&self) -> &[Sample] {
        &self.all
    }

    /// The last sample in words.
    pub fn line(&self) -> String {
        self.all.last().map_or_else(String::new, |s| {
            format!(
                "{:.0} s, {} requests, {:.1} MiB, {} descriptors, {} threads, {} running, {} waiting",
                s.seconds, s.requests, s.rss_mib, s.descriptors, s.threads, s.running, s.waiting
            )
        })
    }

    /// The second half, without the last second, in which clients leave.
    fn second_half(&self) -> &[Sample] {
        &self.all[self.all.len() / 2..]
    }

    /// The resources that grow, in words.
    pub fn growth(&self) -> Vec<String> {
        let half = self.second_half();
        if self.all.len() < MIN_SAMPLES {
            return vec![format!(
                "{} samples show no trend: run it for some minutes",
                self.all.len()
            )];
        }
        let mut faults = Vec::new();
        let memory = fitted_growth(half, |s| s.rss_mib);
        let allowed = MAX_GROWTH_MIB.max(MAX_GROWTH_SHARE * half[0].rss_mib);
        if memory > allowed {
            faults.push(format!(
                "memory grew by {memory:.1} MiB over the second half, allowed are {allowed:.1}"
            ));
        }
        let parts = half.split_at(half.len() / 2);
        for (resource, of) in [
            ("descriptors", (|s: &Sample| s.descriptors) as fn(&Sample) -> f64),
            ("threads", |s| s.threads),
        ] {
            let (before, after) = (mean(parts.0, of), mean(parts.1, of));
            if after > before + MAX_MORE {
                faults.push(format!(
                    "{resource}: {before:.1} on average in the third quarter, {after:.1} in the fourth"
                ));
            }
        }
        faults
    }

    /// Figures of the second half.
    pub fn summary(&self) -> String {
        let half = self.second_half();
        let most = |of: fn(&Sample) -> f64| half.iter().map(of).fold(0.0, f64::max);
        format!(
            "second half: memory {:.1} to {:.1} MiB, trend {:+.2} MiB; descriptors at most {}, threads at most {}, \
             running at most {}, \
             KV at most {:.0} %",
            half.iter().map(|s| s.rss_mib).fold(f64::MAX, f64::min),
            most(|s| s.rss_mib),
            fitted_growth(half, |s| s.rss_mib),
            most(|s| s.descriptors),
            most(|s| s.threads),
            most(|s| s.running),
            100.0 * most(|s| s.kv_usage)
        )
    }
}

fn mean(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> f64 {
    samples.iter().map(of).sum::<f64>() / samples.len().max(1) as f64
}

/// How much the least-squares line of a value rises from the first sample to the last.
fn fitted_growth(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> f64 {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        return 0.0;
    };
    let (time, value) = (mean(samples, |s| s.seconds), mean(samples, &of));
    let (mut covariance, mut variance) = (0.0, 0.0);
    for sample in samples {
        covariance += (sample.seconds - time) * (of(sample) - value);
        variance += (sample.seconds - time).powi(2);
    }
    if variance == 0.0 {
        0.0
    } else {
        covariance / variance * (last.seconds - first.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(rss: impl Fn(usize) -> f64, descriptors: impl Fn(usize) -> f64) -> Samples {
        let sample = |at: usize| Sample {
            seconds: at as f64,
            requests: at as u64,
            rss_mib: rss(at),
            descriptors: descriptors(at),
            threads: 10.0,
            running: 0.0,
            waiting: 0.0,
            kv_usage: 0.0,
        };
        Samples {
            file: File::create("/dev/null").expect("it is there"),
            all: (0..600).map(sample).collect(),
        }
    }

    #[test]
    fn a_start_that_grows_and_noise_afterwards_are_flat() {
        let rss = |at: usize| 50.0 + (at.min(200) as f64) / 4.0 + (at % 3) as f64;
        assert_eq!(samples(rss, |at| (30 + at % 5) as f64).growth(), Vec::<String>::new());
    }

    #[test]
    fn a_slow_leak_is_seen() {
        let found = samples(|at| 50.0 + at as f64 / 60.0, |_| 30.0).growth();
        assert!(
            found.len() == 1 && found[0].starts_with("memory grew by 5.0 MiB"),
            "{found:?}"
        );
    }

    #[test]
    fn descriptors_that_are_not_closed_are_seen() {
        let found = samples(|_| 50.0, |at| at as f64 / 20.0).growth();
        assert!(found.len() == 1 && found[0].starts_with("descriptors"), "{found:?}");
    }

    #[test]
    fn a_run_too_short_is_no_pass() {
        let mut short = samples(|_| 1.0, |_| 1.0);
        short.all.truncate(10);
        assert_eq!(short.growth().len(), 1);
    }
}
