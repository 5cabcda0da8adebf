//! Curves of the scheduler alone: planning a step and taking its results, in microseconds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use halyard_scheduler::{
    NewRequest, RequestId, RowResult, Scheduler, SchedulerConfig, SchedulerOutput, StepId, Update,
};

use super::Planned;
use super::curve::{Curve, Law};
use crate::error::BenchError;
use crate::report::median;

const WAITING: [u64; 4] = [10, 100, 1000, 10_000];
const RUNNING: [u64; 6] = [1, 4, 16, 64, 256, 1024];
const CONTEXT: [u64; 4] = [1 << 10, 8 << 10, 32 << 10, 128 << 10];
const BLOCKS: [u64; 4] = [1_000, 10_000, 100_000, 1_000_000];
const ADAPTERS: [u64; 5] = [0, 1, 8, 32, 64];
const STEPS: usize = 400;
const WARM_UP: usize = 20;
/// Times that a cache is filled.
const FILLS: usize = 4;
const UNIT: &str = "us a step";

/// All of them.
pub fn curves() -> Vec<Planned> {
    let constant = |id: &str, title: &str, x: &str| Curve::new(id, title, x, UNIT, Law::Constant);
    let waiting = "waiting requests";
    vec![
        Planned::new(
            constant("plan-waiting-rows", "plan, 256 decode, no row free", waiting),
            &WAITING,
            |n| {
                let mut rig = Rig::new(SchedulerConfig {
                    max_num_seqs: 256,
                    ..config()
                })?;
                rig.run(256, 16)?;
                rig.wait(n, 16, None)?;
                rig.measure()
            },
        ),
        Planned::new(
            constant("plan-waiting-long", "plan, 64 decode, long prompts wait", waiting),
            &WAITING,
            |n| {
                let mut rig = Rig::new(SchedulerConfig {
                    max_num_batched_tokens: 2048,
                    max_model_len: 1 << 21,
                    ..config()
                })?;
                rig.run(64, 16)?;
                rig.add(vec![9; 2_000_000].into(), 10, None)?;
                rig.wait(n, 3000, None)?;
                rig.measure()
            },
        ),
        Planned::new(
            constant("plan-waiting-blocks", "plan, 64 decode, blocks are short", waiting),
            &WAITING,
            |n| {
                let mut rig = Rig::new(SchedulerConfig {
                    num_blocks: 2500,
                    max_model_len: 40_000,
                    ..config()
                })?;
                rig.run(64, 16)?;
                rig.wait(n, 30_000, None)?;
                rig.measure()
            },
        ),
        Planned::new(
            constant(
                "plan-waiting-adapters",
                "plan, 64 decode, 64 adapters wait for 8 slots",
                waiting,
            ),
            &WAITING,
            |n| {
                let mut rig = Rig::new(SchedulerConfig {
                    num_lora_slots: 8,
                    ..config()
                })?;
                rig.run_adapters(64, 8)?;
                rig.wait(n, 16, Some(64))?;
                rig.measure()
            },
        ),
        Planned::new(
            Curve::new(
                "plan-running",
                "plan, all decode",
                "running requests",
                UNIT,
                Law::Linear,
            ),
            &RUNNING,
            |n| {
                let mut rig = Rig::new(config())?;
                rig.run(n, 16)?;
                rig.measure()
            },
        ),
        Planned::new(
            constant("plan-context", "plan, 64 decode", "tokens of context"),
            &CONTEXT,
            |n| {
                let mut rig = Rig::new(SchedulerConfig {
                    max_num_batched_tokens: 1 << 24,
                    ..config()
                })?;
                rig.run(64, n as usize)?;
                rig.measure()
            },
        ),
        Planned::new(
            constant(
                "plan-cache",
                "add and plan a prompt of 512, cache full",
                "blocks cached",
            ),
            &BLOCKS,
            |n| Ok(fill(n)?.1),
        ),
        Planned::new(
            constant(
                "plan-cache-worst",
                "worst plan while the cache fills",
                "blocks of the cache",
            ),
            &BLOCKS,
            |n| Ok(fill(n)?.0),
        ),
        Planned::new(
            constant(
                "plan-adapters",
                "plan, 256 decode over n adapters",
                "adapters on the device",
            ),
            &ADAPTERS,
            |n| {
                let mut rig = Rig::new(SchedulerConfig {
                    num_lora_slots: 64,
                    ..config()
                })?;
                rig.run_adapters(256, n)?;
                rig.measure()
            },
        ),
    ]
}

fn config() -> SchedulerConfig {
    SchedulerConfig {
        max_num_seqs: 1024,
        max_num_batched_tokens: 8192,
        max_model_len: 1 << 18,
        num_blocks: 1 << 20,
        max_waiting: 1 << 20,
        max_steps_in_flight: 2,
        ..SchedulerConfig::default()
    }
}

/// A scheduler and a device that answers at once, one step later, as an asynchronous one.
struct Rig {
    scheduler: Scheduler,
    plan: SchedulerOutput,
    updates: Vec<Update>,
    emitting: Vec<RequestId>,
    in_flight: Option<StepId>,
    next_id: u64,
}

