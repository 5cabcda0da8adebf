//! Product kernels in every shape that is considered, one after another: right or wrong, and how fast. With `HALYARD_VULKAN_TABLES=1` at sizes that
//! tell something, for people who tune them: `cargo test -p halyard-backend-vulkan --lib variants -- --nocapture --test-threads 1`.

use std::time::Instant;

use halyard_gpu::{Driver, KernelText, Param, ProductSpec};
use halyard_platform_api::{DType, Status};

use crate::driver::VulkanDriver;
use crate::physical::{Physical, usable_devices};
use crate::surroundings::{number, tables_are_asked};

struct Variant {
    file: &'static str,
    /// Tokens and output rows of a workgroup, depths of a step.
    tile: [u32; 3],
    threads: u32,
    more: &'static [&'static str],
    /// Whether tokens are the grid's first axis.
    tokens_first: bool,
}

const fn wide(tile: [u32; 3], threads: u32, more: &'static [&'static str]) -> Variant {
    Variant {
        file: "product_wide",
        tile,
        threads,
        more,
        tokens_first: true,
    }
}

const fn tiles(tile: [u32; 3], threads: u32, more: &'static [&'static str]) -> Variant {
    Variant {
        file: "product",
        tile,
        threads,
        more,
        tokens_first: true,
    }
}

const VARIANTS: &[Variant] = &[
    wide([128, 128, 64], 128, &[]),
    wide([64, 128, 64], 128, &[]),
    wide([64, 64, 64], 64, &[]),
    tiles(
        [128, 128, 32],
        128,
        &["-DWARPS_DOWN=2", "-DWARPS_ACROSS=2", "-DSTAGES=2"],
    ),
    tiles(
        [128, 128, 64],
        128,
        &["-DWARPS_DOWN=2", "-DWARPS_ACROSS=2", "-DSTAGES=1"],
    ),
    tiles(
        [64, 128, 32],
        128,
        &["-DWARPS_DOWN=2", "-DWARPS_ACROSS=2", "-DSTAGES=2"],
    ),
    tiles(
        [64, 128, 64],
        128,
        &["-DWARPS_DOWN=2", "-DWARPS_ACROSS=2", "-DSTAGES=1"],
    ),
    tiles([64, 64, 64], 128, &["-DWARPS_DOWN=2", "-DWARPS_ACROSS=2", "-DSTAGES=2"]),
];

/// A value of x or w, of few bits, so that both types hold it.
fn value(at: u64, salt: u64) -> f32 {
    let mixed = (at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15 ^ salt);
    ((mixed >> 40) % 15) as f32 - 7.0
}

fn bits(act: &str, value: f32) -> u16 {
    let bits = value.to_bits();
    match act {
        "bf16" => (bits >> 16) as u16,
        _ if value == 0.0 => 0,
        _ => (bits >> 16 & 0x8000 | ((bits >> 23 & 0xff) - 112) << 10 | bits >> 13 & 0x3ff) as u16,
    }
}

/// The first device; `None`, and a line that says why, where it multiplies no matrices.
pub(crate) fn driver_with_matrices() -> Option<(VulkanDriver, Physical)> {
    let physical = match usable_devices() {
        Ok(devices) => devices[0].clone(),
        Err(e) => {
            println!("skipped: {}", e.message);
            return None;
        }
    };
    if !physical.matrices.any() {
        println!("skipped: {} multiplies no matrices", physical.facts.name);
        return None;
    }
    Some((VulkanDriver::open(physical.clone()).expect("it opens"), physical))
}

