//! A host of a later contract. Every struct that it passes is larger, with the new fields not used; every output has
//! more room, filled with what must stay as it is; each op has an operand more, which is absent; programs hold ops of
//! a later catalogue, and what the plugin claims around them is passed back.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use halyard_platform_api::abi::tables::{
    AttentionBackendWire, AttentionPlanWire, AttentionTable, BufferDescWire, ClaimReportWire, CollectiveWire,
    CommunicatorDescWire, CommunicatorTable, DeviceInfoWire, DeviceTable, EncoderDescWire, EntryFn, Host, InterfaceFn,
    MemoryInfoWire, NodeWire, OpSpecWire, OpSupportWire, OpenDescWire, OpsTable, PlatformTable, Plugin, PreparedWire,
    ProgramWire, QueueDescWire, QueueWaitWire, StepWriteWire, TensorDeclWire, WeightRowsWire,
};
use halyard_platform_api::abi::{AbiLayout, AbiTable, ErrorOut, Str};
use halyard_platform_api::program::ABSENT;
use halyard_platform_api::{Status, Tensor};

use crate::{Newer, SLOTS, violation};

/// What the room of an output beyond what today's contract knows is filled with.
const UNTOUCHED: u64 = 0xA5A5_5A5A_A5A5_5A5A;
/// An interface, an op and an access of a later contract.
const LATER_INTERFACE: u32 = 77;
const LATER_OP: u32 = 999;
const LATER_ACCESS: u8 = 9;
/// Minor versions that this host is ahead.
const MINORS_AHEAD: u32 = 5;

/// The plugin behind the proxy.
#[derive(Default)]
struct Inner {
    entry: OnceLock<EntryFn>,
    find: OnceLock<InterfaceFn>,
    platform: OnceLock<PlatformTable>,
    device: OnceLock<DeviceTable>,
    ops: OnceLock<OpsTable>,
    attention: OnceLock<AttentionTable>,
    communicator: OnceLock<CommunicatorTable>,
}

static INNER: [Inner; SLOTS] = [const {
    Inner {
        entry: OnceLock::new(),
        find: OnceLock::new(),
        platform: OnceLock::new(),
        device: OnceLock::new(),
        ops: OnceLock::new(),
        attention: OnceLock::new(),
        communicator: OnceLock::new(),
    }
}; SLOTS];
static USED: AtomicUsize = AtomicUsize::new(0);

/// The plugin of `entry` as a later host would call it. At most [`SLOTS`] of them in a process.
///
/// # Panics
/// When there are more.
pub fn around(entry: EntryFn) -> EntryFn {
    let slot = USED.fetch_add(1, Ordering::Relaxed);
    let entries: [EntryFn; SLOTS] = [
        enter::<0>, enter::<1>, enter::<2>, enter::<3>, enter::<4>, enter::<5>, enter::<6>, enter::<7>,
    ];
    let proxy = *entries.get(slot).expect("few plugins");
    INNER[slot].entry.get_or_init(|| entry);
    proxy
}

fn get<T: Copy>(cell: &OnceLock<T>) -> T {
    *cell.get().expect("the plugin was entered and its table was asked for")
}

/// A slot that today's plugins must have.
fn slot<F>(slot: Option<F>) -> F {
    slot.expect("required slots were checked when the table was loaded")
}

/// Calls with an error that has more room than today's.
unsafe fn with_error(err: *mut ErrorOut, call: impl FnOnce(*mut ErrorOut) -> u32) -> u32 {
    if err.is_null() {
        return call(err);
    }
    // SAFETY: not null, so an error of this host.
    unsafe { output("halyard_error", err, call) }
}

/// Calls with an output that has more room than today's, and takes over what the callee knew.
unsafe fn output<T: AbiLayout>(name: &str, out: *mut T, call: impl FnOnce(*mut T) -> u32) -> u32 {
    // SAFETY: an output of this host, which states its own size.
    let mut newer = unsafe { Newer::read(out) };
    newer.more = [UNTOUCHED; 4];
    let code = call(&raw mut newer.known);
    if newer.more != [UNTOUCHED; 4] {
        violation(format!("{name}: room beyond what the plugin knows was written to"));
    }
    // SAFETY: as above; only the size stays this host's.
    unsafe {
        let size = *out.cast::<u32>();
        out.write(newer.known);
        *out.cast::<u32>() = size;
    }
    code
}

