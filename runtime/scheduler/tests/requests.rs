//! Adding, ordering and ending requests: what is refused and how, which goes first, what an end frees.

mod common;

use common::{Rig, ids, scheduled_ids, small, tokens};
use halyard_scheduler::*;

#[test]
fn refuses_requests_that_can_never_run_and_says_why() {
    let mut rig = Rig::new(small(8));
    let mut refuse = |id: u64, prompt: usize, max_tokens| {
        rig.add(NewRequest::new(RequestId(id), tokens(1, prompt), max_tokens))
            .expect_err("a refusal")
    };
    assert_eq!(refuse(1, 0, 5), Error::EmptyPrompt { id: RequestId(1) });
    assert_eq!(refuse(1, 5, 0), Error::ZeroMaxTokens { id: RequestId(1) });
    let too_long = refuse(1, 64, 1);
    assert_eq!(
        too_long,
        Error::PromptTooLong {
            id: RequestId(1),
            tokens: 64,
            max_model_len: 64
        }
    );
    assert!(too_long.to_string().contains("room for at most 63"), "{too_long}");
    // 20 + 14 tokens, of which 33 are computed: 9 blocks of 4.
    assert_eq!(
        refuse(1, 20, 14),
        Error::NeverFits {
            id: RequestId(1),
            needed: 9,
            total: 8
        }
    );
    assert_eq!(
        refuse(1, 20, u32::MAX),
        Error::NeverFits {
            id: RequestId(1),
            needed: 16,
            total: 8
        }
    );
    rig.prompt(1, &tokens(1, 20), 13);
    let duplicate = rig.add(NewRequest::new(RequestId(1), tokens(1, 2), 1));
    assert_eq!(duplicate, Err(Error::DuplicateId { id: RequestId(1) }));
}

#[test]
fn longest_accepted_prompt_generates_one_token() {
    let mut rig = Rig::new(small(16));
    rig.prompt(1, &tokens(1, 63), 100);
    rig.run_to_end();
    rig.check_ended(&[]);
    assert_eq!(rig.outputs[&RequestId(1)].len(), 1);
}

