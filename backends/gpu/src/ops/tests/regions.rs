//! The ops and regions of the tables, and operands for their calls.

use halyard_platform_api::ops::{Attention, Collective, Epilogue, KvWrite, Linear, RmsNorm, Rope, RopeStyle, SiluMul};
use halyard_platform_api::program::ABSENT;
use halyard_platform_api::{CollectiveKind, DType, Node, OpSpec, Program, TensorDecl, WeightFormat};

use super::rows;
use crate::view::View;

fn node(spec: impl Into<OpSpec>, operands: &[u16]) -> Node {
    Node::new(spec, operands)
}

/// norm → merged gate and up → silu_mul, or norm → one linear. Tensors: 0 hidden, 1 norm, 2 normed, 3 weight, 4
/// product, 5 gate, 6 up, 7 activated.
fn linear_region(width: u32, inner: u32, dtype: DType, weight: WeightFormat, gated: bool, rounded: bool) -> Program {
    let norm = RmsNorm {
        width,
        eps: 1e-5,
        weight_offset: 0.0,
        dtype,
    };
    let linear = Linear {
        in_features: width,
        out_features: if gated { 2 * inner } else { inner },
        weight,
        act: dtype,
        out: dtype,
        epilogue: Epilogue::None,
        max_tokens: 600,
        allow_quantized_act: rounded,
    };
    let storages = [0, 1, 2, 3, 4, 4, 4, 5];
    let internal: &[u32] = if gated { &[2, 4] } else { &[2] };
    let mut nodes = vec![node(norm, &[0, 1, 2]), node(linear, &[2, 3, ABSENT, ABSENT, 4])];
    if gated {
        nodes.push(node(SiluMul::plain(inner, dtype), &[5, 6, 7]));
    }
    Program {
        tensors: storages
            .map(|storage| TensorDecl::whole(dtype, internal.contains(&storage), storage))
            .to_vec(),
        nodes,
    }
}

pub(super) fn linears() -> Vec<(String, Program)> {
    let mut all = Vec::new();
    for (width, inner) in [(576, 1536), (4096, 14_336), (16_384, 53_248), (72, 96)] {
        for gated in [false, true] {
            for (dtype, weight, rounded) in [
                (DType::BF16, WeightFormat::BF16, false),
                (DType::F16, WeightFormat::F16, false),
                (DType::BF16, WeightFormat::F8E4M3, false),
                (DType::BF16, WeightFormat::F8E4M3, true),
                (DType::BF16, WeightFormat::F8G128, true),
                (DType::BF16, WeightFormat::Q8_0, false),
            ] {
                if weight.row_bytes(width as usize).is_none() {
                    continue;
                }
                let may = if rounded { " may be rounded" } else { "" };
                let name = format!(
                    "{weight:?} {dtype:?}{may} {width} to {inner}{}",
                    if gated { " gated" } else { "" }
                );
                all.push((name, linear_region(width, inner, dtype, weight, gated, rounded)));
            }
        }
    }
    all
}

/// A region of [`linears`] with the sum over ranks that makes its input.
pub(super) fn behind_a_sum(region: &Program) -> Program {
    let OpSpec::RmsNorm(norm) = &region.nodes[0].spec else {
        unreachable!("the first node is a norm")
    };
    let sum = Collective {
        kind: CollectiveKind::AllReduce,
        dtype: norm.dtype,
        peer: 0,
        communicator: 1,
    };
    let mut program = region.clone();
    program.nodes.insert(0, node(sum, &[0, 0]));
    program
}

/// Operands of a region of [`linears`]: gate and up are the halves of the product.
pub(super) fn linear_operands(program: &Program, tokens: u32, off: u64) -> Vec<View> {
    let OpSpec::Linear(op) = &program.nodes[1].spec else {
        unreachable!("the second node is a linear")
    };
    let (k, n, dtype) = (op.in_features, op.out_features, op.act);
    let product = rows(5 << 30, tokens, n, dtype);
    let half = |at: u32| View {
        ptr: product.ptr + u64::from(at) * dtype.bytes() as u64,
        shape: [tokens, n / 2, 1, 1],
        ..product
    };
    vec![
        rows((1 << 30) + off * dtype.bytes() as u64, tokens, k, dtype),
        floats(2 << 30, k),
        rows(3 << 30, tokens, k, dtype),
        rows(4 << 30, 1, 1, DType::U8),
        product,
        half(0),
        half(n / 2),
        rows(6 << 30, tokens, n / 2, dtype),
    ]
}

fn attention(heads: (u32, u32, u32), act: DType, kv: DType, block_size: u32, window: u32) -> Attention {
    Attention {
        num_heads: heads.0,
        num_kv_heads: heads.1,
        head_dim: heads.2,
        scale: 0.1,
        window,
        softcap: 0.0,
        has_sinks: false,
        act,
        kv,
        block_size,
        backend: 0,
        max_seqs: 64,
        max_tokens: 1024,
        max_query_len: 1024,
        max_kv_len: 16_384,
    }
}

pub(super) fn attentions() -> Vec<(String, Attention)> {
    use DType::{BF16, F8E4M3, F16, F32};
    let mut all = Vec::new();
    for heads in [(32, 8, 128), (9, 3, 64), (8, 1, 256), (8, 8, 72), (32, 1, 128)] {
        for (act, kv) in [(BF16, BF16), (F16, F16), (BF16, F8E4M3), (F32, F32), (F32, BF16)] {
            for (block, window) in [(64, 0), (8, 0), (64, 512)] {
                let name = format!("{act:?}/{kv:?} {heads:?} blocks of {block}, window {window}");
                all.push((name, attention(heads, act, kv, block, window)));
            }
        }
    }
    all
}