/// A spec whose descriptor has a field more.
struct Spec {
    descriptor: Vec<u8>,
    wire: Newer<OpSpecWire>,
}

impl Spec {
    unsafe fn read(ptr: *const OpSpecWire) -> Spec {
        // SAFETY: a spec of this host.
        let wire = unsafe { Newer::read(ptr) };
        // SAFETY: the spec's bytes.
        let bytes = unsafe { std::slice::from_raw_parts(wire.known.descriptor, wire.known.descriptor_len as usize) };
        let mut descriptor = bytes.to_vec();
        descriptor.extend([0; 8]);
        let len = descriptor.len() as u32;
        descriptor[..4].copy_from_slice(&len.to_ne_bytes());
        Spec { descriptor, wire }
    }

    fn wire(&mut self) -> &OpSpecWire {
        self.wire.known.descriptor = self.descriptor.as_ptr();
        self.wire.known.descriptor_len = self.descriptor.len() as u64;
        &self.wire.known
    }
}

/// A node with an operand more.
struct Node {
    spec: Spec,
    operands: Vec<u16>,
    access: Vec<u8>,
}

/// A program as a later host sends it.
struct Program {
    nodes: Vec<Node>,
    tensors: Vec<Newer<TensorDeclWire>>,
    wire: Newer<ProgramWire>,
    /// Numbers of the nodes that were put in.
    later: Vec<usize>,
}

impl Program {
    unsafe fn read(ptr: *const ProgramWire) -> Program {
        // SAFETY: a program of this host, whose arrays have its own strides.
        unsafe {
            let wire = Newer::read(ptr);
            let (nodes, tensors) = (wire.known.nodes, wire.known.tensors);
            Program {
                nodes: (0..wire.known.num_nodes as usize)
                    .map(|i| {
                        let node = *nodes.add(i);
                        let num = node.num_operands as usize;
                        let mut operands = std::slice::from_raw_parts(node.operands, num).to_vec();
                        let mut access = std::slice::from_raw_parts(node.access, num).to_vec();
                        operands.push(ABSENT);
                        access.push(LATER_ACCESS);
                        Node {
                            spec: Spec::read(node.spec),
                            operands,
                            access,
                        }
                    })
                    .collect(),
                tensors: (0..wire.known.num_tensors as usize)
                    .map(|i| Newer::of(*tensors.add(i)))
                    .collect(),
                wire,
                later: Vec::new(),
            }
        }
    }

    /// Puts an op of a later catalogue first, last and in the middle, which reads one tensor and may do anything.
    fn with_later_ops(mut self) -> Program {
        if self.tensors.is_empty() {
            return self;
        }
        let last = (self.tensors.len() - 1) as u16;
        for at in [self.nodes.len(), self.nodes.len() / 2, 0] {
            let mut wire = OpSpecWire::zeroed();
            wire.code = LATER_OP;
            wire.version = 1;
            wire.name = Str::new("later_op");
            let node = Node {
                spec: Spec {
                    descriptor: vec![8, 0, 0, 0, 1, 0, 0, 0],
                    wire: Newer::of(wire),
                },
                operands: vec![last],
                access: vec![1],
            };
            self.nodes.insert(at, node);
        }
        let nodes = self.nodes.iter_mut().map(|node| node.spec.wire().code == LATER_OP);
        self.later = nodes
            .enumerate()
            .filter_map(|(i, is_later)| is_later.then_some(i))
            .collect();
        self
    }

    fn call(&mut self, call: impl FnOnce(*const ProgramWire) -> u32) -> u32 {
        let specs: Vec<*const OpSpecWire> = self.nodes.iter_mut().map(|node| &raw const *node.spec.wire()).collect();
        let nodes = self.nodes.iter().zip(&specs).map(|(node, spec)| {
            let mut wire = NodeWire::zeroed();
            wire.num_operands = node.operands.len() as u32;
            wire.spec = *spec;
            wire.operands = node.operands.as_ptr();
            wire.access = node.access.as_ptr();
            Newer::of(wire)
        });
        let nodes: Vec<Newer<NodeWire>> = nodes.collect();
        let wire = &mut self.wire;
        wire.known.num_nodes = nodes.len() as u32;
        wire.known.nodes = nodes.as_ptr().cast();
        wire.known.node_stride = size_of::<Newer<NodeWire>>() as u32;
        wire.known.tensors = self.tensors.as_ptr().cast();
        wire.known.tensor_stride = size_of::<Newer<TensorDeclWire>>() as u32;
        call(&raw const wire.known)
    }

