//! A platform in Rust through its own entry and tables: every call crosses and comes back, objects end in order, panics
//! are contained.

#[path = "support/null_platform.rs"]
mod null_platform;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use halyard_platform_api::ops::{Add, Attention, Linear, UnknownOp};
use halyard_platform_api::program::{Node, TensorDecl};
use halyard_platform_api::{
    BufferId, BufferKind, Collective, CollectiveKind, CommunicatorDesc, CommunicatorId, DType, Device, Encoder,
    EncoderMode, OpId, OpSpec, Platform, PreparedInfo, Program, QueueId, QueueKind, QueueWait, Status, StepWrite,
    Tensor, WeightFormat, WeightRows,
};
use halyard_plugin_host::{Kind, Plugin, PluginError, inspect};
use null_platform::{FAILING_OP, MEMORY_PANICS, PANICKING_OP, events};

/// The system's allocator, counting this thread's allocations.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: hands every call to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The events are one list for the process: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    events();
    guard
}

fn platform() -> Arc<dyn Platform> {
    let plugin = Plugin::from_linked(null_platform::plugin()).expect("the null platform loads");
    plugin.platform().expect("it is a platform")
}

fn device() -> Arc<dyn Device> {
    platform().open(1).expect("two devices")
}

fn linear() -> OpSpec {
    let spec = Linear {
        in_features: 32,
        out_features: 4,
        weight: WeightFormat::Q8_0,
        act: DType::F32,
        out: DType::F32,
        epilogue: halyard_platform_api::ops::Epilogue::Silu,
        max_tokens: 9,
        allow_quantized_act: true,
    };
    spec.into()
}

fn attention(backend: u32) -> Attention {
    Attention {
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 64,
        scale: 0.125,
        window: 0,
        softcap: 0.0,
        has_sinks: false,
        act: DType::F32,
        kv: DType::F16,
        block_size: 16,
        backend,
        max_seqs: 8,
        max_tokens: 64,
        max_query_len: 64,
        max_kv_len: 1024,
    }
}

#[test]
fn manifest_and_facts_come_through() {
    let _alone = alone();
    let plugin = Plugin::from_linked(null_platform::plugin()).expect("the null platform loads");
    let manifest = plugin.manifest();
    assert_eq!(
        (manifest.kind, manifest.name.as_str(), manifest.priority),
        (Kind::Platform, "null", -1)
    );
    assert_eq!(manifest.abi, null_platform::abi());
    assert_eq!(manifest.entry, "halyard_entry_null");
    assert_eq!(plugin.path(), None);
    assert!(matches!(
        plugin.stat_logger_factory(),
        Err(PluginError::WrongKind {
            wanted: Kind::StatLogger,
            ..
        })
    ));
    let platform = platform();
    let info = null_platform::device_info();
    assert_eq!(platform.devices(), Ok(vec![info.clone(), info.clone()]));
    let device = device();
    assert_eq!(device.info(), &info);
    assert_eq!(device.memory().expect("it answers").free_bytes, 600);
    let error = platform.open(2).map(|_| ()).expect_err("two devices");
    assert_eq!(
        (error.status, error.message.as_str()),
        (Status::NotFound, "null: device 2 of 2")
    );
}

#[test]
fn plugins_linked_together_keep_their_manifests_in_one_section() {
    let report = inspect(&std::env::current_exe().expect("a running test has a path")).expect("it holds plugins");
    let mut names: Vec<&str> = report.manifests.iter().map(|m| m.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["counted", "null"]);
}

