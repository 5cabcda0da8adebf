//! Op specs and programs as a later host sends them: every struct has fields more, every node an operand more, and ops
//! of a later catalogue can be put in. A test changes what it likes before it calls.

use halyard_platform_api::abi::tables::{NodeWire, OpSpecWire, ProgramWire, TensorDeclWire};
use halyard_platform_api::abi::{ProgramBytes, SpecBytes, Str};
use halyard_platform_api::program::ABSENT;
use halyard_platform_api::{OpSpec, Program};

use crate::{LATER_ACCESS, LATER_OP, Newer};

/// A spec whose descriptor has a field more.
pub struct LaterSpec {
    /// The descriptor's bytes.
    pub descriptor: Vec<u8>,
    /// The rest of it.
    pub wire: Newer<OpSpecWire>,
    // Held for the name in `wire`.
    _bytes: Option<SpecBytes>,
}

impl LaterSpec {
    /// A spec of today as a later host sends it.
    pub fn new(spec: &OpSpec) -> LaterSpec {
        let bytes = SpecBytes::new(spec, u32::MAX);
        // SAFETY: the wire form points into `bytes`.
        let read = unsafe { LaterSpec::read(&bytes.wire()) };
        LaterSpec {
            _bytes: Some(bytes),
            ..read
        }
    }

    /// A copy of a host's spec, whose name it borrows.
    ///
    /// # Safety
    /// `ptr` is a spec whose bytes are valid.
    pub unsafe fn read(ptr: *const OpSpecWire) -> LaterSpec {
        // SAFETY: as the caller promises.
        let wire = unsafe { Newer::read(ptr) };
        // SAFETY: as the caller promises; a descriptor at least states its size.
        let bytes = unsafe { std::slice::from_raw_parts(wire.known.descriptor, wire.known.descriptor_len as usize) };
        let mut descriptor = bytes.to_vec();
        descriptor.extend([0; 8]);
        let len = descriptor.len() as u32;
        descriptor[..4].copy_from_slice(&len.to_ne_bytes());
        LaterSpec {
            descriptor,
            wire,
            _bytes: None,
        }
    }

    /// An op of a later catalogue.
    fn later_op() -> LaterSpec {
        let mut wire = OpSpecWire::zeroed();
        (wire.code, wire.version, wire.name) = (LATER_OP, 1, Str::new("later_op"));
        LaterSpec {
            descriptor: vec![8, 0, 0, 0, 1, 0, 0, 0],
            wire: Newer::of(wire),
            _bytes: None,
        }
    }

    /// As it is passed to a function, while `self` lives.
    pub fn ptr(&mut self) -> *const OpSpecWire {
        self.wire.known.descriptor = self.descriptor.as_ptr();
        self.wire.known.descriptor_len = self.descriptor.len() as u64;
        self.wire.ptr()
    }
}

/// A node with an operand more, which is absent.
pub struct LaterNode {
    /// The op.
    pub spec: LaterSpec,
    /// Tensors.
    pub operands: Vec<u16>,
    /// How they are used.
    pub access: Vec<u8>,
    /// Fields of the node itself that were appended.
    pub more: [u64; 4],
}

/// A program as a later host sends it.
pub struct LaterProgram {
    /// Its nodes.
    pub nodes: Vec<LaterNode>,
    /// Its tensors.
    pub tensors: Vec<Newer<TensorDeclWire>>,
    /// The rest of it.
    pub wire: Newer<ProgramWire>,
    /// Numbers of the nodes that were put in, in order.
    pub later: Vec<usize>,
    // Held for the names of the specs.
    _bytes: Option<ProgramBytes>,
}

impl LaterProgram {
    /// A program of today as a later host sends it.
    pub fn new(program: &Program) -> LaterProgram {
        let bytes = ProgramBytes::new(program, u32::MAX);
        // SAFETY: the wire form points into `bytes`, with strides of today.
        let read = unsafe { LaterProgram::read(&bytes.wire()) };
        LaterProgram {
            _bytes: Some(bytes),
            ..read
        }
    }

    /// A copy of a host's program, whose names it borrows.
    ///
    /// # Safety
    /// `ptr` is a program with the strides of today.
    pub unsafe fn read(ptr: *const ProgramWire) -> LaterProgram {
        // SAFETY: as the caller promises.
        let wire = unsafe { Newer::read(ptr) };
        let read_node = |at: usize| {
            // SAFETY: as the caller promises.
            let node = unsafe { *wire.known.nodes.add(at) };
            let num = node.num_operands as usize;
            // SAFETY: as the caller promises; an op has operands.
            let operands = unsafe { std::slice::from_raw_parts(node.operands, num) };
            // SAFETY: as the caller promises.
            let access = unsafe { std::slice::from_raw_parts(node.access, num) };
            LaterNode {
                // SAFETY: as the caller promises.
                spec: unsafe { LaterSpec::read(node.spec) },
                operands: [operands, &[ABSENT]].concat(),
                access: [access, &[LATER_ACCESS]].concat(),
                more: [0; 4],
            }
        };
        LaterProgram {
            nodes: (0..wire.known.num_nodes as usize).map(read_node).collect(),
            tensors: (0..wire.known.num_tensors as usize)
                // SAFETY: as the caller promises.
                .map(|at| Newer::of(unsafe { *wire.known.tensors.add(at) }))
                .collect(),
            wire,
            later: Vec::new(),
            _bytes: None,
        }
    }

    /// Puts an op of a later catalogue in front of node `at`. It uses the last tensor in a way that nobody knows.
    pub fn put_in(&mut self, at: usize) {
        let last = (self.tensors.len() - 1) as u16;
        let node = LaterNode {
            spec: LaterSpec::later_op(),
            operands: vec![last, ABSENT],
            access: vec![LATER_ACCESS, 1],
            more: [0; 4],
        };
        self.nodes.insert(at, node);
        self.later
            .iter_mut()
            .filter(|later| **later >= at)
            .for_each(|later| *later += 1);
        self.later.push(at);
        self.later.sort_unstable();
    }

    /// Calls a function with it.
    pub fn call<R>(&mut self, call: impl FnOnce(*const ProgramWire) -> R) -> R {
        let specs: Vec<*const OpSpecWire> = self.nodes.iter_mut().map(|node| node.spec.ptr()).collect();
        let nodes = self.nodes.iter().zip(&specs).map(|(node, spec)| {
            let mut wire = NodeWire::zeroed();
            wire.num_operands = node.operands.len() as u32;
            wire.spec = *spec;
            wire.operands = node.operands.as_ptr();
            wire.access = node.access.as_ptr();
            let more = node.more;
            Newer {
                more,
                ..Newer::of(wire)
            }
        });
        let nodes: Vec<Newer<NodeWire>> = nodes.collect();
        let wire = &mut self.wire.known;
        wire.num_nodes = nodes.len() as u32;
        wire.nodes = nodes.as_ptr().cast();
        wire.node_stride = size_of::<Newer<NodeWire>>() as u32;
        wire.num_tensors = self.tensors.len() as u32;
        wire.tensors = self.tensors.as_ptr().cast();
        wire.tensor_stride = size_of::<Newer<TensorDeclWire>>() as u32;
        call(self.wire.ptr())
    }

    /// A claim in the numbers of the program without the ops that were put in; none when it covers one of them.
    pub fn without_later(&self, first: u32, count: u32) -> Option<(u32, u32)> {
        let (start, end) = (first as usize, first as usize + count as usize);
        if self.later.iter().any(|later| (start..end).contains(later)) {
            return None;
        }
        let before = self.later.iter().filter(|later| **later < start).count();
        Some((first - before as u32, count))
    }
}
