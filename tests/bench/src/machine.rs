//! The machine's memory bandwidth: bytes a second that all threads read together, from memory that no cache holds.

use std::time::Instant;

/// Bytes each thread reads: several times any last-level cache.
const BYTES: usize = 256 << 20;
const ROUNDS: usize = 5;

/// Bytes a second that as many threads as the process may use read together; the best of five rounds.
pub fn read_bytes_per_s() -> f64 {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let blocks: Vec<Vec<u64>> = (0..threads).map(|i| vec![i as u64 + 1; BYTES / 8]).collect();
    let mut best = 0f64;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let sum = std::thread::scope(|scope| {
            let threads: Vec<_> = blocks.iter().map(|block| scope.spawn(|| sum(block))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or(0))
                .fold(0, u64::wrapping_add)
        });
        std::hint::black_box(sum);
        best = best.max((threads * BYTES) as f64 / start.elapsed().as_secs_f64());
    }
    best
}

/// Many sums side by side, so that no addition waits for the one before.
fn sum(block: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    for chunk in block.chunks_exact(32) {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*value);
        }
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}
