//! What one step computes: the budget, chunks, planning ahead of results, drafts and what comes back.

mod common;

use common::{Rig, ids, scheduled_ids, small, tokens};
use halyard_scheduler::*;

fn query_lens(plan: &SchedulerOutput) -> Vec<(u64, u32)> {
    plan.scheduled.iter().map(|row| (row.id.0, row.query_len)).collect()
}

#[test]
fn one_budget_serves_running_rows_first_and_chunks_prompts_into_the_rest() {
    let mut rig = Rig::new(small(32));
    rig.prompt(1, &tokens(1, 5), 9);
    let plan = rig.plan().expect("a step");
    assert_eq!(query_lens(&plan), [(1, 5)]);
    assert!(plan.scheduled[0].emits);
    rig.read();
    rig.prompt(2, &tokens(2, 20), 9);
    rig.prompt(3, &tokens(3, 20), 9);
    let plan = rig.plan().expect("a step");
    assert_eq!(query_lens(&plan), [(1, 1), (2, 15)]);
    assert!(!plan.scheduled[1].emits, "5 tokens of the prompt are left");
    rig.read();
    let plan = rig.plan().expect("a step");
    assert_eq!(query_lens(&plan), [(1, 1), (2, 5), (3, 10)]);
    assert!(plan.scheduled[1].emits);
    assert_eq!(plan.num_tokens, 16);
    rig.read();
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn long_prefill_threshold_leaves_room_for_others() {
    let mut rig = Rig::new(SchedulerConfig {
        long_prefill_token_threshold: 6,
        ..small(32)
    });
    rig.prompt(1, &tokens(1, 20), 3);
    rig.prompt(2, &tokens(2, 20), 3);
    assert_eq!(query_lens(&rig.plan().expect("a step")), [(1, 6), (2, 6)]);
    rig.read();
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn plans_a_row_again_before_its_token_is_read() {
    let mut rig = Rig::new(SchedulerConfig {
        max_steps_in_flight: 3,
        ..small(32)
    });
    rig.prompt(1, &tokens(1, 5), 9);
    let bounds: Vec<u32> = (0..3)
        .map(|_| rig.plan().expect("a step").scheduled[0].num_computed_upper)
        .collect();
    assert_eq!(bounds, [0, 5, 6]);
    assert!(rig.plan().is_none(), "three steps are in flight");
    rig.read();
    assert_eq!(rig.plan().expect("a step").scheduled[0].num_computed_upper, 7);
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn plans_no_step_past_max_tokens_while_results_are_in_flight() {
    let mut rig = Rig::new(SchedulerConfig {
        max_steps_in_flight: 4,
        ..small(32)
    });
    rig.prompt(1, &tokens(1, 5), 2);
    assert!(rig.plan().is_some());
    assert!(rig.plan().is_some());
    assert!(rig.plan().is_none(), "two tokens are on their way");
    assert_eq!(rig.read()[0].finished, None);
    let last = Update {
        id: RequestId(1),
        num_new_tokens: 1,
        finished: Some(FinishReason::Length),
    };
    assert_eq!(rig.read(), [last]);
    rig.check_ended(&[]);
}

#[test]
fn empty_result_computes_the_last_token_again() {
    let mut rig = Rig::new(SchedulerConfig {
        max_steps_in_flight: 2,
        ..small(32)
    });
    rig.device.empty_result_one_in = 1;
    rig.prompt(1, &tokens(1, 5), 2);
    rig.plan();
    rig.plan();
    assert!(rig.plan().is_none());
    assert_eq!(
        rig.read(),
        [Update {
            id: RequestId(1),
            num_new_tokens: 0,
            finished: None
        }]
    );
    rig.device.empty_result_one_in = 0;
    let plan = rig.plan().expect("there is room for a token again");
    assert_eq!(
        (plan.scheduled[0].num_computed_upper, plan.scheduled[0].query_len),
        (5, 1)
    );
    while !rig.device.in_flight.is_empty() {
        rig.read();
    }
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn rejected_drafts_take_the_counts_back() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_steps_in_flight: 2,
        ..small(32)
    })
    .expect("valid");
    let id = RequestId(1);
    scheduler.add(NewRequest::new(id, tokens(1, 5), 20)).expect("accepted");
    scheduler.set_num_drafts(id, 3).expect("a live request");
    let prefill = scheduler.schedule(0).expect("a step");
    assert_eq!(
        (prefill.scheduled[0].query_len, prefill.scheduled[0].num_drafts),
        (5, 0)
    );
    let first = scheduler.schedule(0).expect("a step");
    assert_eq!((first.scheduled[0].query_len, first.scheduled[0].num_drafts), (4, 3));
    scheduler
        .update(prefill.step, &[RowResult { id, tokens: &[7] }])
        .expect("accepted");
    let second = scheduler.schedule(0).expect("a step");
    assert_eq!(second.scheduled[0].num_computed_upper, 9, "if all drafts are right");
    let updates = scheduler
        .update(first.step, &[RowResult { id, tokens: &[7, 8] }])
        .expect("accepted");
    assert_eq!(
        updates,
        [Update {
            id,
            num_new_tokens: 2,
            finished: None
        }]
    );
    scheduler
        .update(second.step, &[RowResult { id, tokens: &[1] }])
        .expect("accepted");
    let third = scheduler.schedule(0).expect("a step");
    assert_eq!(third.scheduled[0].num_computed_upper, 5 + 2 + 1);
    scheduler.check_integrity().expect("whole");
}

#[test]
fn drafts_stop_at_the_requests_length_and_the_budget() {
    let mut rig = Rig::new(SchedulerConfig {
        max_num_batched_tokens: 5,
        ..small(32)
    });
    rig.prompt(1, &tokens(1, 5), 4);
    rig.scheduler.set_num_drafts(RequestId(1), 9).expect("a live request");
    rig.plan();
    rig.read();
    assert_eq!(
        rig.plan().expect("a step").scheduled[0].num_drafts,
        2,
        "3 tokens are left: 2 drafts and one more"
    );
    rig.read();
    rig.run_to_end();
    rig.check_ended(&[]);
    rig.prompt(2, &tokens(2, 5), 40);
    rig.scheduler.set_num_drafts(RequestId(2), 9).expect("a live request");
    rig.plan();
    rig.read();
    assert_eq!(
        rig.plan().expect("a step").scheduled[0].query_len,
        5,
        "the whole budget"
    );
}

#[test]
fn lookahead_slots_are_allocated_ahead_of_the_tokens() {
    let mut rig = Rig::new(SchedulerConfig {
        num_lookahead_tokens: 6,
        ..small(32)
    });
    rig.prompt(1, &tokens(1, 3), 9);
    let plan = rig.plan().expect("a step");
    assert_eq!(
        plan.blocks(&plan.table_writes[0]).len(),
        3,
        "3 + 6 tokens in blocks of 4"
    );
    rig.read();
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn block_tables_change_by_deltas_only() {
    let mut rig = Rig::new(small(32));
    rig.prompt(1, &tokens(1, 7), 6);
    let plan = rig.plan().expect("a step");
    assert_eq!(
        (plan.table_writes[0].first, plan.blocks(&plan.table_writes[0]).len()),
        (0, 2)
    );
    rig.read();
    assert!(
        rig.plan().expect("token 8").table_writes.is_empty(),
        "it fits the second block"
    );
    rig.read();
    let plan = rig.plan().expect("token 9");
    assert_eq!(
        (plan.table_writes[0].first, plan.blocks(&plan.table_writes[0]).len()),
        (2, 1)
    );
    assert!(plan.admitted.is_empty());
}

#[test]
fn wrong_results_are_refused_and_change_nothing() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_steps_in_flight: 2,
        ..small(32)
    })
    .expect("valid");
    for id in [1, 2] {
        scheduler
            .add(NewRequest::new(RequestId(id), tokens(1, 8), 5))
            .expect("accepted");
    }
    let nothing = scheduler.update(StepId(1), &[]);
    assert_eq!(
        nothing,
        Err(Error::StepOutOfOrder {
            got: StepId(1),
            expected: None
        })
    );
    let step = scheduler.schedule(0).expect("a step").step;
    let next = scheduler.schedule(0).expect("a step").step;
    let order = scheduler.update(next, &[]);
    assert_eq!(
        order,
        Err(Error::StepOutOfOrder {
            got: next,
            expected: Some(step)
        })
    );
    let [one, two, other] = [1, 2, 9].map(|id| RowResult {
        id: RequestId(id),
        tokens: &[4],
    });
    let missing = scheduler.update(step, &[one]);
    assert_eq!(missing, Err(Error::MissingResult { step, id: two.id }));
    assert_eq!(
        scheduler.update(step, &[other, one, two]),
        Err(Error::UnexpectedResult { step, id: other.id })
    );
    assert_eq!(
        scheduler.update(step, &[one, two, other]),
        Err(Error::UnexpectedResult { step, id: other.id })
    );
    let long = RowResult { tokens: &[4, 4], ..one };
    assert_eq!(
        scheduler.update(step, &[long, two]),
        Err(Error::TooManyTokens {
            step,
            id: one.id,
            got: 2,
            limit: 1
        })
    );
    scheduler.check_integrity().expect("whole");
    assert_eq!(scheduler.update(step, &[one, two]).expect("accepted").len(), 2);
}

