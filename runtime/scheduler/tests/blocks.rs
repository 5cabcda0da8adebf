//! Ownership of blocks: preemption, windows, holds, several groups over one pool.

mod common;

use common::{Rig, ids, scheduled_ids, small, tokens};
use halyard_scheduler::*;

/// Runs one step at a time until a request is preempted; returns that plan.
fn until_preemption(rig: &mut Rig) -> SchedulerOutput {
    for _ in 0..100 {
        let plan = rig.plan().expect("a step");
        if !plan.preempted.is_empty() {
            return plan;
        }
        rig.read();
    }
    panic!("no request was preempted");
}

#[test]
fn preempts_the_youngest_when_the_pool_is_empty() {
    let mut rig = Rig::new(SchedulerConfig {
        enable_prefix_caching: false,
        ..small(8)
    });
    // At their full length two of them fit, three do not.
    for id in 1..=3 {
        rig.prompt(id, &tokens(id as u32, 5), 10);
    }
    let plan = until_preemption(&mut rig);
    assert_eq!(plan.preempted, ids([3]));
    assert_eq!(scheduled_ids(&plan), [1, 2]);
    let kept = rig.outputs[&RequestId(3)].len();
    rig.prompt(4, &tokens(4, 1), 1);
    rig.read();
    let resumed = loop {
        let plan = rig.plan().expect("a step");
        rig.read();
        if let Some(admitted) = plan.admitted.first() {
            break admitted.clone();
        }
    };
    assert_eq!(
        (resumed.id, resumed.resumed),
        (RequestId(3), true),
        "in front of the request that came later"
    );
    assert_eq!(resumed.generated.len(), kept, "it keeps what it generated");
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn preempts_the_lowest_priority_even_if_it_is_the_oldest() {
    let config = SchedulerConfig {
        policy: Policy::Priority,
        enable_prefix_caching: false,
        ..small(8)
    };
    let mut rig = Rig::new(config);
    for (id, priority) in [(1, 5), (2, 0), (3, 1)] {
        let request = NewRequest::new(RequestId(id), tokens(id as u32, 5), 20);
        rig.add(NewRequest { priority, ..request }).expect("accepted");
    }
    assert_eq!(until_preemption(&mut rig).preempted, ids([1]));
    rig.read();
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn tokens_in_flight_of_a_preempted_request_are_kept() {
    let mut rig = Rig::new(SchedulerConfig {
        max_steps_in_flight: 2,
        ..small(4)
    });
    rig.prompt(1, &tokens(1, 7), 9);
    rig.prompt(2, &tokens(2, 7), 9);
    rig.plan();
    loop {
        rig.plan();
        if rig.scheduler.counts().preemptions > 0 {
            break;
        }
        rig.read();
    }
    let before = rig.outputs[&RequestId(2)].len();
    while !rig.device.in_flight.is_empty() {
        rig.read();
    }
    assert!(
        rig.outputs[&RequestId(2)].len() > before,
        "a token came back after the preemption"
    );
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn lone_request_that_fits_the_pool_is_never_preempted() {
    for max_steps_in_flight in 1..=3 {
        let mut rig = Rig::new(SchedulerConfig {
            max_steps_in_flight,
            ..small(16)
        });
        rig.prompt(1, &tokens(1, 3), 100);
        rig.run_to_end();
        rig.check_ended(&[]);
        assert_eq!(rig.scheduler.counts().preemptions, 0);
    }
}

#[test]
fn lone_request_waits_for_a_hold_and_goes_on_after_its_release() {
    let mut rig = Rig::new(small(8));
    rig.prompt(1, &tokens(1, 4), 20);
    rig.plan();
    rig.read();
    let hold = rig.scheduler.hold_blocks(7).expect("free blocks");
    rig.check();
    assert_eq!(hold.blocks.len(), 7);
    assert!(rig.plan().is_none(), "no block is free for token 5");
    assert_eq!(rig.scheduler.counts().preemptions, 0);
    let more = rig.scheduler.hold_blocks(1);
    assert_eq!(more, Err(Error::NotEnoughFreeBlocks { asked: 1, free: 0 }));
    rig.scheduler.release_blocks(hold.id).expect("a hold");
    assert_eq!(
        rig.scheduler.release_blocks(hold.id),
        Err(Error::UnknownHold { id: hold.id })
    );
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn held_blocks_of_an_ended_request_are_not_reused() {
    let mut rig = Rig::new(SchedulerConfig {
        enable_prefix_caching: false,
        ..small(6)
    });
    rig.prompt(1, &tokens(1, 9), 2);
    rig.plan();
    let hold = rig.scheduler.hold_request_blocks(RequestId(1)).expect("a live request");
    rig.read();
    rig.run_to_end();
    assert_eq!(rig.scheduler.counts().free_blocks, 3);
    rig.prompt(2, &tokens(2, 10), 1);
    let plan = rig.plan().expect("a step");
    let blocks = plan.blocks(&plan.table_writes[0]);
    assert_eq!(blocks.len(), 3);
    assert!(blocks.iter().all(|block| !hold.blocks.contains(block)));
    rig.read();
    rig.scheduler.release_blocks(hold.id).expect("a hold");
    rig.check_ended(&[]);
    let unknown = rig.scheduler.hold_request_blocks(RequestId(1));
    assert_eq!(unknown, Err(Error::UnknownRequest { id: RequestId(1) }));
}

#[test]
fn admission_that_gets_no_blocks_stops_later_ones() {
    let mut rig = Rig::new(SchedulerConfig {
        enable_prefix_caching: false,
        ..small(8)
    });
    rig.prompt(1, &tokens(1, 14), 2);
    rig.plan();
    rig.read();
    rig.prompt(2, &tokens(2, 20), 2);
    rig.prompt(3, &tokens(3, 1), 2);
    assert_eq!(
        scheduled_ids(&rig.plan().expect("a step")),
        [1],
        "3 would fit, but 2 is in front of it"
    );
    rig.read();
    rig.run_to_end();
    rig.check_ended(&[]);
    assert_eq!(rig.admissions, ids([1, 2, 3]));
}

fn windowed(num_blocks: u32, tokens: u32) -> SchedulerConfig {
    let group = |kind| KvGroup { kind, block_size: 4 };
    let groups = vec![group(KvKind::Full), group(KvKind::Window { tokens })];
    SchedulerConfig {
        groups,
        enable_prefix_caching: false,
        ..small(num_blocks)
    }
}

#[test]
fn window_group_keeps_only_the_blocks_that_the_next_query_reads() {
    let mut rig = Rig::new(windowed(32, 6));
    rig.prompt(1, &tokens(1, 16), 40);
    rig.plan();
    assert_eq!(rig.scheduler.counts().used_blocks, 8);
    rig.read();
    // 16 are computed: the query at 16 reads 11..=16, so blocks 0 and 1 of the window group went.
    assert_eq!(rig.scheduler.counts().used_blocks, 4 + 2);
    let plan = rig.plan().expect("a step");
    let writes: Vec<_> = plan
        .table_writes
        .iter()
        .map(|write| (write.group, write.first))
        .collect();
    assert_eq!(writes, [(0, 4), (1, 4)], "nothing in front of the window is rewritten");
    rig.read();
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn window_is_trimmed_by_exact_counts_not_by_upper_bounds() {
    let config = windowed(40, 4);
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_steps_in_flight: 2,
        ..config
    })
    .expect("valid");
    let id = RequestId(1);
    scheduler.add(NewRequest::new(id, tokens(1, 7), 40)).expect("accepted");
    scheduler.set_num_drafts(id, 8).expect("a live request");
    let prefill = scheduler.schedule(0).expect("a step");
    let drafted = scheduler.schedule(0).expect("a step");
    scheduler
        .update(prefill.step, &[RowResult { id, tokens: &[1] }])
        .expect("accepted");
    // At most 16 are computed, exactly 7: block 1 (4..8) is still read by the step in flight.
    let next = scheduler.schedule(0).expect("a step");
    assert_eq!(next.scheduled[0].num_computed_upper, 16);
    scheduler.check_integrity().expect("whole");
    scheduler
        .update(drafted.step, &[RowResult { id, tokens: &[1] }])
        .expect("accepted");
    scheduler.check_integrity().expect("whole");
    let blocks = scheduler.counts().used_blocks;
    // 16 + 9 tokens planned: 7 blocks in the full group, and all but block 0 in the window group.
    assert_eq!(blocks, 7 + 6);
}

#[test]
fn prompt_longer_than_the_pool_fits_through_a_window() {
    let group = KvGroup {
        kind: KvKind::Window { tokens: 6 },
        block_size: 4,
    };
    let config = SchedulerConfig {
        groups: vec![group],
        max_num_batched_tokens: 8,
        ..small(4)
    };
    assert_eq!(config.blocks_for(63), 4, "5 + 8 tokens from anywhere in a block");
    let mut rig = Rig::new(SchedulerConfig {
        max_steps_in_flight: 2,
        ..config
    });
    rig.prompt(1, &tokens(1, 50), 10);
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn groups_of_different_block_sizes_share_one_pool() {
    let full = KvGroup {
        kind: KvKind::Full,
        block_size: 8,
    };
    let window = KvGroup {
        kind: KvKind::Window { tokens: 9 },
        block_size: 2,
    };
    let mut rig = Rig::new(SchedulerConfig {
        groups: vec![full, window],
        ..small(24)
    });
    rig.prompt(1, &tokens(1, 13), 9);
    let plan = rig.plan().expect("a step");
    let lens: Vec<_> = plan.table_writes.iter().map(|write| plan.blocks(write).len()).collect();
    assert_eq!(lens, [2, 7]);
    let mut blocks = plan.table_blocks.clone();
    blocks.sort();
    blocks.dedup();
    assert_eq!(blocks.len(), 9, "no block stands twice");
    rig.read();
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn older_request_waits_for_draining_blocks_and_nobody_younger_takes_or_loses_blocks_meanwhile() {
    let mut rig = Rig::new(SchedulerConfig {
        max_steps_in_flight: 2,
        ..small(5)
    });
    for id in 1..=3 {
        rig.prompt(id, &tokens(id as u32, 4), 13);
    }
    rig.scheduler.set_num_drafts(RequestId(1), 8).expect("a live request");
    rig.plan();
    // Request 1 now lacks 3 blocks, 2 are free: request 3 goes, but its block is in flight.
    assert!(
        rig.plan().is_none(),
        "request 2 would take a block that request 1 waits for"
    );
    assert_eq!(
        rig.scheduler.counts().preemptions,
        1,
        "what request 3 gives back is enough"
    );
    rig.read();
    let plan = rig.plan().expect("a step");
    assert_eq!(scheduled_ids(&plan), [1]);
    assert_eq!((plan.preempted, plan.scheduled[0].num_drafts), (ids([3]), 8));
    rig.read();
    rig.run_to_end();
    rig.check_ended(&[]);
}
