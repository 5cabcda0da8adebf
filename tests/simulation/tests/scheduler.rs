//! The scheduler over a device that checks every KV slot it reads: random requests, cancels, drafts, adapters that
//! load late or never, blocks
//! held by others until none are left, a clock that jumps, steps that are read back late. Integrity is checked after
//! every call.
//! One thread, no clock: a seed gives the same run.

#[path = "../../../runtime/scheduler/tests/common/mod.rs"]
mod common;

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use common::{Random, Rig, VOCABULARY};
use halyard_scheduler::*;

/// Steps of one world, after which all must have ended and a new one is made with another configuration.
const WORLD_STEPS: u64 = 5_000;
/// Adapters that requests name.
const NUM_LORAS: u64 = 5;

/// What happened, over all worlds.
#[derive(Debug, Default)]
struct Happened {
    steps: u64,
    requests: u64,
    finished: u64,
    cancelled: u64,
    refused: u64,
    preemptions: u64,
    prefix_hits: u64,
    from_host: u64,
    loads_failed: u64,
    memory_gone: u64,
    clock_jumps: u64,
    rejected_drafts: u64,
}

struct World {
    rig: Rig,
    random: Random,
    next_id: u64,
    live: Vec<RequestId>,
    ended_early: Vec<RequestId>,
    holds: Vec<HoldId>,
    loading: Vec<u32>,
    happened: Happened,
    steps: u64,
}

