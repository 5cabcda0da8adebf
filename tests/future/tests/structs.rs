//! Structs of a later host in today's plugins, one after the other: fields that ask for something unknown, values of
//! later lists, more and fewer operands. What is refused is refused with words, changes nothing, and the plugin works
//! on.

mod common;
#[path = "common/rules.rs"]
mod rules;

use common::on_libraries;
use halyard_future::by_hand::{Device, Entered, Object};
use halyard_future::library::Library;
use halyard_future::program::LaterSpec;
use halyard_future::{LATER_OP, LATER_VALUE, Newer};
use halyard_platform_api::abi::tables::{
    BufferDescWire, CollectiveWire, CommunicatorDescWire, EncoderDescWire, OpenDescWire, QueueDescWire, StepWriteWire,
    WeightRowsWire,
};
use halyard_platform_api::ops::{Add, Attention, Epilogue, Linear, Softcap, TopLogprobs};
use halyard_platform_api::{BufferId, DType, Error, OpSpec, Status, Tensor, WeightFormat};
use rules::{asks, refused};

on_libraries! {
    descriptors => descriptors, with every;
}

on_libraries! {
    specs => |library| on_device(library, specs), with computing;
    operands => |library| on_device(library, operands), with computing;
    step_writes => |library| on_device(library, step_writes), with computing;
    weight_rows => |library| on_device(library, weight_rows), with computing;
    attention => |library| on_device(library, attention), with computing;
    collectives => |library| on_device(library, collectives), with computing;
}

