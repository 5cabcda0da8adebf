//! A decode step allocates the same whatever the sequence's length: nothing grows with tokens.
//!
//! Counts every allocation of the process while the engine runs on a device that answers at once, for three equal
//! stretches of steps. One test alone in its binary, so that no other test allocates meanwhile.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use halyard_engine::{EngineConfig, Llm, OutputStream, Request, SamplingParams};
use halyard_models::LoadFormat;
use halyard_null::EchoPlatform;
use halyard_platform_api::Platform;

static COUNT: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: the system allocator does the work; counters only count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ROWS: usize = 16;

/// Allocations and bytes of a run that gives each row `tokens` tokens.
fn run(llm: &Llm, tokens: u32) -> (u64, u64) {
    let before = (COUNT.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
    let params = SamplingParams {
        ignore_eos: true,
        ..SamplingParams::greedy(tokens)
    };
    let submit = |i: usize| {
        llm.engine()
            .submit(Request::new(format!("{i}"), vec![i as u32 + 3; 8], params.clone()))
    };
    let streams: Vec<OutputStream> = (0..ROWS).map(|i| submit(i).expect("taken")).collect();
    for mut stream in streams {
        while stream.blocking_next().is_some() {}
    }
    (
        COUNT.load(Ordering::Relaxed) - before.0,
        BYTES.load(Ordering::Relaxed) - before.1,
    )
}

#[test]
fn a_decode_step_allocates_the_same_however_long_the_sequences_are() {
    let model = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models/llama");
    let mut config = EngineConfig::for_model(model);
    config.model.load_format = LoadFormat::Dummy;
    config.scheduler.max_num_seqs = ROWS as u32;
    let llm = Llm::open(config, EchoPlatform.open(0).expect("opens")).expect("starts");
    let third = (llm.engine().info().max_model_len - 8) / 3;
    // Vectors that are kept find their size first, and the least of five runs is the one that nothing disturbed.
    run(&llm, 3 * third);
    let least = |tokens| {
        let runs = (0..5).map(|_| run(&llm, tokens));
        runs.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1))).expect("five runs")
    };
    let runs = [least(third), least(2 * third), least(3 * third)];
    let tokens = u64::from(third) * ROWS as u64;
    let per_token = |a: u64, b: u64| (b - a) as f64 / tokens as f64;
    let counts = [per_token(runs[0].0, runs[1].0), per_token(runs[1].0, runs[2].0)];
    let bytes = [per_token(runs[0].1, runs[1].1), per_token(runs[1].1, runs[2].1)];
    println!("allocations a token, middle and last third of the context: {counts:.2?}, bytes: {bytes:.0?}");
    // How often a waiting reader is woken varies, and each time may allocate.
    assert!(
        counts[1] <= 1.25 * counts[0] + 0.5,
        "allocations grow with the length: {counts:?}"
    );
    assert!(bytes[1] <= bytes[0] + 16.0, "bytes grow with the length: {bytes:?}");
}
