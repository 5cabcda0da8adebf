//! Pauses: what is planned while one lasts, what goes on afterwards, and when the prefix cache can be forgotten.

mod common;

use common::{Rig, small, tokens};
use halyard_scheduler::*;

const FIRST: RequestId = RequestId(1);
const SECOND: RequestId = RequestId(2);

/// A rig in which request 1 runs.
fn running(num_blocks: u32) -> Rig {
    let mut rig = Rig::new(small(num_blocks));
    rig.prompt(1, &tokens(1, 10), 8);
    rig.plan().expect("a step");
    rig.read();
    rig
}

#[test]
fn nothing_is_planned_while_all_is_paused_and_everything_goes_on_afterwards() {
    let mut rig = running(32);
    let before = rig.scheduler.counts();
    rig.scheduler.set_pause_state(PauseState::PausedAll);
    rig.prompt(2, &tokens(2, 6), 3);
    assert!(rig.plan().is_none());
    assert!(rig.scheduler.is_held());
    let held = rig.scheduler.counts();
    assert_eq!((held.running, held.waiting), (1, 1));
    assert_eq!(held.used_blocks, before.used_blocks, "its blocks stay its own");
    rig.scheduler.set_pause_state(PauseState::Unpaused);
    let plan = rig.plan().expect("a step");
    assert_eq!(plan.scheduled[0].query_len, 1, "nothing is computed again");
    assert!(plan.preempted.is_empty());
    rig.read();
    rig.run_to_end();
    assert_eq!(rig.finished.len(), 2);
    rig.check_ended(&[]);
}

#[test]
fn who_runs_comes_to_an_end_while_new_ones_are_paused() {
    let mut rig = running(32);
    rig.scheduler.set_pause_state(PauseState::PausedNew);
    rig.prompt(2, &tokens(2, 6), 3);
    assert!(!rig.scheduler.is_held());
    rig.run_to_end();
    assert_eq!(rig.finished, [FIRST]);
    assert!(rig.scheduler.is_held(), "only one that waits is left");
    assert!(!rig.scheduler.is_idle());
    rig.scheduler.set_pause_state(PauseState::Unpaused);
    rig.run_to_end();
    assert_eq!(rig.finished, [FIRST, SECOND]);
    rig.check_ended(&[]);
}

#[test]
fn a_long_prompt_is_computed_to_its_end_while_new_ones_are_paused() {
    let mut rig = Rig::new(SchedulerConfig {
        max_num_batched_tokens: 8,
        ..small(32)
    });
    rig.prompt(1, &tokens(1, 30), 2);
    rig.plan().expect("its first chunk");
    rig.read();
    rig.scheduler.set_pause_state(PauseState::PausedNew);
    let plan = rig.plan().expect("its second chunk");
    assert_eq!(
        plan.num_tokens, 8,
        "it may take whole steps, as others do without a pause"
    );
    rig.run_to_end();
    assert_eq!(rig.finished, [FIRST]);
    rig.check_ended(&[]);
}

#[test]
fn the_cache_is_not_reset_while_a_block_is_in_use() {
    let mut rig = running(32);
    let cached = rig.scheduler.counts().cached_blocks;
    assert_eq!(cached, 2);
    assert!(!rig.scheduler.reset_unused_prefix_cache());
    assert_eq!(rig.scheduler.counts().cached_blocks, cached, "nothing is forgotten");
    rig.run_to_end();
    let hold = rig.scheduler.hold_blocks(1).expect("free blocks");
    assert!(
        !rig.scheduler.reset_unused_prefix_cache(),
        "something outside reads one"
    );
    rig.scheduler.release_blocks(hold.id).expect("a hold");
    assert!(rig.scheduler.reset_unused_prefix_cache());
    assert_eq!(rig.scheduler.counts().cached_blocks, 0);
    rig.check();
}

#[test]
fn who_is_preempted_for_a_reset_finds_nothing_and_computes_its_tokens_again() {
    let mut rig = running(32);
    rig.prompt(2, &tokens(2, 6), 3);
    rig.plan().expect("a step");
    rig.scheduler.preempt_all();
    rig.check();
    assert!(
        !rig.scheduler.reset_unused_prefix_cache(),
        "the step in flight writes their blocks"
    );
    rig.read();
    assert_eq!(rig.scheduler.counts().running, 0);
    assert!(rig.scheduler.reset_unused_prefix_cache());
    rig.check();
    let plan = rig.plan().expect("a step");
    assert_eq!(plan.preempted.len(), 2);
    let found = plan.admitted.iter().map(|admitted| admitted.num_computed);
    assert_eq!(found.collect::<Vec<_>>(), [0, 0]);
    rig.read();
    assert_ne!(
        rig.scheduler.counts().cached_blocks,
        0,
        "what is computed now is cached"
    );
    rig.run_to_end();
    rig.check_ended(&[]);
}
