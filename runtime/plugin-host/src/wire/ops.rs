//! `OpRegistry` and `PreparedOp` over the ops table.

use std::sync::Arc;

use halyard_platform_api::abi::tables::{ClaimReportWire, OpSupportWire, PreparedWire, ProgramWire, WeightRowsWire};
use halyard_platform_api::abi::{AbiLayout, ErrorOut, ProgramBytes, SpecBytes};
use halyard_platform_api::ops::OpSpec;
use halyard_platform_api::program::{Claim, Program};
use halyard_platform_api::{
    ClaimReport, Error, OpId, OpRegistry, OpSupport, PreparedInfo, PreparedOp, Result, Status, Tensor, WeightRows,
};

use super::device::{HostDevice, OpenDevice};
use super::{Handle, call, named, slot};

/// Bytes for the name of an implementation.
const IMPLEMENTATION_BYTES: usize = 256;

impl OpRegistry for HostDevice {
    fn support(&self, spec: &OpSpec) -> Result<OpSupport> {
        let open = &*self.open;
        let bytes = SpecBytes::new(spec, open.tables.ops.minor);
        let wire = bytes.wire();
        let mut text = [0; IMPLEMENTATION_BYTES];
        let mut out = OpSupportWire::zeroed();
        out.implementation = text.as_mut_ptr();
        out.implementation_capacity = text.len() as u32;
        // SAFETY: a live device, a spec that `bytes` keeps, sized output over `text`.
        call(&open.name, |err| unsafe {
            slot(open.tables.ops.support)(open.handle.0, &wire, &mut out, err)
        })?;
        let len = (out.implementation_len as usize).min(text.len());
        Ok(OpSupport {
            cost: out.cost,
            implementation: String::from_utf8_lossy(&text[..len]).into_owned(),
        })
    }

    fn prepare(&self, spec: &OpSpec) -> Result<Arc<dyn PreparedOp>> {
        let open = &self.open;
        let bytes = SpecBytes::new(spec, open.tables.ops.minor);
        let wire = bytes.wire();
        // SAFETY: a live device, a spec that `bytes` keeps, sized output.
        prepare_with(open, vec![WeightShape::of(spec)], |out, err| unsafe {
            slot(open.tables.ops.prepare)(open.handle.0, &wire, out, err)
        })
    }

    fn claim(&self, program: &Program) -> Result<ClaimReport> {
        let open = &*self.open;
        program.validate().map_err(|e| named(&open.name, e))?;
        let (Some(claim), Some(_)) = (open.tables.ops.claim, open.tables.ops.prepare_program) else {
            return Ok(ClaimReport::nothing(format!("{} claims no composites", open.name)));
        };
        let bytes = ProgramBytes::new(program, open.tables.ops.minor);
        let wire = bytes.wire();
        let mut buffers = ClaimBuffers::new(64, 4096);
        for _ in 0..2 {
            let mut out = buffers.wire();
            // SAFETY: a live device, a program that `bytes` keeps, sized output over `buffers`.
            match call(&open.name, |err| unsafe { claim(open.handle.0, &wire, &mut out, err) }) {
                // A plugin that cannot read the program: every op that it can run runs by itself.
                Err(error) if error.status == Status::Unsupported => return Ok(ClaimReport::nothing(error.message)),
                asked => asked?,
            }
            if let Some(report) = buffers.read(&out) {
                return check_claims(&open.name, program, report);
            }
            buffers = ClaimBuffers::new(out.num_claims as usize, out.left_len as usize);
        }
        Err(Error::new(
            Status::Internal,
            format!("{}: a claim report grew between two calls", open.name),
        ))
    }

