//! Kernels of small batches in the shapes that are considered: each compiles and runs. `HALYARD_VULKAN_TABLES=1` also
//! prints how fast it reads its weights, to tune by: `cargo test -p halyard-backend-vulkan --lib
//! small_batch_variants -- --nocapture`. The conformance suite checks their results.

use std::time::Instant;

use halyard_gpu::{DevicePtr, Driver, Param};

use crate::driver::VulkanDriver;
use crate::env::tables_are_asked;
use crate::variants::{driver_with_matrices, function};

/// Memory for weights: more than any cache holds, so that each launch takes others.
const WEIGHT_BYTES: u64 = 1 << 30;
/// Outputs and depths of matrices.
const SIZES: [(u32, u32); 4] = [(6144, 4096), (4096, 4096), (28_672, 4096), (4096, 14_336)];

struct Variant {
    file: &'static str,
    entry: &'static str,
    definitions: &'static [&'static str],
    threads: u32,
    /// Output rows of a workgroup.
    rows: u32,
    tokens: &'static [u32],
    /// Bytes of 128 weights.
    group_bytes: u64,
}

const PLAIN: &[&str] = &["-DACT=bf16", "-DWEIGHT=bf16", "-DOUT=bf16", "-DEPILOGUE=0"];
const Q8_0: &[&str] = &["-DACT=bf16", "-DFORMAT=6", "-DOUT=bf16", "-DEPILOGUE=0", "-DMATRIX=0"];
const Q4_K: &[&str] = &["-DACT=bf16", "-DFORMAT=7", "-DOUT=bf16", "-DEPILOGUE=0", "-DMATRIX=0"];
const SMALL_BATCH: &[&str] = &["-DACT=bf16", "-DOUT=bf16", "-DACCUMULATE=0"];

/// Rows of 32 threads, threads, and vectors ahead of plain weights.
const SHAPES: [(u32, u32, u32); 9] = [
    (1, 256, 4),
    (1, 128, 8),
    (2, 64, 4),
    (2, 128, 2),
    (2, 128, 4),
    (2, 256, 4),
    (2, 128, 8),
    (4, 64, 2),
    (4, 64, 4),
];

fn variants() -> Vec<(Variant, Vec<String>)> {
    let mut all = Vec::new();
    for (rows, threads, ahead) in SHAPES {
        let shape = |file, entry, definitions, tokens, group_bytes| {
            let variant = Variant {
                file,
                entry,
                definitions,
                threads,
                rows: rows * threads / 32,
                tokens,
                group_bytes,
            };
            (variant, vec![format!("-DROWS={rows}"), format!("-DAHEAD={ahead}")])
        };
        all.push(shape("linear_plain", "linear_plain", PLAIN, &[1], 256));
        if ahead == 4 {
            all.push(shape("linear_quantized", "linear_quantized_plain", Q8_0, &[1, 8], 136));
            all.push(shape("linear_quantized", "linear_quantized_plain", Q4_K, &[1, 8], 74));
        }
    }
    let small_batch = Variant {
        file: "product",
        entry: "product_few",
        definitions: SMALL_BATCH,
        threads: 256,
        rows: 16,
        tokens: &[2, 8, 16],
        group_bytes: 256,
    };
    all.push((small_batch, Vec::new()));
    all
}

#[test]
fn every_variant_reads_weights_so_fast() {
    let Some((driver, _)) = driver_with_matrices() else {
        return;
    };
    let bytes = WEIGHT_BYTES;
    let weights = driver.allocate(bytes).expect("memory");
    let others = driver.allocate(32 << 20).expect("memory");
    let on = driver.create_stream().expect("a stream");
    // SAFETY: both are of that size.
    unsafe { driver.fill(weights, 0, bytes, on) }.expect("recorded");
    // SAFETY: as above.
    unsafe { driver.fill(others, 0, 32 << 20, on) }.expect("recorded");
    driver.synchronize(on).expect("filled");
    let mut failures = Vec::new();
    for (variant, more) in variants() {
        for &tokens in variant.tokens {
            let rates: Result<Vec<String>, String> = SIZES
                .iter()
                .map(|&size| run(&driver, &variant, &more, (weights, bytes), others, tokens, size))
                .map(|seconds| seconds.map(|(seconds, rate)| format!("{:.1} us {rate:.0} GB/s", seconds * 1e6)))
                .collect();
            let line = format!(
                "{} {} {more:?} {} threads, {tokens} tokens",
                variant.entry,
                variant.definitions.get(1).unwrap_or(&""),
                variant.threads
            );
            match rates {
                Ok(rates) => println!("{line}: {}", rates.join(", ")),
                Err(why) => failures.push(format!("{line}: {why}")),
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Seconds of one launch, and the weights' bytes in 10⁹ a second.
fn run(
    driver: &VulkanDriver,
    variant: &Variant,
    more: &[String],
    (weights, bytes): (DevicePtr, u64),
    others: DevicePtr,
    tokens: u32,
    (n, k): (u32, u32),
) -> Result<(f64, f64), String> {
    let mut options: Vec<String> = variant.definitions.iter().map(|&option| option.to_string()).collect();
    options.extend(more.iter().cloned());
    let function = function(driver, variant.file, variant.entry, &options).map_err(|e| e.message)?;
    let matrix = u64::from(n) * u64::from(k).div_ceil(128) * variant.group_bytes;
    // Planes begin at multiples of 256, each with a little more.
    let pitch = (matrix + 4096).next_multiple_of(4096);
    let places = (bytes / pitch).max(1);
    let (x, to) = (others, others + (16 << 20));
    let launch = |which: u64, on| {
        let w = weights + which % places * pitch;
        let words = |all: &[u32]| all.iter().map(|&word| Param::Word(word)).collect::<Vec<_>>();
        let (params, grid) = match variant.entry {
            "product_few" => {
                let pointers = vec![Param::Ptr(x), Param::Ptr(w), Param::Ptr(to)];
                ([pointers, words(&[k, n, tokens, n, k])].concat(), n / variant.rows)
            }
            _ => {
                let pointers = vec![
                    Param::Ptr(x),
                    Param::Ptr(w),
                    Param::Ptr(0),
                    Param::Ptr(0),
                    Param::Ptr(to),
                ];
                (
                    [pointers, words(&[k, n, n, tokens, n, k])].concat(),
                    n.div_ceil(variant.rows),
                )
            }
        };
        // SAFETY: live memory of these sizes, and a live stream.
        unsafe { driver.launch(function, [grid, 1, 1], [variant.threads, 1, 1], 0, &params, false, on) }
    };
    let on = driver.create_stream().map_err(|e| e.message)?;
    launch(0, on).map_err(|e| e.message)?;
    driver.synchronize(on).map_err(|e| e.message)?;
    let runs = if tables_are_asked() { 100 } else { 1 };
    let start = Instant::now();
    for which in 0..runs {
        launch(which, on).map_err(|e| e.message)?;
    }
    driver.synchronize(on).map_err(|e| e.message)?;
    let seconds = start.elapsed().as_secs_f64() / runs as f64;
    // SAFETY: idle.
    unsafe { driver.destroy_stream(on) };
    Ok((seconds, matrix as f64 / seconds / 1e9))
}