#[test]
fn failed_step_is_read_back_without_results_once_its_requests_are_aborted() {
    let mut rig = Rig::new(small(32));
    rig.prompt(1, &tokens(1, 5), 5);
    rig.prompt(2, &tokens(2, 5), 5);
    let plan = rig.plan().expect("a step");
    for id in ids(scheduled_ids(&plan)) {
        assert!(rig.scheduler.abort(id));
    }
    assert_eq!(rig.scheduler.update(plan.step, &[]), Ok(vec![]));
    rig.device.in_flight.clear();
    rig.check_ended(&ids([1, 2]));
}

#[test]
fn what_waits_may_be_left_out_of_plans() {
    let mut rig = Rig::new(small(64));
    rig.prompt(1, &tokens(1, 3), 8);
    rig.plan().expect("a step");
    rig.read();
    assert!(!rig.scheduler.has_waiting());
    rig.prompt(2, &tokens(2, 3), 3);
    assert!(rig.scheduler.has_waiting());
    rig.scheduler.set_admits(false);
    let plan = rig.plan().expect("a step");
    assert_eq!(scheduled_ids(&plan), [1]);
    rig.scheduler.set_admits(true);
    rig.read();
    let plan = rig.plan().expect("a step");
    assert_eq!(scheduled_ids(&plan), [1, 2]);
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn half_of_what_runs_may_be_near_its_end() {
    let mut rig = Rig::new(small(64));
    assert!(!rig.scheduler.half_end_within(8), "nothing runs");
    rig.prompt(1, &tokens(1, 3), 8);
    rig.prompt(2, &tokens(2, 3), 3);
    rig.plan().expect("a step");
    rig.read();
    assert!(!rig.scheduler.half_end_within(1), "both have more to go");
    assert!(rig.scheduler.half_end_within(2), "one of the two has not");
    rig.run_to_end();
    rig.prompt(3, &tokens(3, 3), 4);
    rig.plan().expect("a step");
    rig.read();
    rig.prompt(5, &tokens(5, 20), 8);
    rig.plan().expect("a step");
    rig.read();
    assert!(!rig.scheduler.half_end_within(2), "a prompt goes on");
    rig.plan().expect("a step");
    assert!(rig.scheduler.half_end_within(2), "none does");
    rig.run_to_end();
    rig.prompt(4, &tokens(4, 3), 2);
    rig.plan().expect("a step");
    assert!(!rig.scheduler.half_end_within(2), "it has only begun");
    rig.run_to_end();
    for (id, len, fits) in [(6, 24, true), (7, 25, false)] {
        rig.prompt(id, &tokens(id as u32, len), 3);
        for _ in 0..2 {
            rig.plan().expect("a step");
            rig.read();
        }
        assert_eq!(
            rig.scheduler.half_end_within(2),
            fits,
            "a prompt of {len} tokens, a step takes 16"
        );
        rig.run_to_end();
    }
    rig.check_ended(&[]);
}
