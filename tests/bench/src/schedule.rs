//! Measures the host's time for planning a step and taking its results, for 256 running decodes. Budget: 100 µs.
//!
//! Building the batch (the engine's step writes and encoding) is not in the figure: `step` has it.

use std::time::Instant;

use halyard_scheduler::{
    KvGroup, KvKind, NewRequest, RequestId, RowResult, Scheduler, SchedulerConfig, SchedulerOutput,
};
use serde_json::json;

use crate::error::BenchError;
use crate::report::{Report, median};

const BUDGET_US: f64 = 100.0;
const ROWS: u64 = 256;
const STEPS: usize = 2000;
/// Steps before the measured ones: prompts, and vectors that find their size.
const WARM_UP: usize = 10;

/// One full group as in Llama, and a full and a window group as in Gemma 3.
pub fn measure() -> Result<Vec<Report>, BenchError> {
    let full = KvGroup {
        kind: KvKind::Full,
        block_size: 16,
    };
    let window = KvGroup {
        kind: KvKind::Window { tokens: 512 },
        block_size: 16,
    };
    Ok(vec![
        report("schedule + update (full)", vec![full])?,
        report("schedule + update (full and window)", vec![full, window])?,
    ])
}

fn report(name: &str, groups: Vec<KvGroup>) -> Result<Report, BenchError> {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        groups,
        num_blocks: 200_000,
        max_model_len: 8192,
        max_steps_in_flight: 2,
        ..SchedulerConfig::default()
    })?;
    for id in 0..ROWS {
        scheduler.add(NewRequest::new(RequestId(id), vec![id as u32; 16], 8000))?;
    }
    let (mut plan, mut updates) = (SchedulerOutput::default(), Vec::new());
    let (mut ids, mut in_flight): (Vec<RequestId>, _) = (Vec::new(), None);
    let (mut schedule_us, mut update_us, mut both_us) = (Vec::new(), Vec::new(), Vec::new());
    for index in 0..WARM_UP + STEPS {
        // One step stays in flight, as on an asynchronous device: the results taken here are those of the step before.
        let start = Instant::now();
        scheduler.schedule_into(0, &mut plan);
        let planned = start.elapsed();
        let results: Vec<_> = ids.iter().map(|id| RowResult { id: *id, tokens: &[1] }).collect();
        let start = Instant::now();
        if let Some(step) = in_flight {
            scheduler.update_into(step, &results, &mut updates)?;
        }
        let updated = start.elapsed();
        if index >= WARM_UP {
            schedule_us.push(planned.as_nanos() as f64 / 1e3);
            update_us.push(updated.as_nanos() as f64 / 1e3);
            both_us.push((planned + updated).as_nanos() as f64 / 1e3);
        }
        ids.clear();
        ids.extend(plan.scheduled.iter().map(|row| row.id));
        in_flight = Some(plan.step);
    }
    let measured = median(&mut both_us);
    let details = json!({
        "rows": ids.len(),
        "steps": STEPS,
        "schedule_us": median(&mut schedule_us),
        "update_us": median(&mut update_us),
        "worst_us": both_us.last(),
    });
    Ok(Report {
        name: name.to_string(),
        measured,
        unit: "us a step",
        budget: BUDGET_US,
        details,
    })
}
