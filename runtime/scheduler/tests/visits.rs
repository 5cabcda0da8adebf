//! How many waiting requests a plan looks at: not more when more of them wait, whatever they wait for.

use halyard_scheduler::*;

const FEW: u64 = 100;
const MANY: u64 = 4000;

/// What each of some plans looks at while `num_waiting` requests wait. `running` gets rows first.
fn visits(
    config: &SchedulerConfig,
    running: &[NewRequest],
    num_waiting: u64,
    waiting: impl Fn(u64) -> NewRequest,
) -> Vec<u64> {
    let mut scheduler = Scheduler::new(config.clone()).expect("a valid configuration");
    for request in running {
        scheduler.add(request.clone()).expect("it fits");
    }
    let mut steps = (0..).map(|_| step(&mut scheduler));
    let num_admitted: usize = steps.by_ref().take(3).map(|(admitted, _)| admitted).sum();
    drop(steps);
    assert_eq!(num_admitted, running.len(), "all of them run");
    for index in 0..num_waiting {
        scheduler.add(waiting(index)).expect("it fits");
    }
    let visits = (0..10).map(|_| step(&mut scheduler).1).collect();
    scheduler.check_integrity().expect("integrity");
    assert!(scheduler.counts().waiting as u64 + 10 >= num_waiting, "they wait");
    visits
}

/// Runs one step. Returns how many requests were admitted, and how many waiting ones the plan looked at.
fn step(scheduler: &mut Scheduler) -> (usize, u64) {
    let before = scheduler.counts().waiting_visits;
    let plan = scheduler.schedule(0);
    let visits = scheduler.counts().waiting_visits - before;
    let mut loads = Vec::new();
    scheduler.take_lora_loads(&mut loads);
    for load in loads {
        scheduler.lora_loaded(load.lora);
    }
    let Some(plan) = plan else { return (0, visits) };
    let emits = plan.scheduled.iter().filter(|row| row.emits);
    let results: Vec<_> = emits
        .map(|row| RowResult {
            id: row.id,
            tokens: &[7],
        })
        .collect();
    scheduler.update(plan.step, &results).expect("results in order");
    (plan.admitted.len(), visits)
}

fn config() -> SchedulerConfig {
    SchedulerConfig {
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        max_model_len: 4096,
        num_blocks: 100_000,
        max_waiting: 1 << 20,
        ..SchedulerConfig::default()
    }
}

fn request(id: u64, prompt_len: usize) -> NewRequest {
    NewRequest::new(RequestId(id), vec![id as u32; prompt_len], 1000)
}

fn waits_equally(config: &SchedulerConfig, running: &[NewRequest], waiting: impl Fn(u64) -> NewRequest) -> Vec<u64> {
    let few = visits(config, running, FEW, &waiting);
    let many = visits(config, running, MANY, &waiting);
    assert_eq!(few, many, "visits of each plan with {FEW} and with {MANY} waiting");
    many
}

#[test]
fn none_while_every_row_has_an_owner() {
    let running: Vec<_> = (0..8).map(|id| request(id, 4)).collect();
    let seen = waits_equally(&config(), &running, |index| request(100 + index, 4));
    assert_eq!(seen, [0; 10]);
}

#[test]
fn one_while_blocks_are_short() {
    let config = SchedulerConfig {
        num_blocks: 80,
        max_num_seqs: 64,
        ..config()
    };
    let seen = waits_equally(&config, &[request(0, 60), request(1, 60)], |index| NewRequest {
        max_tokens: 1,
        ..request(100 + index, 1200)
    });
    assert_eq!(seen, [1; 10]);
}

#[test]
fn no_long_prompt_while_another_one_has_the_share() {
    let seen = waits_equally(&config(), &[request(0, 2000)], |index| {
        request(100 + index, 200 + index as usize % 50)
    });
    assert_eq!(seen, [0; 10]);
}

#[test]
fn a_short_prompt_behind_thousands_of_long_ones_is_found_at_once() {
    let mut scheduler = Scheduler::new(config()).expect("valid");
    scheduler.add(request(0, 2000)).expect("it fits");
    step(&mut scheduler);
    for index in 0..MANY {
        scheduler.add(request(100 + index, 200)).expect("it fits");
    }
    scheduler.add(request(1, 8)).expect("it fits");
    assert_eq!(step(&mut scheduler), (1, 1), "admitted, and nothing else was looked at");
}

#[test]
fn a_bounded_number_of_adapters_without_a_slot() {
    let config = SchedulerConfig {
        num_lora_slots: 2,
        ..config()
    };
    let with_adapter = |id, lora| NewRequest {
        lora: Some(lora),
        ..request(id, 4)
    };
    let seen = waits_equally(&config, &[with_adapter(0, 1), with_adapter(1, 2)], |index| {
        with_adapter(100 + index, 10 + index as u32)
    });
    assert!(seen.iter().all(|visits| *visits <= 32), "{seen:?}");
}

#[test]
fn one_for_many_requests_of_an_adapter_without_a_slot() {
    let config = SchedulerConfig {
        num_lora_slots: 1,
        ..config()
    };
    let with_adapter = |id, lora| NewRequest {
        lora: Some(lora),
        ..request(id, 4)
    };
    let seen = waits_equally(&config, &[with_adapter(0, 1)], |index| with_adapter(100 + index, 2));
    assert_eq!(seen, [1; 10]);
}

#[test]
fn prompts_that_look_cached_and_are_long_are_looked_up_a_few_a_plan() {
    let config = SchedulerConfig {
        max_num_batched_tokens: 4096,
        max_model_len: 1 << 20,
        long_prefill_token_threshold: 1024,
        ..config()
    };
    let prompt = |index: u64, len: u32| {
        // The first 1,024 tokens are cached once request 0 has computed them.
        let tokens: Vec<u32> = (0..len)
            .map(|at| if at < 1024 { at } else { 7 + index as u32 })
            .collect();
        NewRequest::new(RequestId(100 + index), tokens, 10)
    };
    let mut scheduler = Scheduler::new(config).expect("valid");
    let first: Vec<u32> = (0..1040).collect();
    scheduler
        .add(NewRequest::new(RequestId(0), first, 10))
        .expect("it fits");
    step(&mut scheduler);
    step(&mut scheduler);
    scheduler.add(request(1, 100_000)).expect("it fits");
    scheduler.add(request(2, 100_000)).expect("it fits");
    step(&mut scheduler);
    for index in 0..200 {
        scheduler.add(prompt(index, 4000)).expect("it fits");
    }
    let seen: Vec<u64> = (0..20).map(|_| step(&mut scheduler).1).collect();
    assert!(seen.iter().all(|visits| *visits <= 24), "{seen:?}");
    scheduler.check_integrity().expect("integrity");
}
