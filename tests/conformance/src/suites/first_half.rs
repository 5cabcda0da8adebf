//! The first half of a layer as a program, behind the embedding as in a model: norm, projection, the attention part and
//! the output projection, which adds to the residual stream in its place. Whatever of it the device claims must give
//! what the parts give on the oracle.

use halyard_platform_api::ops::{Embedding, Epilogue, Linear, RmsNorm, Rope, RopeStyle};
use halyard_platform_api::{Capabilities, DType, Device, WeightFormat};

use super::attention_layer::{Batch, angles, block_size, paged};
use super::composites::check;
use super::note;
use crate::case::{ABSENT, Arg, Case, Check, Contents, float_bytes};
use crate::random::Random;
use crate::tolerance::{Tolerance, unit_roundoff};
use crate::{Options, Report};

const MAX_POSITIONS: u32 = 1024;
const VOCABULARY: u32 = 32;

/// Width of the stream, heads of queries and of keys, size of a head. The last width is no multiple of 32, and its 32s
/// are no multiple of a block's warps.
type Sizes = (u32, u32, u32, u32);
const SIZES: [Sizes; 5] = [
    (96, 6, 2, 64),
    (576, 9, 3, 64),
    (128, 2, 1, 128),
    (96, 8, 1, 32),
    (232, 3, 1, 64),
];

const BATCHES: [Batch; 10] = [
    one_token("no earlier key", &[(0, 1, 1)]),
    one_token("one earlier key", &[(3, 1, 2)]),
    one_token("part of an eight", &[(1, 1, 13)]),
    one_token("a block and a key", &[(0, 1, 65)]),
    one_token("several blocks", &[(2, 1, 200)]),
    one_token("many keys", &[(4, 1, 901)]),
    one_token("several sequences", &[(0, 1, 65), (1, 1, 200), (2, 1, 1)]),
    one_token("chunks", &[(3, 7, 7), (0, 1, 40)]),
    one_token("chunks of 11 tokens", &[(2, 10, 12), (0, 1, 40)]),
    one_token("chunks of 19 tokens", &[(3, 9, 9), (0, 1, 40), (1, 9, 30)]),
];

const fn one_token(name: &'static str, seqs: &'static [(i32, u32, u32)]) -> Batch {
    Batch::new(name, seqs, 0)
}

#[derive(Clone, Copy, Debug)]
struct Form {
    sizes: Sizes,
    dtype: DType,
    norms: bool,
    biases: bool,
    window: u32,
    /// What lies between is compared as little as possible.
    private: bool,
    block_size: u32,
}

pub(super) fn run(device: &dyn Device, oracle: &dyn Device, options: &Options, report: &mut Report) {
    if !device.info().capabilities.has(Capabilities::COMPOSITES) {
        return;
    }
    for dtype in [DType::F32, DType::BF16] {
        if !device.info().kv_dtypes.contains(dtype) {
            continue;
        }
        for (norms, biases, window, private) in [
            (false, false, 0, true),
            (true, true, 0, true),
            (false, false, 20, true),
            (false, false, 0, false),
        ] {
            let form = |sizes| Form {
                sizes,
                dtype,
                norms,
                biases,
                window,
                private,
                block_size: block_size(device),
            };
            for (form, batch) in SIZES
                .iter()
                .flat_map(|&sizes| BATCHES.iter().map(move |batch| (form(sizes), batch)))
            {
                let what = format!(
                    "first half of a {dtype:?} layer, norms {norms}, biases {biases}, window {window}, private \
                     between {private}"
                );
                if !options.wants_row("composites", &what) {
                    continue;
                }
                let outcome = check(device, oracle, &half(options.seed, &form, batch), false)
                    .map_err(|why| format!("{:?}, {}: {why}", form.sizes, batch.name));
                note(report, "composites", &what, outcome);
            }
        }
    }
}

/// The stream afterwards: up to 1 of its own and a result of attention's size. Projections, rotated heads, scores and
/// attention's result are rounded to a half type, or not, each half a unit's worth at one deviation; the output's
/// weights keep that. Eight units are six deviations and the last rounding.
fn joined(dtype: DType) -> Tolerance {
    let u = unit_roundoff(dtype);
    Tolerance {
        abs: if dtype == DType::F32 { 3e-5 } else { 8.0 * u },
        rel: 2.0 * u,
        reason: "each of five results before the last is rounded to the type, or is not",
    }
}

