//! Holds reading and writing of the wire: sizes of other versions, every op's round trip, programs, facts.

use std::collections::BTreeSet;

use halyard_platform_api::abi::tables::{
    DeviceInfoWire, DeviceTable, MemoryInfoWire, OpSpecWire, OpsTable, StatLoggerTable,
};
use halyard_platform_api::abi::{
    AbiTable, ErrorOut, ProgramBytes, SpecBytes, read_element, read_known, read_program, read_spec, read_struct,
    struct_bytes, struct_from_bytes, write_struct,
};
use halyard_platform_api::hooks::records::CacheWire;
use halyard_platform_api::ops::{Add, Cast, MoeLinear, OpSpec, VendorOp};
use halyard_platform_api::program::{Node, TensorDecl};
use halyard_platform_api::{Capabilities, DType, DTypeSet, DeviceInfo, Error, Program, Status, WeightFormat};

fn memory_info() -> MemoryInfoWire {
    let mut info = MemoryInfoWire::zeroed();
    info.total_bytes = 100;
    info.free_bytes = 60;
    info.used_bytes = 40;
    info
}

/// Every catalogue op with distinct values in as many fields as accept them: (code, bytes, spec).
fn every_op() -> Vec<(u32, Vec<u8>, OpSpec)> {
    let mut all = Vec::new();
    for code in 0..1000 {
        let Ok(zero) = OpSpec::from_wire(code, 1, "", &[0; 512]) else {
            continue;
        };
        let mut bytes = zero.wire_bytes();
        for word in 1..bytes.len() / 4 {
            let distinct = 1000 + word as u32;
            // Enums and flags refuse the distinct value and take one of their first two codes.
            for value in [distinct, (word % 2) as u32] {
                bytes[4 * word..4 * word + 4].copy_from_slice(&value.to_ne_bytes());
                if OpSpec::from_wire(code, 1, "", &bytes).is_ok() {
                    break;
                }
            }
        }
        let spec = OpSpec::from_wire(code, zero.version(), "", &bytes).expect("values were accepted");
        all.push((code, bytes, spec));
    }
    all
}

#[test]
fn every_op_survives_the_wire() {
    let all = every_op();
    let names: BTreeSet<&str> = all.iter().map(|(_, _, spec)| spec.name()).collect();
    assert_eq!(names, OpSpec::NAMES.iter().copied().collect());
    for (code, bytes, spec) in &all {
        assert_eq!(spec.code(), *code, "{}", spec.name());
        assert_eq!(spec.wire_bytes(), *bytes, "{}", spec.name());
        let owner = SpecBytes::new(spec, u32::MAX);
        let wire = owner.wire();
        // SAFETY: `owner` outlives the call.
        let back = unsafe { read_spec(&wire) };
        assert_eq!(back.as_ref(), Ok(spec));
    }
}

#[test]
fn a_permission_is_not_shown_to_who_does_not_know_it() {
    let spec = MoeLinear {
        in_features: 32,
        out_features: 8,
        num_experts: 4,
        top_k: 2,
        weight: WeightFormat::Q4_0,
        dtype: DType::F32,
        max_tokens: 1,
        first_expert: 0,
        total_experts: 0,
        allow_quantized_act: true,
    };
    let exact = MoeLinear {
        allow_quantized_act: false,
        ..spec.clone()
    };
    let program = Program {
        tensors: (0..4)
            .map(|storage| TensorDecl::whole(DType::F32, false, storage))
            .collect(),
        nodes: vec![Node::new(spec.clone(), vec![0, 1, 2, 3])],
    };
    for (minor, shown) in [(4, &spec), (3, &exact)] {
        let owner = SpecBytes::new(&spec.clone().into(), minor);
        // SAFETY: `owner` outlives the call.
        assert_eq!(unsafe { read_spec(&owner.wire()) }, Ok(shown.clone().into()));
        let owner = ProgramBytes::new(&program, minor);
        // SAFETY: as above.
        let read = unsafe { read_program(&owner.wire()) }.expect("valid");
        assert_eq!(read.nodes[0].spec, shown.clone().into(), "a reader of ops 0.{minor}");
    }
}

#[test]
fn a_vendor_op_survives_the_wire() {
    let spec = OpSpec::Vendor(VendorOp {
        name: "acme.fused".to_string(),
        version: 3,
        descriptor: vec![5, 0, 0, 0, 9],
    });
    let owner = SpecBytes::new(&spec, u32::MAX);
    // SAFETY: `owner` outlives the call.
    assert_eq!(unsafe { read_spec(&owner.wire()) }, Ok(spec));
}