/// \[tokens, heads, head_dim\] inside rows of `pitch` values.
fn heads(ptr: u64, tokens: u32, heads: u32, head_dim: u32, pitch: u32, dtype: DType) -> View {
    View {
        ptr,
        shape: [tokens, heads, head_dim, 1],
        strides: [pitch, head_dim, 1, 1],
        dtype,
        rank: 3,
    }
}

fn floats(ptr: u64, count: u32) -> View {
    View {
        dtype: DType::F32,
        ..words(ptr, count)
    }
}

fn words(ptr: u64, count: u32) -> View {
    View {
        ptr,
        shape: [count, 0, 0, 0],
        strides: [1, 0, 0, 0],
        dtype: DType::I32,
        rank: 1,
    }
}

fn step_data(spec: &Attention, seqs: u32) -> [View; 5] {
    let pages = spec.max_kv_len / spec.block_size;
    [
        rows(20 << 30, 4096, 1 << 16, DType::U8),
        rows(21 << 30, 64, pages, DType::I32),
        words(22 << 30, seqs),
        words(23 << 30, seqs + 1),
        words(24 << 30, seqs),
    ]
}

pub(super) fn attention_operands(spec: &Attention, tokens: u32, seqs: u32, out_off: u64) -> Vec<View> {
    let (n, d) = (spec.num_heads, spec.head_dim);
    let q = heads(1 << 30, tokens, n, d, n * d, spec.act);
    let out = heads((2 << 30) + out_off, tokens, n, d, n * d, spec.act);
    let [cache, table, rows, starts, lens] = step_data(spec, seqs);
    vec![q, cache, table, rows, starts, lens, View::NONE, out]
}

/// Layers: rope → kv_write → attention, some with per-head norms first. Tensors as in `fused_attention/tests.rs`.
pub(super) fn layers() -> Vec<(String, Program, Attention)> {
    use DType::{BF16, F8E4M3, F32};
    let mut all = Vec::new();
    for shape in [(32, 8, 128), (9, 3, 64), (8, 8, 80)] {
        for (act, kv) in [(BF16, BF16), (BF16, F8E4M3), (F32, F32)] {
            for (with_norms, style, internal) in [
                (false, RopeStyle::Neox, true),
                (true, RopeStyle::Neox, true),
                (false, RopeStyle::Interleaved, true),
                (false, RopeStyle::Neox, false),
            ] {
                let spec = attention(shape, act, kv, 64, 0);
                let norms = if with_norms { " norms" } else { "" };
                let read = if internal { "" } else { " q and k are read later" };
                let name = format!("{act:?}/{kv:?} {shape:?} {style:?}{norms}{read}");
                all.push((name, layer(&spec, with_norms, style, internal), spec));
            }
        }
    }
    all
}

fn layer(spec: &Attention, with_norms: bool, style: RopeStyle, internal: bool) -> Program {
    let (head_dim, dtype) = (spec.head_dim, spec.act);
    let norm = RmsNorm {
        width: head_dim,
        eps: 1e-6,
        weight_offset: 1.0,
        dtype,
    };
    let rope = Rope {
        head_dim,
        rotary_dim: head_dim,
        style,
        dtype,
    };
    let kv_write = KvWrite {
        num_kv_heads: spec.num_kv_heads,
        head_dim,
        act: dtype,
        kv: spec.kv,
        block_size: spec.block_size,
        backend: 0,
        max_tokens: spec.max_tokens,
    };
    let mut nodes = Vec::new();
    if with_norms {
        nodes.push(node(norm.clone(), &[7, 13, 7]));
        nodes.push(node(norm, &[3, 14, 3]));
    }
    nodes.push(node(rope, &[0, 1, 2]));
    nodes.push(node(kv_write, &[3, 4, 5, 6]));
    nodes.push(node(spec.clone(), &[7, 6, 8, 9, 10, 11, ABSENT, 12]));
    let product = [2, 3, 4, 7];
    let tensors = (0..15).map(|t: u32| {
        let storage = if product.contains(&t) { 100 } else { t };
        TensorDecl::whole(dtype, internal && (product.contains(&t) || t == 12), storage)
    });
    Program {
        tensors: tensors.collect(),
        nodes,
    }
}

/// Operands of a layer: q, k and v are slices of one product, unless `apart`.
pub(super) fn layer_operands(spec: &Attention, tokens: u32, seqs: u32, apart: bool) -> Vec<View> {
    let (n, kv, d) = (spec.num_heads, spec.num_kv_heads, spec.head_dim);
    let pitch = (n + 2 * kv) * d;
    let slice = |first: u32, count: u32| {
        let at = (1 << 30) + u64::from(first * d) * spec.act.bytes() as u64;
        heads(at, tokens, count, d, pitch, spec.act)
    };
    let mut k = slice(n, kv);
    if apart {
        k.ptr += 1 << 24;
    }
    let [cache, table, step_rows, starts, lens] = step_data(spec, seqs);
    vec![
        words(10 << 30, tokens),
        rows(11 << 30, 4096, d, DType::F32),
        slice(0, n + kv),
        k,
        slice(n + kv, kv),
        words(12 << 30, tokens),
        cache,
        slice(0, n),
        table,
        step_rows,
        starts,
        lens,
        heads(2 << 30, tokens, n, d, n * d, spec.act),
        floats(13 << 30, d),
        floats(14 << 30, d),
    ]
}
