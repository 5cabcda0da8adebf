//! `head_linear`, and `latent_write` and `latent_attention` over ragged batches. The cache's layout is the backend's
//! own, so both are seen through attention's output.

use halyard_platform_api::ops::{HeadLinear, LatentAttention, LatentWrite};
use halyard_platform_api::{DType, WeightFormat};

use super::attend::{BATCHES, Batch, LONG, paged};
use super::dense::odd_width;
use super::{FLOATS, weight};
use crate::case::{Arg, Case, Check, Contents};
use crate::random::Random;
use crate::tolerance::Class;

/// The ops of [`head_cases`].
pub(super) const HEAD_OPS: &[&str] = &[HeadLinear::NAME];

/// The ops of [`cases`].
pub(super) const OPS: &[&str] = &[LatentAttention::NAME, LatentWrite::NAME];

/// Every format and type; one token, a few, and more than a tile.
pub(super) fn head_cases(seed: u64) -> Vec<Case> {
    let mut cases = Vec::new();
    for format in WeightFormat::ALL {
        for dtype in FLOATS {
            let variant = format!("{format:?} x {dtype:?}");
            let (odd, block) = (odd_width(format), format.block_values() as u32);
            let whole = 64.max(block).next_multiple_of(block);
            for (tokens, heads, k, n, gap) in [(1, 4, whole, 96, 0), (5, 3, odd, 13, 7), (70, 2, whole, 32, 0)] {
                let name = format!("{tokens} x {heads} x {k} -> {n}, gap {gap}");
                let random = &mut Random::of(seed, &format!("head_linear {variant} {name}"));
                let spec = HeadLinear {
                    num_heads: heads,
                    in_features: k,
                    out_features: n,
                    weight: format,
                    dtype,
                    max_tokens: tokens,
                };
                let class = Class::Product {
                    terms: k as usize,
                    act: dtype,
                };
                let x = random.units((tokens * heads * k) as usize);
                let operands = vec![
                    Some(Arg::floats(dtype, &[tokens, heads, k], &x).strided(gap)),
                    Some(Arg::weight(format, heads * n, k, weight(random, format, heads * n, k))),
                    Some(Arg::output(dtype, &[tokens, heads, n], class).strided(gap)),
                ];
                cases.push(Case::single(spec, &variant, &name, operands));
            }
        }
    }
    cases
}

/// Heads, values of a latent and of a key.
type Shape = (u32, u32, u32);

const SHAPES: [(&str, Shape); 5] = [
    ("", (4, 64, 16)),
    // More rows than keys in a tile, heads that a tile does not hold whole.
    (" 20 heads 128 + 32", (20, 128, 32)),
    (" 3 heads 80 + 24", (3, 80, 24)),
    (" 9 heads 32 + 8", (9, 32, 8)),
    (" 16 heads 512 + 64", (16, 512, 64)),
];

/// A chunk behind a prefix of several stages, beside decodes: more rows than a tile holds.
const TILES: Batch = Batch {
    name: "a chunk beside decodes",
    seqs: &[(3, 1, 150), (1, 7, 140), (-1, 0, 0), (0, 1, 65)],
    pad_tokens: 2,
};

pub(super) fn cases(seed: u64, block_size: u32) -> Vec<Case> {
    let mut cases = Vec::new();
    for act in FLOATS {
        for kv in FLOATS.into_iter().chain([DType::F8E4M3]) {
            for (suffix, shape) in SHAPES {
                // Every shape in matching types, mixed types plainly.
                if act != kv && !suffix.is_empty() {
                    continue;
                }
                // The oracle is slow: long chunks of the small shape in matching types, and few batches of the large.
                let long = (act == kv && suffix.is_empty()).then_some(&LONG);
                // Several tiles and stages of each kernel of the usual size, in half precision.
                let usual = (shape.1 > 256 && act != DType::F32).then_some(&TILES);
                let batches = if shape.1 > 256 { &BATCHES[1..3] } else { &BATCHES[..] };
                for batch in batches.iter().chain(long).chain(usual) {
                    let variant = format!("{act:?}, kv {kv:?}{suffix}");
                    let case = attention_case(seed, &variant, batch, shape, act, kv, block_size);
                    // What attention reads is what latent_write stored: the same case stands for both.
                    if suffix.is_empty() {
                        cases.push(Case {
                            op: LatentWrite::NAME,
                            ..case.clone()
                        });
                    }
                    cases.push(case);
                }
            }
        }
    }
    cases
}