#[test]
fn memory_and_queues_come_through() {
    let _alone = alone();
    let device = device();
    let buffer = device
        .create_buffer(100, BufferKind::HostVisible)
        .expect("there is room");
    assert_eq!(events(), ["buffer of 100 HostVisible"]);
    assert_eq!((buffer.id(), buffer.bytes()), (BufferId(5), 100));
    buffer.write(97, &[1, 2, 3]).expect("within");
    let mut out = [0; 3];
    buffer.read(97, &mut out).expect("within");
    assert_eq!(out, [1, 2, 3]);
    buffer.write(100, &[]).expect("nothing at the end");
    assert_eq!(
        buffer.read(98, &mut out).map_err(|e| e.status),
        Err(Status::InvalidArgument)
    );

    let queue = device.create_queue(QueueKind::Compute).expect("a compute queue");
    let copy = device
        .create_queue(QueueKind::Copy)
        .map(|_| ())
        .expect_err("no copy queue");
    assert_eq!(copy.message, "null: no copy queue");
    assert_eq!(queue.id(), QueueId(21));
    let write = |offset, bytes| StepWrite {
        buffer: BufferId(5),
        offset,
        bytes,
    };
    queue.write_step(&[write(1, &[7, 8]), write(2, &[])]).expect("taken");
    assert_eq!(events(), ["step write 5 +1 [7, 8]", "step write 5 +2 []"]);
    assert_eq!(queue.completed(), 0);
    let command = queue
        .create_encoder(EncoderMode::OneShot)
        .expect("one-shot")
        .finish()
        .expect("empty");
    events();
    let wait = QueueWait {
        queue: QueueId(8),
        number: 9,
    };
    assert_eq!(queue.submit(&[command.id()], &[wait]), Ok(1));
    assert_eq!(queue.submit(&[], &[]), Ok(2));
    assert_eq!(
        events(),
        ["submitted [CommandId(31)] after [(8, 9)]", "submitted [] after []"]
    );
    assert_eq!(queue.completed(), 2);
    queue.wait(2, 5).expect("done");
    let late = queue.wait(3, 5).expect_err("not submitted");
    assert_eq!(
        (late.status, late.message.as_str()),
        (Status::Timeout, "null: 3 not done after 5 ns")
    );
    assert_eq!(queue.reserve_scratch(8).map_err(|e| e.status), Err(Status::OutOfMemory));
}

#[test]
fn ops_come_through() {
    let _alone = alone();
    let device = device();
    let ops = device.ops();
    let support = ops.support(&linear()).expect("supported");
    assert_eq!(
        (support.cost, support.implementation.as_str()),
        (1.5, "linear by doing nothing")
    );
    let add = OpSpec::Add(Add {
        width: 1,
        dtype: DType::F32,
    });
    assert_eq!(
        ops.support(&add).map_err(|e| e.message),
        Err("null: cannot add".to_string())
    );
    let op = ops.prepare(&linear()).expect("prepared");
    assert_eq!(events(), [format!("prepared {:?}", linear())]);
    assert_eq!(op.id(), on_wire(OpId(41), 5));
    assert_eq!(
        op.info(),
        PreparedInfo {
            scratch_bytes: 77,
            recordable: true
        }
    );
    assert_eq!(op.packed_weight_bytes(3), Ok(103));
    let dst = Tensor::contiguous(BufferId(5), 64, DType::U8, &[100]);
    // Q8_0: 34 bytes hold 32 values.
    let pack = |node, first_row, num_rows, len: usize| {
        op.pack_weight(
            node,
            WeightRows {
                first_row,
                num_rows,
                bytes: &vec![1; len],
            },
            &dst,
        )
    };
    pack(0, 1, 3, 102).expect("it fits");
    assert_eq!(events(), ["packed 0: 1+3 102 bytes to 64"]);
    let short = pack(0, 1, 3, 101).expect_err("a byte is missing");
    assert!(
        short.message.contains("101 bytes; 102 are needed (34 a row)"),
        "{short}"
    );
    let made = |bytes| Tensor::contiguous(BufferId(6), 32, DType::U8, &[bytes]);
    op.pack_weight_from(0, 1, 3, &made(102), &dst).expect("it fits");
    assert_eq!(events(), ["packed 0: 1+3 from 32 to 64"]);
    let short = op.pack_weight_from(0, 1, 3, &made(101), &dst);
    assert_eq!(short.map_err(|e| e.status), Err(Status::InvalidArgument));
    assert_eq!(pack(0, 2, 3, 102).map_err(|e| e.status), Err(Status::InvalidArgument));
    assert_eq!(pack(1, 0, 1, 34).map_err(|e| e.status), Err(Status::InvalidArgument));
    assert_eq!(
        events(),
        Vec::<String>::new(),
        "what does not fit never reaches the plugin"
    );
}

