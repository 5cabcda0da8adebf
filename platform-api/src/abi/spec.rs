//! Op specs and programs on the wire: an owner of the wire form for the caller's side, a reader for the callee's.
//!
//! A wire form points into memory that its owner keeps; it must never outlive the owner.

use super::Str;
use super::layout::AbiLayout;
use super::tables::{NodeWire, OpSpecWire, ProgramWire, TensorDeclWire};
use super::types::{read_element, read_known, read_known_element, read_struct};
use crate::dtype::DType;
use crate::ops::{Access, OpSpec, UnknownOp};
use crate::program::{ABSENT, Node, Program, TensorDecl};
use crate::status::{Error, Result, Status};

/// Most bytes a descriptor may have.
const MAX_DESCRIPTOR: u64 = 1 << 20;
/// Most nodes or tensors a program may have; tensor indices are 16 bits.
const MAX_PROGRAM: u32 = 65_535;

/// Owns what an [`OpSpecWire`] points to.
pub struct SpecBytes {
    name: String,
    code: u32,
    version: u32,
    descriptor: Vec<u8>,
    minor: u32,
}

impl SpecBytes {
    /// The wire bytes of `spec` for a reader of minor version `minor` of its interface.
    pub fn new(spec: &OpSpec, minor: u32) -> SpecBytes {
        SpecBytes {
            name: spec.name().to_string(),
            code: spec.code(),
            version: spec.version(),
            descriptor: spec.wire_bytes_for(minor),
            minor,
        }
    }

    /// The wire form, valid while `self` is.
    pub fn wire(&self) -> OpSpecWire {
        let mut wire = OpSpecWire::zeroed();
        wire.code = self.code;
        wire.version = self.version;
        wire.name = Str::new(&self.name);
        wire.descriptor = self.descriptor.as_ptr();
        wire.descriptor_len = self.descriptor.len() as u64;
        wire.for_minor(self.minor);
        wire
    }
}

/// Reads a spec.
///
/// # Errors
/// As [`OpSpec::from_wire`]; `InvalidArgument` for null or an absurd length.
///
/// # Safety
/// `ptr` is null or a spec whose texts and bytes are valid for their lengths.
pub unsafe fn read_spec(ptr: *const OpSpecWire) -> Result<OpSpec> {
    // SAFETY: as the caller promises.
    let op = unsafe { read_op(read_struct(ptr)?)? };
    OpSpec::from_wire(op.code, op.version, &op.name, &op.descriptor)
}

/// Reads the op of a node: one that is not known here is [`OpSpec::Unknown`] with the reason.
///
/// # Errors
/// `InvalidArgument`, as [`read_spec`].
///
/// # Safety
/// As [`read_spec`].
unsafe fn read_node_spec(ptr: *const OpSpecWire) -> Result<OpSpec> {
    // SAFETY: as the caller promises.
    let op = unsafe { read_op(read_known(ptr)?)? };
    // SAFETY: as the caller promises.
    if let Err(error) = unsafe { read_struct(ptr) } {
        return Ok(unknown(op, error.message));
    }
    match OpSpec::from_wire(op.code, op.version, &op.name, &op.descriptor) {
        Err(error) if error.status == Status::Unsupported => Ok(unknown(op, error.message)),
        read => read,
    }
}

fn unknown(op: UnknownOp, reason: String) -> OpSpec {
    OpSpec::Unknown(UnknownOp { reason, ..op })
}

/// Copies what a spec consists of; the reason is empty.
///
/// # Errors
/// `InvalidArgument` for an absurd length.
///
/// # Safety
/// The spec's texts and bytes are valid for their lengths.
unsafe fn read_op(wire: OpSpecWire) -> Result<UnknownOp> {
    if wire.descriptor_len > MAX_DESCRIPTOR || (wire.descriptor.is_null() && wire.descriptor_len > 0) {
        return Err(Error::invalid(format!(
            "op code {}: descriptor of {} bytes at {:p} (at most {MAX_DESCRIPTOR}, not null)",
            wire.code, wire.descriptor_len, wire.descriptor
        )));
    }
    let bytes = if wire.descriptor_len == 0 {
        &[]
    } else {
        // SAFETY: as the caller promises, and not null.
        unsafe { std::slice::from_raw_parts(wire.descriptor, wire.descriptor_len as usize) }
    };
    // It starts with its size.
    if let Some(word) = bytes.first_chunk::<4>()
        && u32::from_ne_bytes(*word) as usize != bytes.len()
    {
        return Err(Error::invalid(format!(
            "op code {}: a descriptor of {} bytes says that it has {}",
            wire.code,
            bytes.len(),
            u32::from_ne_bytes(*word)
        )));
    }
    Ok(UnknownOp {
        code: wire.code,
        version: wire.version,
        // SAFETY: as the caller promises.
        name: unsafe { wire.name.to_text() },
        descriptor: bytes.to_vec(),
        reason: String::new(),
    })
}

