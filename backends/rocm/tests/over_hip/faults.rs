//! Faults, and the same work without a fault. Each case runs this test program again as a child and checks the child's
//! output.

use halyard_platform_api::ops::{Add, Epilogue, Linear};
use halyard_platform_api::{
    BufferKind, Capabilities, DType, EncoderMode, Platform, QueueKind, Result, Status, StepWrite, Tensor, WeightFormat,
};
use halyard_rocm::RocmPlatform;

use crate::{ALL, FAKE, Stand};

/// What a child does: a bit of everything, and prints the first error. Does nothing when it is not a child.
#[test]
fn child() {
    if std::env::var_os("FAKE_LIBCUDA").is_none() {
        return;
    }
    if let Err(error) = work() {
        println!("first error: {error}");
    }
}

fn work() -> Result<()> {
    let devices = RocmPlatform.devices()?;
    println!("device: {} ({})", devices[0].name, devices[0].detail);
    assert!(devices[0].capabilities.has(Capabilities::COMMUNICATOR));
    let device = RocmPlatform.open(0)?;
    assert_eq!(RocmPlatform.open(99).err().map(|e| e.status), Some(Status::NotFound));
    let buffer = device.create_buffer(4096, BufferKind::Device)?;
    let mut zeros = [1; 4096];
    buffer.read(0, &mut zeros)?;
    assert!(zeros.iter().all(|&b| b == 0), "fresh memory is zeroed");
    let queue = device.create_queue(QueueKind::Compute)?;
    let add = Add {
        width: 64,
        dtype: DType::F32,
    };
    let add = device.ops().prepare(&add.into())?;
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
        queue.wait(number, 300_000_000)?;
        let mut read = [0; 33];
        buffer.read(100, &mut read)?;
        assert_eq!(read, [turn; 33], "step data arrives");
    }
    // Many tokens: there is no library, so tiles are compiled.
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
    device.ops().prepare(&linear.into())?;
    let _most = device.create_buffer(1 << 29, BufferKind::Device)?;
    println!("all went well");
    device.create_buffer(1 << 29, BufferKind::Device).map(|_| ())
}

#[test]
fn without_a_fault_everything_works_and_too_much_memory_is_an_error() {
    let stand = Stand::new("sound", &ALL);
    let (passed, text) = stand.run("faults::child", "none");
    assert!(passed && text.contains("all went well"), "{text}");
    for part in [
        "gfx-on-sm_90",
        "waves of 32",
        "first error: OutOfMemory: 536870912 bytes of device memory asked, 535818240 of 1073741824 free",
    ] {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
    // The compiled files are kept.
    let kept = std::fs::read_dir(stand.0.join("cache/rocm")).expect("a cache").count();
    assert!(kept >= 3, "{kept} files: the scatter's, add's and linear's");
}

#[test]
fn each_fault_gives_an_error_that_names_it_and_what_to_do() {
    let cases: [(&str, &[&str]); 6] = [
        ("no_device", &["Unavailable: hipInit answered 100", "/dev/kfd"]),
        ("empty", &["Unavailable", "shows no GPU", "HIP_VISIBLE_DEVICES"]),
        ("pinned", &["OutOfMemory", "pinned host memory", "hipHostMalloc"]),
        (
            "compile",
            &[
                "Unsupported",
                ".cu",
                "gfx-on-sm_90",
                "hiprtc 13.0",
                "the fake compiler's words",
            ],
        ),
        (
            "illegal_address=4",
            &[
                "DeviceLost",
                "submit 2 failed",
                "hipEventQuery",
                "restart the process",
                "vendor code 700",
            ],
        ),
        (
            "launch_failed=3",
            &[
                "DeviceLost",
                "submit 2 failed",
                "hipModuleLaunchKernel",
                "vendor code 719",
            ],
        ),
    ];
    let stand = Stand::new("faults", &ALL);
    for (fault, expected) in cases {
        let (passed, text) = stand.run("faults::child", fault);
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
    let (passed, text) = Stand::new("stuck", &ALL).run("faults::child", "stuck");
    assert!(passed, "{text}");
    assert!(
        text.contains("Timeout: submit 1 is not done after 300000000 ns"),
        "{text}"
    );
}

#[test]
fn a_library_that_is_no_runtime_is_refused_by_what_it_lacks() {
    let (_, text) = Stand::new("no-hip", &[(FAKE, "libamdhip64.so.7")]).run("faults::child", "none");
    assert!(
        text.contains("first error: Unavailable: a library lacks hip") && text.contains("install a newer one"),
        "{text}"
    );
}
