//! Op specs and programs on the wire: an owner of the wire form for the caller's side, a reader for the callee's.
//!
//! A wire form points into memory that its owner keeps; it must never outlive the owner.

use super::Str;
use super::tables::{NodeWire, OpSpecWire, ProgramWire, TensorDeclWire};
use super::types::{read_element, read_struct};
use crate::dtype::DType;
use crate::ops::OpSpec;
use crate::program::{Node, Program, TensorDecl};
use crate::status::{Error, Result};

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
}

impl SpecBytes {
    /// The wire bytes of `spec`.
    pub fn new(spec: &OpSpec) -> SpecBytes {
        SpecBytes {
            name: spec.name().to_string(),
            code: spec.code(),
            version: spec.version(),
            descriptor: spec.wire_bytes(),
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
    let wire = unsafe { read_struct(ptr)? };
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
    // SAFETY: as the caller promises.
    let name = unsafe { wire.name.to_text() };
    OpSpec::from_wire(wire.code, wire.version, &name, bytes)
}

/// Owns what a [`ProgramWire`] points to.
pub struct ProgramBytes {
    // Held for the pointers of `specs`.
    _bytes: Vec<SpecBytes>,
    // Held for the pointers of `nodes`.
    _specs: Vec<OpSpecWire>,
    _operands: Vec<Vec<u16>>,
    nodes: Vec<NodeWire>,
    tensors: Vec<TensorDeclWire>,
}

impl ProgramBytes {
    /// The wire bytes of `program`.
    pub fn new(program: &Program) -> ProgramBytes {
        let bytes: Vec<SpecBytes> = program.nodes.iter().map(|node| SpecBytes::new(&node.spec)).collect();
        let specs: Vec<OpSpecWire> = bytes.iter().map(SpecBytes::wire).collect();
        let operands: Vec<Vec<u16>> = program.nodes.iter().map(|n| n.operands.clone()).collect();
        let nodes = specs
            .iter()
            .zip(&operands)
            .map(|(spec, operands)| {
                let mut node = NodeWire::zeroed();
                node.num_operands = operands.len() as u32;
                node.spec = spec;
                node.operands = operands.as_ptr();
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
                tensor
            })
            .collect();
        ProgramBytes {
            _bytes: bytes,
            _specs: specs,
            _operands: operands,
            nodes,
            tensors,
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
        wire
    }
}

/// Reads a program and validates it.
///
/// # Errors
/// As [`read_spec`] with the node's number, and as [`Program::validate`].
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
    for i in 0..wire.num_tensors as usize {
        // SAFETY: as the caller promises.
        let tensor = unsafe { read_element(wire.tensors, i, wire.tensor_stride)? };
        program.tensors.push(TensorDecl {
            dtype: DType::from_code(tensor.dtype)?,
            internal: super::WireField::from_wire(tensor.internal)?,
            storage: tensor.storage,
            first_column: tensor.first_column,
            num_columns: tensor.num_columns,
        });
    }
    for i in 0..wire.num_nodes as usize {
        // SAFETY: as the caller promises.
        let node = unsafe { read_element(wire.nodes, i, wire.node_stride)? };
        let in_node = |e: Error| Error {
            message: format!("node {i}: {}", e.message),
            ..e
        };
        // SAFETY: as the caller promises.
        let spec = unsafe { read_spec(node.spec) }.map_err(in_node)?;
        if node.num_operands > MAX_PROGRAM || (node.operands.is_null() && node.num_operands > 0) {
            return Err(in_node(Error::invalid(format!(
                "{} operands at {:p}",
                node.num_operands, node.operands
            ))));
        }
        let operands = if node.num_operands == 0 {
            Vec::new()
        } else {
            // SAFETY: as the caller promises, and not null.
            unsafe { std::slice::from_raw_parts(node.operands, node.num_operands as usize) }.to_vec()
        };
        program.nodes.push(Node { spec, operands });
    }
    program.validate()?;
    Ok(program)
}
