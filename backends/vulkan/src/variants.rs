//! Checks and times product kernels in every shape that is considered. `HALYARD_VULKAN_TABLES=1` takes sizes whose
//! times mean something, to tune by: `cargo test -p
//! halyard-backend-vulkan --lib variants -- --nocapture --test-threads 1`.

use std::time::Instant;

use halyard_gpu::self_test::{SelfTestMemory, value_of, whole_numbers};
use halyard_gpu::{DevicePtr, Driver, Function, KernelText, Param, ProductSpec, Stream};
use halyard_kernels_gpu::{Language, Source};
use halyard_platform_api::{DType, Error, OpenOptions, Status};

use crate::driver::VulkanDriver;
use crate::env::{number, tables_are_asked};
use crate::physical::{Physical, usable_devices};

struct Variant {
    file: &'static str,
    /// Tokens and output rows of a workgroup, depths of a step.
    tile: [u32; 3],
    threads: u32,
    more: &'static [&'static str],
}

const fn variant(file: &'static str, tile: [u32; 3], threads: u32, more: &'static [&'static str]) -> Variant {
    Variant {
        file,
        tile,
        threads,
        more,
    }
}

const VARIANTS: &[Variant] = &[
    variant("product_wide", [128, 128, 64], 128, &[]),
    variant("product_wide", [64, 128, 64], 128, &[]),
    variant("product_wide", [64, 64, 64], 64, &[]),
    variant(
        "product",
        [128, 128, 32],
        128,
        &["-DWARPS_DOWN=2", "-DWARPS_ACROSS=2", "-DSTAGES=2"],
    ),
    variant(
        "product",
        [128, 128, 64],
        128,
        &["-DWARPS_DOWN=2", "-DWARPS_ACROSS=2", "-DSTAGES=1"],
    ),
    variant(
        "product",
        [64, 128, 32],
        128,
        &["-DWARPS_DOWN=2", "-DWARPS_ACROSS=2", "-DSTAGES=2"],
    ),
    variant(
        "product",
        [64, 128, 64],
        128,
        &["-DWARPS_DOWN=2", "-DWARPS_ACROSS=2", "-DSTAGES=1"],
    ),
    variant(
        "product",
        [64, 64, 64],
        128,
        &["-DWARPS_DOWN=2", "-DWARPS_ACROSS=2", "-DSTAGES=2"],
    ),
];

/// A value of x or w, of few bits, so that both types hold it.
fn value(at: u64, salt: u64) -> i32 {
    let mixed = (at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15 ^ salt);
    ((mixed >> 40) % 15) as i32 - 7
}

/// Device memory that holds `bytes`.
pub(crate) fn device_bytes(driver: &VulkanDriver, bytes: &[u8], on: Stream) -> DevicePtr {
    let seen = SelfTestMemory::with(driver, bytes).expect("memory");
    let device = driver.allocate(bytes.len() as u64).expect("memory");
    // SAFETY: both have that size.
    unsafe { driver.copy(device, seen.device(), bytes.len() as u64, on) }.expect("recorded");
    driver.synchronize(on).expect("copied");
    device
}

/// An entry point of a kernel file.
pub(crate) fn function(driver: &VulkanDriver, file: &str, entry: &str, options: &[String]) -> Result<Function, Error> {
    let source = *Source::named(file).expect("a kernel file");
    let text = KernelText::of(source, Language::Glsl)?;
    let mut all = options.to_vec();
    all.push(format!("-DENTRY_{entry}"));
    driver.function(driver.load(&driver.compile(file, text, &all)?)?, entry, 0)
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
    Some((
        VulkanDriver::open(physical.clone(), &OpenOptions::default()).expect("it opens"),
        physical,
    ))
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
    // A driver's compiler may not survive a shape: `FROM` goes on behind it.
    let first = number("FROM").unwrap_or(0) as usize;
    let acts = if number("F16").is_some() {
        &[DType::BF16, DType::F16][..]
    } else {
        &[DType::BF16]
    };
    let on = driver.create_stream().expect("a stream");
    let mut wrong = Vec::new();
    for &act in acts {
        let matrix = |rows: u32, salt: u64| {
            let at = |row: u32, column: u32| value(u64::from(row) * u64::from(k) + u64::from(column), salt);
            device_bytes(&driver, &whole_numbers(act, rows, k, 0, at), on)
        };
        let (x, w) = (matrix(tokens, 1 << 20), matrix(n, 3 << 30));
        let out_bytes = 2 * u64::from(tokens) * u64::from(n);
        let out = driver.allocate(out_bytes).expect("memory");
        let seen = SelfTestMemory::with(&driver, &vec![0; out_bytes as usize]).expect("memory");
        for (index, variant) in VARIANTS.iter().enumerate().skip(first) {
            println!("variant {index}");
            let line = format!(
                "{act:?} {:?} {} threads {} {:?}",
                variant.tile, variant.threads, variant.file, variant.more
            );
            match run(&driver, variant, act, [x, w, out], [tokens, n, k], runs) {
                Ok(seconds) => {
                    // SAFETY: both have that size.
                    unsafe { driver.copy(seen.device(), out, out_bytes, on) }.expect("copied");
                    driver.synchronize(on).expect("copied");
                    // SAFETY: waited for.
                    let error = worst(unsafe { seen.bytes() }, act, [tokens, n, k]);
                    let rate = 2e-12 * f64::from(tokens) * f64::from(n) * f64::from(k) / seconds;
                    println!(
                        "{line}: {:.3} ms, {rate:.0} TFLOP/s, worst error {error:.2e}",
                        seconds * 1e3
                    );
                    if error > 0.01 || error.is_nan() {
                        wrong.push(line);
                    }
                }
                Err(why) => println!("{line}: {}", why.message.lines().next().unwrap_or("")),
            }
        }
        // SAFETY: all was waited for.
        unsafe {
            driver.free(x);
            driver.free(w);
            driver.free(out);
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
    let driver = VulkanDriver::open(devices[0].clone(), &OpenOptions::default()).expect("it opens");
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
                    scale_depth: 0,
                    weight_blocks: false,
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
fn worst(found: &[u8], act: DType, [tokens, n, k]: [u32; 3]) -> f64 {
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
        let place = 2 * (token * u64::from(n) + row) as usize;
        let found = value_of(act, &found[place..place + 2]);
        worst = worst.max((f64::from(found) - expected).abs() / (18.0 * f64::from(k).sqrt() + expected.abs()));
    }
    worst
}

/// Seconds of one product.
fn run(
    driver: &VulkanDriver,
    variant: &Variant,
    act: DType,
    [x, w, out]: [u64; 3],
    [tokens, n, k]: [u32; 3],
    runs: u32,
) -> Result<f64, Error> {
    let [tile_tokens, tile_rows, depths] = variant.tile;
    let name = if act == DType::BF16 { "bf16" } else { "f16" };
    let mut options: Vec<String> = variant.more.iter().map(|&option| option.to_string()).collect();
    options.extend([
        format!("-DACT={name}"),
        format!("-DOUT={name}"),
        "-DACCUMULATE=0".to_string(),
        format!("-DTOKENS={tile_tokens}"),
        format!("-DROWS={tile_rows}"),
        format!("-DDEPTH={depths}"),
    ]);
    let function = function(driver, variant.file, variant.file, &options)?;
    let grid = [tokens.div_ceil(tile_tokens), n.div_ceil(tile_rows), 1];
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
    let on = driver.create_stream()?;
    // SAFETY: live memory of these sizes, and a live stream.
    let launch = || unsafe { driver.launch(function, grid, [variant.threads, 1, 1], 0, &params, false, on) };
    // SAFETY: as above; old results must not look right.
    unsafe { driver.fill(out, 0xFF, 2 * u64::from(tokens) * u64::from(n), on) }?;
    launch()?;
    driver.synchronize(on)?;
    let start = Instant::now();
    for _ in 0..runs {
        launch()?;
    }
    driver.synchronize(on)?;
    let seconds = start.elapsed().as_secs_f64() / f64::from(runs);
    // SAFETY: idle.
    unsafe { driver.destroy_stream(on) };
    Ok(seconds)
}