    /// The claims in this host's numbers.
    unsafe fn map_claims(&self, report: &ClaimReportWire) {
        let count = report.num_claims.min(report.claims_capacity) as usize;
        for i in 0..count {
            // SAFETY: this host's array of `claims_capacity` pairs.
            let (first, len) = unsafe { (report.claims.add(2 * i), report.claims.add(2 * i + 1)) };
            // SAFETY: as above.
            let (start, nodes) = unsafe { (*first as usize, *len as usize) };
            if self.later.iter().any(|later| (start..start + nodes).contains(later)) {
                violation(format!(
                    "a claim of {nodes} nodes from {start} covers an op that the plugin cannot know"
                ));
            }
            let before = self.later.iter().filter(|later| **later < start).count();
            // SAFETY: as above.
            unsafe { *first -= before as u32 };
        }
    }
}

unsafe extern "C" fn enter<const S: usize>(host: *const Host, out: *mut Plugin, err: *mut ErrorOut) -> u32 {
    // SAFETY: structs of this host, passed on.
    unsafe {
        let mut later = Newer::read(host);
        later.known.abi_minor_max += MINORS_AHEAD;
        // Plugins keep it for the process's life.
        let later = Box::leak(Box::new(later));
        let code = with_error(err, |err| {
            output("halyard_plugin", out, |out| {
                get(&INNER[S].entry)(&raw const later.known, out, err)
            })
        });
        if code == Status::Ok as u32
            && let Some(find) = (*out).find_interface
        {
            INNER[S].find.get_or_init(|| find);
            (*out).find_interface = Some(find_interface::<S>);
        }
        code
    }
}

unsafe extern "C" fn find_interface<const S: usize>(
    instance: *mut c_void,
    id: u32,
    major: u32,
    max_minor: u32,
    out: *mut *const c_void,
    err: *mut ErrorOut,
) -> u32 {
    let (inner, find) = (&INNER[S], get(&INNER[S].find));
    // SAFETY: the plugin's function and instance, valid outputs.
    unsafe {
        let mut none = std::ptr::null();
        let later = find(instance, LATER_INTERFACE, 1, 0, &mut none, std::ptr::null_mut());
        if later != Status::Unsupported as u32 {
            violation(format!(
                "an interface that nobody knows was answered with status {later}"
            ));
        }
        let mut theirs = std::ptr::null();
        let code = with_error(err, |err| {
            find(instance, id, major, max_minor + MINORS_AHEAD, &mut theirs, err)
        });
        if code != Status::Ok as u32 {
            return code;
        }
        macro_rules! proxied {
            ($($table:ident in $cell:ident as $proxy:expr),*) => {
                match id {
                    $( $table::INTERFACE => match $table::load(theirs.cast()) {
                        Ok(table) => {
                            inner.$cell.get_or_init(|| table);
                            const { &$proxy as *const $table }.cast()
                        }
                        // This host finds out by itself.
                        Err(_) => theirs,
                    }, )*
                    _ => theirs,
                }
            };
        }
        *out = proxied!(
            PlatformTable in platform as platform_table::<S>(),
            DeviceTable in device as device_table::<S>(),
            OpsTable in ops as ops_table::<S>(),
            AttentionTable in attention as attention_table::<S>(),
            CommunicatorTable in communicator as communicator_table::<S>()
        );
        code
    }
}

