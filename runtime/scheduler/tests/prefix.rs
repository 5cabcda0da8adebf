//! The prefix cache: which blocks are found, by which requests, and for how long.

mod common;

use common::{Rig, small, tokens};
use halyard_scheduler::*;
use std::sync::Arc;

/// Plans the step that admits one request; the tokens that it found.
fn admit(rig: &mut Rig, request: NewRequest) -> u32 {
    rig.add(request).expect("accepted");
    rig.plan().expect("a step").admitted[0].num_computed
}

/// Runs the request alone; the tokens that it found.
fn run(rig: &mut Rig, request: NewRequest) -> u32 {
    let hit = admit(rig, request);
    rig.read();
    rig.run_to_end();
    hit
}

fn request(id: u64, prompt: Vec<u32>) -> NewRequest {
    NewRequest::new(RequestId(id), prompt, 2)
}

#[test]
fn equal_prefix_is_shared_in_full_blocks() {
    let mut rig = Rig::new(small(32));
    assert_eq!(run(&mut rig, request(1, tokens(1, 14))), 0);
    let mut prompt = tokens(1, 11);
    prompt.extend([7, 7, 7]);
    assert_eq!(run(&mut rig, request(2, prompt)), 8, "the third block differs");
    let counts = rig.scheduler.counts();
    assert_eq!((counts.prefix_queries, counts.prefix_hits), (28, 8));
    rig.check_ended(&[]);
}

#[test]
fn at_least_one_token_is_computed_on_a_full_hit() {
    let mut rig = Rig::new(small(32));
    run(&mut rig, request(1, tokens(1, 12)));
    assert_eq!(run(&mut rig, request(2, tokens(1, 12))), 8);
    assert_eq!(run(&mut rig, request(3, tokens(1, 13))), 12);
    rig.check_ended(&[]);
}

#[test]
fn generated_tokens_are_found_by_the_next_turn() {
    let mut rig = Rig::new(small(32));
    run(&mut rig, NewRequest::new(RequestId(1), tokens(1, 6), 7));
    let mut prompt = tokens(1, 6);
    prompt.extend(&rig.outputs[&RequestId(1)]);
    prompt.extend([5, 5]);
    assert_eq!(run(&mut rig, request(2, prompt)), 12, "of 13 tokens, 12 were computed");
    rig.check_ended(&[]);
}