fn half(seed: u64, form: &Form, batch: &Batch) -> Case {
    let random = &mut Random::of(seed, &format!("first half {form:?} {}", batch.name));
    let (hidden, heads, kv_heads, head_dim) = form.sizes;
    let dtype = form.dtype;
    let paged = paged(random, batch, form.block_size);
    let (tokens, prefix) = (paged.step.len() as u32, paged.prefix.len() as u32);
    let (q_size, kv_size) = (heads * head_dim, kv_heads * head_dim);
    let width = q_size + 2 * kv_size;
    let (attention, write) = paged.specs(
        (heads, kv_heads, head_dim),
        (dtype, dtype),
        form.block_size,
        form.window,
        MAX_POSITIONS,
    );
    let format = if dtype == DType::F32 {
        WeightFormat::F32
    } else {
        WeightFormat::BF16
    };
    let linear = |in_features, out_features| Linear {
        in_features,
        out_features,
        weight: format,
        act: dtype,
        out: dtype,
        epilogue: Epilogue::None,
        max_tokens: tokens,
        allow_quantized_act: false,
    };
    let norm = |width, weight_offset| RmsNorm {
        width,
        eps: 1e-5,
        weight_offset,
        dtype,
    };
    // After the cache's earlier keys and the embedding: norm, projection, two norms or none, rotation, cache,
    // attention, output.
    let output_node = if form.norms { 9 } else { 7 };
    // Results of about the size of what they are made of.
    let mut matrix = |node: usize, rows: u32, width: u32| {
        let size = (3.0 / width as f32).sqrt();
        let values: Vec<f32> = random.units((rows * width) as usize).iter().map(|v| v * size).collect();
        let bytes = float_bytes(dtype, &values);
        Arg {
            contents: Contents::Weight { node, rows, bytes },
            check: Check::Ignored,
            ..Arg::bytes(DType::U8, &[0], Vec::new())
        }
    };
    let (weight, out_weight, rows) = (
        matrix(3, width, hidden),
        matrix(output_node, hidden, q_size),
        matrix(1, VOCABULARY, hidden),
    );
    let mut floats =
        |dtype, shape: &[u32]| Arg::floats(dtype, shape, &random.units(shape.iter().product::<u32>() as usize));
    let slice = |heads, first_head: u32| Arg::slice(dtype, &[tokens, heads, head_dim], 3, first_head * head_dim);
    let between = |shape: &[u32]| {
        let elements = shape.iter().product::<u32>() as usize;
        let arg = Arg::floats(dtype, shape, &vec![0.0; elements]);
        // What the parts leave there differs by as much as the result: it only counts that somebody may look.
        let seen = Tolerance {
            abs: 0.25,
            ..joined(dtype)
        };
        Arg {
            check: if form.private {
                Check::Ignored
            } else {
                Check::Near(seen, None)
            },
            ..arg
        }
    };
    let ids: Vec<i32> = (0..tokens as i32).map(|i| (5 * i + 3) % VOCABULARY as i32).collect();
    let [cache, table, step_rows, starts, seq_lens] = paged.args(batch, &attention);
    let args = vec![
        // 0: the stream, in which the result stands.
        Arg {
            check: Check::Near(joined(dtype), None),
            ..floats(dtype, &[tokens, hidden])
        },
        floats(DType::F32, &[hidden]),
        between(&[tokens, hidden]),
        // 3: q, k and v, and their slices.
        between(&[tokens, width]),
        slice(heads, 0),
        slice(kv_heads, heads),
        slice(kv_heads, heads + kv_heads),
        slice(heads + kv_heads, 0),
        weight,
        out_weight,
        // 10: biases, norms of heads, positions and angles.
        floats(DType::F32, &[width]),
        floats(DType::F32, &[hidden]),
        floats(DType::F32, &[head_dim]),
        floats(DType::F32, &[head_dim]),
        Arg::ints(&[tokens], &paged.positions),
        Arg::floats(DType::F32, &[MAX_POSITIONS, head_dim], &angles(MAX_POSITIONS, head_dim)),
        // 16: slots, cache and step data.
        Arg::ints(&[tokens], &paged.step),
        cache,
        table,
        step_rows,
        starts,
        seq_lens,
        // 22: attention's result; earlier keys and values.
        between(&[tokens, q_size]),
        floats(dtype, &[prefix, kv_heads, head_dim]),
        floats(dtype, &[prefix, kv_heads, head_dim]),
        Arg::ints(&[prefix], &paged.prefix),
        // 26: ids, and the rows that they name.
        Arg::ints(&[tokens], &ids),
        rows,
        // 28: attention's result as heads.
        Arg::slice(dtype, &[tokens, heads, head_dim], 22, 0),
    ];
    let bias = |at: u16| if form.biases { at } else { ABSENT };
    let rope = Rope {
        head_dim,
        rotary_dim: head_dim,
        style: RopeStyle::Neox,
        dtype,
    };
    let embedding = Embedding {
        num_rows: VOCABULARY,
        width: hidden,
        weight: format,
        out: dtype,
        scale: (hidden as f32 / 3.0).sqrt(),
        max_tokens: tokens,
    };
    let mut nodes = vec![
        (write.clone().into(), vec![23, 24, 25, 17]),
        (embedding.into(), vec![26, 27, 0]),
        (norm(hidden, 1.0).into(), vec![0, 1, 2]),
        (linear(hidden, width).into(), vec![2, 8, bias(10), ABSENT, 3]),
    ];
    if form.norms {
        nodes.push((norm(head_dim, 1.0).into(), vec![4, 12, 4]));
        nodes.push((norm(head_dim, 1.0).into(), vec![5, 13, 5]));
    }
    nodes.push((rope.into(), vec![14, 15, 7]));
    nodes.push((write.into(), vec![5, 6, 16, 17]));
    nodes.push((attention.into(), vec![4, 17, 18, 19, 20, 21, ABSENT, 28]));
    nodes.push((linear(q_size, hidden).into(), vec![22, 9, bias(11), 0, 0]));
    Case {
        op: "composites",
        variant: String::new(),
        name: batch.name.to_string(),
        args,
        nodes,
    }
}
