//! Random workloads on the shadow device: outputs are always the model's own, integrity holds after every call, no
//! request starves and nothing is lost.

mod common;

use common::{Random, Rig, VOCABULARY};
use halyard_scheduler::*;
use proptest::prelude::*;
use std::sync::Arc;

/// The lowest bound of prompt tokens that workloads set.
const LEAST_BOUND: u32 = 3;

fn configs() -> impl Strategy<Value = SchedulerConfig> {
    let groups = prop_oneof![
        Just(vec![(0, 4)]),
        Just(vec![(0, 4), (6, 4)]),
        Just(vec![(0, 4), (5, 2)]),
        Just(vec![(7, 4)]),
        Just(vec![(0, 2), (1, 4), (9, 8)]),
    ];
    let sizes = (1_u32..6, 1_u32..24, prop_oneof![Just(0_u32), 1_u32..8], 0_u32..3);
    let host_blocks = prop_oneof![Just(0_u32), 1_u32..6, 6_u32..40];
    let rest = (
        1_u32..4,
        any::<bool>(),
        any::<bool>(),
        16_u32..40,
        0_u32..40,
        host_blocks,
    );
    (groups, sizes, rest).prop_map(|(groups, sizes, rest)| {
        let (max_num_seqs, max_num_batched_tokens, long_prefill_token_threshold, num_lookahead_tokens) = sizes;
        let (max_steps_in_flight, enable_prefix_caching, fcfs, max_model_len, spare_blocks, num_host_blocks) = rest;
        let kind = |tokens| {
            if tokens == 0 {
                KvKind::Full
            } else {
                KvKind::Window { tokens }
            }
        };
        let groups = groups.into_iter().map(|(window, block_size)| KvGroup {
            kind: kind(window),
            block_size,
        });
        let mut config = SchedulerConfig {
            max_num_seqs,
            max_num_batched_tokens,
            max_model_len,
            groups: groups.collect(),
            enable_prefix_caching,
            num_host_blocks,
            max_waiting: 12,
            policy: if fcfs { Policy::Fcfs } else { Policy::Priority },
            long_prefill_token_threshold,
            num_lookahead_tokens,
            max_steps_in_flight,
            ..SchedulerConfig::default()
        };
        // Enough for one request at full length, and little more: preemptions are common.
        config.num_blocks = config.blocks_for(max_model_len) as u32 + spare_blocks;
        config
    })
}

/// One caller: random calls in random order, then a drain.
struct Workload {
    rig: Rig,
    random: Random,
    next_id: u64,
    /// Ids in the order of adding.
    added: Vec<RequestId>,
    live: Vec<RequestId>,
    ended_early: Vec<RequestId>,
    holds: Vec<HoldId>,
}

impl Workload {
    fn add(&mut self) {
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let random = &mut self.random;
        let max_model_len = u64::from(self.rig.config.max_model_len);
        let len = 1 + random.below(max_model_len - 1);
        // Few first tokens and a shared pattern behind them: equal prefixes are common.
        let pattern = random.below(3);
        let prompt: Vec<u32> = (0..len)
            .map(|index| ((index * pattern + index / 7) % VOCABULARY) as u32)
            .collect();
        let salts: [Option<Arc<[u8]>>; 3] = [None, None, Some(Arc::from(&b"tenant"[..]))];
        let request = NewRequest {
            priority: random.below(3) as i32,
            arrival_ns: self.next_id,
            cache_salt: salts[random.below(3) as usize].clone(),
            lora: if random.one_in(4) {
                Some(random.below(2) as u32)
            } else {
                None
            },
            cacheable: !random.one_in(5),
            ..NewRequest::new(id, prompt, 1 + random.below(20) as u32)
        };
        match self.rig.add(request) {
            Ok(()) => {
                self.added.push(id);
                self.live.push(id);
                let num_drafts = self.random.below(4) as u32;
                self.rig
                    .scheduler
                    .set_num_drafts(id, num_drafts)
                    .expect("a live request");
            }
            // Preempted requests return to the queue above its bound.
            Err(error) => assert!(
                matches!(
                    error,
                    Error::QueueFull {
                        waiting: 12..,
                        limit: 12
                    }
                ),
                "{error}"
            ),
        }
    }