/// Defines a table whose functions pass on to the plugin's. `in` arguments are structs that grow, `out` ones have more
/// room, others pass as they are.
macro_rules! table {
    ($make:ident -> $table:ident in $cell:ident { $(
        fn $name:ident ( $( $arg:ident : $ty:ty $(as $kind:ident)? ),* ) $(-> $err:ident)? ;
    )* } else { $( $field:ident : $value:expr ),* $(,)? }) => {
        const fn $make<const S: usize>() -> $table {
            $( unsafe extern "C" fn $name<const S: usize>( $( $arg : $ty, )* err: *mut ErrorOut ) -> u32 {
                let table = get(&INNER[S].$cell);
                // SAFETY: arguments of this host, passed on to the plugin's own function.
                unsafe { with_error(err, |err| {
                    table!(@wrap [ $( $arg $(as $kind)? , )* ] slot(table.$name), err, [ $( $arg, )* ])
                }) }
            } )*
            $table {
                struct_size: size_of::<$table>() as u32,
                minor: $table::VERSION.1,
                $( $name: Some($name::<S>), )*
                $( $field: $value, )*
            }
        }
    };
    (@wrap [ $arg:ident as newer, $($rest:tt)* ] $f:expr, $err:ident, $args:tt) => {{
        let larger = Newer::read($arg);
        let $arg = &raw const larger.known;
        table!(@wrap [ $($rest)* ] $f, $err, $args)
    }};
    (@wrap [ $arg:ident as spec, $($rest:tt)* ] $f:expr, $err:ident, $args:tt) => {{
        let mut larger = Spec::read($arg);
        let $arg = &raw const *larger.wire();
        table!(@wrap [ $($rest)* ] $f, $err, $args)
    }};
    (@wrap [ $arg:ident as room, $($rest:tt)* ] $f:expr, $err:ident, $args:tt) => {
        output(stringify!($f), $arg, |$arg| table!(@wrap [ $($rest)* ] $f, $err, $args))
    };
    (@wrap [ $arg:ident, $($rest:tt)* ] $f:expr, $err:ident, $args:tt) => {
        table!(@wrap [ $($rest)* ] $f, $err, $args)
    };
    (@wrap [ ] $f:expr, $err:ident, [ $( $arg:ident, )* ]) => { $f( $( $arg, )* $err ) };
}

table!(platform_table -> PlatformTable in platform {
    fn num_devices(instance: *mut c_void, out: *mut u32);
    fn device_info(instance: *mut c_void, index: u32, out: *mut DeviceInfoWire as room);
    fn open(instance: *mut c_void, desc: *const OpenDescWire as newer, out: *mut *mut c_void);
} else {});

table!(device_table -> DeviceTable in device {
    fn info(device: *mut c_void, out: *mut DeviceInfoWire as room);
    fn memory(device: *mut c_void, out: *mut MemoryInfoWire as room);
    fn buffer_create(device: *mut c_void, desc: *const BufferDescWire as newer, handle: *mut *mut c_void, id: *mut u64);
    fn buffer_write(buffer: *mut c_void, offset: u64, bytes: *const u8, len: u64);
    fn buffer_read(buffer: *mut c_void, offset: u64, out: *mut u8, len: u64);
    fn queue_create(device: *mut c_void, desc: *const QueueDescWire as newer, handle: *mut *mut c_void, id: *mut u64);
    fn submit(queue: *mut c_void, commands: *const u64, num: u32, waits: *const QueueWaitWire, num_waits: u32,
        number: *mut u64);
    fn wait(queue: *mut c_void, number: u64, timeout_ns: u64);
    fn reserve_scratch(queue: *mut c_void, bytes: u64);
    fn encoder_create(queue: *mut c_void, desc: *const EncoderDescWire as newer, out: *mut *mut c_void);
    fn encoder_finish(encoder: *mut c_void, handle: *mut *mut c_void, id: *mut u64);
} else {
    close: Some(close::<S>),
    buffer_drop: Some(buffer_drop::<S>),
    queue_drop: Some(queue_drop::<S>),
    completed: Some(completed::<S>),
    write_step: Some(write_step::<S>),
    encoder_drop: Some(encoder_drop::<S>),
    encode: Some(encode::<S>),
    command_drop: Some(command_drop::<S>),
});

table!(ops_table -> OpsTable in ops {
    fn support(device: *mut c_void, spec: *const OpSpecWire as spec, out: *mut OpSupportWire as room);
    fn prepare(device: *mut c_void, spec: *const OpSpecWire as spec, out: *mut PreparedWire as room);
    fn packed_weight_bytes(prepared: *mut c_void, node: u32, out: *mut u64);
    fn pack_weight(prepared: *mut c_void, rows: *const WeightRowsWire as newer, dst: *const Tensor);
} else {
    prepared_drop: Some(prepared_drop::<S>),
    claim: Some(claim::<S>),
    prepare_program: Some(prepare_program::<S>),
    pack_weight_from: Some(pack_weight_from::<S>),
});

table!(attention_table -> AttentionTable in attention {
    fn num_backends(device: *mut c_void, out: *mut u32);
    fn backend_info(device: *mut c_void, index: u32, out: *mut AttentionBackendWire as room);
    fn support(device: *mut c_void, spec: *const OpSpecWire as spec);
    fn plan(device: *mut c_void, spec: *const OpSpecWire as spec, out: *mut AttentionPlanWire as room);
} else {});

