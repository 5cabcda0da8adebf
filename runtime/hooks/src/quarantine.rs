//! When a failing sink rests and when it is tried again. Pure: time is an argument, as a duration since any fixed
//! moment.

use std::time::Duration;

/// Errors in a row that put a sink into quarantine. A panic, a crash, a missed deadline or a failed start does at once.
pub const MAX_ERRORS: u32 = 3;
/// First rest; each further one is twice as long.
pub const FIRST_REST: Duration = Duration::from_secs(1);
/// Longest rest.
pub const LONGEST_REST: Duration = Duration::from_secs(300);

/// How a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It answered an error; the logger may go on.
    Error,
    /// It panicked, or its handle is unusable since an earlier panic.
    Panic,
    /// The process of its own that it ran in died of it.
    Crash,
    /// It took longer than its deadline.
    Timeout,
    /// No logger could be made.
    Start,
}

/// A sink's standing.
#[derive(Clone, Debug, Default)]
pub struct Quarantine {
    errors_in_a_row: u32,
    // Rests since it was last trusted.
    num_rests: u32,
    until: Option<Duration>,
    healthy_since: Option<Duration>,
}

impl Quarantine {
    /// A call succeeded. Once it has been well for as long as its last rest, its record is clean again.
    pub fn succeeded(&mut self, now: Duration) {
        self.errors_in_a_row = 0;
        self.until = None;
        let since = *self.healthy_since.get_or_insert(now);
        if self.num_rests > 0 && now.saturating_sub(since) >= rest(self.num_rests - 1) {
            self.num_rests = 0;
        }
    }

    /// A call failed. Returns for how long the sink must rest now, if it must.
    pub fn failed(&mut self, failure: Failure, now: Duration) -> Option<Duration> {
        self.errors_in_a_row += 1;
        self.healthy_since = None;
        // A sink that comes from a rest gets one try.
        let on_trial = self.num_rests > 0;
        if failure == Failure::Error && self.errors_in_a_row < MAX_ERRORS && !on_trial {
            return None;
        }
        let rest = rest(self.num_rests);
        self.num_rests = self.num_rests.saturating_add(1);
        self.errors_in_a_row = 0;
        self.until = Some(now + rest);
        Some(rest)
    }

    /// Until when it rests.
    pub fn until(&self) -> Option<Duration> {
        self.until
    }

    /// Its rest is over; what it does next decides.
    pub fn try_again(&mut self) {
        self.until = None;
    }

    /// Another library took its place: nothing is held against it.
    pub fn pardon(&mut self) {
        *self = Quarantine::default();
    }
}

fn rest(num_rests: u32) -> Duration {
    let factor = 1u32.checked_shl(num_rests).unwrap_or(u32::MAX);
    FIRST_REST.saturating_mul(factor).min(LONGEST_REST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn errors_in_a_row_lead_to_a_rest_and_a_success_between_forgives() {
        let mut sink = Quarantine::default();
        assert_eq!(sink.failed(Failure::Error, s(1)), None);
        assert_eq!(sink.failed(Failure::Error, s(1)), None);
        sink.succeeded(s(2));
        assert_eq!(sink.failed(Failure::Error, s(3)), None);
        assert_eq!(sink.failed(Failure::Error, s(3)), None);
        assert_eq!(sink.failed(Failure::Error, s(4)), Some(s(1)));
        assert_eq!(sink.until(), Some(s(5)));
    }

    #[test]
    fn panics_crashes_timeouts_and_failed_starts_rest_at_once_and_ever_longer_up_to_a_bound() {
        let mut sink = Quarantine::default();
        let mut rests = Vec::new();
        for failure in [
            Failure::Panic,
            Failure::Crash,
            Failure::Timeout,
            Failure::Start,
            Failure::Error,
        ] {
            rests.extend(sink.failed(failure, s(10)));
            sink.try_again();
        }
        assert_eq!(
            rests,
            [s(1), s(2), s(4), s(8), s(16)],
            "an error of the first call after a rest is followed by a rest at once"
        );
        for _ in 0..100 {
            rests.extend(sink.failed(Failure::Panic, s(10)));
        }
        assert_eq!(rests.last(), Some(&LONGEST_REST));
    }

    #[test]
    fn trust_comes_back_after_as_long_as_the_last_rest() {
        let mut sink = Quarantine::default();
        sink.failed(Failure::Panic, s(0));
        sink.failed(Failure::Panic, s(1));
        sink.succeeded(s(10));
        sink.succeeded(s(11));
        assert_eq!(sink.clone().failed(Failure::Panic, s(11)), Some(s(4)), "not yet");
        sink.succeeded(s(12));
        assert_eq!(
            sink.failed(Failure::Panic, s(13)),
            Some(s(1)),
            "two seconds after a rest of two"
        );
    }
}