impl Rig {
    fn new(config: SchedulerConfig) -> Result<Rig, BenchError> {
        Ok(Rig {
            scheduler: Scheduler::new(config)?,
            plan: SchedulerOutput::default(),
            updates: Vec::new(),
            emitting: Vec::new(),
            in_flight: None,
            next_id: 0,
        })
    }

    fn add(&mut self, prompt: Arc<[u32]>, max_tokens: u32, lora: Option<u32>) -> Result<(), BenchError> {
        self.next_id += 1;
        let new = NewRequest::new(RequestId(self.next_id), prompt, max_tokens);
        Ok(self.scheduler.add(NewRequest { lora, ..new })?)
    }

    /// Adds `count` requests with prompts of their own and computes the prompts.
    fn run(&mut self, count: u64, prompt_len: usize) -> Result<(), BenchError> {
        for _ in 0..count {
            let mut prompt = vec![self.next_id as u32 + 1; prompt_len];
            prompt[0] = 0;
            self.add(prompt.into(), 100_000, None)?;
        }
        self.settle(count as usize)
    }

    /// The same over `adapters` adapters; 0: over none.
    fn run_adapters(&mut self, count: u64, adapters: u64) -> Result<(), BenchError> {
        for index in 0..count {
            let lora = index.checked_rem(adapters).map(|adapter| adapter as u32);
            self.add(vec![index as u32 + 1; 16].into(), 100_000, lora)?;
        }
        self.settle(count as usize)
    }

    fn settle(&mut self, running: usize) -> Result<(), BenchError> {
        while self.scheduler.counts().running < running {
            self.step()?;
        }
        Ok(())
    }

    /// Adds requests that cannot be admitted; over `adapters` other adapters than those of the running ones.
    fn wait(&mut self, count: u64, prompt_len: usize, adapters: Option<u64>) -> Result<(), BenchError> {
        let prompt: Arc<[u32]> = vec![5; prompt_len].into();
        for index in 0..count {
            let lora = adapters.map(|adapters| 1000 + (index % adapters) as u32);
            self.add(prompt.clone(), 100, lora)?;
        }
        Ok(())
    }

    /// One step; the time of planning it and of taking the results of the one before.
    fn step(&mut self) -> Result<Duration, BenchError> {
        let start = Instant::now();
        let planned = self.scheduler.schedule_into(0, &mut self.plan);
        let plan_time = start.elapsed();
        let mut loads = Vec::new();
        self.scheduler.take_lora_loads(&mut loads);
        loads.iter().for_each(|load| self.scheduler.lora_loaded(load.lora));
        let results: Vec<_> = self
            .emitting
            .iter()
            .map(|id| RowResult { id: *id, tokens: &[1] })
            .collect();
        let start = Instant::now();
        if let Some(step) = self.in_flight.take() {
            self.scheduler.update_into(step, &results, &mut self.updates)?;
        }
        let update_time = start.elapsed();
        self.emitting.clear();
        if planned {
            let emitting = self.plan.scheduled.iter().filter(|row| row.emits);
            self.emitting.extend(emitting.map(|row| row.id));
            self.in_flight = Some(self.plan.step);
        }
        Ok(plan_time + update_time)
    }

    /// The median of many steps.
    fn measure(&mut self) -> Result<f64, BenchError> {
        for _ in 0..WARM_UP {
            self.step()?;
        }
        let times = (0..STEPS)
            .map(|_| Ok(micros(self.step()?)))
            .collect::<Result<Vec<_>, BenchError>>();
        Ok(median(&mut times?))
    }
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// Computes prompts of 512 tokens, each alone and with an end after its first token, until every block is cached, and
/// 400 more. The worst step of the first part, and the median of the rest, both with adding the request. The fill is
/// repeated, and each of its steps counts with its least time: what the same step costs each time is not noise.
fn fill(num_blocks: u64) -> Result<(f64, f64), BenchError> {
    let (mut filling, mut full): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    for pass in 0..FILLS {
        let mut rig = Rig::new(SchedulerConfig {
            num_blocks: num_blocks as u32,
            max_model_len: 1024,
            ..config()
        })?;
        let (mut num_steps, mut num_more) = (0, 0);
        while num_more < STEPS {
            let prompt: Arc<[u32]> = (0..512).map(|at| if at == 0 { num_steps as u32 } else { at }).collect();
            let start = Instant::now();
            rig.add(prompt, 1, None)?;
            let added = start.elapsed();
            let time = micros(added + rig.step()?);
            if rig.scheduler.counts().cached_blocks as u64 + 64 > num_blocks {
                num_more += 1;
                full.push(time);
            } else if pass == 0 {
                filling.push(time);
            } else if let Some(known) = filling.get_mut(num_steps) {
                *known = known.min(time);
            }
            num_steps += 1;
        }
    }
    // The first steps make vectors.
    let worst = filling
        .iter()
        .skip(WARM_UP)
        .fold(0.0, |worst: f64, time| worst.max(*time));
    Ok((worst, median(&mut full)))
}