    fn prepare_program(&self, program: &Program) -> Result<Arc<dyn PreparedOp>> {
        let open = &self.open;
        program.validate().map_err(|e| named(&open.name, e))?;
        let prepare: unsafe extern "C" fn(_, *const ProgramWire, _, _) -> u32 = open
            .tables
            .ops
            .prepare_program
            .ok_or_else(|| Error::unsupported(format!("{} claims no composites", open.name)))?;
        let bytes = ProgramBytes::new(program, open.tables.ops.minor);
        let wire = bytes.wire();
        let weights = program.nodes.iter().map(|n| WeightShape::of(&n.spec));
        // SAFETY: a live device, a program that `bytes` keeps, sized output.
        prepare_with(open, weights.collect(), |out, err| unsafe {
            prepare(open.handle.0, &wire, out, err)
        })
    }
}

/// Claims must be disjoint, ascending, of at least two nodes, and within the program.
fn check_claims(plugin: &str, program: &Program, report: ClaimReport) -> Result<ClaimReport> {
    let mut free_from = 0;
    for claim in &report.claims {
        let end = u64::from(claim.first) + u64::from(claim.count);
        if u64::from(claim.first) < free_from || claim.count < 2 || end > program.nodes.len() as u64 {
            return Err(Error::new(
                Status::Internal,
                format!(
                    "{plugin}: claims nodes {} to {end} of {}, where nodes from {free_from} are free and 2 are the \
                     least",
                    claim.first,
                    program.nodes.len()
                ),
            ));
        }
        free_from = end;
    }
    Ok(report)
}

/// The arrays that a claim report is written into.
struct ClaimBuffers {
    claims: Vec<[u32; 2]>,
    left: Vec<u8>,
}

impl ClaimBuffers {
    fn new(num_claims: usize, left_bytes: usize) -> ClaimBuffers {
        ClaimBuffers {
            claims: vec![[0; 2]; num_claims],
            left: vec![0; left_bytes],
        }
    }

    fn wire(&mut self) -> ClaimReportWire {
        let mut wire = ClaimReportWire::zeroed();
        wire.claims = self.claims.as_mut_ptr().cast();
        wire.claims_capacity = self.claims.len() as u32;
        wire.left = self.left.as_mut_ptr();
        wire.left_capacity = self.left.len() as u32;
        wire
    }

    /// The report, or nothing when it did not fit.
    fn read(&self, wire: &ClaimReportWire) -> Option<ClaimReport> {
        let claims = self.claims.get(..wire.num_claims as usize)?;
        let left = self.left.get(..wire.left_len as usize)?;
        Some(ClaimReport {
            claims: claims.iter().map(|&[first, count]| Claim { first, count }).collect(),
            left: String::from_utf8_lossy(left).into_owned(),
        })
    }
}

/// What rows of a node's weight look like, where the op has one.
struct WeightShape {
    rows: u64,
    row_bytes: u64,
}

impl WeightShape {
    fn of(spec: &OpSpec) -> Option<WeightShape> {
        let (rows, in_features, format) = match spec {
            OpSpec::Linear(op) => (u64::from(op.out_features), op.in_features, op.weight),
            OpSpec::MoeLinear(op) => {
                let rows = u64::from(op.num_experts) * u64::from(op.out_features);
                (rows, op.in_features, op.weight)
            }
            _ => return None,
        };
        let row_bytes = format.row_bytes(in_features as usize)? as u64;
        Some(WeightShape { rows, row_bytes })
    }
}

/// Prepares by `function` and takes the result over.
fn prepare_with(
    open: &Arc<OpenDevice>,
    weights: Vec<Option<WeightShape>>,
    function: impl FnOnce(*mut PreparedWire, *mut ErrorOut) -> u32,
) -> Result<Arc<dyn PreparedOp>> {
    let mut wire = PreparedWire::zeroed();
    call(&open.name, |err| function(&mut wire, err))?;
    let mut op = HostPreparedOp {
        open: open.clone(),
        handle: Handle(wire.handle),
        id: OpId(wire.id),
        info: PreparedInfo::default(),
        weights,
    };
    op.info = wire.to_info().map_err(|e| named(&open.name, e))?;
    Ok(Arc::new(op))
}