#[test]
fn programs_and_claims_come_through_whatever_their_size() {
    let _alone = alone();
    let device = device();
    let add = Add {
        width: 1,
        dtype: DType::F32,
    };
    let node = Node::new(add, [0, 1, 2]);
    let tensors = (0..3)
        .map(|storage| TensorDecl::whole(DType::F32, false, storage))
        .collect();
    let mut program = Program {
        tensors,
        nodes: vec![node; 300],
    };
    let report = device.ops().claim(&program).expect("a valid program");
    assert_eq!(report.claims.len(), 150);
    assert_eq!((report.claims[149].first, report.claims[149].count), (298, 2));
    assert_eq!(report.left, "é".repeat(9000));
    let op = device.ops().prepare_program(&program).expect("prepared");
    assert_eq!(events(), ["prepared 300 nodes"]);
    assert_eq!(op.packed_weight_bytes(7), Ok(107));
    let mut later = program.clone();
    later.nodes[9].spec = OpSpec::Unknown(UnknownOp {
        code: 999,
        version: 1,
        name: "later_op".to_string(),
        descriptor: vec![4, 0, 0, 0],
        reason: String::new(),
    });
    let refused = device.ops().prepare_program(&later).map(|_| ());
    assert!(refused.is_err_and(|e| e.status == Status::Unsupported && e.message.contains("op code 999")));
    assert_eq!(events(), Vec::<String>::new(), "the platform is not asked");
    program.nodes[5].operands.pop();
    let error = device.ops().claim(&program).expect_err("an operand is missing");
    assert!(error.message.contains("null: node 5"), "{error}");
}

#[test]
fn attention_and_collectives_come_through() {
    let _alone = alone();
    let device = device();
    let backends = device.attention().backends();
    assert_eq!(
        (backends[0].name.as_str(), backends[0].block_sizes.as_slice()),
        ("first", &[8, 16][..])
    );
    assert_eq!((backends[1].name.as_str(), backends[1].priority), ("second", -2));
    device.attention().support(&attention(0)).expect("the first takes all");
    let reasons = device
        .attention()
        .support(&attention(1))
        .expect_err("the second takes none");
    assert_eq!(reasons.message, "null: reason one\nreason two");
    assert_eq!(
        device.attention().support(&attention(2)).map_err(|e| e.status),
        Err(Status::NotFound)
    );
    let plan = device.attention().plan(&attention(0)).expect("a plan");
    assert_eq!((plan.block_bytes, plan.scratch_bytes), (64, 2));
    assert_eq!((plan.record_decode, plan.record_mixed_tokens), (true, 3));

    assert_eq!(device.communicator_id(), CommunicatorId::new([7; 256]));
    let communicator = device
        .create_communicator(&CommunicatorDesc::new(
            &CommunicatorId::new([9; 128]).expect("some bytes"),
            1,
            2,
        ))
        .expect("joined");
    assert_eq!(events(), ["joined an id of 128 bytes as 1 of 2 within 0"]);
    assert_eq!((communicator.rank(), communicator.size()), (1, 2));
    let mut spec = Collective {
        kind: CollectiveKind::Send,
        dtype: DType::F16,
        peer: 0,
    };
    let op = communicator.prepare(&spec).expect("prepared");
    assert_eq!(events(), [format!("prepared {spec:?}")]);
    assert_eq!(op.id(), on_wire(OpId(41), 2));
    spec.peer = 2;
    assert_eq!(
        communicator.prepare(&spec).map(|_| ()).map_err(|e| e.status),
        Err(Status::InvalidArgument)
    );
    let outside = device
        .create_communicator(&CommunicatorDesc::new(
            &CommunicatorId::new([9; 128]).expect("some bytes"),
            2,
            2,
        ))
        .map(|_| ());
    assert_eq!(outside.map_err(|e| e.status), Err(Status::InvalidArgument));
}

#[test]
fn the_device_closes_after_the_last_of_its_objects() {
    let _alone = alone();
    let device = device();
    let buffer = device.create_buffer(1, BufferKind::Device).expect("there is room");
    let op = device.ops().prepare(&linear()).expect("prepared");
    let queue = device.create_queue(QueueKind::Compute).expect("a compute queue");
    let encoder = queue.create_encoder(EncoderMode::OneShot).expect("one-shot");
    let abandoned = queue.create_encoder(EncoderMode::OneShot).expect("one-shot");
    let group = device
        .create_communicator(&CommunicatorDesc::new(
            &CommunicatorId::new([0; 128]).expect("some bytes"),
            0,
            1,
        ))
        .expect("joined");
    events();
    drop(device);
    drop(abandoned);
    assert_eq!(events(), ["encoder dropped"]);
    let command = encoder.finish().expect("empty");
    assert_eq!(events(), ["finished OneShot 0 ops 0 operands", "encoder dropped"]);
    drop((buffer, op, queue, group));
    assert_eq!(
        events(),
        ["buffer dropped", "op dropped", "queue dropped", "communicator dropped"]
    );
    drop(command);
    assert_eq!(events(), ["command dropped", "device dropped"]);
}