    fn read(&mut self) {
        for update in self.rig.read() {
            if update.finished.is_some() {
                self.live.retain(|id| *id != update.id);
            } else if self.random.one_in(30) {
                self.end(update.id);
            }
        }
    }

    fn end(&mut self, id: RequestId) {
        assert!(self.rig.scheduler.finish(id));
        self.rig.check();
        self.live.retain(|live| *live != id);
        self.ended_early.push(id);
        assert!(!self.rig.scheduler.abort(id), "it is gone");
    }

    fn hold(&mut self) {
        let free = self.rig.scheduler.counts().free_blocks;
        let num_blocks = self.random.below(4) as u32;
        match self.rig.scheduler.hold_blocks(num_blocks) {
            Ok(hold) => {
                assert_eq!(hold.blocks.len(), num_blocks as usize);
                self.holds.push(hold.id);
            }
            Err(error) => assert_eq!(
                error,
                Error::NotEnoughFreeBlocks {
                    asked: num_blocks,
                    free
                }
            ),
        }
        if let Some(id) = self.live.first() {
            self.holds
                .push(self.rig.scheduler.hold_request_blocks(*id).expect("a live request").id);
        }
        self.rig.check();
    }

    fn release(&mut self) {
        if let Some(hold) = self.holds.pop() {
            self.rig.scheduler.release_blocks(hold).expect("a hold");
            self.rig.check();
        }
    }

    fn call(&mut self) {
        match self.random.below(42) {
            0..8 => self.add(),
            8..22 => {
                self.rig.plan();
            }
            22..36 if !self.rig.device.in_flight.is_empty() => self.read(),
            36 if !self.live.is_empty() => {
                let index = self.random.below(self.live.len() as u64) as usize;
                self.end(self.live[index]);
            }
            37 => self.hold(),
            38 => self.release(),
            39 if self.random.one_in(4) => {
                self.rig.scheduler.reset_prefix_cache();
                self.rig.check();
            }
            39 => {
                let bound = [0, LEAST_BOUND, 9, 1000][self.random.below(4) as usize];
                self.rig.scheduler.set_max_prompt_tokens(bound);
            }
            40 => self.pause(),
            41 if self.random.one_in(8) => {
                self.rig.scheduler.preempt_all();
                self.rig.check();
                let used = self.rig.scheduler.counts().used_blocks;
                assert_eq!(self.rig.scheduler.reset_unused_prefix_cache(), used == 0);
                self.rig.check();
            }
            _ => {}
        }
    }

    /// A pause of some kind, or its end: mostly the end, so that most plans hold something.
    fn pause(&mut self) {
        let state = match self.random.below(8) {
            0 => PauseState::PausedAll,
            1 => PauseState::PausedNew,
            _ => PauseState::Unpaused,
        };
        self.rig.scheduler.set_pause_state(state);
        let plan = self.rig.plan();
        let admits = plan.as_ref().is_some_and(|plan| !plan.admitted.is_empty());
        match state {
            PauseState::Unpaused => {}
            PauseState::PausedNew => assert!(!admits),
            PauseState::PausedAll => assert!(plan.is_none()),
        }
    }

    fn drain(&mut self) {
        self.rig.scheduler.set_pause_state(PauseState::Unpaused);
        while !self.holds.is_empty() {
            self.release();
        }
        let mut idle = 0;
        while !self.rig.scheduler.is_idle() {
            let planned = self.rig.plan().is_some();
            let full = self.rig.device.in_flight.len() == self.rig.config.max_steps_in_flight as usize;
            let read = !self.rig.device.in_flight.is_empty() && (full || !planned || self.random.one_in(2));
            if read {
                self.read();
            }
            assert!(planned || read, "stuck: {:?}", self.rig.scheduler.counts());
            idle += 1;
            assert!(idle < 5_000, "no end: {:?}", self.rig.scheduler.counts());
        }
    }
}

