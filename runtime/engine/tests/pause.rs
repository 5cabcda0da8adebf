//! Pauses in each mode, and resets of the prefix cache: what goes on, what waits, and that the answers' tokens are
//! those without a pause. On a device without steps in flight and on one with up to three.

use std::time::{Duration, Instant};

use crate::common::answers::{alone, begin, rest, submit};
use crate::common::{Pace, fixtures, open, paced};
use halyard_engine::{ControlError, FinishReason, Llm, PauseMode};

/// Tokens of a long answer.
const LONG: u32 = 150;
const PROMPT: [u32; 40] = [17; 40];
const OTHER: [u32; 3] = [297, 368, 5];

/// On each device: one row, so that a second request waits.
fn llms() -> [(Llm, Pace); 2] {
    [0, 2].map(|depth| {
        let (device, pace) = paced(depth);
        let llm = open(&fixtures().join("llama"), device, |c| c.scheduler.max_num_seqs = 1);
        (llm, pace)
    })
}

/// The steps so far, and whether more come while the engine's thread has nothing to do but to answer.
fn assert_no_steps(llm: &Llm) {
    let before = llm.engine().stats().steps_total;
    for _ in 0..50 {
        assert_eq!(llm.engine().reset_prefix_cache(false).blocking_wait(), Ok(false));
    }
    assert_eq!(llm.engine().stats().steps_total, before);
}

#[test]
fn what_is_kept_stops_where_it_is_and_goes_on_with_its_blocks() {
    for (llm, pace) in llms() {
        let expected = (alone(&llm, &PROMPT, LONG), alone(&llm, &OTHER, 4));
        let (long, mut tokens) = begin(&llm, &pace, &PROMPT, LONG);
        assert_eq!(llm.engine().pause(PauseMode::Keep, false).blocking_wait(), Ok(()));
        assert!(llm.engine().is_paused());
        let later = submit(&llm, &OTHER, 4);
        assert_no_steps(&llm);
        let stats = llm.engine().stats();
        assert_eq!((stats.num_running, stats.num_waiting), (1, 1));
        assert_eq!(llm.engine().health(), Ok(()));
        assert_eq!(llm.engine().resume().blocking_wait(), Ok(()));
        assert!(!llm.engine().is_paused());
        pace.quick();
        tokens.extend(rest(long).0);
        assert_eq!(tokens, expected.0);
        assert_eq!(rest(later).0, expected.1);
        assert_eq!(llm.engine().stats().preemptions_total, 0);
    }
}

#[test]
fn what_is_kept_without_the_cache_computes_everything_again() {
    for (llm, pace) in llms() {
        let expected = alone(&llm, &PROMPT, LONG);
        let (long, mut tokens) = begin(&llm, &pace, &PROMPT, LONG);
        assert_eq!(llm.engine().pause(PauseMode::Keep, true).blocking_wait(), Ok(()));
        let stats = llm.engine().stats();
        assert_eq!((stats.num_running, stats.kv_cache_usage), (0, 0.0));
        let hits = stats.prefix_cache_hits_total;
        pace.quick();
        assert_eq!(llm.engine().resume().blocking_wait(), Ok(()));
        tokens.extend(rest(long).0);
        assert_eq!(tokens, expected);
        let stats = llm.engine().stats();
        assert_eq!(stats.preemptions_total, 1);
        assert_eq!(stats.prefix_cache_hits_total, hits, "nothing was found of before");
    }
}

#[test]
fn a_pause_that_waits_is_complete_when_what_ran_has_ended() {
    for (llm, pace) in llms() {
        let expected = (alone(&llm, &PROMPT, LONG), alone(&llm, &OTHER, 4));
        let (long, mut tokens) = begin(&llm, &pace, &PROMPT, LONG);
        let waiting = submit(&llm, &OTHER, 4);
        let pause = llm.engine().pause(PauseMode::Wait, true);
        pace.quick();
        assert_eq!(pause.blocking_wait(), Ok(()));
        let stats = llm.engine().stats();
        assert_eq!((stats.num_running, stats.num_waiting), (0, 1));
        let (later, finish) = rest(long);
        tokens.extend(later);
        assert_eq!((tokens, finish), (expected.0, FinishReason::Length));
        assert_eq!(llm.engine().resume().blocking_wait(), Ok(()));
        assert_eq!(rest(waiting).0, expected.1);
        let again = submit(&llm, &PROMPT, 2).blocking_collect();
        assert_eq!(again.num_cached_tokens, 0, "the cache was cleared");
    }
}

