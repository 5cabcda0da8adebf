//! How long and short prompts share a step: a short prompt never waits for a long one, and no tokens are left unused.

mod common;

use common::{Rig, small, tokens};
use halyard_scheduler::*;

fn query_lens(plan: &SchedulerOutput) -> Vec<(u64, u32)> {
    plan.scheduled.iter().map(|row| (row.id.0, row.query_len)).collect()
}

fn step(rig: &mut Rig) -> Vec<(u64, u32)> {
    let plan = rig.plan().expect("a step");
    rig.read();
    query_lens(&plan)
}

/// 16 tokens a step, sequences of up to 200.
fn roomy() -> SchedulerConfig {
    SchedulerConfig {
        max_model_len: 200,
        max_num_seqs: 8,
        ..small(400)
    }
}

#[test]
fn a_long_prompt_that_is_alone_fills_the_step() {
    let mut rig = Rig::new(roomy());
    rig.prompt(1, &tokens(1, 100), 1);
    assert_eq!(step(&mut rig), [(1, 16)]);
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn a_short_prompt_that_comes_later_runs_in_the_next_step() {
    let mut rig = Rig::new(roomy());
    rig.prompt(1, &tokens(1, 100), 1);
    step(&mut rig);
    rig.prompt(2, &tokens(2, 3), 1);
    let plan = rig.plan().expect("a step");
    assert_eq!(query_lens(&plan), [(1, 13), (2, 3)]);
    assert!(plan.scheduled[1].emits, "its first token comes with this step");
    rig.read();
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn a_short_prompt_overtakes_long_ones_that_wait_for_their_share() {
    let mut rig = Rig::new(roomy());
    rig.prompt(1, &tokens(1, 100), 1);
    rig.prompt(2, &tokens(2, 100), 1);
    rig.prompt(3, &tokens(3, 4), 1);
    assert_eq!(step(&mut rig), [(1, 12), (3, 4)]);
    assert_eq!(
        step(&mut rig),
        [(1, 16)],
        "the older one takes what no short prompt wants"
    );
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn a_long_prompt_gets_half_of_every_step_however_many_short_ones_come() {
    let mut rig = Rig::new(roomy());
    rig.prompt(1, &tokens(1, 100), 1);
    let mut next = 2;
    let mut steps = 0;
    while !rig.finished.contains(&RequestId(1)) {
        for _ in 0..4 {
            rig.prompt(next, &tokens(next as u32, 8), 1);
            next += 1;
        }
        let lens = step(&mut rig);
        assert_eq!(
            lens.iter().map(|(_, len)| len).sum::<u32>(),
            16,
            "the step is full: {lens:?}"
        );
        steps += 1;
        assert!(steps <= 13, "100 tokens at 8 a step");
    }
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn tokens_that_a_long_prompt_cannot_use_go_to_the_next_long_one() {
    let mut rig = Rig::new(roomy());
    rig.prompt(1, &tokens(1, 20), 1);
    rig.prompt(2, &tokens(2, 20), 1);
    assert_eq!(step(&mut rig), [(1, 16)]);
    assert_eq!(step(&mut rig), [(1, 4), (2, 12)]);
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn a_bound_cuts_prompts_and_never_decodes() {
    let mut rig = Rig::new(roomy());
    for id in 1..=5 {
        rig.prompt(id, &tokens(id as u32, 3), 40);
    }
    step(&mut rig);
    rig.scheduler.set_max_prompt_tokens(4);
    rig.prompt(6, &tokens(6, 50), 1);
    assert_eq!(step(&mut rig), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 4)]);
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn a_bound_holds_until_it_is_taken_away() {
    let mut rig = Rig::new(roomy());
    rig.scheduler.set_max_prompt_tokens(5);
    rig.prompt(1, &tokens(1, 50), 1);
    assert_eq!(step(&mut rig), [(1, 5)]);
    rig.prompt(2, &tokens(2, 50), 1);
    assert_eq!(step(&mut rig), [(1, 5)]);
    rig.scheduler.set_max_prompt_tokens(0);
    assert_eq!(step(&mut rig), [(1, 16)]);
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn a_decode_is_planned_although_an_older_prompt_could_fill_the_step() {
    let mut rig = Rig::new(roomy());
    rig.prompt(1, &tokens(1, 150), 1);
    rig.prompt(2, &tokens(2, 2), 30);
    step(&mut rig);
    for _ in 0..5 {
        assert_eq!(step(&mut rig), [(1, 15), (2, 1)]);
    }
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn a_prompt_is_long_by_what_is_not_cached_of_it() {
    let mut rig = Rig::new(roomy());
    let shared = tokens(9, 60);
    rig.prompt(1, &shared, 1);
    rig.run_to_end();
    rig.prompt(2, &tokens(2, 100), 1);
    rig.prompt(3, &tokens(3, 100), 1);
    rig.prompt(4, &[shared.as_slice(), &[1, 2]].concat(), 1);
    let lens = step(&mut rig);
    assert!(lens.iter().any(|(id, len)| *id == 4 && *len <= 6), "{lens:?}");
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn a_long_prompt_that_was_passed_over_takes_tokens_that_nobody_else_wants() {
    let mut rig = Rig::new(SchedulerConfig {
        long_prefill_token_threshold: 6,
        ..roomy()
    });
    for id in 1..=3 {
        rig.prompt(id, &tokens(id as u32, 50), 1);
    }
    assert_eq!(step(&mut rig), [(1, 6), (2, 6), (3, 4)]);
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn a_decode_behind_a_prompt_that_could_fill_the_step_is_planned() {
    let mut rig = Rig::new(SchedulerConfig {
        policy: Policy::Priority,
        long_prefill_token_threshold: 100,
        ..roomy()
    });
    let request = |id: u64, len, priority| NewRequest {
        priority,
        ..NewRequest::new(RequestId(id), tokens(id as u32, len), 20)
    };
    rig.add(request(1, 2, 1)).expect("accepted");
    step(&mut rig);
    rig.add(request(2, 90, 0)).expect("accepted");
    step(&mut rig);
    assert_eq!(step(&mut rig), [(2, 15), (1, 1)]);
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn a_cached_prompt_that_waits_for_blocks_is_not_overtaken() {
    let mut rig = Rig::new(SchedulerConfig {
        num_blocks: 60,
        long_prefill_token_threshold: 30,
        ..roomy()
    });
    let shared = tokens(9, 60);
    rig.prompt(1, &shared, 1);
    rig.run_to_end();
    rig.prompt(2, &tokens(2, 100), 1);
    step(&mut rig);
    let hold = rig
        .scheduler
        .hold_blocks(rig.scheduler.counts().free_blocks - 15)
        .expect("free");
    rig.prompt(3, &[shared.as_slice(), &[1, 2]].concat(), 1);
    step(&mut rig);
    rig.prompt(4, &[5], 1);
    let lens = step(&mut rig);
    assert!(!lens.iter().any(|(id, _)| *id == 4), "it came later: {lens:?}");
    rig.scheduler.release_blocks(hold.id).expect("held");
    rig.run_to_end();
    rig.check_ended(&[]);
}
