//! Times the products on the shapes of SmolLM2-135M (or, where `large` is asked for, of Llama-3.2-1B): GB/s of packed
//! weight for one token, GFLOP/s for many, on one thread. On Linux the time is the thread's CPU time, so that a busy
//! machine disturbs less. A device's memory is in huge pages; `GLIBC_TUNABLES=glibc.malloc.hugetlb=1` gives this
//! program some.
//!
//! `cargo run --release -p halyard-kernels-cpu --example bench_linear [large] [TOKENS …] [NAME …]`: names such as
//! `Q4_1` or `Int8` choose among the products, and names such as `avx2+fma` among the instruction sets.

use std::time::Instant;

use halyard_kernels_cpu::{
    ActMode, Isa, Kernels, LINEAR_SCRATCH, Linear, WeightFormat, act_bytes, num_act_parts, num_panels, packed_bytes,
};

/// (rows, columns, copies in the model).
const LAYER: [(usize, usize, usize); 5] = [
    (960, 576, 30),
    (576, 576, 30),
    (1536, 576, 30),
    (1536, 576, 30),
    (576, 1536, 30),
];
/// Of Llama-3.2-1B; two layers are far more than the caches.
const LARGE_LAYER: [(usize, usize, usize); 3] = [(2048, 2048, 5), (8192, 2048, 4), (2048, 8192, 2)];
const HEAD: (usize, usize, usize) = (49152, 576, 1);

struct Weight {
    n: usize,
    k: usize,
    packed: Lines,
}

/// Bytes that begin at a cache line, as a device's do: a vector that crosses two costs two reads.
struct Lines {
    bytes: Vec<u8>,
    first: usize,
}

impl Lines {
    fn new(len: usize) -> Lines {
        let bytes = vec![0; len + 63];
        let first = bytes.as_ptr().align_offset(64);
        Lines { bytes, first }
    }

    fn get(&self) -> &[u8] {
        &self.bytes[self.first..]
    }

    fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.first..]
    }
}

/// Nanoseconds of CPU that this thread has used, or of wall time since `start` where that is unknown.
fn now_ns(start: Instant) -> u64 {
    std::fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|line| line.split(' ').next()?.parse().ok())
        .unwrap_or_else(|| start.elapsed().as_nanos() as u64)
}

fn weights(format: WeightFormat, shapes: &[(usize, usize, usize)]) -> Vec<Weight> {
    let mut weights = Vec::new();
    for &(n, k, copies) in shapes {
        for copy in 0..copies {
            // Arbitrary small bytes: a scale of 0x0203 and the like is a normal small f16. As bf16 or f32 that is no
            // normal number, on which arithmetic is slow: those get an exponent.
            let mut packed = Lines::new(packed_bytes(format, n, k));
            for (i, byte) in packed.get_mut().iter_mut().enumerate() {
                *byte = ((i * 7 + copy) % 37) as u8;
                if format == WeightFormat::Bf16 && i % 2 == 1 || format.has_table() {
                    *byte = 0x3c + *byte % 4;
                }
            }
            weights.push(Weight { n, k, packed });
        }
    }
    weights
}

/// Seconds for all weights once.
fn pass(kernels: &Kernels, format: WeightFormat, mode: ActMode, weights: &[Weight], tokens: usize) -> f64 {
    let (max_n, max_k) = weights
        .iter()
        .fold((0, 0), |(n, k), weight| (n.max(weight.n), k.max(weight.k)));
    let x: Vec<f32> = (0..tokens * max_k)
        .map(|i| ((i * 31 % 97) as f32 - 48.0) / 50.0)
        .collect();
    let mut act = Lines::new(act_bytes(mode, tokens, max_k));
    let mut out = vec![0f32; tokens * max_n];
    let mut scratch = vec![0f32; LINEAR_SCRATCH];
    let start = Instant::now();
    // The kernel counts CPU time in ticks of some milliseconds: repeat until a round is much longer than a tick.
    let (mut rounds, mut round, begin) = (0u32, 0u64, now_ns(start));
    while round < 300_000_000 {
        for weight in weights {
            let parts = 0..num_act_parts(mode, tokens);
            // SAFETY: every buffer has the size that the crate states for it.
            unsafe {
                kernels.prepare_act(
                    mode,
                    x.as_ptr(),
                    weight.k,
                    tokens,
                    weight.k,
                    parts,
                    act.get_mut().as_mut_ptr(),
                );
                kernels.linear(Linear {
                    format,
                    mode,
                    n: weight.n,
                    k: weight.k,
                    tokens,
                    weight: weight.packed.get(),
                    act: act.get(),
                    panels: 0..num_panels(weight.n),
                    out: out.as_mut_ptr(),
                    out_stride: weight.n,
                    bias: None,
                    accumulate: false,
                    scratch: &mut scratch,
                });
            }
        }
        rounds += 1;
        round = now_ns(start) - begin;
    }
    round as f64 / 1e9 / f64::from(rounds)
}

