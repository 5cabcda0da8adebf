//! A pace for what may come only so fast, on average.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Bytes a second for each core. Reading takes two to three milliseconds of a core for a megabyte: some 5 % of it.
const BYTES_PER_CORE: usize = 24 << 20;
/// How much may come at once after a pause, as time at the pace.
const BURST: Duration = Duration::from_millis(300);

/// Bytes that come at a pace.
#[derive(Debug)]
pub struct Pace {
    bytes_per_second: f64,
    /// When the bytes that were taken so far are through.
    through: Mutex<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Pace::new((cores * BYTES_PER_CORE) as f64)
    }
}

impl Pace {
    fn new(bytes_per_second: f64) -> Self {
        Pace {
            bytes_per_second,
            through: Mutex::new(Instant::now()),
        }
    }

    /// Returns when so many more bytes may have come.
    pub async fn take(&self, bytes: usize) {
        let now = Instant::now();
        let until = {
            let mut through = self.through.lock().unwrap_or_else(PoisonError::into_inner);
            let idle_since = now.checked_sub(BURST).map_or(*through, |burst| burst.max(*through));
            *through = idle_since + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second);
            *through
        };
        if until > now {
            sleep_until(until).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bytes_come_at_once_after_a_pause_and_then_at_the_pace() {
        let pace = Pace::new(1000.0);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let start = Instant::now();
        pace.take(300).await;
        assert_eq!(start.elapsed(), Duration::ZERO, "as much as in the burst");
        let three = futures::future::join_all((0..3).map(|_| pace.take(500)));
        three.await;
        assert_eq!(start.elapsed(), Duration::from_millis(1500), "however many take them");
        pace.take(100).await;
        assert_eq!(start.elapsed(), Duration::from_millis(1600));
    }
}
