//! Prints what schedule and update cost for 256 running decode rows. Run it in release on an idle machine.

use std::error::Error;
use std::time::Instant;

use halyard_scheduler::{
    KvGroup, KvKind, NewRequest, RequestId, RowResult, Scheduler, SchedulerConfig, SchedulerOutput,
};

const NUM_ROWS: u64 = 256;
const NUM_STEPS: u32 = 2000;

fn main() -> Result<(), Box<dyn Error>> {
    let full = KvGroup {
        kind: KvKind::Full,
        block_size: 16,
    };
    let window = KvGroup {
        kind: KvKind::Window { tokens: 512 },
        block_size: 16,
    };
    for (name, groups) in [
        ("one full group", vec![full]),
        ("full and window group", vec![full, window]),
    ] {
        let config = SchedulerConfig {
            groups,
            num_blocks: 200_000,
            max_model_len: 8192,
            ..SchedulerConfig::default()
        };
        let mut scheduler = Scheduler::new(SchedulerConfig {
            max_steps_in_flight: 2,
            ..config
        })?;
        for id in 0..NUM_ROWS {
            scheduler.add(NewRequest::new(RequestId(id), vec![id as u32; 16], 8000))?;
        }
        let (mut plan, mut updates) = (SchedulerOutput::default(), Vec::new());
        let (mut ids, mut step): (Vec<RequestId>, _) = (Vec::new(), None);
        let (mut schedule_ns, mut update_ns, mut both_ns) = (0, 0, Vec::new());
        for index in 0..NUM_STEPS + 10 {
            let start = Instant::now();
            scheduler.schedule_into(0, &mut plan);
            let planned = Instant::now();
            let results: Vec<_> = ids.iter().map(|id| RowResult { id: *id, tokens: &[1] }).collect();
            let ready = Instant::now();
            if let Some(step) = step {
                scheduler.update_into(step, &results, &mut updates)?;
            }
            if index >= 10 {
                let (schedule, update) = (planned - start, ready.elapsed());
                schedule_ns += schedule.as_nanos();
                update_ns += update.as_nanos();
                both_ns.push((schedule + update).as_nanos());
            }
            ids.clear();
            ids.extend(plan.scheduled.iter().map(|row| row.id));
            step = Some(plan.step);
        }
        both_ns.sort_unstable();
        let median = both_ns[both_ns.len() / 2];
        let mean = |total: u128| total as f64 / f64::from(NUM_STEPS) / 1e3;
        println!(
            "{name}: {} rows, schedule {:.1} us, update {:.1} us a step (mean of {NUM_STEPS}), median of both {:.1} us",
            ids.len(),
            mean(schedule_ns),
            mean(update_ns),
            median as f64 / 1e3
        );
    }
    Ok(())
}