#[test]
fn waiting_queue_is_bounded() {
    let mut rig = Rig::new(SchedulerConfig {
        max_waiting: 2,
        ..small(16)
    });
    rig.prompt(1, &[1], 2);
    rig.prompt(2, &[1], 2);
    let full = rig.add(NewRequest::new(RequestId(3), vec![1], 2));
    assert_eq!(full, Err(Error::QueueFull { waiting: 2, limit: 2 }));
    rig.plan();
    rig.prompt(3, &[1], 2);
    rig.read();
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn configurations_that_cannot_work_are_refused_by_field() {
    let refuse = |config: SchedulerConfig| Scheduler::new(config).expect_err("a refusal");
    assert_eq!(
        refuse(SchedulerConfig::default()),
        Error::ZeroLimit { field: "num_blocks" }
    );
    assert_eq!(
        refuse(SchedulerConfig {
            max_num_seqs: 0,
            ..small(1)
        }),
        Error::ZeroLimit { field: "max_num_seqs" }
    );
    assert_eq!(
        refuse(SchedulerConfig {
            max_waiting: 0,
            ..small(1)
        }),
        Error::ZeroLimit { field: "max_waiting" }
    );
    assert_eq!(
        refuse(SchedulerConfig {
            groups: vec![],
            ..small(1)
        }),
        Error::NoGroups
    );
    let group = |kind, block_size| SchedulerConfig {
        groups: vec![KvGroup { kind, block_size }],
        ..small(1)
    };
    assert_eq!(
        refuse(group(KvKind::Full, 0)),
        Error::ZeroLimit {
            field: "groups.block_size"
        }
    );
    let window = KvKind::Window { tokens: 0 };
    assert_eq!(
        refuse(group(window, 4)),
        Error::ZeroLimit {
            field: "groups.kind.window"
        }
    );
    let huge = refuse(SchedulerConfig {
        num_lookahead_tokens: u32::MAX,
        ..small(1)
    });
    let limit = 1 << 30;
    assert_eq!(
        huge,
        Error::LimitTooLarge {
            field: "num_lookahead_tokens",
            value: u32::MAX,
            limit
        }
    );
}

#[test]
fn fcfs_ignores_priority_and_priority_takes_the_lowest_then_the_earliest() {
    for (policy, order) in [(Policy::Fcfs, [1, 2, 3, 4]), (Policy::Priority, [4, 2, 3, 1])] {
        let mut rig = Rig::new(SchedulerConfig {
            policy,
            max_num_seqs: 1,
            ..small(16)
        });
        for (id, priority, arrival_ns) in [(1, 2, 0), (2, 1, 5), (3, 1, 6), (4, 0, 9)] {
            let request = NewRequest::new(RequestId(id), vec![1, 2], 2);
            rig.add(NewRequest {
                priority,
                arrival_ns,
                ..request
            })
            .expect("accepted");
        }
        rig.run_to_end();
        rig.check_ended(&[]);
        assert_eq!(rig.finished, ids(order), "{policy:?}");
    }
}

#[test]
fn long_prompt_is_not_starved_by_a_stream_of_short_ones() {
    let mut rig = Rig::new(SchedulerConfig {
        max_steps_in_flight: 2,
        ..small(16)
    });
    rig.prompt(1, &tokens(1, 3), 8);
    rig.plan();
    rig.prompt(2, &tokens(2, 50), 4);
    let mut steps = 0;
    while !rig.finished.contains(&RequestId(2)) {
        rig.prompt(10 + steps, &[steps as u32], 2);
        rig.plan();
        rig.read();
        steps += 1;
        assert!(steps < 20, "the long prompt waits for ever");
    }
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn abort_frees_a_waiting_and_a_running_request_at_once_when_nothing_is_in_flight() {
    let mut rig = Rig::new(SchedulerConfig {
        max_num_seqs: 1,
        ..small(16)
    });
    rig.prompt(1, &tokens(1, 9), 9);
    rig.prompt(2, &tokens(2, 9), 9);
    rig.plan();
    rig.read();
    assert_eq!(rig.scheduler.counts().used_blocks, 3);
    assert!(rig.scheduler.abort(RequestId(1)) && rig.scheduler.abort(RequestId(2)));
    rig.check();
    assert!(!rig.scheduler.abort(RequestId(1)) && !rig.scheduler.abort(RequestId(7)));
    assert!(rig.plan().is_none());
    rig.check_ended(&ids([1, 2]));
}

#[test]
fn ended_request_keeps_row_and_blocks_until_its_last_step_is_read() {
    let mut rig = Rig::new(SchedulerConfig {
        max_num_seqs: 1,
        max_steps_in_flight: 3,
        ..small(16)
    });
    rig.prompt(1, &tokens(1, 5), 9);
    rig.plan();
    rig.plan();
    assert!(rig.scheduler.finish(RequestId(1)));
    rig.check();
    // Its id is free at once; its row and blocks are not.
    rig.scheduler
        .add(NewRequest::new(RequestId(1), tokens(1, 5), 9))
        .expect("a fresh id");
    assert!(rig.plan().is_none(), "the only row is still in flight");
    assert_eq!(rig.scheduler.counts().used_blocks, 2);
    assert!(rig.read().is_empty(), "its results are dropped");
    assert!(rig.plan().is_none());
    assert!(rig.read().is_empty());
    assert_eq!(rig.scheduler.counts().used_blocks, 0);
    assert_eq!(scheduled_ids(&rig.plan().expect("the new request")), [1]);
}

#[test]
fn preempted_request_can_be_aborted_before_it_returns() {
    let mut rig = Rig::new(SchedulerConfig {
        max_steps_in_flight: 2,
        ..small(4)
    });
    rig.prompt(1, &tokens(1, 7), 9);
    rig.prompt(2, &tokens(2, 7), 9);
    while rig.scheduler.counts().preemptions == 0 {
        rig.plan();
        if rig.device.in_flight.len() == 2 {
            rig.read();
        }
    }
    assert!(rig.scheduler.abort(RequestId(2)));
    rig.check();
    while !rig.device.in_flight.is_empty() {
        rig.read();
    }
    let plan = rig.plan().expect("request 1 goes on");
    assert!(plan.preempted.is_empty(), "a request that has ended is not reported");
    rig.read();
    rig.run_to_end();
    rig.check_ended(&ids([2]));
}

#[test]
fn admission_tells_how_long_the_request_waited() {
    let mut scheduler = Scheduler::new(small(16)).expect("a scheduler");
    let request = NewRequest {
        arrival_ns: 400,
        ..NewRequest::new(RequestId(1), vec![1], 1)
    };
    scheduler.add(request).expect("accepted");
    assert_eq!(scheduler.schedule(1_000).expect("a step").admitted[0].waited_ns, 600);
}