table!(communicator_table -> CommunicatorTable in communicator {
    fn unique_id(device: *mut c_void, out: *mut u8, capacity: u32, len: *mut u32);
    fn create(device: *mut c_void, desc: *const CommunicatorDescWire as newer, handle: *mut *mut c_void, id: *mut u64);
    fn prepare(communicator: *mut c_void, spec: *const CollectiveWire as newer, out: *mut PreparedWire as room);
} else { drop: Some(communicator_drop::<S>) });

macro_rules! releases {
    ($($name:ident is $cell:ident . $slot:ident),* $(,)?) => { $(
        unsafe extern "C" fn $name<const S: usize>(handle: *mut c_void) {
            // SAFETY: a handle of the plugin.
            unsafe { slot(get(&INNER[S].$cell).$slot)(handle) }
        }
    )* };
}
releases! {
    close is device.close, buffer_drop is device.buffer_drop, queue_drop is device.queue_drop,
    encoder_drop is device.encoder_drop, command_drop is device.command_drop, prepared_drop is ops.prepared_drop,
    communicator_drop is communicator.drop,
}

unsafe extern "C" fn completed<const S: usize>(queue: *mut c_void) -> u64 {
    // SAFETY: a queue of the plugin.
    unsafe { slot(get(&INNER[S].device).completed)(queue) }
}

unsafe extern "C" fn write_step<const S: usize>(
    queue: *mut c_void,
    writes: *const StepWriteWire,
    num: u32,
    _stride: u32,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: this host's array, with its own stride.
    let larger: Vec<_> = (0..num as usize)
        .map(|i| Newer::of(unsafe { *writes.add(i) }))
        .collect();
    let stride = size_of::<Newer<StepWriteWire>>() as u32;
    // SAFETY: a queue of the plugin.
    unsafe {
        with_error(err, |err| {
            slot(get(&INNER[S].device).write_step)(queue, larger.as_ptr().cast(), num, stride, err)
        })
    }
}

unsafe extern "C" fn encode<const S: usize>(
    encoder: *mut c_void,
    op: u64,
    operands: *const Tensor,
    num: u32,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: this host's operands.
    let mut all = unsafe { std::slice::from_raw_parts(operands, num as usize) }.to_vec();
    all.push(Tensor::NONE);
    // SAFETY: an encoder of the plugin.
    unsafe {
        with_error(err, |err| {
            slot(get(&INNER[S].device).encode)(encoder, op, all.as_ptr(), all.len() as u32, err)
        })
    }
}

unsafe extern "C" fn claim<const S: usize>(
    device: *mut c_void,
    program: *const ProgramWire,
    out: *mut ClaimReportWire,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: structs of this host, passed on.
    unsafe {
        let Some(claim) = get(&INNER[S].ops).claim else {
            (*out).num_claims = 0;
            return Status::Ok as u32;
        };
        let mut later = Program::read(program).with_later_ops();
        let code = with_error(err, |err| {
            output("halyard_claim_report", out, |out| {
                later.call(|program| claim(device, program, out, err))
            })
        });
        if code == Status::Ok as u32 {
            later.map_claims(&*out);
        }
        code
    }
}

unsafe extern "C" fn prepare_program<const S: usize>(
    device: *mut c_void,
    program: *const ProgramWire,
    out: *mut PreparedWire,
    err: *mut ErrorOut,
) -> u32 {
    let Some(prepare) = get(&INNER[S].ops).prepare_program else {
        return Status::Unsupported as u32;
    };
    // SAFETY: structs of this host, passed on.
    unsafe {
        let mut later = Program::read(program);
        with_error(err, |err| {
            output("halyard_prepared", out, |out| {
                later.call(|program| prepare(device, program, out, err))
            })
        })
    }
}

unsafe extern "C" fn pack_weight_from<const S: usize>(
    prepared: *mut c_void,
    rows: *const WeightRowsWire,
    src: *const Tensor,
    dst: *const Tensor,
    err: *mut ErrorOut,
) -> u32 {
    let Some(pack) = get(&INNER[S].ops).pack_weight_from else {
        return Status::Unsupported as u32;
    };
    // SAFETY: structs of this host, passed on.
    unsafe {
        let rows = Newer::read(rows);
        with_error(err, |err| pack(prepared, &raw const rows.known, src, dst, err))
    }
}
