//! The tables of a later host's calls: each function makes its arguments larger and passes on to the plugin's.

use std::ffi::c_void;

use halyard_platform_api::abi::ErrorOut;
use halyard_platform_api::abi::tables::{
    AttentionBackendWire, AttentionPlanWire, AttentionTable, BufferDescWire, ClaimReportWire, CollectiveWire,
    CommunicatorDescWire, CommunicatorTable, DeviceInfoWire, DeviceTable, EncoderDescWire, MemoryInfoWire, OpSpecWire,
    OpSupportWire, OpenDescWire, OpsTable, PlatformTable, PreparedWire, ProgramWire, QueueDescWire, QueueWaitWire,
    StepWriteWire, WeightRowsWire,
};
use halyard_platform_api::{Status, Tensor};

use super::{INNER, get, output, with_error};
use crate::program::{LaterProgram, LaterSpec};
use crate::{Newer, violation};

/// A slot that today's plugins must have.
fn slot<F>(slot: Option<F>) -> F {
    slot.expect("required slots were checked when the table was loaded")
}

/// Defines a table whose functions pass on to the plugin's. `in` arguments are structs that grow, `out` ones have more
/// room, others pass as they are.
macro_rules! table {
    ($make:ident -> $table:ident in $cell:ident { $(
        fn $name:ident ( $( $arg:ident : $ty:ty $(as $kind:ident)? ),* ) ;
    )* } else { $( $field:ident : $value:expr ),* $(,)? }) => {
        pub(super) const fn $make<const S: usize>() -> $table {
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
        let $arg = larger.ptr();
        table!(@wrap [ $($rest)* ] $f, $err, $args)
    }};
    (@wrap [ $arg:ident as spec, $($rest:tt)* ] $f:expr, $err:ident, $args:tt) => {{
        let mut larger = LaterSpec::read($arg);
        let $arg = larger.ptr();
        table!(@wrap [ $($rest)* ] $f, $err, $args)
    }};
    (@wrap [ $arg:ident as room, $($rest:tt)* ] $f:expr, $err:ident, $args:tt) => {
        output(stringify!($arg), $arg, |$arg| table!(@wrap [ $($rest)* ] $f, $err, $args))
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
        let mut later = LaterProgram::read(program);
        if !later.tensors.is_empty() {
            let num = later.nodes.len();
            [num, num / 2, 0].into_iter().for_each(|at| later.put_in(at));
        }
        let code = with_error(err, |err| {
            output("halyard_claim_report", out, |out| {
                later.call(|program| claim(device, program, out, err))
            })
        });
        if code == Status::Ok as u32 {
            take_back(&later, &*out);
        }
        code
    }
}

/// Writes the claims in this host's numbers.
///
/// # Safety
/// The report's array holds as many pairs as it states.
unsafe fn take_back(later: &LaterProgram, report: &ClaimReportWire) {
    for i in 0..report.num_claims.min(report.claims_capacity) as usize {
        // SAFETY: as the caller promises.
        let (first, count) = unsafe { (report.claims.add(2 * i), *report.claims.add(2 * i + 1)) };
        // SAFETY: as the caller promises.
        match later.without_later(unsafe { *first }, count) {
            // SAFETY: as the caller promises.
            Some((ours, _)) => unsafe { *first = ours },
            None => violation("a claim covers an op that the plugin cannot know"),
        }
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
        let mut later = LaterProgram::read(program);
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
        with_error(err, |err| pack(prepared, rows.ptr(), src, dst, err))
    }
}