fn main() {
    let mut tokens: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let large = std::env::args().any(|arg| arg == "large");
    let (sets, names): (Vec<String>, Vec<String>) = std::env::args()
        .skip(1)
        .filter(|arg| arg.parse::<usize>().is_err() && arg != "large")
        .partition(|arg| Isa::ALL.iter().any(|isa| isa.to_string() == *arg));
    if tokens.is_empty() {
        tokens = vec![1, 4, 16, 192];
    }
    let cases = [
        (WeightFormat::Q4_1, ActMode::Int8),
        (WeightFormat::Q4_1, ActMode::Int8Tiles),
        (WeightFormat::Q4_1, ActMode::F32),
        (WeightFormat::Q4_0, ActMode::Int8),
        (WeightFormat::Q4_0, ActMode::Int8Tiles),
        (WeightFormat::Q8_0, ActMode::Int8),
        (WeightFormat::Q8_0, ActMode::Int8Tiles),
        (WeightFormat::Q8_0, ActMode::F32),
        (WeightFormat::Q5_0, ActMode::Int8),
        (WeightFormat::Q5_0, ActMode::Int8Tiles),
        (WeightFormat::Q4K, ActMode::Int8),
        (WeightFormat::Q4K, ActMode::Int8Tiles),
        (WeightFormat::Q6K, ActMode::Int8),
        (WeightFormat::Q6K, ActMode::Int8Tiles),
        (WeightFormat::Bf16, ActMode::Tiles),
        (WeightFormat::Bf16, ActMode::Bf16),
        (WeightFormat::Bf16, ActMode::F32),
        (WeightFormat::F16, ActMode::F32),
        (WeightFormat::F32, ActMode::F32),
    ];
    let coded = WeightFormat::ALL.into_iter().filter(|format| format.is_coded());
    let coded = coded.flat_map(|format| [(format, ActMode::Int8), (format, ActMode::Int8Tiles)]);
    let cases: Vec<_> = cases.into_iter().chain(coded).collect();
    for isa in Isa::ALL.into_iter().rev() {
        let Some(kernels) = Kernels::for_isa(isa) else { continue };
        let wanted = match isa {
            _ if !sets.is_empty() => sets.contains(&isa.to_string()),
            Isa::Portable => false,
            Isa::Avx512 { vnni, bf16 } => bf16 || !vnni,
            Isa::Neon | Isa::Avx2Fma | Isa::Amx => true,
        };
        if !wanted {
            continue;
        }
        let (model, layer): (_, &[_]) = match large {
            true => ("Llama-3.2-1B", &LARGE_LAYER),
            false => ("SmolLM2-135M", &LAYER),
        };
        println!("{isa}: layers of {model}");
        for &(format, mode) in &cases {
            let name = format!("{format:?} {mode:?}");
            // Elsewhere a plain loop, which only tests call.
            if mode == ActMode::Int8Tiles && isa != Isa::Amx {
                continue;
            }
            if !names.is_empty() && !names.iter().any(|n| name.split(' ').any(|part| part == n)) {
                continue;
            }
            let weights = weights(format, layer);
            let bytes: usize = weights.iter().map(|weight| weight.packed.get().len()).sum();
            let elements: usize = weights.iter().map(|weight| weight.n * weight.k).sum();
            for &tokens in &tokens {
                let s = pass(kernels, format, mode, &weights, tokens);
                let (gb, gflop) = (bytes as f64 / s / 1e9, 2.0 * (elements * tokens) as f64 / s / 1e9);
                let rate = tokens as f64 / s;
                println!(
                    "{name:14} {tokens:4} tokens: {:8.2} ms {gb:6.1} GB/s {gflop:7.1} GFLOP/s {rate:8.0} tok/s",
                    s * 1e3
                );
            }
        }
        if !names.is_empty() {
            continue;
        }
        let head = weights(WeightFormat::Q8_0, &[HEAD]);
        for mode in [ActMode::Int8, ActMode::F32] {
            let s = pass(kernels, WeightFormat::Q8_0, mode, &head, 1);
            println!(
                "head Q8_0 {mode:?} 1 token: {:.2} ms {:.1} GB/s",
                s * 1e3,
                head[0].packed.get().len() as f64 / s / 1e9
            );
        }
    }
}
