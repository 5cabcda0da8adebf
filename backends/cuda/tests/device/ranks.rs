//! Two ranks over the fake driver and the fake NCCL: which sums use NCCL and which the peer kernel, and the effects of
//! a rank that leaves on its own calls, its recordings, and the other ranks. Each case is a child process, as in
//! `faults`.

use std::sync::Arc;
use std::time::Duration;

use halyard_cuda::CudaPlatform;
use halyard_platform_api::communicator::{Collective, CollectiveKind};
use halyard_platform_api::{
    Buffer, BufferKind, CommandBuffer, Communicator, CommunicatorDesc, DType, Device, EncoderMode, Platform, Queue,
    QueueKind, Result, Status, Tensor,
};

use crate::faults::Fake;

const ALL: [&str; 3] = ["libcuda.so", "libnvrtc.so", "libnccl.so.2"];
/// What the own kernel takes of two ranks, and one element more.
const LONGEST: u32 = 512 << 10;

/// Rank 0 of two, with rank 1's end.
struct Ranks {
    device: Arc<dyn Device>,
    queue: Arc<dyn Queue>,
    group: Arc<dyn Communicator>,
    _other: Arc<dyn Communicator>,
}

fn ranks() -> Result<Ranks> {
    let device = CudaPlatform.open(0)?;
    let id = device.communicator_id()?;
    let (group, other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            CudaPlatform
                .open(1)?
                .create_communicator(&CommunicatorDesc::new(&id, 1, 2))
        });
        let own = device.create_communicator(&CommunicatorDesc::new(&id, 0, 2));
        (own, other.join().expect("no panic"))
    });
    let queue = device.create_queue(QueueKind::Compute)?;
    // Both in one report: each says what the other did.
    let words = |r: &Result<Arc<dyn Communicator>>| r.as_ref().err().map_or("joined".to_string(), |e| e.to_string());
    println!("rank 0: {}; rank 1: {}", words(&group), words(&other));
    Ok(Ranks {
        device,
        queue,
        group: group?,
        _other: other?,
    })
}

impl Ranks {
    /// A list with one sum of `count` elements, and the memory that it is in.
    fn sum(&self, count: u32, mode: EncoderMode) -> Result<(Arc<dyn Buffer>, Arc<dyn CommandBuffer>)> {
        let buffer = self.device.create_buffer(u64::from(count) * 2, BufferKind::Device)?;
        let op = self.group.prepare(&Collective {
            kind: CollectiveKind::AllReduce,
            dtype: DType::BF16,
            peer: 0,
        })?;
        let row = Tensor::contiguous(buffer.id(), 0, DType::BF16, &[count]);
        let mut encoder = self.queue.create_encoder(mode)?;
        encoder.encode(op.id(), &[row, row])?;
        Ok((buffer, encoder.finish()?))
    }

    fn run(&self, count: u32) -> Result<()> {
        let (_buffer, list) = self.sum(count, EncoderMode::OneShot)?;
        let number = self.queue.submit(&[list.id()], &[])?;
        self.queue.wait(number, 1_000_000_000)
    }
}

fn is_child() -> bool {
    std::env::var_os("FAKE_LIBCUDA").is_some()
}

#[test]
fn child_sums() {
    if !is_child() {
        return;
    }
    let work = || -> Result<()> {
        let ranks = ranks()?;
        for count in [4096, LONGEST, LONGEST + 1] {
            eprintln!("sum of {count}");
            ranks.run(count)?;
        }
        eprintln!("end");
        Ok(())
    };
    if let Err(error) = work() {
        println!("first error: {error}");
    }
}

/// Which of the three sums went to NCCL.
fn to_nccl(text: &str) -> Vec<bool> {
    let sums = text.split("sum of ").skip(1);
    sums.map(|part| part.contains("fake nccl: all_reduce")).collect()
}