#[test]
fn blocks_are_shared_between_requests_that_run_together() {
    let mut rig = Rig::new(small(32));
    rig.prompt(1, &tokens(1, 12), 9);
    rig.plan();
    // Nothing of a step in flight is computed yet, as far as the host knows.
    rig.read();
    assert_eq!(admit(&mut rig, request(2, tokens(1, 14))), 12);
    assert_eq!(rig.scheduler.counts().used_blocks, 3 + 1 + 1, "three are shared");
    rig.read();
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn nothing_is_found_of_a_step_in_flight() {
    let mut rig = Rig::new(SchedulerConfig {
        max_steps_in_flight: 2,
        ..small(32)
    });
    rig.prompt(1, &tokens(1, 12), 9);
    rig.plan();
    assert_eq!(admit(&mut rig, request(2, tokens(1, 14))), 0);
    while !rig.device.in_flight.is_empty() {
        rig.read();
    }
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn salt_and_adapter_separate_prefixes() {
    let mut rig = Rig::new(small(64));
    let salt = |salt: &[u8]| Some(Arc::from(salt));
    let variants = [
        (None, None),
        (salt(b"a"), None),
        (salt(b"b"), None),
        (None, Some(0)),
        (None, Some(1)),
        (salt(b"a"), Some(1)),
    ];
    for round in 0..2 {
        for (index, (cache_salt, lora)) in variants.iter().enumerate() {
            let id = round * 10 + index as u64;
            let (cache_salt, lora) = (cache_salt.clone(), *lora);
            let hit = run(
                &mut rig,
                NewRequest {
                    cache_salt,
                    lora,
                    ..request(id, tokens(1, 10))
                },
            );
            assert_eq!(hit, if round == 0 { 0 } else { 8 }, "round {round}, variant {index}");
        }
    }
    rig.check_ended(&[]);
}

#[test]
fn request_that_must_compute_its_prompt_finds_nothing_but_is_found() {
    let mut rig = Rig::new(small(32));
    let uncacheable = |id| NewRequest {
        cacheable: false,
        ..request(id, tokens(1, 10))
    };
    assert_eq!(run(&mut rig, uncacheable(1)), 0);
    assert_eq!(run(&mut rig, uncacheable(2)), 0);
    assert_eq!(run(&mut rig, request(3, tokens(1, 10))), 8);
    assert_eq!(rig.scheduler.counts().prefix_queries, 10, "only the third asked");
}

#[test]
fn caching_can_be_turned_off() {
    let mut rig = Rig::new(SchedulerConfig {
        enable_prefix_caching: false,
        ..small(32)
    });
    run(&mut rig, request(1, tokens(1, 10)));
    assert_eq!(run(&mut rig, request(2, tokens(1, 10))), 0);
    assert_eq!(rig.scheduler.counts().cached_blocks, 0);
}

#[test]
fn least_recently_used_prefix_is_reused_first_and_its_tail_before_its_head() {
    let mut rig = Rig::new(small(10));
    run(&mut rig, request(1, tokens(1, 16)));
    run(&mut rig, request(2, tokens(2, 16)));
    // Of 10 blocks, 8 are cached; 1 is used again, so 2 is the older one.
    assert_eq!(run(&mut rig, request(3, tokens(1, 16))), 12);
    run(&mut rig, request(4, tokens(4, 14)));
    assert_eq!(run(&mut rig, request(5, tokens(1, 16))), 12);
    let hit = run(&mut rig, request(6, tokens(2, 16)));
    assert_eq!(hit, 8, "the head of the older prefix is still there");
    rig.check_ended(&[]);
}

#[test]
fn reset_forgets_everything_also_what_running_requests_compute_later() {
    let mut rig = Rig::new(small(32));
    rig.prompt(1, &tokens(1, 10), 8);
    rig.plan();
    rig.read();
    assert_eq!(rig.scheduler.counts().cached_blocks, 2);
    assert_eq!(rig.scheduler.reset_prefix_cache(), 2);
    rig.check();
    rig.run_to_end();
    assert_eq!(
        rig.scheduler.counts().cached_blocks,
        0,
        "its blocks began before the reset"
    );
    assert_eq!(run(&mut rig, request(2, tokens(1, 10))), 0);
    assert_eq!(run(&mut rig, request(3, tokens(1, 10))), 8);
    rig.check_ended(&[]);
}

#[test]
fn preempted_request_finds_its_own_blocks_again() {
    let mut rig = Rig::new(small(8));
    rig.prompt(1, &tokens(1, 8), 14);
    rig.prompt(2, &tokens(2, 8), 14);
    let mut hits = 0;
    for _ in 0..100 {
        let Some(plan) = rig.plan() else { break };
        hits += plan
            .admitted
            .iter()
            .filter(|admitted| admitted.resumed)
            .map(|admitted| admitted.num_computed)
            .sum::<u32>();
        rig.read();
    }
    assert!(rig.scheduler.counts().preemptions > 0);
    assert!(hits >= 4, "{hits} tokens were not computed again");
    rig.check_ended(&[]);
}

fn two_groups(window: u32, num_blocks: u32) -> SchedulerConfig {
    let group = |kind| KvGroup { kind, block_size: 4 };
    let groups = vec![group(KvKind::Full), group(KvKind::Window { tokens: window })];
    SchedulerConfig {
        groups,
        max_num_batched_tokens: 64,
        ..small(num_blocks)
    }
}

#[test]
fn window_group_needs_only_the_blocks_behind_the_border() {
    let mut rig = Rig::new(two_groups(6, 40));
    run(&mut rig, request(1, tokens(1, 22)));
    rig.add(request(2, tokens(1, 24))).expect("accepted");
    let plan = rig.plan().expect("a step");
    assert_eq!(plan.admitted[0].num_computed, 20);
    // The query at 20 reads 15..=20: blocks 3 and 4 are found, block 5 is new. The full group has all six.
    let writes: Vec<_> = plan
        .table_writes
        .iter()
        .map(|w| (w.group, w.first, plan.blocks(w).len()))
        .collect();
    assert_eq!(writes, [(0, 0, 6), (1, 3, 3)]);
    rig.read();
    rig.run_to_end();
    rig.check_ended(&[]);
}

#[test]
fn hit_is_the_longest_prefix_that_every_group_can_serve() {
    for (window, expected) in [(5, 20), (6, 0)] {
        let mut rig = Rig::new(two_groups(window, 14));
        run(&mut rig, request(1, tokens(1, 24)));
        // 12 of 14 blocks are cached. The next prompt takes the two others and the four that were freed first: those
        // that left the window, blocks 0 to 3 of its group. The full group still has all of its six.
        run(&mut rig, request(2, tokens(2, 10)));
        // A window of 5 needs block 4 alone behind the border at 20, a window of 6 block 3 as well.
        assert_eq!(admit(&mut rig, request(3, tokens(1, 24))), expected, "window {window}");
        rig.read();
        rig.run_to_end();
        rig.check_ended(&[]);
    }
}

#[test]
fn hit_ends_on_a_border_of_every_block_size() {
    let groups = vec![
        KvGroup {
            kind: KvKind::Full,
            block_size: 2,
        },
        KvGroup {
            kind: KvKind::Full,
            block_size: 6,
        },
        KvGroup {
            kind: KvKind::Window { tokens: 5 },
            block_size: 4,
        },
    ];
    let mut rig = Rig::new(SchedulerConfig {
        groups,
        max_num_batched_tokens: 64,
        ..small(64)
    });
    run(&mut rig, request(1, tokens(1, 30)));
    assert_eq!(run(&mut rig, request(2, tokens(1, 30))), 24, "a multiple of 12");
    assert_eq!(run(&mut rig, request(3, tokens(1, 23))), 12);
    rig.check_ended(&[]);
}
