//! Which regions match, and when one launch may stand for several ops.

use halyard_platform_api::ops::{Add, GeluKind, GeluMul, Linear, RmsNorm, SiluMul};
use halyard_platform_api::{Node, TensorDecl, WeightFormat};

use super::*;

const WIDTH: u32 = 64;
const INNER: u32 = 96;

fn linear(dtype: DType, weight: WeightFormat, n: u32) -> OpSpec {
    Linear {
        in_features: WIDTH,
        out_features: n,
        weight,
        act: dtype,
        out: dtype,
        epilogue: Epilogue::None,
        max_tokens: 8,
        allow_quantized_act: false,
    }
    .into()
}

/// norm → one merged gate_up → gating → add. Tensors: 0 hidden, 1 norm, 2 normed, 3 weight, 4 product, 5 gate, 6 up, 7
/// activated; 4, 5 and 6 share memory.
fn merged(dtype: DType, weight: WeightFormat, gating: OpSpec) -> Program {
    let norm = RmsNorm {
        width: WIDTH,
        eps: 1e-5,
        weight_offset: 1.0,
        dtype,
    };
    let add = Add { width: INNER, dtype };
    let node = |spec: OpSpec, operands: &[u16]| Node::new(spec, operands);
    let storages = [0, 1, 2, 3, 4, 4, 4, 5];
    Program {
        tensors: storages
            .map(|storage| TensorDecl::whole(dtype, [2, 4].contains(&storage), storage))
            .to_vec(),
        nodes: vec![
            node(norm.into(), &[0, 1, 2]),
            node(linear(dtype, weight, 2 * INNER), &[2, 3, ABSENT, ABSENT, 4]),
            node(gating, &[5, 6, 7]),
            node(add.into(), &[7, 7, 7]),
        ],
    }
}

fn silu(dtype: DType) -> OpSpec {
    SiluMul::plain(INNER, dtype).into()
}

fn plan(program: &Program) -> Option<Plan> {
    let count = extent(program, 0)?;
    Plan::of(&program.region(0, count).0)
}

#[test]
fn norm_product_and_gating_are_one_region() {
    let program = merged(DType::BF16, WeightFormat::BF16, silu(DType::BF16));
    assert_eq!(extent(&program, 0), Some(3));
    assert_eq!(extent(&program, 1), None);
    let plan = plan(&program).unwrap();
    assert_eq!((plan.offset, plan.steps.len()), (1.0, 1));
    let step = &plan.steps[0];
    assert_eq!((step.gate, step.op.out_features), ("1", INNER));
    assert!(matches!(step.up, Up::Below { .. }));
    let gelu = GeluMul {
        width: INNER,
        dtype: DType::BF16,
        kind: GeluKind::Tanh,
    };
    let program = merged(DType::BF16, WeightFormat::BF16, gelu.into());
    assert_eq!(tests::plan(&program).unwrap().steps[0].gate, "2");
}

#[test]
fn eight_bit_weights_are_one_step_too() {
    let program = merged(DType::BF16, WeightFormat::F8E4M3, silu(DType::BF16));
    let plan = plan(&program).unwrap();
    assert_eq!((plan.steps.len(), plan.steps[0].layout), (1, WeightLayout::Scaled));
    // Rows that are no whole number of the kernel's loads.
    let mut odd = merged(DType::BF16, WeightFormat::F8E4M3, silu(DType::BF16));
    for node in &mut odd.nodes[..2] {
        match &mut node.spec {
            OpSpec::RmsNorm(op) => op.width = 72,
            OpSpec::Linear(op) => op.in_features = 72,
            _ => {}
        }
    }
    assert_eq!(tests::plan(&odd), None);
}

#[test]
fn formats_in_blocks_are_one_step_too() {
    let of = |weight| plan(&merged(DType::BF16, weight, silu(DType::BF16)));
    for weight in [WeightFormat::U4G32, WeightFormat::Q4K] {
        let plan = of(weight).unwrap();
        assert_eq!(
            (plan.steps.len(), plan.steps[0].layout),
            (1, WeightLayout::Planes(weight))
        );
        assert_eq!(plan.steps[0].gate, "1");
    }
    // A table of 24 bits has no operands of 16.
    assert_eq!(of(WeightFormat::Nf4G64), None);
}