#[test]
fn unknown_codes_and_newer_versions_are_unsupported() {
    let bytes = 4u32.to_ne_bytes();
    let unknown = OpSpec::from_wire(999, 1, "", &bytes).expect_err("code 999 is free");
    assert_eq!(unknown.status, Status::Unsupported);
    assert!(unknown.message.contains("999"), "{unknown}");
    let newer = OpSpec::from_wire(Add::CODE, 2, "", &bytes).expect_err("newer");
    assert_eq!(newer.status, Status::Unsupported);
    let mut cast = Cast {
        width: 8,
        from: DType::F32,
        to: DType::F16,
    }
    .to_wire();
    cast.to = 77;
    let error = Cast::from_wire(&cast).expect_err("no dtype 77");
    assert_eq!(error.status, Status::Unsupported);
    assert!(error.message.starts_with("cast.to:"), "{error}");
    assert!(error.message.contains("77"), "{error}");
}

#[test]
fn a_struct_that_is_shorter_than_it_ever_was_is_refused() {
    let bytes = struct_bytes(&memory_info());
    let error = struct_from_bytes::<MemoryInfoWire>(&bytes[..bytes.len() - 4]).expect_err("cut short");
    assert_eq!(error.status, Status::InvalidArgument);
    assert!(
        error.message.contains("28 bytes; it never had fewer than 32"),
        "{error}"
    );
}

#[test]
fn a_longer_struct_is_taken_when_the_rest_is_zero_and_refused_otherwise() {
    let mut bytes = struct_bytes(&memory_info());
    bytes.extend([0; 12]);
    let read: MemoryInfoWire = struct_from_bytes(&bytes).expect("zero means not used");
    assert_eq!(read.used_bytes, 40);
    bytes[40] = 1;
    let error = struct_from_bytes::<MemoryInfoWire>(&bytes).expect_err("a field is set");
    assert_eq!(error.status, Status::Unsupported);
    assert!(error.message.contains("byte 40"), "{error}");
}

#[test]
fn records_of_a_newer_host_are_read_as_far_as_known() {
    #[repr(C)]
    struct Newer {
        known: CacheWire,
        more: u64,
    }
    let mut newer = Newer {
        known: CacheWire::zeroed(),
        more: 7,
    };
    newer.known.struct_size = size_of::<Newer>() as u32;
    newer.known.used_blocks = 3;
    let ptr = std::ptr::from_ref(&newer).cast::<CacheWire>();
    // SAFETY: the size word says how much is there.
    let read = unsafe { read_known(ptr) }.expect("records inform");
    assert_eq!(read.used_blocks, 3);
    // SAFETY: as above.
    let strict = unsafe { read_struct(ptr) };
    assert_eq!(strict.map(|_| ()).map_err(|e| e.status), Err(Status::Unsupported));
}

#[test]
fn absurd_sizes_null_and_strides_are_refused() {
    // SAFETY: null is allowed.
    let null = unsafe { read_struct::<OpSpecWire>(std::ptr::null()) };
    assert!(null.is_err_and(|e| e.message.contains("null")));
    let mut info = memory_info();
    info.struct_size = 3;
    // SAFETY: the struct is larger than the size it states.
    let tiny = unsafe { read_struct(&info) };
    assert!(tiny.is_err_and(|e| e.message.contains('3')));
    let info = memory_info();
    // SAFETY: one element is there.
    let squeezed = unsafe { read_element(&raw const info, 0, 8) };
    assert!(squeezed.is_err_and(|e| e.message.contains("stride 8")));
    // SAFETY: one element is there.
    let odd = unsafe { read_element(&raw const info, 0, 33) };
    assert!(odd.is_err_and(|e| e.message.contains("stride 33")));
}

#[test]
fn an_output_that_is_smaller_than_it_ever_was_is_refused_untouched() {
    let mut cut = MemoryInfoWire::zeroed();
    cut.struct_size = 16;
    // SAFETY: at least 16 bytes are there.
    let error = unsafe { write_struct(&mut cut, &memory_info()) }.expect_err("cut short");
    assert_eq!(error.status, Status::InvalidArgument);
    assert_eq!((cut.struct_size, cut.total_bytes), (16, 0));
}

#[test]
fn a_table_smaller_than_known_lacks_named_slots_and_a_larger_one_loads() {
    #[repr(C)]
    struct Larger {
        known: StatLoggerTable,
        more: usize,
    }
    unsafe extern "C" fn never(_: *mut std::ffi::c_void) {}
    // SAFETY: tables are sizes and nullable pointers, for which zero bytes are valid.
    let mut table: StatLoggerTable = unsafe { std::mem::zeroed() };
    table.struct_size = 8;
    table.drop = Some(never);
    // SAFETY: the size word is within what is there.
    let error = unsafe { StatLoggerTable::load(&table) }
        .map(|_| ())
        .expect_err("nothing is there");
    assert_eq!(error.status, Status::Incompatible);
    for slot in ["create", "drop", "log_batch"] {
        assert!(error.message.contains(slot), "{error}");
    }
    assert!(!error.message.contains("flush"), "optional: {error}");
    let name = StatLoggerTable::table_layout().name;
    // SAFETY: null is allowed.
    let null = unsafe { DeviceTable::load(std::ptr::null()) };
    assert!(null.is_err_and(|e| e.message.contains("null table")), "{name}");
    let mut larger = Larger {
        known: table,
        more: 0xdead,
    };
    larger.known.struct_size = size_of::<Larger>() as u32;
    // SAFETY: the size word says how much is there.
    let error = unsafe { StatLoggerTable::load(&raw const larger.known) }.map(|_| ());
    assert!(
        error.is_err_and(|e| !e.message.contains("drop,")),
        "slots past the old size are read now"
    );
    assert_eq!(larger.more, 0xdead);
}

