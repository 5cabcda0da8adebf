//! Adapter slots: which requests are admitted, in which order adapters get slots, and that an adapter in use stays. A
//! fake device of a few lines holds the slots and checks every row against them.

mod common;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use common::Random;
use halyard_scheduler::{
    LoraLoad, LoraResident, NewRequest, Policy, RequestId, RowResult, Scheduler, SchedulerConfig, SchedulerOutput,
};

/// Scheduler and device together.
struct Rig {
    scheduler: Scheduler,
    /// Adapter of each slot, once loaded.
    slots: Vec<Option<u32>>,
    loading: VecDeque<LoraLoad>,
    in_flight: VecDeque<SchedulerOutput>,
    /// Slot of each request with a row.
    rows: BTreeMap<RequestId, Option<u32>>,
    lora_of: BTreeMap<RequestId, Option<u32>>,
    admissions: Vec<RequestId>,
    finished: Vec<RequestId>,
    num_loads: usize,
}

impl Rig {
    fn new(num_lora_slots: u32, change: impl FnOnce(&mut SchedulerConfig)) -> Rig {
        let mut config = SchedulerConfig {
            num_blocks: 64,
            max_num_seqs: 8,
            max_model_len: 64,
            num_lora_slots,
            ..SchedulerConfig::default()
        };
        change(&mut config);
        Rig {
            scheduler: Scheduler::new(config).expect("a valid configuration"),
            slots: vec![None; num_lora_slots as usize],
            loading: VecDeque::new(),
            in_flight: VecDeque::new(),
            rows: BTreeMap::new(),
            lora_of: BTreeMap::new(),
            admissions: Vec::new(),
            finished: Vec::new(),
            num_loads: 0,
        }
    }

    fn add(&mut self, id: u64, lora: Option<u32>, max_tokens: u32) -> RequestId {
        let prompt: Arc<[u32]> = Arc::from([1, 2, 3, id as u32]);
        let new = NewRequest {
            lora,
            ..NewRequest::new(RequestId(id), prompt, max_tokens)
        };
        self.scheduler.add(new).expect("a request that fits");
        self.lora_of.insert(RequestId(id), lora);
        RequestId(id)
    }

    /// Plans one step. False: nothing to plan.
    fn plan(&mut self) -> bool {
        let plan = self.scheduler.schedule(0);
        let mut loads = Vec::new();
        self.scheduler.take_lora_loads(&mut loads);
        for load in loads {
            for step in &self.in_flight {
                let used = step.scheduled.iter().any(|row| self.rows[&row.id] == Some(load.slot));
                assert!(!used, "slot {} is loaded under a step in flight", load.slot);
            }
            self.slots[load.slot as usize] = None;
            self.loading.push_back(load);
            self.num_loads += 1;
        }
        self.scheduler.check_integrity().expect("integrity");
        let Some(plan) = plan else { return false };
        for admitted in &plan.admitted {
            assert_eq!(admitted.lora_slot.is_some(), self.lora_of[&admitted.id].is_some());
            self.rows.insert(admitted.id, admitted.lora_slot);
            self.admissions.push(admitted.id);
        }
        for row in &plan.scheduled {
            if let Some(slot) = self.rows[&row.id] {
                assert_eq!(
                    self.slots[slot as usize], self.lora_of[&row.id],
                    "another adapter is in the row's slot"
                );
            }
        }
        self.in_flight.push_back(plan);
        true
    }

    fn finish_load(&mut self) -> bool {
        let Some(load) = self.loading.pop_front() else {
            return false;
        };
        self.slots[load.slot as usize] = Some(load.lora);
        self.scheduler.lora_loaded(load.lora);
        true
    }

    fn collect(&mut self) -> bool {
        let Some(step) = self.in_flight.pop_front() else {
            return false;
        };
        let emits = step.scheduled.iter().filter(|row| row.emits);
        let results: Vec<_> = emits
            .map(|row| RowResult {
                id: row.id,
                tokens: &[7],
            })
            .collect();
        let updates = self.scheduler.update(step.step, &results).expect("results in order");
        let ended = updates.iter().filter(|update| update.finished.is_some());
        self.finished.extend(ended.map(|update| update.id));
        true
    }

    /// Runs until nothing is left to do.
    fn run(&mut self) {
        for _ in 0..10_000 {
            let planned = self.plan();
            let loaded = self.finish_load();
            let collected = self.collect();
            if !(planned || loaded || collected) {
                return;
            }
        }
        panic!("no end: {:?}", self.scheduler.counts());
    }

    fn residents(&self) -> Vec<LoraResident> {
        self.scheduler.lora_residents().collect()
    }
}

