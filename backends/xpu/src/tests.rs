//! The driver on whatever device there is. Skipped with the reason where there is no runtime.

use std::sync::Arc;

use halyard_gpu::{Driver, Modules, Preparation, attention_self_test};
use halyard_kernels_gpu::ATTENTION_PLAIN;
use halyard_platform_api::ops::Attention;
use halyard_platform_api::{DType, Error, OpenOptions, Status};

use crate::driver::OpenClDriver;
use crate::facts;

/// The first device; `None`, and a line that says why, where there is none.
fn driver() -> Option<OpenClDriver> {
    match facts::device(0) {
        Ok(found) => Some(OpenClDriver::open(found, &OpenOptions::default()).expect("the device opens")),
        Err(e) => {
            assert_eq!(e.status, Status::Unavailable, "{e}");
            println!("skipped: {}", e.message);
            None
        }
    }
}

/// What a copy of `height` rows of `width` bytes leaves of `before`, a place `at` bytes behind the start on both sides.
fn expected(before: &[u8], source: &[u8], at: usize, pitches: [usize; 2], [width, height]: [usize; 2]) -> Vec<u8> {
    let mut all = before.to_vec();
    for row in 0..height {
        let (to, from) = (at + row * pitches[0], at + row * pitches[1]);
        all[to..to + width].copy_from_slice(&source[from..from + width]);
    }
    all
}

/// By 16 bytes and byte by byte, rows closer and farther apart on either side, one row, and rows longer than a launch
/// is wide.
#[test]
fn rows_are_copied_from_one_pitch_to_another() {
    const BYTES: usize = 1 << 20;
    let Some(driver) = driver() else { return };
    let stream = driver.create_stream().expect("a stream");
    let pinned = || driver.allocate_pinned(BYTES as u64).expect("host memory");
    let (from_host, to_host) = (pinned(), pinned());
    let source: Vec<u8> = (0..BYTES).map(|i| (i * 7 + i / 251) as u8).collect();
    let before: Vec<u8> = (0..BYTES).map(|i| (i * 13 + 5) as u8).collect();
    let device = || driver.allocate(BYTES as u64).expect("device memory");
    let (from, to) = (device(), device());
    for (at, pitches, size) in [
        (0, [64, 96], [48, 5]),
        (16, [96, 64], [48, 5]),
        (1, [64, 96], [48, 5]),
        (0, [33, 47], [31, 9]),
        (0, [48, 48], [48, 4]),
        (16, [1 << 10, 1 << 9], [256, 1]),
        (0, [1 << 18, 1 << 17], [100_000, 3]),
        (3, [1 << 18, 1 << 17], [100_001, 3]),
    ] {
        // SAFETY: live memory of that size, waited for before the host looks.
        let found = unsafe {
            std::ptr::copy_nonoverlapping(source.as_ptr(), from_host.host, BYTES);
            std::ptr::copy_nonoverlapping(before.as_ptr(), to_host.host, BYTES);
            let all = BYTES as u64;
            driver.copy(from, from_host.device, all, stream).expect("a copy");
            driver.copy(to, to_host.device, all, stream).expect("a copy");
            let [to_pitch, from_pitch] = pitches.map(|n| n as u64);
            let [width, height] = size.map(|n| n as u64);
            let start = at as u64;
            driver
                .copy_2d(to + start, to_pitch, from + start, from_pitch, width, height, stream)
                .expect("a copy of rows");
            driver.copy(to_host.device, to, all, stream).expect("a copy");
            driver.synchronize(stream).expect("the work ends");
            std::slice::from_raw_parts(to_host.host, BYTES).to_vec()
        };
        let wanted = expected(&before, &source, at, pitches, size);
        let wrong = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
        assert_eq!(wrong, None, "at {at}, pitches {pitches:?}, rows of {size:?}");
    }
    // SAFETY: nothing uses them any more.
    unsafe {
        driver.free(from);
        driver.free(to);
        driver.free_pinned(from_host);
        driver.free_pinned(to_host);
        driver.destroy_stream(stream);
    }
}

/// A kernel that leaves out tokens is not taken for attention on matrix units, nor one that reads blocks of another
/// size.
#[test]
fn wrong_attention_is_refused_and_its_function_not_used() {
    let Some(driver) = driver() else { return };
    let driver: Arc<dyn Driver> = Arc::new(driver);
    let cx = Preparation {
        driver: &driver,
        modules: &Modules::default(),
    };
    let plain = |block| {
        let defines = [("ACT", "f16"), ("KV", "f16"), ("HEAD_DIM", "64"), ("BLOCK", block)];
        cx.function(ATTENTION_PLAIN, &defines, "attention_plain", 0)
            .expect("it compiles")
    };
    let (function, other) = (plain("16"), plain("32"));
    let spec = Attention {
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 64,
        scale: 0.125,
        window: 0,
        softcap: 0.0,
        has_sinks: false,
        act: DType::F16,
        kv: DType::F16,
        block_size: 16,
        backend: 0,
        max_seqs: 1,
        max_tokens: 64,
        max_query_len: 64,
        max_kv_len: 64,
    };
    // In the grid of tiles the plain kernel does two tokens of all, and they are right.
    let error = attention_self_test(&*driver, function, function, &spec).expect_err("most tokens are left out");
    assert!(
        error.message.starts_with("token 2 has -15 in place 0 of head 0"),
        "{error}"
    );
    let error = attention_self_test(&*driver, function, other, &spec).expect_err("the blocks are others");
    assert!(error.message.starts_with("token 0 has "), "{error}");

    let refused = |function| {
        cx.self_test(function, "a test", |function| {
            attention_self_test(&*driver, function, function, &spec)
        })
    };
    assert_eq!((refused(function), refused(function)), (None, None));
    let right = cx.self_test(other, "a test", |_| Ok(()));
    assert_eq!(right, Some(other));
    let once = cx.self_test(other, "a test", |_| {
        Err(Error::unsupported("a function is tested once"))
    });
    assert_eq!(once, Some(other));
}
