//! Faults of the driver, played by a fake libcuda. Each case runs this test program again as a child, with the fake on
//! its loader's path, and checks the child's output. Tests that need no arithmetic on the device run over the fake too.

use std::path::{Path, PathBuf};
use std::process::Command;

use halyard_platform_api::ops::{Add, Epilogue, Linear};
use halyard_platform_api::{
    BufferKind, DType, EncoderMode, Platform, QueueKind, Result, StepWrite, Tensor, WeightFormat,
};

use halyard_cuda::CudaPlatform;

/// The fake's folder for one test, deleted with it.
pub(crate) struct Fake(PathBuf);

impl Fake {
    pub(crate) fn new(name: &str, libraries: &[&str]) -> Fake {
        let folder = std::env::temp_dir().join(format!("halyard-fake-libcuda-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let test_program = std::env::current_exe().expect("a path");
        let fake = test_program.with_file_name("libhalyard_fake_libcuda.so");
        for library in libraries {
            std::fs::copy(&fake, folder.join(library)).unwrap_or_else(|e| panic!("{}: {e}", fake.display()));
        }
        Fake(folder)
    }

    /// Runs one test of this program under a fault: whether it passed, and what it said.
    pub(crate) fn run(&self, test: &str, fault: &str) -> (bool, String) {
        self.run_with(test, fault, &[])
    }

    /// As [`Fake::run`], with variables set.
    pub(crate) fn run_with(&self, test: &str, fault: &str, variables: &[(&str, &str)]) -> (bool, String) {
        let output = Command::new(std::env::current_exe().expect("a path"))
            .envs(variables.iter().copied())
            .args(["--exact", test, "--nocapture"])
            .env("LD_LIBRARY_PATH", &self.0)
            .env("FAKE_LIBCUDA", fault)
            .env("HALYARD_CACHE_DIR", self.0.join("cache"))
            .env_remove("HALYARD_CUDA_LIBRARY_PATH")
            .output()
            .expect("the child starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.success() && text.contains("1 passed"), text)
    }

    fn folder(&self) -> &Path {
        &self.0
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        // Best effort: it lies in the system's temporary folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const BOTH: [&str; 2] = ["libcuda.so", "libnvrtc.so"];

/// What a child does: a bit of everything, and prints the first error. Does nothing when it is not a child.
#[test]
fn child() {
    if std::env::var_os("FAKE_LIBCUDA").is_none() {
        return;
    }
    let print = |operation: &str, error: &halyard_platform_api::Error| println!("{operation}: {error}");
    let start = std::time::Instant::now();
    let outcome = work();
    println!("all is dropped after {} s", start.elapsed().as_secs());
    if let Err(error) = outcome {
        print("first error", &error);
        // The second look must say the same and hang nowhere.
        if let Err(error) = CudaPlatform.devices() {
            print("devices", &error);
        }
    }
}

fn work() -> Result<()> {
    let device = CudaPlatform.open(0)?;
    let buffer = device.create_buffer(4096, BufferKind::Device)?;
    let mut zeros = [1; 4096];
    buffer.read(0, &mut zeros)?;
    assert!(zeros.iter().all(|&b| b == 0), "fresh memory is zeroed");
    let queue = device.create_queue(QueueKind::Compute)?;
    let add = device.ops().prepare(
        &Add {
            width: 64,
            dtype: DType::F32,
        }
        .into(),
    )?;
    let row = Tensor::contiguous(buffer.id(), 0, DType::F32, &[1, 64]);
    let mut encoder = queue.create_encoder(EncoderMode::Reusable)?;
    encoder.encode(add.id(), &[row, row, row])?;
    let list = encoder.finish()?;
    for turn in 0..5u8 {
        let write = StepWrite {
            buffer: buffer.id(),
            offset: 100,
            bytes: &[turn; 33],
        };
        queue.write_step(&[write])?;
        let number = queue.submit(&[list.id()], &[])?;
        let waited = queue.wait(number, 300_000_000);
        if let Err(error) = &waited
            && error.status == halyard_platform_api::Status::DeviceLost
        {
            assert_eq!(queue.completed(), u64::MAX, "a failed queue says so");
            assert_eq!(queue.submit(&[], &[]).expect_err("a failed queue stays failed"), *error);
        }
        waited?;
        assert!(queue.completed() >= number);
    }
    device.create_buffer(1 << 29, BufferKind::Device)?;
    println!("all went well");
    // Many tokens: a product of the library, which has no fake.
    let linear = Linear {
        in_features: 1024,
        out_features: 1024,
        weight: WeightFormat::BF16,
        act: DType::BF16,
        out: DType::BF16,
        epilogue: Epilogue::None,
        max_tokens: 4096,
        allow_quantized_act: false,
    };
    device.ops().prepare(&linear.into()).map(|_| ())
}

#[test]
fn without_a_fault_everything_works() {
    let fake = Fake::new("sound", &BOTH);
    let (_, text) = fake.run("faults::child", "none");
    assert!(text.contains("all went well"), "{text}");
    // The compiled files are kept.
    let kept = std::fs::read_dir(fake.folder().join("cache/cuda"))
        .expect("a cache")
        .count();
    assert!(kept >= 2, "{kept} files: the scatter's and add's");
}

#[test]
fn each_fault_gives_an_error_that_names_it_and_what_to_do() {
    let cases: [(&str, &[&str]); 10] = [
        (
            "no_device",
            &["Unavailable", "cuInit", "CUDA_ERROR_NO_DEVICE", "nvidia-smi"],
        ),
        ("empty", &["Unavailable", "shows no GPU", "CUDA_VISIBLE_DEVICES"]),
        (
            "old_driver",
            &["Unavailable", "too old", "CUDA 11.4", "CUDA 12.4", "driver 550"],
        ),
        ("old_device", &["Unavailable", "Fake GPU (7.5)", "8.0"]),
        (
            "busy",
            &[
                "DeviceLost",
                "device 0 (Fake GPU)",
                "cuDevicePrimaryCtxRetain",
                "restart the process",
            ],
        ),
        ("pinned", &["OutOfMemory", "pinned host memory", "cuMemHostAlloc"]),
        (
            "compile",
            &[
                "Unsupported",
                ".cu",
                "sm_90a",
                "nvrtc 13.0",
                "the fake compiler's words",
            ],
        ),
        (
            "illegal_address=4",
            &[
                "DeviceLost",
                "submit 2 failed",
                "cuEventQuery",
                "CUDA_ERROR_ILLEGAL_ADDRESS",
                "restart the process",
                "vendor code 700",
            ],
        ),
        (
            "ecc=6",
            &["DeviceLost", "submit 3 failed", "CUDA_ERROR_ECC_UNCORRECTABLE", "Xid"],
        ),
        (
            "launch_failed=3",
            &[
                "DeviceLost",
                "submit 2 failed",
                "cuLaunchKernelEx",
                "CUDA_ERROR_LAUNCH_FAILED",
                "compute-sanitizer",
            ],
        ),
    ];
    let fake = Fake::new("faults", &BOTH);
    for (fault, expected) in cases {
        let (passed, text) = fake.run("faults::child", fault);
        assert!(passed, "{fault}: the child broke:\n{text}");
        let line = text
            .lines()
            .find(|line| line.contains("first error: "))
            .unwrap_or_default();
        for part in expected {
            assert!(
                line.contains(part) || text.contains(part),
                "{fault}: no `{part}` in:\n{text}"
            );
        }
    }
}

#[test]
fn work_that_does_not_end_is_a_timeout_and_no_hang() {
    let fake = Fake::new("stuck", &BOTH);
    let (passed, text) = fake.run("faults::child", "stuck");
    assert!(passed, "{text}");
    assert!(
        text.contains("Timeout: submit 1 is not done after 300000000 ns; the last done is 0"),
        "{text}"
    );
    // Freeing memory, or waiting for the stream, would take a minute.
    let (_, seconds) = text.split_once("all is dropped after ").expect("said");
    let seconds: u32 = seconds
        .split(' ')
        .next()
        .and_then(|s| s.parse().ok())
        .expect("a number");
    assert!(seconds < 30, "{text}");
}

#[test]
fn a_missing_compiler_is_named_with_where_to_get_it() {
    let fake = Fake::new("no-nvrtc", &BOTH[..1]);
    let (passed, text) = fake.run("faults::child", "none");
    if text.contains("all went well") {
        println!("skipped: this machine has a libnvrtc of its own, so its absence cannot be played");
        return;
    }
    assert!(passed, "{text}");
    for part in [
        "Unavailable",
        "libnvrtc.so.13 was not found",
        "nvidia-cuda-nvrtc",
        "HALYARD_CUDA_LIBRARY_PATH",
    ] {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
}

#[test]
fn a_missing_product_library_is_named_with_where_to_get_it() {
    let fake = Fake::new("no-cublaslt", &BOTH);
    let (passed, text) = fake.run("faults::child", "none");
    if !passed {
        println!("skipped: this machine has a libcublasLt of its own, which does not run on the fake");
        return;
    }
    for part in ["Unavailable", "libcublasLt.so.13 was not found", "nvidia-cublas"] {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
}

#[test]
fn no_driver_at_all_is_said() {
    let fake = Fake::new("no-driver", &[]);
    let (passed, text) = fake.run("faults::child", "none");
    assert!(passed, "{text}");
    if text.contains("all went well") {
        println!("skipped: this machine has an NVIDIA driver, so its absence cannot be played");
        return;
    }
    for part in [
        "Unavailable",
        "no libcuda.so.1 (NVIDIA driver) was found",
        "install the NVIDIA driver",
    ] {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
}

#[test]
fn the_tests_without_arithmetic_pass_over_the_fake() {
    let fake = Fake::new("others", &BOTH);
    for test in [
        "step_writes_of_any_size_and_alignment_arrive_in_order",
        "a_wait_for_work_never_submitted_is_refused",
        "more_memory_than_there_is_gives_the_arithmetic_and_leaves_the_device_usable",
    ] {
        let (passed, text) = fake.run(test, "none");
        assert!(passed && !text.contains("skipped: "), "{test}:\n{text}");
    }
}