#[test]
fn a_pause_that_aborts_ends_what_is_there_and_holds_what_comes() {
    for (llm, pace) in llms() {
        let expected = (alone(&llm, &PROMPT, LONG), alone(&llm, &OTHER, 4));
        let (long, mut tokens) = begin(&llm, &pace, &PROMPT, LONG);
        let waiting = submit(&llm, &OTHER, 4);
        assert_eq!(llm.engine().pause(PauseMode::Abort, false).blocking_wait(), Ok(()));
        let stats = llm.engine().stats();
        assert_eq!(
            (stats.num_running, stats.num_waiting),
            (0, 0),
            "the counters are those of the pause"
        );
        pace.quick();
        let (more, finish) = rest(long);
        tokens.extend(more);
        assert_eq!(finish, FinishReason::Paused);
        assert!(tokens.len() < LONG as usize && expected.0.starts_with(&tokens));
        assert_eq!(rest(waiting), (Vec::new(), FinishReason::Paused));
        let later = submit(&llm, &OTHER, 4);
        assert_eq!(llm.engine().pause(PauseMode::Wait, false).blocking_wait(), Ok(()));
        assert_eq!(llm.engine().stats().num_waiting, 1);
        let again = llm.engine().reset_prefix_cache(false).blocking_wait();
        assert_eq!(again, Ok(true), "what waits has no blocks");
        assert_eq!(llm.engine().resume().blocking_wait(), Ok(()));
        assert_eq!(rest(later), (expected.1, FinishReason::Length));
    }
}

#[test]
fn a_resume_ends_a_pause_that_is_not_complete() {
    for (llm, pace) in llms() {
        let expected = alone(&llm, &PROMPT, LONG);
        let (long, mut tokens) = begin(&llm, &pace, &PROMPT, LONG);
        let pause = llm.engine().pause(PauseMode::Wait, true);
        assert_eq!(llm.engine().resume().blocking_wait(), Ok(()));
        assert_eq!(pause.blocking_wait(), Err(ControlError::Resumed));
        pace.quick();
        tokens.extend(rest(long).0);
        assert_eq!(tokens, expected);
        assert_eq!(llm.engine().resume().blocking_wait(), Ok(()), "without a pause, too");
    }
}

#[test]
fn the_cache_is_reset_when_nothing_runs_or_when_what_runs_may_lose_its_blocks() {
    for (llm, pace) in llms() {
        let cached = |llm: &Llm| submit(llm, &PROMPT, 2).blocking_collect().num_cached_tokens;
        let expected = alone(&llm, &OTHER, LONG);
        assert_eq!((cached(&llm), cached(&llm)), (0, 32));
        let (long, mut tokens) = begin(&llm, &pace, &OTHER, LONG);
        assert_eq!(llm.engine().reset_prefix_cache(false).blocking_wait(), Ok(false));
        assert_eq!(llm.engine().reset_prefix_cache(true).blocking_wait(), Ok(true));
        pace.quick();
        tokens.extend(rest(long).0);
        assert_eq!(tokens, expected);
        assert_eq!(llm.engine().stats().preemptions_total, 1);
        assert_eq!((cached(&llm), cached(&llm)), (0, 32));
        assert_eq!(llm.engine().reset_prefix_cache(false).blocking_wait(), Ok(true));
        assert_eq!(cached(&llm), 0);
    }
}

#[test]
fn a_shutdown_ends_what_is_held_at_once() {
    for (llm, pace) in llms() {
        let (long, _) = begin(&llm, &pace, &PROMPT, LONG);
        assert_eq!(llm.engine().pause(PauseMode::Keep, true).blocking_wait(), Ok(()));
        let began = Instant::now();
        llm.engine().shutdown(Duration::from_secs(60));
        assert!(began.elapsed() < Duration::from_secs(30), "it waited for its deadline");
        let (_, finish) = rest(long);
        assert!(
            matches!(&finish, FinishReason::Abort(why) if why.contains("shut down")),
            "{finish:?}"
        );
        let late = llm.engine().pause(PauseMode::Keep, true).blocking_wait();
        assert!(
            matches!(&late, Err(ControlError::Dead { reason }) if reason.contains("shut down")),
            "{late:?}"
        );
    }
}