fn config(random: &mut Random) -> SchedulerConfig {
    let groups: &[(u32, u32)] = match random.below(5) {
        0 => &[(0, 4)],
        1 => &[(0, 4), (6, 4)],
        2 => &[(0, 4), (5, 2)],
        3 => &[(7, 4)],
        _ => &[(0, 2), (1, 4), (9, 8)],
    };
    let group = |&(window, block_size): &(u32, u32)| KvGroup {
        kind: if window == 0 {
            KvKind::Full
        } else {
            KvKind::Window { tokens: window }
        },
        block_size,
    };
    let mut config = SchedulerConfig {
        max_num_seqs: 1 + random.below(8) as u32,
        max_num_batched_tokens: 1 + random.below(32) as u32,
        max_model_len: 16 + random.below(32) as u32,
        groups: groups.iter().map(group).collect(),
        enable_prefix_caching: !random.one_in(4),
        num_host_blocks: if random.one_in(2) {
            0
        } else {
            1 + random.below(30) as u32
        },
        max_waiting: 12,
        policy: if random.one_in(2) {
            Policy::Fcfs
        } else {
            Policy::Priority
        },
        long_prefill_token_threshold: if random.one_in(2) {
            0
        } else {
            1 + random.below(8) as u32
        },
        num_lookahead_tokens: random.below(3) as u32,
        max_steps_in_flight: 1 + random.below(4) as u32,
        num_lora_slots: random.below(3) as u32,
        ..SchedulerConfig::default()
    };
    // Enough for one request at full length, and little more: preemptions are common.
    config.num_blocks = config.blocks_for(config.max_model_len) as u32 + random.below(40) as u32;
    config
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let mut rig = Rig::new(config(&mut random));
        rig.device.empty_result_one_in = 12;
        World {
            rig,
            random,
            next_id: 0,
            live: Vec::new(),
            ended_early: Vec::new(),
            holds: Vec::new(),
            loading: Vec::new(),
            happened: Happened::default(),
            steps: 0,
        }
    }

    fn add(&mut self) {
        let random = &mut self.random;
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let len = 1 + random.below(u64::from(self.rig.config.max_model_len) - 1);
        // Few first tokens and a shared pattern behind them: equal prefixes are common.
        let pattern = random.below(3);
        let prompt: Vec<u32> = (0..len)
            .map(|at| ((at * pattern + at / 7) % VOCABULARY) as u32)
            .collect();
        let lora = random.one_in(3).then(|| random.below(NUM_LORAS) as u32);
        let request = NewRequest {
            priority: random.below(3) as i32,
            arrival_ns: self.rig.now_ns,
            cache_salt: random.one_in(3).then(|| Arc::from(&b"tenant"[..])),
            lora,
            cacheable: !random.one_in(5),
            ..NewRequest::new(id, prompt, 1 + random.below(20) as u32)
        };
        match self.rig.add(request) {
            Ok(()) => {
                self.happened.requests += 1;
                self.live.push(id);
                let num_drafts = self.random.below(4) as u32;
                self.rig
                    .scheduler
                    .set_num_drafts(id, num_drafts)
                    .expect("a live request");
            }
            Err(Error::QueueFull { limit: 12, .. }) => self.happened.refused += 1,
            Err(error) => panic!("{error}"),
        }
    }

    fn plan(&mut self) -> bool {
        let planned = self.rig.plan().is_some();
        self.steps += u64::from(planned);
        let mut loads = Vec::new();
        self.rig.scheduler.take_lora_loads(&mut loads);
        self.loading.extend(loads.iter().map(|load| load.lora));
        planned
    }

    fn read(&mut self) {
        for update in self.rig.read() {
            if update.finished.is_some() {
                self.happened.finished += 1;
                self.live.retain(|id| *id != update.id);
            } else if self.random.one_in(30) {
                // An end token, or a stop string.
                self.end(update.id, true);
            }
        }
    }

    fn end(&mut self, id: RequestId, finished: bool) {
        let ended = if finished {
            self.rig.scheduler.finish(id)
        } else {
            self.rig.scheduler.abort(id)
        };
        assert!(ended, "{id:?} was live");
        self.rig.check();
        assert!(!self.rig.scheduler.abort(id), "{id:?} ends once");
        self.happened.cancelled += 1;
        self.live.retain(|live| *live != id);
        self.ended_early.push(id);
    }

    /// An adapter's load ends, one way or the other.
    fn load(&mut self) {
        let at = self.random.below(self.loading.len() as u64) as usize;
        let lora = self.loading.swap_remove(at);
        if self.random.one_in(4) {
            self.happened.loads_failed += 1;
            for id in self.rig.scheduler.lora_failed(lora) {
                self.end(id, false);
            }
        } else {
            self.rig.scheduler.lora_loaded(lora);
        }
        self.rig.check();
    }

    /// Others take blocks, sometimes all that are free.
    fn hold(&mut self) {
        let free = self.rig.scheduler.counts().free_blocks;
        let all = self.random.one_in(3);
        let asked = if all { free } else { self.random.below(4) as u32 };
        match self.rig.scheduler.hold_blocks(asked) {
            Ok(hold) => {
                self.happened.memory_gone += u64::from(all);
                self.holds.push(hold.id);
            }
            Err(error) => assert_eq!(error, Error::NotEnoughFreeBlocks { asked, free }),
        }
        self.rig.check();
    }

    fn release(&mut self) {
        if let Some(hold) = self.holds.pop() {
            self.rig.scheduler.release_blocks(hold).expect("a hold");
            self.rig.check();
        }
    }

    fn jump(&mut self) {
        let random = &mut self.random;
        let now = self.rig.now_ns;
        self.rig.now_ns = match random.below(5) {
            0 => 0,
            1 => now.wrapping_sub(random.below(1 << 40)),
            2 => u64::MAX - random.below(1 << 20),
            3 => now.wrapping_add(random.below(1 << 60)),
            _ => now,
        };
        self.happened.clock_jumps += 1;
    }

    fn call(&mut self) {
        self.rig.now_ns = self.rig.now_ns.wrapping_add(self.random.below(1_000_000));
        match self.random.below(64) {
            0..12 => self.add(),
            12..36 => drop(self.plan()),
            36..56 if !self.rig.device.in_flight.is_empty() => self.read(),
            56 if !self.live.is_empty() => {
                let at = self.random.below(self.live.len() as u64) as usize;
                self.end(self.live[at], false);
            }
            57 => self.hold(),
            58 | 59 => self.release(),
            60 | 61 if !self.loading.is_empty() => self.load(),
            62 => self.jump(),
            63 => match self.random.below(8) {
                0 => drop(self.rig.scheduler.reset_prefix_cache()),
                1 => {
                    let bound = [0, 3, 9, 1000][self.random.below(4) as usize];
                    self.rig.scheduler.set_max_prompt_tokens(bound);
                }
                2 => {
                    // Not while it is loading or in use: then it says so and nothing happens.
                    self.rig.scheduler.forget_lora(self.random.below(NUM_LORAS) as u32);
                }
                _ => {}
            },
            _ => {}
        }
    }

    /// No more faults: everything that is left must come to its end.
    fn drain(&mut self) {
        while !self.holds.is_empty() {
            self.release();
        }
        let mut idle = 0;
        while !self.rig.scheduler.is_idle() {
            let planned = self.plan();
            for lora in std::mem::take(&mut self.loading) {
                self.rig.scheduler.lora_loaded(lora);
            }
            let read = !self.rig.device.in_flight.is_empty();
            if read {
                self.read();
            }
            idle = if planned || read { 0 } else { idle + 1 };
            assert!(idle < 50, "stuck: {:?}", self.rig.scheduler.counts());
        }
    }

    fn run(mut self, steps: u64) -> Happened {
        while self.steps < steps {
            self.call();
        }
        self.drain();
        let unique: BTreeSet<_> = self.rig.finished.iter().chain(&self.ended_early).collect();
        let ends = self.rig.finished.len() + self.ended_early.len();
        assert_eq!(unique.len(), ends, "a request ended twice");
        assert_eq!(ends as u64, self.happened.requests, "a request did not end");
        self.rig.check_ended(&self.ended_early);
        let counts = self.rig.scheduler.counts();
        assert_eq!((counts.running, counts.waiting), (0, 0));
        assert_eq!(counts.free_blocks, self.rig.config.num_blocks, "blocks are lost");
        self.happened.preemptions = counts.preemptions;
        self.happened.prefix_hits = counts.prefix_hits;
        self.happened.from_host = counts.host_loaded_blocks;
        self.happened.rejected_drafts = self.rig.device.rejected_drafts as u64;
        self.happened.steps = self.steps;
        self.happened
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

#[test]
fn a_million_steps_with_faults_lose_nothing() {
    let total = number("HALYARD_SIMULATION_STEPS").unwrap_or(1_000_000);
    let first = number("HALYARD_SIMULATION_SEED").unwrap_or(0);
    let mut all = Happened::default();
    let mut seed = first;
    while all.steps < total {
        let world = std::panic::catch_unwind(AssertUnwindSafe(|| World::new(seed).run(WORLD_STEPS)));
        let happened = world.unwrap_or_else(|panic| {
            println!(
                "repeat it: HALYARD_SIMULATION_SEED={seed} HALYARD_SIMULATION_STEPS=1 cargo test -p \
                 halyard-simulation --test scheduler"
            );
            std::panic::resume_unwind(panic)
        });
        all.steps += happened.steps;
        all.requests += happened.requests;
        all.finished += happened.finished;
        all.cancelled += happened.cancelled;
        all.refused += happened.refused;
        all.preemptions += happened.preemptions;
        all.prefix_hits += happened.prefix_hits;
        all.from_host += happened.from_host;
        all.loads_failed += happened.loads_failed;
        all.memory_gone += happened.memory_gone;
        all.clock_jumps += happened.clock_jumps;
        all.rejected_drafts += happened.rejected_drafts;
        seed += 1;
    }
    println!("{all:?}");
    // A run in which a fault never comes proves nothing about it.
    if total >= 100_000 {
        for (event, times) in [
            ("finished", all.finished),
            ("cancelled", all.cancelled),
            ("refused", all.refused),
            ("preemptions", all.preemptions),
            ("prefix hits", all.prefix_hits),
            ("blocks from the host", all.from_host),
            ("failed loads", all.loads_failed),
            ("no memory", all.memory_gone),
            ("clock jumps", all.clock_jumps),
            ("rejected drafts", all.rejected_drafts),
        ] {
            assert!(times > 1000, "{event}: {times} times");
        }
    }
}
