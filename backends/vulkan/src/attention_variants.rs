//! Attention of one prompt on matrix units: close to the plain kernel's result. `HALYARD_VULKAN_TABLES=1` also prints
//! the speed at 4096 tokens, to tune by: `cargo test -p halyard-backend-vulkan --lib attention_variants --
//! --nocapture`.

use std::time::Instant;

use halyard_gpu::{DevicePtr, Driver, Param, Stream};

use crate::driver::VulkanDriver;
use crate::env::tables_are_asked;
use crate::variants::{device_bytes, driver_with_matrices, function};

const HEADS: u32 = 32;
const KV_HEADS: u32 = 8;
const HEAD_DIM: u32 = 128;
const BLOCK: u32 = 64;

/// bf16 values between -1 and 1.
fn values(count: u64, salt: u64) -> Vec<u8> {
    let bits = |at: u64| {
        let mixed = (at + salt).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
        let value = (mixed.wrapping_mul(0xD134_2543_DE82_EF95) >> 40) as f32 / (1 << 23) as f32 - 1.0;
        (value.to_bits() >> 16) as u16
    };
    (0..count).flat_map(|at| bits(at).to_le_bytes()).collect()
}

fn words(all: impl IntoIterator<Item = u32>) -> Vec<u8> {
    all.into_iter().flat_map(u32::to_le_bytes).collect()
}

#[test]
fn tiles_agree_with_the_plain_kernel_and_so_fast() {
    let Some((driver, physical)) = driver_with_matrices() else {
        return;
    };
    if !physical.matrices.bf16 {
        println!("skipped: {} multiplies no bf16 matrices", physical.facts.name);
        return;
    }
    let on = driver.create_stream().expect("a stream");
    let tokens: u32 = if tables_are_asked() { 4096 } else { 200 };
    let pages = tokens.div_ceil(BLOCK);
    let page_bytes = u64::from(KV_HEADS * 2 * HEAD_DIM * BLOCK * 2);
    let q_count = u64::from(tokens * HEADS * HEAD_DIM);
    let q = device_bytes(&driver, &values(q_count, 1), on);
    let cache = device_bytes(&driver, &values(u64::from(pages) * page_bytes / 2, 7), on);
    // Pages out of order.
    let table = device_bytes(&driver, &words((0..pages).map(|page| pages - 1 - page)), on);
    let rows = device_bytes(&driver, &words([0]), on);
    let starts = device_bytes(&driver, &words([0, tokens]), on);
    let lens = device_bytes(&driver, &words([tokens]), on);
    let to = driver.allocate(2 * q_count).expect("memory");
    let strides = [HEADS * HEAD_DIM, HEAD_DIM];
    let params = [
        Param::Ptr(q),
        Param::Word(strides[0]),
        Param::Word(strides[1]),
        Param::Ptr(cache),
        Param::Long(page_bytes),
        Param::Ptr(table),
        Param::Word(pages),
        Param::Ptr(rows),
        Param::Ptr(starts),
        Param::Ptr(lens),
        Param::Ptr(0),
        Param::Ptr(to),
        Param::Word(strides[0]),
        Param::Word(strides[1]),
        Param::Word(tokens),
        Param::Word(1),
        Param::Word(HEADS),
        Param::Word(HEADS / KV_HEADS),
        Param::Word((2.0f32 / (HEAD_DIM as f32).sqrt()).to_bits()),
        Param::Word(0.0f32.to_bits()),
        Param::Word(0),
    ];
    let mut outcomes: Vec<Vec<f32>> = Vec::new();
    for (file, grid) in [
        ("attention_plain", [(tokens * HEADS).div_ceil(4), 1, 1]),
        ("attention_tiles", [tokens.div_ceil(64), HEADS, 1]),
    ] {
        let options = ["-DACT=bf16", "-DKV=bf16", "-DHEAD_DIM=128", "-DBLOCK=64"].map(str::to_string);
        let function = function(&driver, file, file, &options).expect("it compiles and has its entry");
        // SAFETY: live memory of these sizes, and a live stream.
        let launch = || unsafe { driver.launch(function, grid, [128, 1, 1], 0, &params, false, on) };
        launch().expect("recorded");
        outcomes.push(floats(&driver, to, q_count, on));
        let start = Instant::now();
        for _ in 0..8 {
            launch().expect("recorded");
        }
        driver.synchronize(on).expect("it ends");
        let seconds = start.elapsed().as_secs_f64() / 8.0;
        let work = 2.0 * f64::from(tokens) * f64::from(tokens) * f64::from(HEADS * HEAD_DIM);
        println!(
            "{file}, {tokens} tokens: {:.3} ms, {:.0} TFLOP/s",
            seconds * 1e3,
            work / seconds / 1e12
        );
    }
    let apart = outcomes[0].iter().zip(&outcomes[1]).map(|(a, b)| (a - b).abs());
    let worst = apart.fold(0.0f32, |worst, apart| if apart > worst { apart } else { worst });
    let numbers = outcomes[1].iter().filter(|value| value.is_finite()).count();
    println!("apart by at most {worst}");
    assert!(worst < 0.02 && numbers as u64 == q_count, "{worst}, {numbers} numbers");
}

/// bf16 values of device memory, once it has been written.
fn floats(driver: &VulkanDriver, from: DevicePtr, count: u64, on: Stream) -> Vec<f32> {
    let pinned = driver.allocate_pinned(2 * count).expect("memory");
    // SAFETY: both have that size.
    unsafe { driver.copy(pinned.device, from, 2 * count, on) }.expect("recorded");
    driver.synchronize(on).expect("copied");
    // SAFETY: waited for.
    let bytes = unsafe { std::slice::from_raw_parts(pinned.host, 2 * count as usize) };
    let values = bytes
        .chunks_exact(2)
        .map(|two| f32::from_bits(u32::from(u16::from_le_bytes([two[0], two[1]])) << 16))
        .collect();
    // SAFETY: nothing uses it any more.
    unsafe { driver.free_pinned(pinned) };
    values
}
