//! Step sizes by time: a step that took longer than its target makes the next ones smaller, and answers stay the same.

use std::time::Duration;

use crate::common::{fixtures, open, reference};
use halyard_engine::{Llm, SamplingParams};

/// 200 tokens that share no prefix with another `seed`'s.
fn prompt(seed: u32) -> Vec<u32> {
    (0..200).map(|i| 5 + (i * 7 + seed * 31) % 200).collect()
}

fn open_with(max_step: Duration) -> Llm {
    open(&fixtures().join("llama"), reference(), |config| {
        config.scheduler.max_num_batched_tokens = Some(512);
        config.scheduler.max_step = max_step;
    })
}

/// The tokens behind two prompts, one after the other, and the steps that they took together.
fn ask_both(max_step: Duration) -> ([Vec<u32>; 2], u64) {
    let llm = open_with(max_step);
    let ids = [1, 2].map(|seed| {
        let output = llm.generate_ids(vec![prompt(seed)], &SamplingParams::greedy(1));
        output.expect("taken")[0].outputs[0].token_ids.clone()
    });
    // The thread has ended then, so the counters are complete.
    llm.engine().shutdown(Duration::from_secs(60));
    (ids, llm.engine().stats().steps_total)
}

#[test]
fn a_step_over_its_target_makes_the_next_ones_smaller() {
    let (expected, steps) = ask_both(Duration::ZERO);
    assert_eq!(steps, 2, "without a target a step takes what fits");
    // Every step is longer than this. The first one has 128 tokens, as nothing was measured before it; then the bound
    // is at its floor of 32 tokens.
    assert_eq!(ask_both(Duration::from_nanos(1)), (expected, 1 + 3 + 7));
}