fn attention_case(
    seed: u64,
    variant: &str,
    batch: &Batch,
    (heads, latent_dim, rope_dim): Shape,
    act: DType,
    kv: DType,
    block_size: u32,
) -> Case {
    let random = &mut Random::of(seed, &format!("latent_attention {variant} {} {block_size}", batch.name));
    let (table, max_blocks, slots, num_pages) = paged(random, batch, 0, block_size);
    let seqs = batch.seqs.len() as u32;
    let real: u32 = batch.seqs.iter().map(|s| s.1).sum();
    let tokens = real + batch.pad_tokens;
    // The prefix of every sequence is written by one call, the step's own tokens (and padding) by another.
    let (mut prefix, mut step, mut starts) = (Vec::new(), Vec::new(), vec![0]);
    for (sequence, &(_, query_len, keys)) in slots.iter().zip(batch.seqs) {
        prefix.extend(&sequence[..(keys - query_len) as usize]);
        step.extend(&sequence[(keys - query_len) as usize..]);
        starts.push(starts.last().copied().unwrap_or(0) + query_len as i32);
    }
    step.extend(std::iter::repeat_n(-1, batch.pad_tokens as usize));
    prefix.push(-1);
    let prefix_len = prefix.len() as u32;
    let attention = LatentAttention {
        num_heads: heads,
        latent_dim,
        rope_dim,
        scale: 1.5 / ((latent_dim + rope_dim) as f32).sqrt(),
        act,
        kv,
        block_size,
        backend: 0,
        max_seqs: seqs,
        max_tokens: tokens,
        max_query_len: batch.seqs.iter().map(|s| s.1).max().unwrap_or(1),
        max_kv_len: batch.seqs.iter().map(|s| s.2).max().unwrap_or(1),
    };
    let write = LatentWrite {
        latent_dim,
        rope_dim,
        act,
        kv,
        block_size,
        backend: 0,
        max_tokens: tokens.max(prefix_len),
    };
    let rows_of = |random: &mut Random, count: u32, width: u32, gap: u32| {
        let values = random.units((count * width) as usize);
        Arg::floats(act, &[count, width], &values).strided(gap)
    };
    let heads_of = |random: &mut Random, width: u32, gap: u32| {
        let values = random.units((tokens * heads * width) as usize);
        Arg::floats(act, &[tokens, heads, width], &values).strided(gap)
    };
    let rows: Vec<i32> = batch.seqs.iter().map(|s| s.0).collect();
    let lens: Vec<i32> = batch.seqs.iter().map(|s| s.2 as i32).collect();
    let args = vec![
        rows_of(random, prefix_len, latent_dim, 0),
        rows_of(random, prefix_len, rope_dim, 0),
        Arg::ints(&[prefix_len], &prefix),
        // Latents, keys and the turned parts of queries are slices of one product: the gap between their rows.
        rows_of(random, tokens, latent_dim, rope_dim),
        rows_of(random, tokens, rope_dim, latent_dim),
        Arg::ints(&[tokens], &step),
        heads_of(random, latent_dim, 0),
        heads_of(random, rope_dim, 2 * latent_dim),
        Arg {
            contents: Contents::Cache {
                pages: num_pages,
                spec: attention.clone().into(),
            },
            check: Check::Ignored,
            ..Arg::bytes(DType::U8, &[0], Vec::new())
        },
        Arg::ints(&[5, max_blocks], &table),
        Arg::ints(&[seqs], &rows),
        Arg::ints(&[seqs + 1], &starts),
        Arg::ints(&[seqs], &lens),
        Arg::output(act, &[tokens, heads, latent_dim], Class::AttentionOver { kv }).only_rows((0..real).collect()),
    ];
    Case {
        op: LatentAttention::NAME,
        variant: variant.to_string(),
        name: batch.name.to_string(),
        args,
        nodes: vec![
            (write.clone().into(), vec![0, 1, 2, 8]),
            (write.into(), vec![3, 4, 5, 8]),
            (attention.into(), vec![6, 7, 8, 9, 10, 11, 12, 13]),
        ],
    }
}