#[test]
fn small_sums_are_the_own_kernels_where_devices_reach_each_other() {
    let fake = Fake::new("sums", &ALL);
    for (fault, named, expected) in [
        ("none", None, [false, false, true]),
        ("none", Some("8192"), [false, true, true]),
        ("none", Some("0"), [true, true, true]),
        ("no_peers", None, [true, true, true]),
    ] {
        let variables: Vec<_> = named
            .map(|bytes| ("HALYARD_CUDA_PEER_SUM_BYTES", bytes))
            .into_iter()
            .collect();
        let (passed, text) = fake.run_with("ranks::child_sums", fault, &variables);
        assert!(passed && !text.contains("first error"), "{text}");
        assert_eq!(to_nccl(&text), expected, "{fault}, {named:?}:\n{text}");
    }
    let (passed, text) = fake.run_with("ranks::child_sums", "none", &[("HALYARD_CUDA_PEER_SUM_BYTES", "8k")]);
    assert!(
        passed && text.contains("HALYARD_CUDA_PEER_SUM_BYTES) is \"8k\""),
        "{text}"
    );
}

#[test]
fn a_rank_that_cannot_join_releases_the_other_at_once() {
    let fake = Fake::new("join", &ALL);
    let start = std::time::Instant::now();
    let (passed, text) = fake.run("ranks::child_sums", "nccl_init");
    assert!(passed, "{text}");
    for part in [
        "rank 1: Internal: ncclCommInitRank of NCCL answered 2",
        "rank 0: Timeout",
        "another rank did not join",
    ] {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "it waited for the time to run out"
    );
}

#[test]
fn child_leaves() {
    if !is_child() {
        return;
    }
    let ranks = ranks().expect("they join");
    // One by the own kernel, one by the library; both recorded and run once.
    let lists = [4096, LONGEST + 1].map(|count| ranks.sum(count, EncoderMode::Reusable).expect("encoded"));
    for (_, list) in &lists {
        let number = ranks.queue.submit(&[list.id()], &[]).expect("submitted");
        ranks.queue.wait(number, 1_000_000_000).expect("done");
    }
    let Ranks { queue, group, .. } = ranks;
    drop(group);
    for (_, list) in &lists {
        let error = queue.submit(&[list.id()], &[]).expect_err("the rank has left");
        println!("after leaving: {error}");
        assert_eq!(error.status, Status::Unavailable);
    }
}

#[test]
fn a_recording_of_a_rank_that_has_left_is_refused() {
    let fake = Fake::new("leaves", &ALL);
    let (passed, text) = fake.run("ranks::child_leaves", "none");
    assert!(passed, "{text}");
    assert!(text.contains("rank 0 has left its group of 2"), "{text}");
}

#[test]
fn child_leaves_in_the_middle() {
    if !is_child() {
        return;
    }
    let ranks = ranks().expect("they join");
    let (_buffer, list) = ranks.sum(LONGEST + 1, EncoderMode::OneShot).expect("encoded");
    let Ranks { queue, group, .. } = ranks;
    std::thread::scope(|scope| {
        scope.spawn(|| queue.submit(&[list.id()], &[]));
        std::thread::sleep(Duration::from_millis(100));
        drop(group);
    });
    // The abort is on a thread of its own.
    std::thread::sleep(Duration::from_millis(300));
    println!("left");
}

#[test]
fn a_rank_leaves_after_its_calls_in_the_library() {
    let fake = Fake::new("middle", &ALL);
    let (passed, text) = fake.run("ranks::child_leaves_in_the_middle", "slow_nccl");
    assert!(passed && text.contains("left"), "{text}");
    assert!(text.contains("fake nccl: abort\n"), "{text}");
}

#[test]
fn a_process_does_not_end_in_the_middle_of_an_abort() {
    let fake = Fake::new("abort", &ALL);
    let (passed, text) = fake.run("ranks::child_sums", "none");
    let (begun, ended) = (
        text.matches("fake nccl: abort\n"),
        text.matches("fake nccl: abort ended"),
    );
    assert!(passed && begun.count() == 2 && ended.count() == 2, "{text}");
}
