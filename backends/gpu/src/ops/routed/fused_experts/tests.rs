//! Which regions match, and which launches they are.

use halyard_platform_api::ops::{Add, GeluKind, GeluMul, SiluMul};
use halyard_platform_api::{DType, TensorDecl, WeightFormat};

use super::*;

const WIDTH: u32 = 64;
const INNER: u32 = 96;
const TOP_K: u32 = 2;

fn linear(in_features: u32, out_features: u32) -> ops::MoeLinear {
    ops::MoeLinear {
        in_features,
        out_features,
        num_experts: 8,
        top_k: TOP_K,
        weight: WeightFormat::BF16,
        dtype: DType::BF16,
        max_tokens: 40,
        first_expert: 0,
        total_experts: 0,
        allow_quantized_act: false,
    }
}

/// Tensors: 0 hidden, 1 x, 2 choices, 3 weights, 4 to 6 matrices, 7 gate, 8 up, 9 activated, 10 results, 11 sum, 12 to
/// 14 the rows of 7 to 9.
fn layer() -> Program {
    let storages = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 7, 8, 9];
    let internal = |storage: u32| (7..=11).contains(&storage);
    let dtype = DType::BF16;
    let combine = ops::MoeCombine {
        width: WIDTH,
        top_k: TOP_K,
        dtype,
    };
    let gating = SiluMul::plain(TOP_K * INNER, dtype);
    Program {
        tensors: storages
            .map(|storage| TensorDecl::whole(dtype, internal(storage), storage))
            .to_vec(),
        nodes: vec![
            Node::new(linear(WIDTH, INNER), [1, 4, 2, 7]),
            Node::new(linear(WIDTH, INNER), [1, 5, 2, 8]),
            Node::new(gating, [12, 13, 14]),
            Node::new(linear(INNER, WIDTH), [9, 6, 2, 10]),
            Node::new(combine, [10, 3, 11]),
            Node::new(Add { width: WIDTH, dtype }, [0, 11, 0]),
        ],
    }
}

fn changed(change: impl FnOnce(&mut Program)) -> Program {
    let mut program = layer();
    change(&mut program);
    program
}

#[test]
fn a_layers_experts_are_one_region_with_the_addition_behind_them() {
    assert_eq!(matches(&layer(), 0), Some(6));
    assert_eq!(matches(&layer(), 1), None);
    let plan = Plan::of(&layer(), 0).unwrap();
    assert_eq!(plan.joined.code, "1");
    assert_eq!(plan.add, Some(Addition { residual: 0, out: 0 }));
    let gelu = GeluMul {
        width: TOP_K * INNER,
        dtype: DType::BF16,
        kind: GeluKind::Erf,
    };
    let program = changed(|p| p.nodes[2] = Node::new(gelu, [12, 13, 14]));
    assert_eq!(Plan::of(&program, 0).unwrap().joined.code, "3");
    let bounded = SiluMul {
        limit: 7.0,
        alpha: 1.702,
        up_offset: 1.0,
        ..SiluMul::plain(TOP_K * INNER, DType::BF16)
    };
    let program = changed(|p| p.nodes[2] = Node::new(bounded, [12, 13, 14]));
    let joined = Plan::of(&program, 0).unwrap().joined;
    let numbers: Vec<&str> = joined.numbers.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!((joined.code, &numbers[..]), ("4", &["7e0f", "1.702e0f", "1e0f"][..]));
}

#[test]
fn a_sum_that_others_read_is_written_and_added_apart() {
    let read = changed(|p| p.tensors[11].internal = false);
    assert_eq!(matches(&read, 0), Some(5));
    let twice = changed(|p| p.nodes[5].operands = vec![11, 11, 0]);
    assert_eq!(matches(&twice, 0), Some(5));
    let last = changed(|p| p.nodes.truncate(5));
    assert_eq!(matches(&last, 0), Some(5));
}

#[test]
fn what_the_kernels_would_not_write_or_would_overwrite_runs_op_by_op() {
    for tensor in [7, 8, 12, 13] {
        let read = changed(|p| p.tensors[tensor].internal = false);
        assert_eq!(matches(&read, 0), None, "tensor {tensor}");
    }
    let over_x = changed(|p| [9, 14].into_iter().for_each(|t| p.tensors[t].storage = 1));
    assert_eq!(matches(&over_x, 0), None);
}

#[test]
fn choices_of_experts_elsewhere_are_left_out_where_combine_alone_reads_results() {
    let elsewhere = |program: &Program| Plan::of(program, 0).map(|plan| plan.elsewhere);
    assert_eq!(elsewhere(&layer()), Some(Elsewhere::LeftOut));
    let read = changed(|p| p.tensors[10].internal = false);
    assert_eq!(elsewhere(&read), Some(Elsewhere::Zeros));
    let added = changed(|p| p.nodes[5].operands = vec![10, 11, 0]);
    assert_eq!(elsewhere(&added), Some(Elsewhere::Zeros));
}

#[test]
fn other_layers_are_no_such_region() {
    let sharper = SiluMul {
        alpha: 1.702,
        ..SiluMul::plain(TOP_K * INNER, DType::BF16)
    };
    assert_eq!(
        matches(&changed(|p| p.nodes[2] = Node::new(sharper, [12, 13, 14])), 0),
        None
    );
    assert_eq!(
        matches(&changed(|p| p.nodes[1].operands[2] = 3), 0),
        None,
        "other choices"
    );
    assert_eq!(
        matches(&changed(|p| p.nodes[1].operands[0] = 0), 0),
        None,
        "another input"
    );
    let ranks = changed(|p| {
        let down = ops::MoeLinear {
            total_experts: 16,
            ..linear(INNER, WIDTH)
        };
        p.nodes[3] = Node::new(down, [9, 6, 2, 10]);
    });
    assert_eq!(matches(&ranks, 0), None, "experts of a rank");
}