#[test]
fn every_variant_multiplies_right_and_so_fast() {
    let Some((driver, physical)) = driver_with_matrices() else {
        return;
    };
    println!("{}: workgroups multiply {:?}", physical.facts.name, physical.wide);
    let size =
        |name: &str, small: u32, large: u32| number(name).unwrap_or(if tables_are_asked() { large } else { small });
    let (tokens, n, k) = (
        size("TOKENS", 200, 4096),
        size("ROWS", 328, 14336),
        size("DEPTHS", 264, 4096),
    );
    let runs = size("RUNS", 1, 20);
    // A driver's compiler may not survive a shape: whoever runs this can go on behind it.
    let first = number("FROM").unwrap_or(0) as usize;
    let acts = if number("F16").is_some() {
        &["bf16", "f16"][..]
    } else {
        &["bf16"]
    };
    let mut wrong = Vec::new();
    for &act in acts {
        let matrix = |rows: u32, salt: u64| {
            let count = u64::from(rows) * u64::from(k);
            let pinned = driver.allocate_pinned(2 * count).expect("memory");
            // SAFETY: fresh memory of that size.
            let words = unsafe { std::slice::from_raw_parts_mut(pinned.host.cast::<u16>(), count as usize) };
            for (at, word) in words.iter_mut().enumerate() {
                *word = bits(act, value(at as u64, salt));
            }
            let device = driver.allocate(2 * count).expect("memory");
            let on = driver.create_stream().expect("a stream");
            // SAFETY: both have that size.
            unsafe { driver.copy(device, pinned.device, 2 * count, on) }.expect("copied");
            driver.synchronize(on).expect("copied");
            // SAFETY: nothing uses it any more.
            unsafe { driver.free_pinned(pinned) };
            device
        };
        let (x, w) = (matrix(tokens, 1 << 20), matrix(n, 3 << 30));
        let out_bytes = 4 * u64::from(tokens) * u64::from(n);
        let out = driver.allocate(out_bytes).expect("memory");
        let seen = driver.allocate_pinned(out_bytes).expect("memory");
        for out_type in [act] {
            for (index, variant) in VARIANTS.iter().enumerate() {
                if index < first {
                    continue;
                }
                println!("variant {index}");
                let line = format!(
                    "{act} to {out_type} {:?} {} threads {} {:?}",
                    variant.tile, variant.threads, variant.file, variant.more
                );
                match run(&driver, variant, [act, out_type], [x, w, out], [tokens, n, k], runs) {
                    Ok(seconds) => {
                        let on = driver.create_stream().expect("a stream");
                        // SAFETY: both have that size.
                        unsafe { driver.copy(seen.device, out, out_bytes, on) }.expect("copied");
                        driver.synchronize(on).expect("copied");
                        // SAFETY: waited for.
                        let found = unsafe { std::slice::from_raw_parts(seen.host, out_bytes as usize) };
                        let error = worst(found, out_type, [tokens, n, k]);
                        let rate = 2e-12 * f64::from(tokens) * f64::from(n) * f64::from(k) / seconds;
                        println!(
                            "{line}: {:.3} ms, {rate:.0} TFLOP/s, worst error {error:.2e}",
                            seconds * 1e3
                        );
                        if error > 0.01 || error.is_nan() {
                            wrong.push(line);
                        }
                    }
                    Err(why) => println!("{line}: {}", why.lines().next().unwrap_or("")),
                }
            }
        }
        // SAFETY: all was waited for.
        unsafe {
            driver.free(x);
            driver.free(w);
            driver.free(out);
            driver.free_pinned(seen);
        }
    }
    assert!(wrong.is_empty(), "wrong: {wrong:#?}");
}

#[test]
fn every_kind_of_product_is_tested() {
    let Ok(devices) = usable_devices() else {
        println!("skipped: no device");
        return;
    };
    let driver = VulkanDriver::open(devices[0].clone()).expect("it opens");
    for act in [DType::BF16, DType::F16] {
        for out in [DType::F32, act] {
            for accumulate in [false, true] {
                let spec = ProductSpec {
                    in_features: 4096,
                    out_features: 4096,
                    act,
                    weight: act,
                    out,
                    accumulate,
                    max_tokens: 4096,
                };
                for wide in [true, false] {
                    let outcome = driver.outcome_of_product(&spec, wide);
                    println!("{act:?} to {out:?}, accumulate {accumulate}, of workgroups too {wide}: {outcome:?}");
                    if !devices[0].matrices.any() {
                        let error = outcome.expect_err("the device multiplies no matrices");
                        assert_eq!(error.status, Status::Unsupported, "{error}");
                    }
                }
            }
        }
    }
}