fn on_device(library: &Library, check: impl FnOnce(&Device<'_>)) {
    let plugin = Entered::new(library.entry).expect("it starts");
    check(
        &plugin
            .open(&Newer::of(OpenDescWire::zeroed()))
            .expect("the device opens"),
    );
}

fn descriptors(library: &Library) {
    let plugin = Entered::new(library.entry).expect("it starts");
    let device = asks(OpenDescWire::zeroed(), |desc| plugin.open(desc));
    let before = device.used_bytes();

    let mut buffer = BufferDescWire::zeroed();
    buffer.bytes = 256;
    let create = |desc: &_| {
        let made = device.buffer_create(desc);
        assert_eq!(
            device.used_bytes() > before,
            made.is_ok(),
            "what was refused took memory"
        );
        made
    };
    let held = asks(buffer, create);
    drop(held);
    let later = |change: fn(&mut BufferDescWire)| {
        let mut desc = buffer;
        change(&mut desc);
        refused("a buffer of later", Status::Unsupported, create(&Newer::of(desc)));
    };
    later(|desc| desc.kind = LATER_VALUE);
    later(|desc| desc.flags = 1 << 40);

    let queue = asks(QueueDescWire::zeroed(), |desc| device.queue_create(desc));
    let later = |change: fn(&mut QueueDescWire)| {
        let mut desc = QueueDescWire::zeroed();
        change(&mut desc);
        refused(
            "a queue of later",
            Status::Unsupported,
            device.queue_create(&Newer::of(desc)),
        );
    };
    later(|desc| desc.kind = LATER_VALUE);
    later(|desc| desc.flags = 1);

    let encoder = asks(EncoderDescWire::zeroed(), |desc| device.encoder_create(&queue, desc));
    let later = |change: fn(&mut EncoderDescWire)| {
        let mut desc = EncoderDescWire::zeroed();
        change(&mut desc);
        refused(
            "an encoder of later",
            Status::Unsupported,
            device.encoder_create(&queue, &Newer::of(desc)),
        );
    };
    later(|desc| desc.mode = LATER_VALUE);
    later(|desc| desc.flags = 1);
    device.run(&queue, encoder).expect("it works on");
}

/// A buffer of values and a tensor over all of it, of rows of `width`.
struct Values {
    buffer: Object,
    tensor: Tensor,
}

fn buffer(device: &Device<'_>, bytes: usize) -> Object {
    let mut desc = BufferDescWire::zeroed();
    desc.bytes = bytes as u64;
    device.buffer_create(&Newer::of(desc)).expect("there is room")
}

fn tensor(device: &Device<'_>, dtype: DType, shape: &[u32], words: &[u32]) -> Values {
    let buffer = buffer(device, 4 * words.len());
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    device.buffer_write(&buffer, &bytes).expect("it fits");
    let tensor = Tensor::contiguous(BufferId(buffer.id), 0, dtype, shape);
    Values { buffer, tensor }
}

fn floats(device: &Device<'_>, values: &[f32]) -> Values {
    let words: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
    tensor(device, DType::F32, &[1, values.len() as u32], &words)
}

fn read(device: &Device<'_>, values: &Values) -> Vec<f32> {
    let bytes = device.buffer_read(&values.buffer, values.tensor.span_bytes() as usize);
    let word = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    bytes.chunks_exact(4).map(word).collect()
}

fn queue(device: &Device<'_>) -> Object {
    device
        .queue_create(&Newer::of(QueueDescWire::zeroed()))
        .expect("a compute queue")
}

fn encoder(device: &Device<'_>, queue: &Object) -> Object {
    let desc = Newer::of(EncoderDescWire::zeroed());
    device.encoder_create(queue, &desc).expect("a one-shot encoder")
}

fn prepare(device: &Device<'_>, spec: impl Into<OpSpec>) -> Object {
    device
        .prepare(&mut LaterSpec::new(&spec.into()))
        .expect("it is supported")
}

fn add() -> OpSpec {
    let (width, dtype) = (4, DType::F32);
    Add { width, dtype }.into()
}

fn specs(device: &Device<'_>) {
    let later = |what: &str, status: Status, change: fn(&mut LaterSpec)| {
        let mut spec = LaterSpec::new(&add());
        change(&mut spec);
        refused(what, status, device.support(&mut spec));
        refused(what, status, device.prepare(&mut spec));
    };
    later("a field of the spec", Status::Unsupported, |spec| spec.wire.more[1] = 1);
    later("a field of the descriptor", Status::Unsupported, |spec| {
        *spec.descriptor.last_mut().expect("it has bytes") = 1;
    });
    // struct_size, width, dtype.
    later("a later type", Status::Unsupported, |spec| {
        spec.descriptor[8] = LATER_VALUE as u8
    });
    later("a later op", Status::Unsupported, |spec| {
        spec.wire.known.code = LATER_OP
    });
    later("a later version", Status::Unsupported, |spec| {
        spec.wire.known.version = 2
    });
    later("a spec that is too short", Status::InvalidArgument, |spec| {
        spec.wire = spec.wire.stating(8)
    });
    later("a descriptor that is too short", Status::InvalidArgument, |spec| {
        spec.descriptor.truncate(8)
    });

    device.support(&mut LaterSpec::new(&add())).expect("an op of today");
    adds(device);
}

/// 1 to 4 and 10 to 40.
fn adds(device: &Device<'_>) {
    let (op, queue) = (prepare(device, add()), queue(device));
    let [a, b] = [[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]].map(|values| floats(device, &values));
    let out = floats(device, &[0.0; 4]);
    let encoder = encoder(device, &queue);
    let today = [a.tensor, b.tensor, out.tensor];
    let used = device.encode(&encoder, &op, &[&today[..], &[a.tensor]].concat());
    refused("an operand of later that is used", Status::Unsupported, used);
    let mut typed = today;
    typed[1].dtype = LATER_VALUE;
    refused(
        "an operand of a later type",
        Status::Unsupported,
        device.encode(&encoder, &op, &typed),
    );
    let absent = [&today[..], &[Tensor::NONE; 3]].concat();
    device
        .encode(&encoder, &op, &absent)
        .expect("operands of later that are absent");
    device.run(&queue, encoder).expect("the refused ops are not in it");
    assert_eq!(read(device, &out), [11.0, 22.0, 33.0, 44.0]);
}

fn operands(device: &Device<'_>) {
    adds(device);

    // The last two operands are optional.
    let (vocab, k, max_rows) = (4, 0, 1);
    let op = prepare(device, TopLogprobs { vocab, k, max_rows });
    let queue = queue(device);
    let logits = floats(device, &[0.0; 4]);
    let logprobs = tensor(device, DType::F32, &[1], &[0]);
    let [chosen, ranks] = [0; 2].map(|_| tensor(device, DType::I32, &[1], &[0]));
    let encoder = encoder(device, &queue);
    let older = [logits.tensor, chosen.tensor, logprobs.tensor, ranks.tensor];
    device
        .encode(&encoder, &op, &older)
        .expect("operands that are left out at the end are absent");
    device.run(&queue, encoder).expect("it runs");
    let found = read(device, &logprobs)[0];
    assert!((found + 4f32.ln()).abs() < 1e-5, "{found}");
}

fn step_writes(device: &Device<'_>) {
    let (queue, target) = (queue(device), buffer(device, 64));
    let word = [7u8; 4];
    let mut first = StepWriteWire::zeroed();
    (first.buffer, first.bytes, first.len) = (target.id, word.as_ptr(), 4);
    let mut second = first;
    second.offset = 32;
    let written = || {
        device.run(&queue, encoder(device, &queue)).expect("the queue works on");
        let bytes = device.buffer_read(&target, 64);
        (bytes[..4] == word, bytes[32..36] == word)
    };
    asks(second, |second| {
        device.buffer_write(&target, &[0; 64]).expect("it fits");
        let result = device.write_step(&queue, &[Newer::of(first), *second]);
        assert_eq!(written(), (result.is_ok(), result.is_ok()), "all of a call or nothing");
        result
    });
}

fn weight_rows(device: &Device<'_>) {
    const N: usize = 8;
    const K: usize = 32;
    let op = prepare(
        device,
        Linear {
            in_features: K as u32,
            out_features: N as u32,
            weight: WeightFormat::F32,
            act: DType::F32,
            out: DType::F32,
            epilogue: Epilogue::None,
            max_tokens: 1,
            allow_quantized_act: false,
        },
    );
    let weight: Vec<u8> = (0..N * K).flat_map(|at| ((at / K) as f32).to_le_bytes()).collect();
    let bytes = device.packed_weight_bytes(&op).expect("it has a weight") as usize;
    let (packed, source) = (buffer(device, bytes), buffer(device, weight.len()));
    device.buffer_write(&source, &weight).expect("it fits");
    let dst = Tensor::opaque(BufferId(packed.id), 0, bytes as u64);
    let src = Tensor::contiguous(BufferId(source.id), 0, DType::U8, &[weight.len() as u32]);
    let zeros = vec![0; bytes];
    // What was refused is not written.
    let watched = |pack: &dyn Fn() -> Result<(), Error>| {
        device.buffer_write(&packed, &zeros).expect("it fits");
        let result = pack();
        assert_eq!(device.buffer_read(&packed, bytes) != zeros, result.is_ok());
        result
    };

    let mut rows = WeightRowsWire::zeroed();
    rows.num_rows = N as u32;
    let in_memory = rows;
    (rows.bytes, rows.len) = (weight.as_ptr(), weight.len() as u64);
    let mut part = rows;
    part.part = 1;
    let pack = |rows: &_| watched(&|| device.pack_weight(&op, rows, &dst));
    refused("a later part", Status::Unsupported, pack(&Newer::of(part)));
    asks(rows, pack);
    if device
        .pack_weight_from(&op, &Newer::of(in_memory), [&src, &dst])
        .is_some()
    {
        let pack = |rows: &_| watched(&|| device.pack_weight_from(&op, rows, [&src, &dst]).expect("it is there"));
        (part.bytes, part.len) = (std::ptr::null(), 0);
        refused("a later part", Status::Unsupported, pack(&Newer::of(part)));
        asks(in_memory, pack);
    }

    let (queue, x, out) = (queue(device), floats(device, &[1.0; K]), floats(device, &[0.0; N]));
    let encoder = encoder(device, &queue);
    let operands = [x.tensor, dst, Tensor::NONE, Tensor::NONE, out.tensor];
    device.encode(&encoder, &op, &operands).expect("an op of today");
    device.run(&queue, encoder).expect("it runs");
    let expected: Vec<f32> = (0..N).map(|row| (row * K) as f32).collect();
    assert_eq!(read(device, &out), expected);
}

fn attention(device: &Device<'_>) {
    let today = OpSpec::from(Attention {
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 16,
        scale: 0.25,
        window: 0,
        softcap: 0.0,
        has_sinks: false,
        act: DType::F32,
        kv: DType::F32,
        block_size: 16,
        backend: 0,
        max_seqs: 4,
        max_tokens: 32,
        max_query_len: 32,
        max_kv_len: 64,
    });
    let Some(supported) = device.attention_support(&mut LaterSpec::new(&today)) else {
        panic!("what computes here has attention");
    };
    supported.expect("a spec of today");
    let later = |what: &str, spec: &OpSpec, change: fn(&mut LaterSpec)| {
        let mut spec = LaterSpec::new(spec);
        change(&mut spec);
        let answers = [device.attention_support(&mut spec), device.attention_plan(&mut spec)];
        answers
            .into_iter()
            .flatten()
            .for_each(|answer| refused(what, Status::Unsupported, answer));
    };
    later("a field of the spec", &today, |spec| spec.wire.more[0] = 1);
    later("a field of the descriptor", &today, |spec| {
        *spec.descriptor.last_mut().expect("bytes") = 1
    });
    later("attention of a later op", &today, |spec| {
        spec.wire.known.code = LATER_OP
    });
    let (width, dtype, cap) = (4, DType::F32, 1.0);
    later("attention of another op", &Softcap { width, dtype, cap }.into(), |_| ());
    let plan = device.attention_plan(&mut LaterSpec::new(&today)).expect("it is there");
    plan.expect("a spec of today");
}

fn collectives(device: &Device<'_>) {
    if device.plugin.communicator.is_none() {
        return;
    }
    let joined = |desc: &Newer<CommunicatorDescWire>| {
        let id = device.unique_id().expect("it has communicators");
        let mut desc = *desc;
        (desc.known.id, desc.known.id_len) = (id.as_ptr(), id.len() as u32);
        device.join(&desc)
    };
    let mut alone = CommunicatorDescWire::zeroed();
    (alone.size, alone.timeout_ns) = (1, 1_000_000_000);
    let group = asks(alone, joined);

    let mut sum = CollectiveWire::zeroed();
    sum.dtype = DType::F32 as u32;
    let later = |change: fn(&mut CollectiveWire)| {
        let mut spec = sum;
        change(&mut spec);
        refused(
            "a collective of later",
            Status::Unsupported,
            device.prepare_collective(&group, &Newer::of(spec)),
        );
    };
    later(|spec| spec.kind = LATER_VALUE);
    later(|spec| spec.dtype = LATER_VALUE);
    let op = asks(sum, |spec| device.prepare_collective(&group, spec));

    let (queue, input, out) = (queue(device), floats(device, &[1.0, 2.0]), floats(device, &[0.0; 2]));
    let encoder = encoder(device, &queue);
    let operands = [input.tensor.rows(0, 1), out.tensor, Tensor::NONE];
    device
        .encode(&encoder, &op, &operands)
        .expect("an operand of later that is absent");
    device.run(&queue, encoder).expect("it runs");
    assert_eq!(read(device, &out), [1.0, 2.0]);
}
