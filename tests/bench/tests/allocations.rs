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
/// Of five runs of each length.
const ROUNDS: usize = 10;

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
    // Vectors that are kept find their size first.
    run(&llm, 3 * third);
    let tokens = u64::from(third) * ROWS as u64;
    let per_token = |a: u64, b: u64| (b - a) as f64 / tokens as f64;
    // How often a waiting reader is woken varies, and each time may allocate: the least of many runs is the one that
    // nothing disturbed. What grows with the length does so in every run.
    let mut least = [(u64::MAX, u64::MAX); 3];
    let mut shown = String::new();
    for _ in 0..ROUNDS {
        for (thirds, least) in (1..).zip(&mut least) {
            for _ in 0..5 {
                let (count, bytes) = run(&llm, thirds * third);
                *least = (least.0.min(count), least.1.min(bytes));
            }
        }
        let [first, second, last] = least;
        let counts = [per_token(first.0, second.0), per_token(second.0, last.0)];
        let bytes = [per_token(first.1, second.1), per_token(second.1, last.1)];
        shown = format!("a token, middle and last third of the context: {counts:.2?} allocations, {bytes:.0?} bytes");
        if counts[1] <= 1.25 * counts[0] + 0.5 && bytes[1] <= bytes[0] + 16.0 {
            println!("{shown}");
            return;
        }
    }
    panic!("they grow with the length: {shown}");
}