/// Only prompts that are long in some step may be overtaken.
fn check_nobody_overtook_a_short_prompt(rig: &Rig) {
    let config = &rig.config;
    let least_prompt_tokens = config.max_num_batched_tokens.saturating_sub(config.max_num_seqs).max(1);
    let always_short = match config.long_prefill_token_threshold {
        0 => least_prompt_tokens.min(LEAST_BOUND) / 2,
        threshold => threshold,
    };
    for (at, id) in rig.admissions.iter().enumerate() {
        let is_short = rig.device.requests[id].prompt.len() <= always_short as usize;
        let overtaken_by = rig.admissions[..at].iter().find(|before| *before > id);
        assert!(!is_short || overtaken_by.is_none(), "{overtaken_by:?} overtook {id:?}");
    }
}

/// Runs one workload to its end and checks what it left.
fn run(config: SchedulerConfig, seed: u64, num_calls: usize) -> Workload {
    let mut rig = Rig::new(config);
    rig.device.empty_result_one_in = 12;
    let mut workload = Workload {
        rig,
        random: Random(seed),
        next_id: 0,
        added: vec![],
        live: vec![],
        ended_early: vec![],
        holds: vec![],
    };
    for _ in 0..num_calls {
        workload.call();
    }
    workload.drain();
    workload.rig.check_ended(&workload.ended_early);
    let Workload { rig, added, .. } = &workload;
    if rig.config.policy == Policy::Fcfs {
        assert!(added.is_sorted(), "ids are given in the order of adding");
        check_nobody_overtook_a_short_prompt(rig);
    }
    workload
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        rng_seed: prop::test_runner::RngSeed::Fixed(20_261_121),
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_workload_gives_the_models_tokens_and_loses_nothing(
        config in configs(),
        seed in any::<u64>(),
        num_calls in 50_usize..300,
    ) {
        run(config, seed, num_calls);
    }
}

/// The test above proves little if its workloads never reach a rule: here the same workloads must reach each often.
#[test]
fn workloads_reach_preemption_sharing_and_rollback() {
    let config = SchedulerConfig {
        max_num_seqs: 5,
        max_num_batched_tokens: 16,
        max_model_len: 32,
        num_blocks: 16,
        groups: vec![
            KvGroup {
                kind: KvKind::Full,
                block_size: 4,
            },
            KvGroup {
                kind: KvKind::Window { tokens: 6 },
                block_size: 4,
            },
        ],
        num_host_blocks: 20,
        max_waiting: 12,
        max_steps_in_flight: 3,
        ..SchedulerConfig::default()
    };
    let (mut preemptions, mut hits, mut rejected_drafts, mut kept_in_flight) = (0, 0, 0, 0);
    let (mut loaded, mut evicted, mut host_hits) = (0, 0, 0);
    for seed in 0..50 {
        let workload = run(config.clone(), seed, 200);
        let counts = workload.rig.scheduler.counts();
        preemptions += counts.preemptions;
        hits += counts.prefix_hits;
        loaded += counts.host_loaded_blocks;
        evicted += counts.host_evicted_blocks;
        host_hits += counts.host_prefix_hits;
        rejected_drafts += workload.rig.device.rejected_drafts;
        kept_in_flight += workload.rig.planned_over_flight;
    }
    assert!(preemptions > 100, "{preemptions} preemptions");
    assert!(hits > 1000, "{hits} tokens hit");
    assert!(
        loaded > 200 && evicted > 500,
        "{loaded} blocks came back, {evicted} went"
    );
    assert!(host_hits > 500, "{host_hits} tokens hit in host memory");
    assert!(rejected_drafts > 1000, "{rejected_drafts} drafts rejected");
    assert!(
        kept_in_flight > 1000,
        "{kept_in_flight} rows planned before their last result"
    );
}
