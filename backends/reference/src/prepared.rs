//! Prepared ops: a descriptor that was checked, and how its weight is packed. The packed weight is the canonical bytes.

use std::sync::Arc;

use halyard_platform_api::program::ABSENT;
use halyard_platform_api::{
    DType, Error, OpId, OpSpec, PreparedInfo, PreparedOp, Program, Result, Tensor, WeightFormat, WeightRows,
};

use crate::communicator::PreparedCollective;
use crate::device::Shared;
use crate::operand::{Args, Operand};
use crate::ops;

/// The op or region that a prepared op runs.
pub(crate) enum Work {
    /// One catalogue op.
    Op(OpSpec),
    /// A composite, node by node.
    Program(Program),
    /// A collective of a communicator.
    Collective(PreparedCollective),
}

/// A prepared op as commands hold it.
pub(crate) struct Prepared {
    work: Work,
}

impl Prepared {
    /// For errors.
    pub(crate) fn name(&self) -> &str {
        match &self.work {
            Work::Op(spec) => spec.name(),
            Work::Program(_) => "composite",
            Work::Collective(collective) => collective.name(),
        }
    }

    /// Checks the number of operands.
    ///
    /// # Errors
    /// `InvalidArgument` with both numbers.
    pub(crate) fn check_count(&self, found: usize) -> Result<()> {
        let expected = match &self.work {
            Work::Op(spec) => spec.operands().len(),
            Work::Program(program) => program.tensors.len(),
            // Input and out.
            Work::Collective(_) => 2,
        };
        if found == expected {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{}: {found} operands, it takes {expected}",
            self.name()
        )))
    }

    /// Checks that operand `index` may be absent.
    ///
    /// # Errors
    /// `InvalidArgument` naming the operand.
    pub(crate) fn check_absent(&self, index: usize) -> Result<()> {
        let required = match &self.work {
            Work::Op(spec) => spec.operands().get(index).filter(|o| !o.optional).map(|o| o.name),
            Work::Program(_) => Some("a tensor of the program"),
            Work::Collective(collective) if collective.absent_operand() == Some(index) => None,
            Work::Collective(_) => Some("a collective's operand"),
        };
        match required {
            None => Ok(()),
            Some(name) => Err(Error::invalid(format!(
                "{}: operand {index} (`{name}`) is required and absent",
                self.name()
            ))),
        }
    }

    /// Runs over bound operands.
    ///
    /// # Errors
    /// What the op finds wrong with its operands.
    pub(crate) fn run(&self, operands: &[Operand]) -> Result<()> {
        match &self.work {
            Work::Op(spec) => ops::run(spec, &Args::new(spec, operands)),
            Work::Program(program) => run_program(program, operands),
            Work::Collective(collective) => collective.run(operands),
        }
    }

    /// The spec of a node that has a weight.
    fn weight(&self, node: u32) -> Result<Weight> {
        let spec = match &self.work {
            Work::Op(spec) if node == 0 => Some(spec),
            Work::Program(program) => program.nodes.get(node as usize).map(|n| &n.spec),
            _ => None,
        };
        let Some(spec) = spec else {
            return Err(Error::invalid(format!("{}: it has no node {node}", self.name())));
        };
        Weight::of(spec).ok_or_else(|| Error::invalid(format!("node {node} ({}) has no packed weight", spec.name())))
    }
}

fn run_program(program: &Program, tensors: &[Operand]) -> Result<()> {
    for (index, node) in program.nodes.iter().enumerate() {
        let operands: Vec<Operand> = node
            .operands
            .iter()
            .map(|&t| match t {
                ABSENT => Operand::absent(),
                t => tensors[usize::from(t)].clone(),
            })
            .collect();
        ops::run(&node.spec, &Args::new(&node.spec, &operands)).map_err(|e| Error {
            message: format!("node {index}: {}", e.message),
            ..e
        })?;
    }
    Ok(())
}

/// Shape and format of a packed weight.
pub(crate) struct Weight {
    pub(crate) rows: usize,
    pub(crate) row_bytes: usize,
}

impl Weight {
    /// The weight of an op that has one. `row_bytes` exists: `support` checked it.
    pub(crate) fn of(spec: &OpSpec) -> Option<Weight> {
        let (format, rows, width): (WeightFormat, u32, u32) = match spec {
            OpSpec::Embedding(op) => (op.weight, op.num_rows, op.width),
            OpSpec::Linear(op) => (op.weight, op.out_features, op.in_features),
            OpSpec::MoeLinear(op) => (op.weight, op.num_experts.checked_mul(op.out_features)?, op.in_features),
            OpSpec::HeadLinear(op) => (op.weight, op.num_heads.checked_mul(op.out_features)?, op.in_features),
            _ => return None,
        };
        Some(Weight {
            rows: rows as usize,
            row_bytes: format.row_bytes(width as usize)?,
        })
    }

    fn bytes(&self) -> usize {
        self.rows * self.row_bytes
    }
}

/// The contract's prepared op.
pub(crate) struct ReferenceOp {
    id: u64,
    prepared: Arc<Prepared>,
    shared: Arc<Shared>,
}

impl ReferenceOp {
    /// Numbers a prepared op.
    pub(crate) fn create(shared: &Arc<Shared>, work: Work) -> Arc<dyn PreparedOp> {
        let prepared = Arc::new(Prepared { work });
        let id = shared.ops.insert(Arc::clone(&prepared));
        Arc::new(ReferenceOp {
            id,
            prepared,
            shared: Arc::clone(shared),
        })
    }
}

impl PreparedOp for ReferenceOp {
    fn id(&self) -> OpId {
        OpId(self.id)
    }

    fn info(&self) -> PreparedInfo {
        PreparedInfo {
            scratch_bytes: 0,
            recordable: true,
        }
    }

    fn packed_weight_bytes(&self, node: u32) -> Result<u64> {
        Ok(self.prepared.weight(node)?.bytes() as u64)
    }

    fn pack_weight(&self, node: u32, rows: WeightRows<'_>, dst: &Tensor) -> Result<()> {
        let weight = self.prepared.weight(node)?;
        let (first, count) = (rows.first_row as usize, rows.num_rows as usize);
        if first + count > weight.rows {
            return Err(Error::invalid(format!(
                "rows {first} .. {} of a weight with {} rows",
                first + count,
                weight.rows
            )));
        }
        if rows.bytes.len() != count * weight.row_bytes {
            return Err(Error::invalid(format!(
                "{} bytes for {count} rows of {} bytes each",
                rows.bytes.len(),
                weight.row_bytes
            )));
        }
        let memory = self.shared.buffers.find(dst.buffer)?;
        let dst = Operand::bind(*dst, memory)?;
        if dst.dtype() != DType::U8 || dst.tensor.span_bytes() as usize != weight.bytes() {
            return Err(Error::invalid(format!(
                "the destination is {:?} of {} bytes, the packed weight U8 of {}",
                dst.dtype(),
                dst.tensor.span_bytes(),
                weight.bytes()
            )));
        }
        dst.write_raw(first * weight.row_bytes, rows.bytes)
    }

    fn pack_weight_from(&self, node: u32, first_row: u32, num_rows: u32, src: &Tensor, dst: &Tensor) -> Result<()> {
        let bytes = Operand::bind(*src, self.shared.buffers.find(src.buffer)?)?.bytes();
        let rows = WeightRows {
            first_row,
            num_rows,
            bytes: &bytes,
        };
        self.pack_weight(node, rows, dst)
    }
}

impl Drop for ReferenceOp {
    fn drop(&mut self) {
        self.shared.ops.remove(self.id);
    }
}