#[test]
fn other_types_and_formats_run_by_parts() {
    for (dtype, weight) in [
        (DType::F32, WeightFormat::F32),
        (DType::F16, WeightFormat::F16),
        (DType::F32, WeightFormat::Q4_0),
        (DType::F16, WeightFormat::F8E4M3),
    ] {
        let program = merged(dtype, weight, silu(dtype));
        assert_eq!(extent(&program, 0), Some(3), "{dtype:?} {weight:?}");
        assert_eq!(plan(&program), None, "{dtype:?} {weight:?}");
    }
}

#[test]
fn what_others_read_is_written() {
    for tensor in [2, 4] {
        let mut program = merged(DType::BF16, WeightFormat::BF16, silu(DType::BF16));
        program.tensors[tensor].internal = false;
        assert_eq!(plan(&program), None, "tensor {tensor}");
    }
    // The normed rows are read once more behind the region.
    let mut program = merged(DType::BF16, WeightFormat::BF16, silu(DType::BF16));
    program.nodes[3].operands[0] = 2;
    assert_eq!(plan(&program), None);
}

#[test]
fn results_over_x_run_by_parts() {
    let mut program = merged(DType::BF16, WeightFormat::BF16, silu(DType::BF16));
    program.tensors[7].storage = 0;
    assert_eq!(plan(&program), None);
}

/// A launch that reads the normed rows writes its results before all blocks have read them.
#[test]
fn results_over_the_normed_rows_run_by_parts() {
    let mut program = merged(DType::BF16, WeightFormat::BF16, silu(DType::BF16));
    program.tensors[7].storage = program.tensors[2].storage;
    assert_eq!(plan(&program), None);
}

#[test]
fn gate_and_up_in_two_matrices_are_one_step() {
    let mut program = merged(DType::BF16, WeightFormat::BF16, silu(DType::BF16));
    let decl = |storage| TensorDecl::whole(DType::BF16, true, storage);
    program.tensors[4] = decl(10);
    program.tensors[5] = decl(11);
    // 4 is the gate, 5 the up part, 6 the up part's weight.
    program.nodes[1].spec = linear(DType::BF16, WeightFormat::BF16, INNER);
    let mut second = program.nodes[1].clone();
    second.operands = vec![2, 6, ABSENT, ABSENT, 5];
    program.nodes.insert(2, second);
    program.nodes[3].operands = vec![4, 5, 7];
    assert_eq!(extent(&program, 0), Some(4));
    let (region, _) = program.region(0, 4);
    let step = &Plan::of(&region).unwrap().steps[0];
    let Up::Apart { weight, .. } = step.up else {
        panic!("{:?}", step.up)
    };
    assert_eq!(region.nodes[2].operands[1], weight);
    assert_eq!(region.nodes[1].operands[1], step.weight);
    // Crossed: the second matrix is the gate.
    program.nodes[3].operands = vec![5, 4, 7];
    let (region, _) = program.region(0, 4);
    let step = &Plan::of(&region).unwrap().steps[0];
    assert_eq!(region.nodes[2].operands[1], step.weight);
    // One launch reads both in one layout.
    program.nodes[2].spec = linear(DType::BF16, WeightFormat::F8E4M3, INNER);
    let (region, _) = program.region(0, 4);
    assert_eq!(Plan::of(&region), None);
}

#[test]
fn halves_are_told_by_address_and_stride() {
    let product = View {
        ptr: 4096,
        shape: [2, 192, 1, 1],
        strides: [192, 1, 1, 1],
        dtype: DType::BF16,
        rank: 2,
    };
    let half = |at: u64| View {
        ptr: 4096 + 2 * at,
        shape: [2, 96, 1, 1],
        ..product
    };
    assert!(halves(&product, &half(0), &half(96), 96));
    assert!(!halves(&product, &half(96), &half(0), 96));
    let other = View {
        strides: [96, 1, 1, 1],
        ..half(96)
    };
    assert!(!halves(&product, &half(0), &other, 96));
}