/// The worst error, in parts of the sum's usual size, among a few thousand places.
fn worst(found: &[u8], out_type: &str, [tokens, n, k]: [u32; 3]) -> f64 {
    let mut worst = 0.0f64;
    for i in 0..3000u64 {
        let at = i.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        // The corners too.
        let token = if i < 4 {
            (i % 2) * u64::from(tokens - 1)
        } else {
            (at >> 20) % u64::from(tokens)
        };
        let row = if i < 4 {
            (i / 2) * u64::from(n - 1)
        } else {
            (at >> 40) % u64::from(n)
        };
        let depths = 0..u64::from(k);
        let products =
            depths.map(|d| value(token * u64::from(k) + d, 1 << 20) * value(row * u64::from(k) + d, 3 << 30));
        let expected: f64 = products.map(f64::from).sum();
        let place = (token * u64::from(n) + row) as usize;
        let word = |bytes: usize| {
            let mut all = [0u8; 4];
            all[..bytes].copy_from_slice(&found[bytes * place..bytes * (place + 1)]);
            u32::from_le_bytes(all)
        };
        let value = match out_type {
            "f32" => f32::from_bits(word(4)),
            "bf16" => f32::from_bits(word(2) << 16),
            _ => {
                let bits = word(2);
                let size = f32::from_bits(((bits & 0x7fff) << 13) + (112 << 23));
                if bits & 0x7fff == 0 {
                    0.0
                } else if bits >> 15 == 1 {
                    -size
                } else {
                    size
                }
            }
        };
        worst = worst.max((f64::from(value) - expected).abs() / (18.0 * f64::from(k).sqrt() + expected.abs()));
    }
    worst
}

/// Seconds of one product.
fn run(
    driver: &VulkanDriver,
    variant: &Variant,
    [act, out_type]: [&str; 2],
    [x, w, out]: [u64; 3],
    [tokens, n, k]: [u32; 3],
    runs: u32,
) -> Result<f64, String> {
    let text = KernelText {
        text: halyard_kernels_vulkan::text(variant.file).expect("a kernel file"),
        headers: halyard_kernels_vulkan::HEADERS,
    };
    let [tile_tokens, tile_rows, depths] = variant.tile;
    let mut options: Vec<String> = variant.more.iter().map(|&option| option.to_string()).collect();
    options.extend([
        format!("-DENTRY_{}", variant.file),
        format!("-DACT={act}"),
        format!("-DOUT={out_type}"),
        "-DACCUMULATE=0".to_string(),
        format!("-DTOKENS={tile_tokens}"),
        format!("-DROWS={tile_rows}"),
        format!("-DDEPTH={depths}"),
    ]);
    let image = driver.compile(variant.file, text, &options).map_err(|e| e.message)?;
    let module = driver.load(&image).map_err(|e| e.message)?;
    let function = driver.function(module, variant.file, 0).map_err(|e| e.message)?;
    let across = [tokens.div_ceil(tile_tokens), n.div_ceil(tile_rows)];
    let grid = match variant.tokens_first {
        true => [across[0], across[1], 1],
        false => [across[1], across[0], 1],
    };
    let params = [
        Param::Ptr(x),
        Param::Ptr(w),
        Param::Ptr(out),
        Param::Word(k),
        Param::Word(n),
        Param::Word(tokens),
        Param::Word(n),
        Param::Word(k),
    ];
    let on = driver.create_stream().map_err(|e| e.message)?;
    // SAFETY: live memory of these sizes, and a live stream.
    let launch = || unsafe { driver.launch(function, grid, [variant.threads, 1, 1], 0, &params, false, on) };
    // SAFETY: as above; old results must not look right.
    unsafe { driver.fill(out, 0xFF, 4 * u64::from(tokens) * u64::from(n), on) }.map_err(|e| e.message)?;
    launch().map_err(|e| e.message)?;
    driver.synchronize(on).map_err(|e| e.message)?;
    let start = Instant::now();
    for _ in 0..runs {
        launch().map_err(|e| e.message)?;
    }
    driver.synchronize(on).map_err(|e| e.message)?;
    let seconds = start.elapsed().as_secs_f64() / f64::from(runs);
    // SAFETY: idle.
    unsafe { driver.destroy_stream(on) };
    Ok(seconds)
}
