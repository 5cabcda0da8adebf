//! Programs of a newer host: what is not known here is marked in its node, and the rest is read.

use std::mem::offset_of;

use halyard_platform_api::abi::tables::{NodeWire, OpSpecWire, ProgramWire, TensorDeclWire};
use halyard_platform_api::abi::{SpecBytes, read_program};
use halyard_platform_api::ops::{Access, Add, OpSpec};
use halyard_platform_api::program::ABSENT;
use halyard_platform_api::{DType, Program, Status};

/// A struct as a newer contract has it: two more fields.
#[repr(C)]
#[derive(Clone, Copy)]
struct Newer<T> {
    known: T,
    more: [u64; 2],
}

impl<T> Newer<T> {
    fn new(known: T) -> Newer<T> {
        Newer { known, more: [0; 2] }
    }
}

fn add() -> OpSpec {
    let dtype = DType::F32;
    Add { width: 8, dtype }.into()
}

/// An addition of tensors 0 and 1 into 2, twice; the second is what tests change.
struct Two {
    descriptor: Vec<u8>,
    spec: Newer<OpSpecWire>,
    operands: Vec<u16>,
    access: Vec<u8>,
    node: Newer<NodeWire>,
    tensors: Vec<Newer<TensorDeclWire>>,
    program: Newer<ProgramWire>,
}

impl Two {
    fn new() -> Two {
        let bytes = SpecBytes::new(&add(), u32::MAX);
        let tensors = (0..4).map(|storage| {
            let mut tensor = TensorDeclWire::zeroed();
            tensor.struct_size = size_of::<Newer<TensorDeclWire>>() as u32;
            tensor.storage = storage;
            tensor.num_columns = 8;
            Newer::new(tensor)
        });
        let mut two = Two {
            descriptor: add().wire_bytes(),
            spec: Newer::new(bytes.wire()),
            operands: vec![0, 1, 2],
            access: vec![1, 1, 2],
            node: Newer::new(NodeWire::zeroed()),
            tensors: tensors.collect(),
            program: Newer::new(ProgramWire::zeroed()),
        };
        two.spec.known.struct_size = size_of_val(&two.spec) as u32;
        two.node.known.struct_size = size_of_val(&two.node) as u32;
        two.program.known.struct_size = size_of_val(&two.program) as u32;
        two
    }

    /// As a plugin of today reads it.
    fn read(&self) -> halyard_platform_api::Result<Program> {
        let today = SpecBytes::new(&add(), u32::MAX);
        let (plain_spec, plain_operands, plain_access) = (today.wire(), [0u16, 1, 2], [1u8, 1, 2]);
        let mut plain = Newer::new(NodeWire::zeroed());
        plain.known.struct_size = size_of_val(&plain) as u32;
        plain.known.num_operands = 3;
        plain.known.spec = &plain_spec;
        plain.known.operands = plain_operands.as_ptr();
        plain.known.access = plain_access.as_ptr();
        let name = "future_op";
        let mut spec = self.spec;
        spec.known.name = halyard_platform_api::abi::Str::new(name);
        let mut descriptor = self.descriptor.clone();
        descriptor[..4].copy_from_slice(&(self.descriptor.len() as u32).to_ne_bytes());
        spec.known.descriptor = descriptor.as_ptr();
        spec.known.descriptor_len = descriptor.len() as u64;
        let mut node = self.node;
        node.known.num_operands = self.operands.len() as u32;
        node.known.spec = &spec.known;
        node.known.operands = self.operands.as_ptr();
        node.known.access = self.access.as_ptr();
        let nodes = [plain, node];
        let mut program = self.program;
        program.known.num_nodes = 2;
        program.known.nodes = &raw const nodes[0].known;
        program.known.node_stride = size_of::<Newer<NodeWire>>() as u32;
        program.known.num_tensors = self.tensors.len() as u32;
        program.known.tensors = &raw const self.tensors[0].known;
        program.known.tensor_stride = size_of::<Newer<TensorDeclWire>>() as u32;
        // SAFETY: every struct states its size, and everything it points to lives until the end of this function.
        unsafe { read_program(&raw const program.known) }
    }