/// An op's number as the host has it: with how many operands the plugin knows; 0: it takes what comes.
fn on_wire(op: OpId, operands: u64) -> OpId {
    OpId(op.0 << 16 | operands)
}

fn encoder() -> Box<dyn Encoder> {
    let queue = device().create_queue(QueueKind::Compute).expect("a compute queue");
    queue.create_encoder(EncoderMode::Reusable).expect("reusable")
}

#[test]
fn a_panic_becomes_an_error_and_poisons_its_handle_alone() {
    let _alone = alone();
    let device = device();
    let first = device.create_queue(QueueKind::Compute).expect("a compute queue");
    let mut encoder = first.create_encoder(EncoderMode::OneShot).expect("one-shot");
    let panic = encoder.encode(on_wire(PANICKING_OP, 0), &[]).expect_err("it panics");
    assert_eq!(panic.status, Status::Panicked);
    assert_eq!(panic.message, "null: panicked: encoding op 13 went wrong");
    let after = encoder.encode(OpId(1), &[]).expect_err("poisoned");
    assert_eq!(after.status, Status::Poisoned);
    let finish = encoder.finish().map(|_| ()).expect_err("poisoned");
    assert_eq!(finish.status, Status::Poisoned);
    assert_eq!(
        events(),
        ["encoder dropped"],
        "a poisoned encoder is released all the same"
    );
    first
        .create_encoder(EncoderMode::OneShot)
        .expect("the queue lives")
        .encode(OpId(1), &[])
        .expect("so do others");

    let queue = device.create_queue(QueueKind::Compute).expect("a compute queue");
    assert!(queue.wait(666, 0).is_err_and(|e| e.message.contains("beast")));
    assert_eq!(
        queue.completed(),
        u64::MAX,
        "a poisoned queue says that wait has something to tell"
    );
    assert_eq!(queue.wait(0, 0).map_err(|e| e.status), Err(Status::Poisoned));
    let platform = platform();
    assert!(platform.open(9).is_err_and(|e| e.message.contains("cursed")));
    assert!(platform.devices().is_ok(), "a platform serves others");
    MEMORY_PANICS.store(true, Ordering::Relaxed);
    assert_eq!(device.memory().map_err(|e| e.status), Err(Status::Panicked));
    assert!(device.memory().is_ok(), "and so does a device");
}

#[test]
fn long_errors_are_cut_and_say_so() {
    let _alone = alone();
    let mut encoder = encoder();
    let error = encoder.encode(on_wire(FAILING_OP, 0), &[]).expect_err("it fails");
    assert_eq!((error.status, error.vendor_code), (Status::DeviceLost, -5));
    assert!(error.message.starts_with("null: long long"), "{error}");
    assert!(error.message.ends_with("… (cut)"), "{error}");
    encoder.encode(OpId(1), &[]).expect("a failure does not poison");
}

#[test]
fn encoding_allocates_nothing() {
    let _alone = alone();
    let mut encoder = encoder();
    let [present, absent] = [Tensor::contiguous(BufferId(5), 0, DType::F32, &[2, 3]), Tensor::NONE];
    let tensors = [present, present, present, present, present, absent];
    let before = ALLOCATIONS.with(Cell::get);
    for i in 0..1000 {
        let num = i % 6;
        let op = on_wire(OpId(100 + i), num);
        encoder.encode(op, &tensors[..num as usize]).expect("encoded");
    }
    // A later host has an operand more, which is absent.
    encoder.encode(on_wire(OpId(100), 5), &tensors).expect("encoded");
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
    encoder.finish().expect("sealed");
    let operands: u64 = (0..1000).map(|i| i % 6).sum::<u64>() + 5;
    assert_eq!(events()[0], format!("finished Reusable 1001 ops {operands} operands"));
}

mod counted {
    use std::sync::Mutex;
    use std::time::Duration;