#[test]
fn a_request_waits_for_its_adapter_and_others_pass() {
    let mut rig = Rig::new(1, |_| {});
    let adapted = rig.add(1, Some(10), 2);
    let plain = rig.add(2, None, 2);
    assert!(rig.plan());
    assert_eq!(rig.admissions, [plain], "nothing is loaded yet");
    assert_eq!(rig.loading, [LoraLoad { slot: 0, lora: 10 }]);
    rig.finish_load();
    rig.collect();
    rig.plan();
    assert_eq!(rig.admissions, [plain, adapted]);
    rig.run();
    assert_eq!(rig.finished.len(), 2);
}

#[test]
fn the_slot_used_longest_ago_is_given_up() {
    let mut rig = Rig::new(2, |_| {});
    for (id, lora) in [(1, 10), (2, 11), (3, 10)] {
        rig.add(id, Some(lora), 1);
        rig.run();
    }
    assert_eq!(rig.num_loads, 2, "the third found its adapter");
    rig.add(4, Some(12), 1);
    rig.run();
    let held: Vec<u32> = rig.residents().iter().map(|resident| resident.lora).collect();
    assert_eq!(held, [10, 12], "11 was used longest ago");
}

#[test]
fn an_adapter_in_use_stays() {
    let mut rig = Rig::new(1, |_| {});
    rig.add(1, Some(10), 20);
    rig.plan();
    rig.finish_load();
    rig.plan();
    let other = rig.add(2, Some(11), 1);
    for _ in 0..10 {
        rig.collect();
        rig.plan();
        assert_eq!(rig.residents()[0].lora, 10);
    }
    rig.run();
    assert_eq!(rig.finished, [RequestId(1), other]);
}

#[test]
fn a_stream_of_requests_for_one_adapter_does_not_starve_another() {
    let mut rig = Rig::new(1, |c| c.max_num_seqs = 4);
    rig.add(1, Some(10), 3);
    rig.plan();
    rig.finish_load();
    rig.plan();
    let mut next = 2;
    let waiting = rig.add(1000, Some(11), 1);
    // There are always two requests of the resident adapter running or waiting.
    let mut passed = 0;
    while !rig.finished.contains(&waiting) {
        while rig.scheduler.counts().running + rig.scheduler.counts().waiting < 4 {
            rig.add(next, Some(10), 3);
            next += 1;
        }
        rig.plan();
        rig.finish_load();
        rig.collect();
        passed += 1;
        assert!(passed < 200, "the other adapter's turn never came");
    }
    let before = rig.admissions.iter().position(|id| *id == waiting).expect("admitted");
    assert!((20..60).contains(&before), "{before} were admitted before it");
}

#[test]
fn more_adapters_than_slots_all_finish() {
    for (seed, policy) in [(1, Policy::Fcfs), (2, Policy::Fcfs), (3, Policy::Priority)] {
        let mut random = Random(seed);
        let mut rig = Rig::new(3, |c| {
            c.policy = policy;
            c.max_steps_in_flight = 2;
            // Few blocks: requests are preempted and lose their slot's use with their row.
            c.num_blocks = 14;
        });
        let (mut added, mut aborted) = (0, Vec::new());
        while added < 200 || !rig.scheduler.is_idle() {
            if added < 200 && random.below(3) > 0 {
                let lora = (random.below(5) > 0).then(|| random.below(12) as u32);
                added += 1;
                rig.add(added, lora, 1 + random.below(30) as u32);
            }
            if random.one_in(40) {
                let id = RequestId(1 + random.below(added.max(1)));
                if rig.scheduler.abort(id) {
                    aborted.push(id);
                }
            }
            match random.below(4) {
                0 => drop(rig.finish_load()),
                1 => drop(rig.collect()),
                _ => drop(rig.plan()),
            }
        }
        assert_eq!(rig.finished.len() + aborted.len(), 200, "seed {seed}");
        assert!(rig.residents().iter().all(|resident| resident.users == 0));
    }
}

#[test]
fn a_failed_load_frees_its_slot_and_names_who_waits() {
    let mut rig = Rig::new(1, |_| {});
    let (first, second) = (rig.add(1, Some(10), 1), rig.add(2, Some(10), 1));
    rig.plan();
    rig.loading.clear();
    assert_eq!(rig.scheduler.lora_failed(10), [first, second]);
    for id in [first, second] {
        assert!(rig.scheduler.abort(id));
    }
    assert!(rig.residents().is_empty());
    rig.add(3, Some(11), 1);
    rig.run();
    assert_eq!(rig.finished, [RequestId(3)]);
}

#[test]
fn an_adapter_is_forgotten_once_nothing_names_it() {
    let mut rig = Rig::new(2, |_| {});
    rig.add(1, Some(10), 5);
    rig.plan();
    assert!(!rig.scheduler.forget_lora(10), "a request waits for it");
    rig.finish_load();
    rig.plan();
    rig.scheduler.abort(RequestId(1));
    assert!(!rig.scheduler.forget_lora(10), "a step in flight reads it");
    rig.collect();
    assert!(rig.scheduler.forget_lora(10));
    assert!(rig.residents().is_empty());
}