/// A collective is prepared without a weight.
pub(super) fn prepare_collective(
    open: &Arc<OpenDevice>,
    function: impl FnOnce(*mut PreparedWire, *mut ErrorOut) -> u32,
) -> Result<Arc<dyn PreparedOp>> {
    prepare_with(open, vec![None], function)
}

/// A prepared op of a plugin.
struct HostPreparedOp {
    open: Arc<OpenDevice>,
    handle: Handle,
    id: OpId,
    info: PreparedInfo,
    weights: Vec<Option<WeightShape>>,
}

impl Drop for HostPreparedOp {
    fn drop(&mut self) {
        // SAFETY: a live prepared op, used no more.
        unsafe { slot(self.open.tables.ops.prepared_drop)(self.handle.0) };
    }
}

impl HostPreparedOp {
    fn weight_rows(&self, node: u32, first_row: u32, num_rows: u32) -> WeightRowsWire {
        let mut wire = WeightRowsWire::zeroed();
        wire.node = node;
        wire.first_row = first_row;
        wire.num_rows = num_rows;
        wire.for_minor(self.open.tables.ops.minor);
        wire
    }

    /// Rows and bytes of `rows` must be those of the node's weight. Vendor ops know their own.
    fn check_rows(&self, node: u32, first_row: u32, num_rows: u32, bytes: u64) -> Result<()> {
        let name = &self.open.name;
        let shape = self.weights.get(node as usize).ok_or_else(|| {
            Error::invalid(format!(
                "{name}: node {node} of a prepared op of {}",
                self.weights.len()
            ))
        })?;
        let Some(shape) = shape else {
            return Ok(());
        };
        let end = u64::from(first_row) + u64::from(num_rows);
        let expected = u64::from(num_rows) * shape.row_bytes;
        if end > shape.rows || bytes != expected {
            return Err(Error::invalid(format!(
                "{name}: rows {first_row} to {end} of a weight of {} rows, in {bytes} bytes; {expected} are needed \
                 ({} a row)",
                shape.rows, shape.row_bytes
            )));
        }
        Ok(())
    }
}

impl PreparedOp for HostPreparedOp {
    fn id(&self) -> OpId {
        self.id
    }

    fn info(&self) -> PreparedInfo {
        self.info
    }

    fn packed_weight_bytes(&self, node: u32) -> Result<u64> {
        let open = &*self.open;
        let mut bytes = 0;
        // SAFETY: a live prepared op, valid output.
        call(&open.name, |err| unsafe {
            slot(open.tables.ops.packed_weight_bytes)(self.handle.0, node, &mut bytes, err)
        })?;
        Ok(bytes)
    }

    fn pack_weight(&self, node: u32, rows: WeightRows<'_>, dst: &Tensor) -> Result<()> {
        let open = &*self.open;
        self.check_rows(node, rows.first_row, rows.num_rows, rows.bytes.len() as u64)?;
        let mut wire = self.weight_rows(node, rows.first_row, rows.num_rows);
        wire.bytes = rows.bytes.as_ptr();
        wire.len = rows.bytes.len() as u64;
        // SAFETY: a live prepared op, rows whose bytes are borrowed for the call, one tensor.
        call(&open.name, |err| unsafe {
            slot(open.tables.ops.pack_weight)(self.handle.0, &wire, dst, err)
        })
    }

    fn pack_weight_from(&self, node: u32, first_row: u32, num_rows: u32, src: &Tensor, dst: &Tensor) -> Result<()> {
        let open = &*self.open;
        self.check_rows(node, first_row, num_rows, src.span_bytes())?;
        let Some(pack) = open.tables.ops.pack_weight_from else {
            return Err(Error::unsupported(format!(
                "{} packs weights from host memory only",
                open.name
            )));
        };
        let wire = self.weight_rows(node, first_row, num_rows);
        // SAFETY: a live prepared op, sized rows, two tensors.
        call(&open.name, |err| unsafe { pack(self.handle.0, &wire, src, dst, err) })
    }
}