    use halyard_platform_api::Result;
    use halyard_platform_api::hooks::{Batch, StatLogger, StatLoggerFactory, StatRecord};

    pub static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

    halyard_platform_api::export_stat_logger! {
        name: "counted",
        version: "1.0",
        about: "for tests",
        factory: Factory,
    }

    pub struct Factory;

    impl StatLoggerFactory for Factory {
        fn create(&self, config: &str) -> Result<Box<dyn StatLogger>> {
            match config {
                "{}" => Ok(Box::new(Logger)),
                other => Err(halyard_platform_api::Error::invalid(format!("config {other}"))),
            }
        }
    }

    struct Logger;

    impl StatLogger for Logger {
        fn log_batch(&mut self, batch: &Batch<'_>) -> Result<()> {
            let mut seen = SEEN.lock().expect("no panic while it is held");
            for record in batch.records {
                match record {
                    StatRecord::Scheduler(step) if step.num_running == 99 => {
                        drop(seen);
                        panic!("ninety-nine");
                    }
                    StatRecord::Scheduler(step) => seen.push(format!("step {}", step.step_index)),
                    StatRecord::Finished(finished) => seen.push(format!(
                        "finished {} of {} after {} tokens",
                        finished.request_id, finished.lora_name, finished.generation_tokens
                    )),
                    StatRecord::Iteration(iteration) => seen.push(format!("gaps {:?}", iteration.inter_token_ns)),
                    other => seen.push(format!("kind {}", other.kind())),
                }
            }
            seen.push(format!("batch in {:?}, {} lost", batch.deadline, batch.num_dropped));
            Ok(())
        }
        fn flush(&mut self, deadline: Duration) -> Result<()> {
            SEEN.lock()
                .expect("no panic while it is held")
                .push(format!("flush in {deadline:?}"));
            Ok(())
        }
        fn expose(&mut self) -> Result<Option<String>> {
            Ok(Some("counted_total 1\n".repeat(5000)))
        }
    }
}

#[test]
fn stat_records_come_through_in_order_and_panics_poison_the_logger() {
    use halyard_platform_api::hooks::{Batch, FinishedRecord, IterationRecord, SchedulerRecord, StatRecord};
    let plugin = Plugin::from_linked(counted::plugin()).expect("the logger loads");
    assert_eq!(plugin.manifest().kind, Kind::StatLogger);
    assert!(plugin.platform().is_err());
    let factory = plugin.stat_logger_factory().expect("it is a stat logger");
    let refused = factory.create("[]").map(|_| ()).expect_err("no such config");
    assert_eq!(refused.message, "counted: config []");
    let mut logger = factory.create("{}").expect("made");
    let running = |num_running, step_index| {
        StatRecord::Scheduler(SchedulerRecord {
            num_running,
            step_index,
            ..SchedulerRecord::default()
        })
    };
    let finished = StatRecord::Finished(FinishedRecord {
        request_id: "cmpl-3".into(),
        lora_name: "french".into(),
        generation_tokens: 17,
        ..FinishedRecord::default()
    });
    let gaps = StatRecord::Iteration(IterationRecord {
        inter_token_ns: [7, 8].into(),
        ..IterationRecord::default()
    });
    fn batch(records: &[StatRecord]) -> Batch<'_> {
        Batch {
            records,
            deadline: Duration::from_millis(250),
            num_dropped: 5,
        }
    }
    logger
        .log_batch(&batch(&[running(1, 1), finished, gaps, running(1, 2)]))
        .expect("taken");
    logger.flush(Duration::from_secs(1)).expect("flushed");
    let seen = std::mem::take(&mut *counted::SEEN.lock().expect("no panic while it is held"));
    assert_eq!(
        seen,
        [
            "step 1",
            "finished cmpl-3 of french after 17 tokens",
            "gaps [7, 8]",
            "step 2",
            "batch in 250ms, 5 lost",
            "flush in 1s"
        ]
    );
    let text = logger.expose().expect("exposed").expect("it has text");
    assert_eq!(text.lines().count(), 5000, "longer than the first buffer for it");
    let panic = logger.log_batch(&batch(&[running(99, 3)])).expect_err("it panics");
    assert!(panic.message.contains("panicked: ninety-nine"), "{panic}");
    assert_eq!(
        logger.log_batch(&batch(&[running(1, 4)])).map_err(|e| e.status),
        Err(Status::Poisoned)
    );
}
