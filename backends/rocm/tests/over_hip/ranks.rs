//! Two ranks: RCCL is found and does the sums, our peer kernel does those of its sizes, and a missing library is named.
//! The shared code handles ranks that leave; the CUDA platform's tests cover it, over the same fake driver.

use std::sync::Arc;

use halyard_platform_api::communicator::{Collective, CollectiveKind};
use halyard_platform_api::{
    BufferKind, Communicator, CommunicatorDesc, DType, EncoderMode, Platform, QueueKind, Result, Tensor,
};
use halyard_rocm::RocmPlatform;

use crate::{ALL, FAKE, HIP, Stand};

/// What the own kernel takes at most of two ranks' 16-bit sums, and one element more.
const LONGEST: u32 = 512 << 10;

/// Sums of several sizes between two devices, and prints the first error. Does nothing when it is not a child.
#[test]
fn child_sums() {
    if std::env::var_os("FAKE_LIBCUDA").is_none() {
        return;
    }
    if let Err(error) = sums() {
        println!("first error: {error}");
    }
}

fn sums() -> Result<()> {
    let device = RocmPlatform.open(0)?;
    let id = device.communicator_id()?;
    let (group, other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            RocmPlatform
                .open(1)?
                .create_communicator(&CommunicatorDesc::new(&id, 1, 2))
        });
        let own = device.create_communicator(&CommunicatorDesc::new(&id, 0, 2));
        (own, other.join().expect("no panic"))
    });
    let words = |r: &Result<Arc<dyn Communicator>>| r.as_ref().err().map_or("joined".to_string(), |e| e.to_string());
    println!("rank 0: {}; rank 1: {}", words(&group), words(&other));
    let (group, _other) = (group?, other?);
    let queue = device.create_queue(QueueKind::Compute)?;
    for count in [4096, LONGEST, LONGEST + 1] {
        eprintln!("sum of {count}");
        let buffer = device.create_buffer(u64::from(count) * 2, BufferKind::Device)?;
        let op = group.prepare(&Collective {
            kind: CollectiveKind::AllReduce,
            dtype: DType::BF16,
            peer: 0,
        })?;
        let row = Tensor::contiguous(buffer.id(), 0, DType::BF16, &[count]);
        let mut encoder = queue.create_encoder(EncoderMode::OneShot)?;
        encoder.encode(op.id(), &[row, row])?;
        let list = encoder.finish()?;
        let number = queue.submit(&[list.id()], &[])?;
        queue.wait(number, 60_000_000_000)?;
    }
    eprintln!("end");
    Ok(())
}

/// With RCCL, and what lies beneath it.
fn stand(name: &str) -> Stand {
    let libraries = [(HIP, "librccl.so.1"), (FAKE, "libnccl.so.2")];
    Stand::new(name, &[&ALL[..], &libraries].concat())
}

#[test]
fn rccl_does_the_sums_and_an_own_kernel_those_that_it_is_given() {
    let stand = stand("sums");
    for (fault, named, expected) in [
        ("none", None, [true, true, true]),
        ("none", Some("8192"), [false, true, true]),
        ("none", Some("1048576"), [false, false, true]),
        ("no_peers", Some("1048576"), [true, true, true]),
    ] {
        let variables: Vec<_> = named
            .map(|bytes| ("HALYARD_ROCM_PEER_SUM_BYTES", bytes))
            .into_iter()
            .collect();
        let (passed, text) = stand.run_with("ranks::child_sums", fault, &variables);
        assert!(
            passed && text.contains("end") && !text.contains("first error"),
            "{text}"
        );
        let sums = text.split("sum of ").skip(1);
        let by_rccl: Vec<bool> = sums.map(|part| part.contains("fake nccl: all_reduce")).collect();
        assert_eq!(by_rccl, expected, "{fault}, {named:?}:\n{text}");
    }
    let wrong = [("HALYARD_ROCM_PEER_SUM_BYTES", "8k")];
    let (passed, text) = stand.run_with("ranks::child_sums", "none", &wrong);
    let why = "HALYARD_ROCM_PEER_SUM_BYTES) is \"8k\"";
    assert!(passed && text.contains(why), "{text}");
}

#[test]
fn a_rank_that_cannot_join_says_what_rccl_answered() {
    let (passed, text) = stand("join").run("ranks::child_sums", "nccl_init");
    assert!(passed, "{text}");
    let answer = "rank 1: Internal: ncclCommInitRank of RCCL answered 2 (as the fake library words it)";
    assert!(
        text.contains(answer) && text.contains("another rank did not join"),
        "{text}"
    );
}

#[test]
fn without_rccl_its_absence_is_named_with_the_remedy_and_one_device_works() {
    let stand = Stand::new("no-rccl", &ALL);
    let (passed, text) = stand.run("ranks::child_sums", "none");
    if text.contains("rank 0: joined") {
        println!("skipped: this machine has an RCCL of its own, so its absence cannot be played");
        return;
    }
    assert!(passed, "{text}");
    for part in [
        "first error: Unavailable: librccl.so.1 was not found",
        "install RCCL",
        "HALYARD_ROCM_LIBRARY_PATH",
    ] {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
}

#[test]
fn an_rccl_with_nothing_beneath_says_so() {
    let stand = Stand::new("no-nccl", &[&ALL[..], &[(HIP, "librccl.so.1")]].concat());
    let (passed, text) = stand.run("ranks::child_sums", "none");
    if !text.contains("first error") {
        println!("skipped: this machine has an NCCL of its own, so its absence cannot be played");
        return;
    }
    assert!(passed, "{text}");
    for part in [
        "ncclGetUniqueId of RCCL answered 2",
        "libnccl.so.2 was not found",
        "HALYARD_CUDA_LIBRARY_PATH",
    ] {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
}
