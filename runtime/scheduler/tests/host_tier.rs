//! The second tier of the prefix cache: what the pool takes away comes back from host memory, and counts as cached.

mod common;

use common::{Rig, ids, small, tokens};
use halyard_scheduler::*;

fn with_host(num_blocks: u32, num_host_blocks: u32) -> SchedulerConfig {
    SchedulerConfig {
        num_host_blocks,
        ..small(num_blocks)
    }
}

/// Runs a request for one token; the tokens of its prompt that were cached.
fn run(rig: &mut Rig, id: u64, prompt: &[u32]) -> u32 {
    rig.prompt(id, prompt, 1);
    let plan = rig.plan().expect("a step");
    let cached = plan.admitted[0].num_computed;
    rig.read();
    rig.run_to_end();
    cached
}

#[test]
fn a_prompt_that_was_evicted_comes_back() {
    let mut rig = Rig::new(with_host(4, 8));
    assert_eq!(run(&mut rig, 1, &tokens(1, 13)), 0);
    assert_eq!(run(&mut rig, 2, &tokens(2, 13)), 0, "it takes the pool");
    assert_eq!(rig.scheduler.counts().host_stored_blocks, 3);
    assert_eq!(run(&mut rig, 1001, &tokens(1, 13)), 12);
    let counts = rig.scheduler.counts();
    assert_eq!((counts.host_loaded_blocks, counts.host_prefix_hits), (3, 12));
    assert_eq!((counts.prefix_queries, counts.prefix_hits), (39, 0));
    assert_eq!(counts.host_prefix_queries, 39);
    assert_eq!(counts.host_evicted_blocks, 0);
    rig.check_ended(&[]);
}

#[test]
fn blocks_on_the_device_are_taken_before_those_of_the_host() {
    let mut rig = Rig::new(with_host(5, 8));
    run(&mut rig, 1, &tokens(1, 13));
    // Takes the two blocks that held nothing and the last one of the first prompt.
    run(&mut rig, 2, &tokens(2, 9));
    assert_eq!(rig.scheduler.counts().host_stored_blocks, 1);
    assert_eq!(run(&mut rig, 3, &tokens(1, 13)), 12);
    let counts = rig.scheduler.counts();
    assert_eq!((counts.prefix_hits, counts.host_prefix_hits), (8, 4));
    assert_eq!(counts.host_loaded_blocks, 1);
    rig.check_ended(&[]);
}

#[test]
fn without_the_tier_nothing_is_copied() {
    let mut rig = Rig::new(with_host(4, 0));
    run(&mut rig, 1, &tokens(1, 13));
    run(&mut rig, 2, &tokens(2, 13));
    assert_eq!(run(&mut rig, 3, &tokens(1, 13)), 0);
    let counts = rig.scheduler.counts();
    assert_eq!((counts.host_stored_blocks, counts.host_prefix_queries), (0, 0));
}

#[test]
fn a_full_tier_forgets_what_was_used_least_recently() {
    let mut rig = Rig::new(with_host(4, 6));
    for id in 1..=3 {
        run(&mut rig, id, &tokens(id as u32, 13));
    }
    // The tier holds the first two prompts. The first comes back, and the third goes out in place of the second.
    assert_eq!(run(&mut rig, 4, &tokens(1, 13)), 12);
    assert_eq!(run(&mut rig, 5, &tokens(3, 13)), 12);
    assert_eq!(run(&mut rig, 6, &tokens(1, 13)), 12);
    assert_eq!(run(&mut rig, 7, &tokens(2, 13)), 0);
    assert!(rig.scheduler.counts().host_evicted_blocks >= 3);
    rig.check_ended(&[]);
}

#[test]
fn a_reset_and_a_discard_reach_the_tier() {
    let mut rig = Rig::new(with_host(4, 8));
    run(&mut rig, 1, &tokens(1, 13));
    run(&mut rig, 2, &tokens(2, 13));
    assert_eq!(rig.scheduler.counts().host_cached_blocks, 3);
    assert_eq!(rig.scheduler.reset_prefix_cache(), 6);
    assert_eq!(rig.scheduler.counts().host_cached_blocks, 0);
    assert_eq!(run(&mut rig, 3, &tokens(1, 13)), 0);
    run(&mut rig, 4, &tokens(2, 13));
    // The first prompt is in the tier; a request with bad numbers shares it.
    rig.prompt(5, &tokens(1, 13), 2);
    rig.plan().expect("a step");
    assert!(rig.scheduler.discard(RequestId(5)));
    rig.check();
    rig.read();
    assert_eq!(run(&mut rig, 6, &tokens(1, 13)), 0);
    rig.check_ended(&ids([5]));
}

#[test]
fn a_preempted_request_comes_back_from_the_host() {
    let config = SchedulerConfig {
        max_num_batched_tokens: 32,
        ..with_host(8, 32)
    };
    let mut rig = Rig::new(config);
    for id in 1..=2 {
        rig.prompt(id, &tokens(id as u32, 12), 16);
    }
    rig.run_to_end();
    let counts = rig.scheduler.counts();
    assert!(counts.preemptions > 0 && counts.host_loaded_blocks > 0, "{counts:?}");
    rig.check_ended(&[]);
}

#[test]
fn blocks_of_a_hold_are_not_copied() {
    let mut rig = Rig::new(with_host(4, 8));
    run(&mut rig, 1, &tokens(1, 13));
    let hold = rig.scheduler.hold_blocks(4).expect("all are free");
    rig.scheduler.release_blocks(hold.id).expect("a hold");
    rig.check();
    assert_eq!(rig.scheduler.counts().host_stored_blocks, 0);
    assert_eq!(run(&mut rig, 2, &tokens(1, 13)), 0);
}

#[test]
fn a_block_that_moves_is_told() {
    let mut rig = Rig::new(SchedulerConfig {
        enable_kv_cache_events: true,
        ..with_host(4, 3)
    });
    run(&mut rig, 1, &tokens(1, 13));
    let events = rig.scheduler.take_kv_events();
    let KvEvent::Stored(first) = &events[0] else {
        panic!("{events:?}")
    };
    run(&mut rig, 2, &tokens(2, 13));
    let events = rig.scheduler.take_kv_events();
    // The last block of a prompt goes first.
    let hash = first.hashes[2];
    let (group, medium) = (0, KvMedium::Device);
    assert_eq!(events[0], KvEvent::Removed { group, hash, medium });
    let KvEvent::Stored(moved) = &events[1] else {
        panic!("{events:?}")
    };
    assert_eq!((moved.medium, &moved.hashes[..]), (KvMedium::Host, &[hash][..]));
    assert_eq!((moved.parent, moved.tokens.len(), moved.block_size), (None, 0, 4));
    // It comes back as one run with its tokens, and stays in host memory.
    run(&mut rig, 3, &tokens(1, 13));
    let events = rig.scheduler.take_kv_events();
    let back: Vec<&KvStored> = events
        .iter()
        .filter_map(|event| match event {
            KvEvent::Stored(stored) if stored.medium == KvMedium::Device => Some(stored),
            _ => None,
        })
        .collect();
    assert_eq!(back, [first], "{events:?}");
}
