//! Requests whose keys and values are no numbers: later requests do not find the blocks that they computed or read.

mod common;

use common::{Rig, ids, small, tokens};
use halyard_scheduler::*;

fn request(id: u64, prompt: Vec<u32>, max_tokens: u32) -> NewRequest {
    NewRequest::new(RequestId(id), prompt, max_tokens)
}

/// Plans the step that admits one request; the tokens that it found.
fn admit(rig: &mut Rig, request: NewRequest) -> u32 {
    rig.add(request).expect("accepted");
    rig.plan().expect("a step").admitted[0].num_computed
}

#[test]
fn a_discarded_request_leaves_nothing_to_be_found() {
    let mut rig = Rig::new(small(32));
    assert_eq!(admit(&mut rig, request(1, tokens(1, 14), 9)), 0);
    rig.read();
    assert_eq!(rig.scheduler.counts().cached_blocks, 3);
    assert!(rig.scheduler.discard(RequestId(1)));
    rig.check();
    let counts = rig.scheduler.counts();
    assert_eq!((counts.cached_blocks, counts.used_blocks, counts.running), (0, 0, 0));
    assert_eq!(
        admit(&mut rig, request(2, tokens(1, 14), 2)),
        0,
        "all of it is computed again"
    );
    rig.read();
    rig.run_to_end();
    rig.check_ended(&ids([1]));
}

#[test]
fn a_step_in_flight_publishes_nothing_for_a_discarded_request() {
    let mut rig = Rig::new(SchedulerConfig {
        max_steps_in_flight: 3,
        ..small(32)
    });
    rig.prompt(1, &tokens(1, 7), 20);
    for _ in 0..3 {
        rig.plan().expect("steps are planned from counts");
    }
    rig.read();
    assert!(rig.scheduler.discard(RequestId(1)));
    assert!(
        rig.scheduler.counts().used_blocks > 0,
        "steps in flight still write them"
    );
    while !rig.device.in_flight.is_empty() {
        rig.read();
        rig.check();
    }
    let counts = rig.scheduler.counts();
    assert_eq!((counts.cached_blocks, counts.used_blocks), (0, 0));
    rig.check_ended(&ids([1]));
}

#[test]
fn blocks_that_others_computed_are_forgotten_with_a_request_that_read_them() {
    let mut rig = Rig::new(small(32));
    rig.add(request(1, tokens(1, 8), 2)).expect("accepted");
    rig.plan();
    rig.read();
    rig.run_to_end();
    let other = admit(&mut rig, request(2, tokens(100, 8), 2));
    rig.read();
    rig.run_to_end();
    assert_eq!(other, 0);
    let mut longer = tokens(1, 8);
    longer.extend([9, 9, 9]);
    assert_eq!(
        admit(&mut rig, request(3, longer.clone(), 9)),
        8,
        "it reads what 1 computed"
    );
    rig.read();
    assert!(rig.scheduler.discard(RequestId(3)));
    rig.check();
    assert_eq!(admit(&mut rig, request(4, longer, 2)), 0);
    rig.read();
    rig.run_to_end();
    let mut unrelated = tokens(100, 8);
    unrelated.extend([9, 9, 9]);
    assert_eq!(admit(&mut rig, request(5, unrelated, 2)), 8, "other prefixes stay");
    rig.read();
    rig.run_to_end();
    rig.check_ended(&ids([3]));
}

#[test]
fn blocks_that_others_computed_meanwhile_are_forgotten_too() {
    let mut rig = Rig::new(small(64));
    // Both are admitted before anything is cached, and the first step of request 2 has less of the prompt.
    rig.add(request(1, tokens(1, 12), 9)).expect("accepted");
    rig.add(request(2, tokens(1, 14), 9)).expect("accepted");
    rig.plan().expect("a step");
    rig.read();
    assert!(
        rig.scheduler.counts().cached_blocks >= 3,
        "request 1 computed 12 tokens"
    );
    assert!(rig.scheduler.discard(RequestId(2)));
    rig.check();
    assert_eq!(rig.scheduler.counts().cached_blocks, 0);
    rig.run_to_end();
    rig.check_ended(&ids([2]));
}

#[test]
fn a_request_that_shares_blocks_goes_on_with_them() {
    let mut rig = Rig::new(small(32));
    assert_eq!(admit(&mut rig, request(1, tokens(1, 12), 9)), 0);
    rig.read();
    assert_eq!(admit(&mut rig, request(2, tokens(1, 14), 9)), 12);
    rig.read();
    assert!(rig.scheduler.discard(RequestId(1)));
    rig.check();
    assert_eq!(rig.scheduler.counts().used_blocks, 4, "the other one's");
    rig.run_to_end();
    rig.check_ended(&ids([1]));
}

#[test]
fn waiting_and_unknown_requests_can_be_discarded() {
    let mut rig = Rig::new(small(32));
    assert!(!rig.scheduler.discard(RequestId(7)));
    rig.add(request(1, tokens(1, 8), 2)).expect("accepted");
    assert!(rig.scheduler.discard(RequestId(1)));
    assert!(rig.plan().is_none());
    rig.check();
    assert!(rig.scheduler.is_idle());
}
