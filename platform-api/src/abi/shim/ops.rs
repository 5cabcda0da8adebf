//! The ops table: support, preparing, packing, claims.

use std::ffi::c_void;
use std::sync::Arc;

use super::device::DeviceState;
use super::encoder::wire_id;
use super::{Handle, put, slice};
use crate::abi::spec::{read_program, read_spec};
use crate::abi::tables::{
    ClaimReportWire, OpSpecWire, OpSupportWire, OpsTable, PreparedWire, ProgramWire, WeightRowsWire,
};
use crate::abi::types::{ErrorOut, check_output, read_known, read_struct, write_struct};
use crate::prepared::{PreparedOp, WeightRows};
use crate::program::ClaimReport;
use crate::status::{Error, Result};
use crate::tensor::Tensor;

type PreparedHandle = Handle<Arc<dyn PreparedOp>>;

/// The table over any [`crate::OpRegistry`].
pub(super) static TABLE: OpsTable = OpsTable {
    struct_size: size_of::<OpsTable>() as u32,
    minor: OpsTable::VERSION.1,
    support: Some(support),
    prepare: Some(prepare),
    prepared_drop: Some(PreparedHandle::release_c),
    packed_weight_bytes: Some(packed_weight_bytes),
    pack_weight: Some(pack_weight),
    claim: Some(claim),
    prepare_program: Some(prepare_program),
    pack_weight_from: Some(pack_weight_from),
};

/// Hands a prepared op of `operands` operands over.
///
/// # Safety
/// `out` is null or a sized [`PreparedWire`].
pub(super) unsafe fn put_prepared(op: Arc<dyn PreparedOp>, operands: usize, out: *mut PreparedWire) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { check_output(out)? };
    let info = op.info();
    let mut wire = PreparedWire::zeroed();
    wire.recordable = u32::from(info.recordable);
    wire.scratch_bytes = info.scratch_bytes;
    wire.id = wire_id(op.id(), operands)?;
    wire.handle = PreparedHandle::into_raw(op);
    // SAFETY: as the caller promises.
    unsafe { write_struct(out, &wire) }
}

/// Copies `text` into the caller's buffer, cut at a character border, and returns the bytes written.
///
/// # Safety
/// `to` is null or valid for `capacity` bytes.
unsafe fn put_text(text: &str, to: *mut u8, capacity: u32) -> u32 {
    if to.is_null() {
        return 0;
    }
    let mut len = text.len().min(capacity as usize);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    // SAFETY: as the caller promises, and `len` is at most the capacity.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), to, len) };
    len as u32
}

unsafe extern "C" fn support(
    device: *mut c_void,
    spec: *const OpSpecWire,
    out: *mut OpSupportWire,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live device, a valid spec and valid outputs.
    unsafe {
        Handle::<DeviceState>::with_shared(device, err, |state| {
            let answer = state.device.ops().support(&read_spec(spec)?)?;
            let mut wire = read_known(out)?;
            wire.cost = answer.cost;
            wire.implementation_len = put_text(
                &answer.implementation,
                wire.implementation,
                wire.implementation_capacity,
            );
            write_struct(out, &wire)
        })
    }
}

unsafe extern "C" fn prepare(
    device: *mut c_void,
    spec: *const OpSpecWire,
    out: *mut PreparedWire,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live device, a valid spec and valid outputs.
    unsafe {
        Handle::<DeviceState>::with_shared(device, err, |state| {
            let spec = read_spec(spec)?;
            put_prepared(state.device.ops().prepare(&spec)?, spec.operands().len(), out)
        })
    }
}

unsafe extern "C" fn packed_weight_bytes(prepared: *mut c_void, node: u32, out: *mut u64, err: *mut ErrorOut) -> u32 {
    // SAFETY: the wire promises a live prepared op and valid outputs.
    unsafe { PreparedHandle::with(prepared, err, |op| put(out, op.packed_weight_bytes(node)?)) }
}

unsafe extern "C" fn pack_weight(
    prepared: *mut c_void,
    rows: *const WeightRowsWire,
    dst: *const Tensor,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live prepared op, rows with their bytes and one tensor.
    unsafe {
        PreparedHandle::with(prepared, err, |op| {
            let wire = read_rows(rows)?;
            let rows = WeightRows {
                first_row: wire.first_row,
                num_rows: wire.num_rows,
                bytes: slice(wire.bytes, wire.len)?,
            };
            op.pack_weight(wire.node, rows, &slice(dst, 1)?[0])
        })
    }
}

/// # Safety
/// As [`read_struct`].
unsafe fn read_rows(rows: *const WeightRowsWire) -> Result<WeightRowsWire> {
    // SAFETY: as the caller promises.
    let wire = unsafe { read_struct(rows)? };
    match wire.part {
        0 => Ok(wire),
        part => Err(Error::unsupported(format!(
            "part {part} of a weight: the formats known here have one part, 0"
        ))),
    }
}

unsafe extern "C" fn pack_weight_from(
    prepared: *mut c_void,
    rows: *const WeightRowsWire,
    src: *const Tensor,
    dst: *const Tensor,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live prepared op and two tensors.
    unsafe {
        PreparedHandle::with(prepared, err, |op| {
            let rows = read_rows(rows)?;
            let (src, dst) = (&slice(src, 1)?[0], &slice(dst, 1)?[0]);
            op.pack_weight_from(rows.node, rows.first_row, rows.num_rows, src, dst)
        })
    }
}

unsafe extern "C" fn claim(
    device: *mut c_void,
    program: *const ProgramWire,
    out: *mut ClaimReportWire,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live device, a valid program and valid outputs.
    unsafe {
        Handle::<DeviceState>::with_shared(device, err, |state| {
            put_claims(&state.device.ops().claim(&read_program(program)?)?, out)
        })
    }
}

/// # Safety
/// `out` is null or a sized report whose arrays are null or valid for their capacities.
unsafe fn put_claims(report: &ClaimReport, out: *mut ClaimReportWire) -> Result<()> {
    // SAFETY: as the caller promises.
    let mut wire = unsafe { read_known(out)? };
    wire.num_claims = report.claims.len() as u32;
    wire.left_len = report.left.len() as u32;
    if !wire.claims.is_null() {
        let fitting = report.claims.iter().take(wire.claims_capacity as usize);
        for (i, claim) in fitting.enumerate() {
            // SAFETY: the caller promises `claims_capacity` pairs.
            unsafe {
                wire.claims.add(2 * i).write(claim.first);
                wire.claims.add(2 * i + 1).write(claim.count);
            }
        }
    }
    // SAFETY: the caller promises `left_capacity` bytes.
    unsafe {
        put_text(&report.left, wire.left, wire.left_capacity);
        write_struct(out, &wire)
    }
}

unsafe extern "C" fn prepare_program(
    device: *mut c_void,
    program: *const ProgramWire,
    out: *mut PreparedWire,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live device, a valid program and valid outputs.
    unsafe {
        Handle::<DeviceState>::with_shared(device, err, |state| {
            let program = read_program(program)?;
            if let Some(reason) = program.nodes.iter().find_map(|node| node.spec.unknown()) {
                return Err(Error::unsupported(reason));
            }
            let op = state.device.ops().prepare_program(&program)?;
            put_prepared(op, program.tensors.len(), out)
        })
    }
}