/// Owns what a [`ProgramWire`] points to.
pub struct ProgramBytes {
    // Held for the pointers of `specs`.
    _bytes: Vec<SpecBytes>,
    // Held for the pointers of `nodes`.
    _specs: Vec<OpSpecWire>,
    _operands: Vec<(Vec<u16>, Vec<u8>)>,
    nodes: Vec<NodeWire>,
    tensors: Vec<TensorDeclWire>,
    minor: u32,
}

impl ProgramBytes {
    /// The wire bytes of `program` for a reader of minor version `minor` of the ops interface.
    pub fn new(program: &Program, minor: u32) -> ProgramBytes {
        let spec_bytes = |node: &Node| SpecBytes::new(&node.spec, minor);
        let bytes: Vec<SpecBytes> = program.nodes.iter().map(spec_bytes).collect();
        let specs: Vec<OpSpecWire> = bytes.iter().map(SpecBytes::wire).collect();
        let operands: Vec<(Vec<u16>, Vec<u8>)> = program
            .nodes
            .iter()
            .map(|n| {
                (
                    n.operands.clone(),
                    n.access.iter().map(|&access| access as u8).collect(),
                )
            })
            .collect();
        let nodes = specs
            .iter()
            .zip(&operands)
            .map(|(spec, (operands, access))| {
                let mut node = NodeWire::zeroed();
                node.num_operands = operands.len() as u32;
                node.spec = spec;
                node.operands = operands.as_ptr();
                node.access = access.as_ptr();
                node.for_minor(minor);
                node
            })
            .collect();
        let tensors = program
            .tensors
            .iter()
            .map(|decl| {
                let mut tensor = TensorDeclWire::zeroed();
                tensor.dtype = decl.dtype as u32;
                tensor.internal = u32::from(decl.internal);
                tensor.storage = decl.storage;
                tensor.first_column = decl.first_column;
                tensor.num_columns = decl.num_columns;
                tensor.for_minor(minor);
                tensor
            })
            .collect();
        ProgramBytes {
            _bytes: bytes,
            _specs: specs,
            _operands: operands,
            nodes,
            tensors,
            minor,
        }
    }

    /// The wire form, valid while `self` is.
    pub fn wire(&self) -> ProgramWire {
        let mut wire = ProgramWire::zeroed();
        wire.num_nodes = self.nodes.len() as u32;
        wire.nodes = self.nodes.as_ptr();
        wire.node_stride = size_of::<NodeWire>() as u32;
        wire.num_tensors = self.tensors.len() as u32;
        wire.tensors = self.tensors.as_ptr();
        wire.tensor_stride = size_of::<TensorDeclWire>() as u32;
        wire.for_minor(self.minor);
        wire
    }
}

/// Reads a program and validates it. A node that is not known here, or that names a tensor of a type that is not known,
/// is [`OpSpec::Unknown`] with the reason.
///
/// # Errors
/// `Unsupported` for a field of the program itself that is not known here; `InvalidArgument` with the node's number,
/// and as [`Program::validate`].
///
/// # Safety
/// `ptr` is null or a program whose arrays, texts and bytes are valid for their lengths.
pub unsafe fn read_program(ptr: *const ProgramWire) -> Result<Program> {
    // SAFETY: as the caller promises.
    let wire = unsafe { read_struct(ptr)? };
    if wire.num_nodes > MAX_PROGRAM || wire.num_tensors > MAX_PROGRAM {
        return Err(Error::invalid(format!(
            "a program of {} nodes and {} tensors (at most {MAX_PROGRAM} each)",
            wire.num_nodes, wire.num_tensors
        )));
    }
    let mut program = Program::default();
    // Why a tensor is not known here; empty: it is.
    let mut unknown_tensors = Vec::new();
    for i in 0..wire.num_tensors as usize {
        // SAFETY: as the caller promises.
        let (tensor, reason) = unsafe { read_tensor(wire.tensors, i, wire.tensor_stride)? };
        program.tensors.push(tensor);
        unknown_tensors.push(reason);
    }
    for i in 0..wire.num_nodes as usize {
        // SAFETY: as the caller promises.
        let node = unsafe { read_node(wire.nodes, i, wire.node_stride, &unknown_tensors) };
        program.nodes.push(node.map_err(|e| Error {
            message: format!("node {i}: {}", e.message),
            ..e
        })?);
    }
    program.validate()?;
    Ok(program)
}

