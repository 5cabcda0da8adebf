//! Which regions match, and when one launch may stand for all.

use halyard_platform_api::{DType, Node, TensorDecl};

use super::*;

const HEADS: u32 = 4;
const KV_HEADS: u32 = 2;
const HEAD_DIM: u32 = 64;

/// Tensors: 0 positions, 1 table, 2 qk, 3 k, 4 v, 5 slots, 6 cache, 7 q, 8-11 step data, 12 out, 13 and 14 norm
/// weights. q, k, v and qk are slices of one product.
fn layer(with_norms: bool) -> Program {
    let dtype = DType::BF16;
    let node = |spec: OpSpec, operands: &[u16]| Node::new(spec, operands);
    let norm = RmsNorm {
        width: HEAD_DIM,
        eps: 1e-6,
        weight_offset: 1.0,
        dtype,
    };
    let rope = Rope {
        head_dim: HEAD_DIM,
        rotary_dim: HEAD_DIM,
        style: RopeStyle::Neox,
        dtype,
    };
    let kv_write = KvWrite {
        num_kv_heads: KV_HEADS,
        head_dim: HEAD_DIM,
        act: dtype,
        kv: dtype,
        block_size: 64,
        backend: 0,
        max_tokens: 32,
    };
    let attention = Attention {
        num_heads: HEADS,
        num_kv_heads: KV_HEADS,
        head_dim: HEAD_DIM,
        scale: 0.125,
        window: 0,
        softcap: 0.0,
        has_sinks: false,
        act: dtype,
        kv: dtype,
        block_size: 64,
        backend: 0,
        max_seqs: 8,
        max_tokens: 32,
        max_query_len: 32,
        max_kv_len: 256,
    };
    let mut nodes = Vec::new();
    if with_norms {
        nodes.push(node(norm.clone().into(), &[7, 13, 7]));
        nodes.push(node(norm.into(), &[3, 14, 3]));
    }
    nodes.push(node(rope.into(), &[0, 1, 2]));
    nodes.push(node(kv_write.into(), &[3, 4, 5, 6]));
    nodes.push(node(attention.into(), &[7, 6, 8, 9, 10, 11, ABSENT, 12]));
    let product = [2, 3, 4, 7];
    let tensors = (0..15).map(|t: u32| {
        let storage = if product.contains(&t) { 100 } else { t };
        TensorDecl::whole(dtype, product.contains(&t) || t == 12, storage)
    });
    Program {
        tensors: tensors.collect(),
        nodes,
    }
}

#[test]
fn a_layer_matches_with_and_without_head_norms() {
    assert_eq!(matches(&layer(false), 0), Some(3));
    assert_eq!(matches(&layer(true), 0), Some(5));
    // From the rope on it is a region too; from kv_write on it is none.
    assert_eq!(matches(&layer(true), 2), Some(3));
    assert_eq!(matches(&layer(true), 3), None);
    assert!(build(&layer(true)).is_ok());
}

#[test]
fn regions_that_do_not_fit_together_are_left() {
    let mut other_cache = layer(false);
    other_cache.nodes[2].operands[1] = 5;
    assert_eq!(matches(&other_cache, 0), None);
    let mut apart = layer(false);
    apart.tensors[3].storage = 200;
    assert_eq!(matches(&apart, 0), None);
    let mut norm_elsewhere = layer(true);
    norm_elsewhere.nodes[1].operands = vec![4, 14, 4];
    assert_eq!(matches(&norm_elsewhere, 0), None);
    let mut eight_bit = layer(false);
    let OpSpec::KvWrite(op) = &mut eight_bit.nodes[1].spec else {
        panic!("the second node is kv_write")
    };
    op.kv = DType::F8E4M3;
    assert_eq!(matches(&eight_bit, 0), None);
}

#[test]
fn one_launch_needs_q_and_k_that_nobody_reads_afterwards() {
    let region = |program: &Program| Region::of(program, 0).map(|region| region.qk_is_internal);
    assert_eq!(region(&layer(true)), Some(true));
    for tensor in [2, 3, 7] {
        let mut read_later = layer(true);
        read_later.tensors[tensor].internal = false;
        assert_eq!(region(&read_later), Some(false));
    }
}
