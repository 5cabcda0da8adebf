//! How many prompt tokens a step may have so that it ends within a target time. It learns from the steps that ended;
//! seconds come in, it reads no clock. The rule: decision 0047.

use std::time::Duration;

/// Fewest prompt tokens of a step, however slow the device is: smaller steps would mostly read weights.
const MIN_PROMPT_TOKENS: f64 = 32.0;
/// Prompt tokens of the first step on a device that computes while the engine waits, before anything was measured.
const FIRST_PROMPT_TOKENS: u32 = 128;
/// Weight of a new measurement.
const NEWEST: f64 = 0.5;

/// A step that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedStep {
    pub prompt_tokens: u64,
    /// Whether sequences decoded in the same step.
    pub has_decodes: bool,
    /// From the later of its submit and the end of the step before it.
    pub duration: Duration,
}

/// The pace of a device with a model.
#[derive(Clone, Debug)]
pub(crate) struct StepPace {
    /// `None`: steps may take any time.
    target_s: Option<f64>,
    first: Option<u32>,
    /// Prompt tokens a second, decodes taken out.
    rate: Option<f64>,
    /// Seconds of a step without prompts.
    decode_s: f64,
    has_decodes: bool,
}

impl StepPace {
    /// A zero `target` bounds nothing. `is_synchronous`: the device computes while the engine waits, so that the first
    /// step is kept small; elsewhere it is not bounded.
    pub(crate) fn new(target: Duration, is_synchronous: bool) -> Self {
        StepPace {
            target_s: (!target.is_zero()).then_some(target.as_secs_f64()),
            first: is_synchronous.then_some(FIRST_PROMPT_TOKENS),
            rate: None,
            decode_s: 0.0,
            has_decodes: false,
        }
    }

    /// Learns from a step.
    pub(crate) fn note(&mut self, step: TimedStep) {
        let Some(target_s) = self.target_s else { return };
        let seconds = step.duration.as_secs_f64();
        self.has_decodes = step.has_decodes;
        if step.prompt_tokens == 0 {
            self.decode_s += NEWEST * (seconds - self.decode_s);
            return;
        }
        let decodes_s = if step.has_decodes {
            self.decode_s.min(0.95 * seconds)
        } else {
            0.0
        };
        let rate = step.prompt_tokens as f64 / (seconds - decodes_s).max(1e-6);
        // A short step says little about a long one: its fixed cost weighs more. It may only raise the pace.
        self.rate = match self.rate {
            None => Some(rate),
            Some(known) if rate > known || seconds >= target_s / 8.0 => Some(known + NEWEST * (rate - known)),
            known => known,
        };
    }

    /// Prompt tokens of the next step; 0: no bound.
    pub(crate) fn max_prompt_tokens(&self) -> u32 {
        let Some(target_s) = self.target_s else { return 0 };
        let Some(rate) = self.rate else {
            return self.first.unwrap_or(0);
        };
        let decodes_s = if self.has_decodes { self.decode_s } else { 0.0 };
        let for_prompts_s = (target_s - decodes_s).max(target_s / 4.0);
        (rate * for_prompts_s).clamp(MIN_PROMPT_TOKENS, f64::from(1 << 30)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Duration = Duration::from_millis(250);

    fn step(prompt_tokens: u64, has_decodes: bool, ms: u64) -> TimedStep {
        TimedStep {
            prompt_tokens,
            has_decodes,
            duration: Duration::from_millis(ms),
        }
    }

    /// The bound after the device ran steps of the bound's size, `tokens_per_s` fast, with decodes of `decode_ms` in
    /// the same steps.
    fn settled(tokens_per_s: u64, decode_ms: u64) -> u32 {
        let mut pace = StepPace::new(TARGET, true);
        for _ in 0..10 {
            let tokens = u64::from(pace.max_prompt_tokens());
            pace.note(step(0, true, decode_ms));
            let ms = tokens * 1000 / tokens_per_s + decode_ms;
            pace.note(step(tokens, decode_ms > 0, ms));
        }
        pace.max_prompt_tokens()
    }

    #[test]
    fn steps_settle_at_the_target() {
        assert!((490..=510).contains(&settled(2000, 0)), "{}", settled(2000, 0));
        assert!(
            (385..=415).contains(&settled(2000, 50)),
            "50 ms of 250 belong to decodes: {}",
            settled(2000, 50)
        );
    }

    #[test]
    fn slow_decodes_leave_a_quarter_to_prompts() {
        assert!((115..=135).contains(&settled(2000, 400)), "{}", settled(2000, 400));
    }

    #[test]
    fn a_slow_device_still_takes_some_tokens_a_step() {
        assert_eq!(settled(20, 0), 32);
    }

    #[test]
    fn a_short_step_never_lowers_the_bound() {
        let mut pace = StepPace::new(TARGET, false);
        pace.note(step(8000, false, 200));
        let before = pace.max_prompt_tokens();
        pace.note(step(3, false, 5));
        assert_eq!(pace.max_prompt_tokens(), before);
        pace.note(step(4000, false, 250));
        assert!(pace.max_prompt_tokens() < before, "a long step does");
    }

    #[test]
    fn the_first_step_is_small_only_where_the_engine_waits_for_it() {
        assert_eq!(StepPace::new(TARGET, true).max_prompt_tokens(), FIRST_PROMPT_TOKENS);
        assert_eq!(StepPace::new(TARGET, false).max_prompt_tokens(), 0);
    }

    #[test]
    fn no_target_is_no_bound() {
        let mut pace = StepPace::new(Duration::ZERO, true);
        pace.note(step(100, false, 5000));
        assert_eq!(pace.max_prompt_tokens(), 0);
    }
}