/// A tensor of a program, and what of it is not known here.
///
/// # Safety
/// As [`read_program`].
unsafe fn read_tensor(tensors: *const TensorDeclWire, at: usize, stride: u32) -> Result<(TensorDecl, String)> {
    // SAFETY: as the caller promises.
    let known = unsafe { read_element(tensors, at, stride) };
    let (wire, mut reason) = match known {
        Ok(wire) => (wire, String::new()),
        // SAFETY: as the caller promises.
        Err(e) if e.status == Status::Unsupported => (unsafe { read_known_element(tensors, at, stride)? }, e.message),
        Err(e) => return Err(e),
    };
    let dtype = DType::from_code(wire.dtype).unwrap_or_else(|e| {
        reason = e.message;
        DType::U8
    });
    let decl = TensorDecl {
        internal: super::WireField::from_wire(wire.internal)?,
        ..TensorDecl::whole(dtype, false, wire.storage)
    };
    if !reason.is_empty() {
        // Which columns it has is not known here, either.
        return Ok((decl, format!("tensor {at}: {reason}")));
    }
    let columns = TensorDecl {
        first_column: wire.first_column,
        num_columns: wire.num_columns,
        ..decl
    };
    Ok((columns, reason))
}

/// # Safety
/// As [`read_program`].
unsafe fn read_node(nodes: *const NodeWire, at: usize, stride: u32, unknown_tensors: &[String]) -> Result<Node> {
    // SAFETY: as the caller promises.
    let known = unsafe { read_element(nodes, at, stride) };
    let (wire, mut reason) = match known {
        Ok(wire) => (wire, None),
        Err(e) if e.status == Status::Unsupported => {
            // SAFETY: as the caller promises.
            let wire = unsafe { read_known_element(nodes, at, stride)? };
            (wire, Some(e.message))
        }
        Err(e) => return Err(e),
    };
    let num = wire.num_operands;
    if num > MAX_PROGRAM || num > 0 && (wire.operands.is_null() || wire.access.is_null()) {
        return Err(Error::invalid(format!(
            "{num} operands at {:p}, their access at {:p}",
            wire.operands, wire.access
        )));
    }
    let (mut operands, mut access) = (Vec::new(), Vec::new());
    for i in 0..num as usize {
        // SAFETY: as the caller promises, and not null.
        let (operand, used) = unsafe { (*wire.operands.add(i), *wire.access.add(i)) };
        operands.push(operand);
        access.push(Access::from_code(used));
    }
    // SAFETY: as the caller promises.
    let spec = unsafe { read_node_spec(wire.spec)? };
    if let OpSpec::Unknown(_) | OpSpec::Vendor(_) = spec {
        return Ok(Node::with_access(spec, operands, access));
    }
    let listed = spec.operands();
    if let Some(beyond) = operands
        .iter()
        .skip(listed.len())
        .position(|&operand| operand != ABSENT)
    {
        let at = listed.len() + beyond;
        reason = Some(format!(
            "operand {at} of {}: this side knows {}",
            spec.name(),
            listed.len()
        ));
    }
    let of_tensor = |&operand: &u16| unknown_tensors.get(usize::from(operand)).filter(|why| !why.is_empty());
    if let Some(why) = operands.iter().find_map(of_tensor) {
        reason = Some(why.clone());
    }
    if let Some(reason) = reason {
        // SAFETY: as the caller promises.
        let op = unsafe { read_op(read_known(wire.spec)?)? };
        return Ok(Node::with_access(unknown(op, reason), operands, access));
    }
    operands.truncate(listed.len());
    Ok(Node::new(spec, operands))
}