#[test]
fn programs_survive_the_wire_and_bad_ones_are_named() {
    let specs: Vec<OpSpec> = every_op().into_iter().map(|(_, _, spec)| spec).collect();
    let tensors: Vec<TensorDecl> = (0..40)
        .map(|i| TensorDecl {
            dtype: DType::F32,
            internal: i % 2 == 1,
            storage: i / 2,
            first_column: 3 * i,
            num_columns: 8,
        })
        .collect();
    let nodes = specs
        .into_iter()
        .enumerate()
        .map(|(i, spec)| {
            let operands: Vec<u16> = (0..spec.operands().len()).map(|o| ((i + o) % 40) as u16).collect();
            Node::new(spec, operands)
        })
        .collect();
    let mut program = Program { tensors, nodes };
    let owner = ProgramBytes::new(&program, OpsTable::VERSION.1);
    // SAFETY: `owner` outlives the call.
    assert_eq!(unsafe { read_program(&owner.wire()) }, Ok(program.clone()));
    program.nodes[3].operands[0] = 40;
    let owner = ProgramBytes::new(&program, OpsTable::VERSION.1);
    // SAFETY: `owner` outlives the call.
    let error = unsafe { read_program(&owner.wire()) }.expect_err("tensor 40 of 40");
    assert!(error.message.contains("node 3"), "{error}");
}

fn device_info() -> DeviceInfo {
    DeviceInfo {
        name: "Chip".to_string(),
        detail: "driver 1.2 – µcode".to_string(),
        total_memory_bytes: 1,
        compute_dtypes: DTypeSet::of(&[DType::F32, DType::BF16]),
        kv_dtypes: DTypeSet::of(&[DType::F16]),
        preferred_dtype: DType::BF16,
        preferred_kv_dtype: DType::F16,
        capabilities: Capabilities::RECORDING.with(Capabilities::COMPOSITES),
        async_depth: 2,
        max_buffer_bytes: 3,
        max_binding_bytes: 4,
        offset_alignment: 64,
        unified_memory: true,
        num_compute_units: 5,
        preferred_block_size: 6,
        preferred_step_tokens: 7,
        shape_buckets: vec![8, 16],
    }
}

#[test]
fn device_facts_survive_the_wire_and_are_checked() {
    let info = device_info();
    let wire = DeviceInfoWire::new(&info);
    // SAFETY: `info` outlives the calls below.
    assert_eq!(unsafe { wire.to_info() }, Ok(info.clone()));
    let mut newer = wire;
    newer.capabilities |= 1 << 60;
    // SAFETY: as above.
    let read = unsafe { newer.to_info() };
    assert_eq!(read, Ok(info.clone()), "unknown abilities are not asked for");
    let refused = |change: fn(&mut DeviceInfoWire), words: &str| {
        let mut wire = DeviceInfoWire::new(&info);
        change(&mut wire);
        // SAFETY: as above; no change makes a length longer than what is there.
        let error = unsafe { wire.to_info() }.expect_err(words);
        assert!(error.message.contains(words), "{error}");
    };
    refused(|w| w.offset_alignment = 48, "48");
    refused(|w| w.preferred_dtype = DType::F16 as u32, "F16");
    refused(|w| w.preferred_kv_dtype = 99, "99");
    refused(|w| w.unified_memory = 2, "2");
    refused(|w| w.num_shape_buckets = u32::MAX, "4294967295");
}

#[test]
fn errors_are_cut_at_a_character_and_never_past_the_capacity() {
    let mut text = [b'#'; 8];
    let mut out = ErrorOut::over(&mut text[..4]);
    let error = Error::new(Status::OutOfMemory, "aµµµ");
    // SAFETY: the capacity is the slice's.
    unsafe { ErrorOut::store(&mut out, &error) };
    // SAFETY: as above.
    let read = unsafe { out.load(Status::OutOfMemory as u32) };
    assert_eq!((read.status, read.message.as_str()), (Status::OutOfMemory, "aµ"));
    assert_eq!(&text[4..], b"####");
}
