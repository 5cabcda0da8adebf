//! A line in the log every ten seconds while there is work: throughput, running, waiting, KV usage, prefix hit rate.
//! Says nothing while the engine is idle.
//!
//! Configuration: `{"interval_s": 10}`. The sink's own thread does the timing, as records only come when something
//! happens; it sleeps without a timer while nothing does.

mod window;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use halyard_platform_api::hooks::{Batch, StatLogger, StatLoggerFactory};
use halyard_platform_api::{Error, Result, Status};
use serde::Deserialize;

pub use window::Window;

/// Where its lines stand in the log.
const TARGET: &str = "halyard::stats";

halyard_platform_api::export_stat_logger! {
    name: "log-line",
    version: env!("CARGO_PKG_VERSION"),
    about: "a line in the log every ten seconds while there is work",
    factory: LogLineFactory,
}

/// Makes the loggers.
pub struct LogLineFactory;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default = "ten_seconds")]
    interval_s: f64,
}

fn ten_seconds() -> f64 {
    10.0
}

impl StatLoggerFactory for LogLineFactory {
    fn create(&self, config: &str) -> Result<Box<dyn StatLogger>> {
        let config: Config = serde_json::from_str(config).map_err(|e| {
            Error::invalid(format!(
                "configuration {config}: {e}; the only key is `interval_s`, a number"
            ))
        })?;
        if !(0.1..=86_400.0).contains(&config.interval_s) {
            return Err(Error::invalid(format!(
                "interval_s is {}; it must be between 0.1 and 86400 seconds",
                config.interval_s
            )));
        }
        let shared = Arc::new(Shared::default());
        let (its, interval) = (shared.clone(), Duration::from_secs_f64(config.interval_s));
        let thread = std::thread::Builder::new()
            .name("log-line".into())
            .spawn(move || its.write_lines(interval));
        let thread = thread.map_err(|e| Error::new(Status::Unavailable, format!("no thread for the log line: {e}")))?;
        Ok(Box::new(LogLine {
            shared,
            thread: Some(thread),
        }))
    }
}

#[derive(Default)]
struct Shared {
    // The interval's sums, and whether the logger has gone.
    window: Mutex<(Window, bool)>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, (Window, bool)> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line at the end of each interval with work, and a last one when the logger goes.
    fn write_lines(&self, interval: Duration) {
        let mut window = self.lock();
        loop {
            while !window.0.is_active() && !window.1 {
                window = self.changed.wait(window).unwrap_or_else(PoisonError::into_inner);
            }
            let start = Instant::now();
            while !window.1 && start.elapsed() < interval {
                let left = interval.saturating_sub(start.elapsed());
                let waited = self.changed.wait_timeout(window, left);
                window = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            if window.0.is_active() {
                let line = window.0.line(start.elapsed());
                let gone = window.1;
                drop(window);
                halyard_platform_api::log::info(TARGET, &line);
                window = self.lock();
                window.1 |= gone;
            }
            if window.1 {
                return;
            }
        }
    }
}

struct LogLine {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl StatLogger for LogLine {
    fn log_batch(&mut self, batch: &Batch<'_>) -> Result<()> {
        let mut window = self.shared.lock();
        let was_active = window.0.is_active();
        batch.records.iter().for_each(|record| window.0.observe(record));
        // While an interval runs, its end is what the thread waits for.
        if !was_active && window.0.is_active() {
            self.shared.changed.notify_one();
        }
        Ok(())
    }
}

impl Drop for LogLine {
    fn drop(&mut self) {
        self.shared.lock().1 = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
