//! How long requests that have come wait for more. Clients that keep a number of requests at once send the next ones,
//! one after the other, when those before have ended. Were a step begun with the first of them alone, all others would
//! wait for it, and from then on each group's prompts would stop the other's streams. So an idle engine waits for the
//! next request, and one with steps in flight leaves prompts out of its plans while half of the others are about to
//! end.

use std::time::{Duration, Instant};

/// Requests that ended within so much time of each other ended together.
const TOGETHER: Duration = Duration::from_millis(20);
/// Longest wait for the next of them, for all, and since the last one ended.
const NEXT: Duration = Duration::from_millis(2);
const ALL: Duration = Duration::from_millis(10);
const SINCE: Duration = Duration::from_millis(50);
/// Longest that prompts are left out.
const LEFT_OUT: Duration = Duration::from_millis(20);
/// A request with at most so many steps to plan is about to end.
pub(crate) const NEAR_STEPS: u32 = 2;

/// Requests that ended together, how many have come since, and since when prompts are left out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gather {
    ended: usize,
    last: Option<Instant>,
    came: usize,
    first: Option<Instant>,
    left_out: Option<Instant>,
    /// How long the last step with prompts took, and the last one without.
    prompts: Duration,
    decodes: Duration,
}

impl Gather {
    /// So many requests have ended.
    pub(crate) fn note_ended(&mut self, count: usize, now: Instant) {
        if count == 0 {
            return;
        }
        if self.last.is_none_or(|last| now.duration_since(last) > TOGETHER) {
            self.forget();
        }
        self.ended += count;
        self.last = Some(now);
    }

    /// So many requests have come.
    pub(crate) fn note_came(&mut self, count: usize, now: Instant) {
        self.came += count;
        self.first.get_or_insert(now);
    }

    /// How long an idle engine waits for another request before it begins; `None`: not at all.
    pub(crate) fn wait(&self, now: Instant) -> Option<Duration> {
        let (last, first) = self.last.zip(self.first)?;
        let is_near = now.duration_since(last) < SINCE && now.duration_since(first) < ALL;
        (self.came < self.ended && is_near).then_some(NEXT)
    }

    /// A step has ended.
    pub(crate) fn note_step(&mut self, has_prompts: bool, duration: Duration) {
        match has_prompts {
            true => self.prompts = duration,
            false => self.decodes = duration,
        }
    }

    /// Whether the next plan leaves out what waits, because others are about to end. For up to half of what a step with
    /// prompts takes, as that step would stop the others' streams; not where a step of those others takes longer.
    pub(crate) fn leave_out(&mut self, now: Instant, others_end: bool) -> bool {
        if !others_end {
            self.left_out = None;
            return false;
        }
        let limit = LEFT_OUT.min(self.prompts / 2);
        let since = *self.left_out.get_or_insert(now);
        self.decodes <= limit && now.duration_since(since) < limit
    }

    /// Counts anew: nobody came, so that the others stay away; or what ended before did so too long ago.
    pub(crate) fn forget(&mut self) {
        (self.ended, self.last, self.came, self.first) = (0, None, 0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn as_many_are_waited_for_as_have_ended_together() {
        let (mut gather, start) = (Gather::default(), Instant::now());
        gather.note_came(1, start);
        assert_eq!(gather.wait(start), None, "nothing has ended yet");
        gather.note_ended(2, start + ms(100));
        gather.note_ended(1, start + ms(110));
        gather.note_came(1, start + ms(112));
        assert_eq!(gather.wait(start + ms(112)), Some(NEXT));
        gather.note_came(1, start + ms(113));
        assert_eq!(gather.wait(start + ms(113)), Some(NEXT));
        gather.note_came(1, start + ms(114));
        assert_eq!(gather.wait(start + ms(114)), None, "all are back");
    }

    #[test]
    fn who_is_alone_never_waits() {
        let (mut gather, mut now) = (Gather::default(), Instant::now());
        for _ in 0..3 {
            gather.note_came(1, now);
            assert_eq!(gather.wait(now), None);
            now += ms(30);
            gather.note_ended(1, now);
        }
    }

    #[test]
    fn the_wait_has_an_end() {
        let (mut gather, start) = (Gather::default(), Instant::now());
        gather.note_ended(9, start);
        gather.note_came(1, start + ms(1));
        assert!(gather.wait(start + ms(10)).is_some());
        assert_eq!(gather.wait(start + ms(11)), None, "long enough since the first came");
        let mut late = Gather::default();
        late.note_ended(9, start);
        late.note_came(1, start + ms(50));
        assert_eq!(late.wait(start + ms(50)), None, "these are not those that ended");
        gather.forget();
        gather.note_came(1, start + ms(2));
        assert_eq!(gather.wait(start + ms(2)), None, "nobody came the last time");
    }

    #[test]
    fn prompts_are_left_out_while_others_end_and_not_for_long() {
        let (mut gather, start) = (Gather::default(), Instant::now());
        assert!(!gather.leave_out(start, true), "prompts take no time yet");
        gather.note_step(true, ms(16));
        assert!(gather.leave_out(start + ms(7), true), "since the start");
        assert!(!gather.leave_out(start + ms(8), true), "half of what they take");
        assert!(
            !gather.leave_out(start + ms(9), true),
            "and not again before those others have ended"
        );
        assert!(!gather.leave_out(start + ms(10), false));
        assert!(gather.leave_out(start + ms(11), true), "other ones");
        gather.note_step(true, ms(1000));
        assert!(gather.leave_out(start + ms(30), true));
        assert!(!gather.leave_out(start + ms(31), true), "never longer");
        assert!(!gather.leave_out(start + ms(32), false));
        gather.note_step(false, ms(20));
        assert!(gather.leave_out(start + ms(33), true));
        gather.note_step(false, ms(21));
        assert!(
            !gather.leave_out(start + ms(34), true),
            "the others' next step takes too long"
        );
    }
}