    /// The first node as ever, the second as an unknown op with this reason.
    fn is_unknown_because(&self, words: &str) -> Program {
        let program = self.read().expect("the rest is known");
        assert_eq!(program.nodes[0].spec, add());
        let reason = program.nodes[1].spec.unknown().expect("not known here").to_string();
        assert!(reason.contains(words), "{reason}");
        assert_eq!(program.nodes[1].operands, self.operands);
        program
    }
}

#[test]
fn a_program_with_room_for_more_fields_is_read_as_it_is() {
    let program = Two::new().read().expect("nothing new is used");
    assert_eq!(program.nodes[0], program.nodes[1]);
    assert_eq!(program.nodes[1].access, [Access::Read, Access::Read, Access::Write]);
    assert_eq!(program.tensors[3].num_columns, 8);
}

#[test]
fn ops_values_and_fields_of_a_newer_catalogue_mark_their_node() {
    let mut code = Two::new();
    code.spec.known.code = 999;
    code.access[1] = 77;
    let program = code.is_unknown_because("op code 999");
    assert_eq!(
        program.nodes[1].access,
        [Access::Read, Access::Update, Access::Write],
        "what an unknown code of access may do is everything"
    );
    assert_eq!(program.nodes[1].spec.name(), "future_op");

    let mut version = Two::new();
    version.spec.known.version = 2;
    version.is_unknown_because("version 2");

    let mut value = Two::new();
    let dtype = value.descriptor.len() - 4;
    value.descriptor[dtype..].copy_from_slice(&99u32.to_ne_bytes());
    value.is_unknown_because("DType code 99");

    let mut field = Two::new();
    field.descriptor.extend([0, 0, 0, 0, 5, 0, 0, 0]);
    field.is_unknown_because("a field at byte");
    field.descriptor.truncate(field.descriptor.len() - 8);
    field.descriptor.extend([0; 8]);
    assert_eq!(field.read().expect("a field that is not used").nodes[1].spec, add());
}

#[test]
fn operands_are_appended_and_one_that_is_used_marks_its_node() {
    let mut absent = Two::new();
    absent.operands.push(ABSENT);
    absent.access.push(1);
    assert_eq!(absent.read().expect("not used").nodes[1].operands, [0, 1, 2]);

    let mut used = Two::new();
    used.operands.push(3);
    used.access.push(1);
    let program = used.is_unknown_because("operand 3 of add: this side knows 3");
    assert_eq!(program.nodes[1].access.len(), 4);

    let mut missing = Two::new();
    missing.operands.pop();
    missing.access.pop();
    let error = missing.read().expect_err("the sum is required");
    assert!(error.message.contains("operand `out`"), "{error}");
}

#[test]
fn fields_of_a_node_a_spec_or_a_tensor_mark_the_nodes_they_belong_to() {
    let mut node = Two::new();
    node.node.more[1] = 1;
    node.is_unknown_because("halyard_node: a field at byte");

    let mut spec = Two::new();
    spec.spec.more[0] = 1;
    spec.is_unknown_because("halyard_op_spec: a field at byte");

    let mut tensor = Two::new();
    tensor.operands[1] = 3;
    tensor.tensors[3].more[0] = 1;
    let program = tensor.is_unknown_because("tensor 3: halyard_tensor_decl: a field at byte");
    assert_eq!(
        program.tensors[3].num_columns, 0,
        "its columns may mean something else now"
    );

    let mut dtype = Two::new();
    dtype.operands[1] = 3;
    dtype.tensors[3].known.dtype = 99;
    dtype.is_unknown_because("tensor 3: DType code 99");
}

#[test]
fn a_field_of_the_program_itself_refuses_it_and_memory_faults_are_faults() {
    let mut program = Two::new();
    program.program.more[0] = 1;
    let error = program.read().expect_err("nobody knows what it asks");
    assert_eq!(error.status, Status::Unsupported);

    let mut short = Two::new();
    short.node.known.struct_size = offset_of!(NodeWire, access) as u32;
    let error = short.read().expect_err("a node that lacks a field of its first form");
    assert_eq!(error.status, Status::InvalidArgument);

    let mut far = Two::new();
    far.operands[2] = 40;
    assert!(
        far.read()
            .expect_err("tensor 40 of 4")
            .message
            .contains("tensor 40 of 4")
    );
}
