//! Attention over paged latents of every instruction set against a direct softmax in f64, and the promise that a row's
//! result does not depend on what else a call computes.
#![allow(missing_docs)]

mod common;

use std::ops::Range;

use common::{Rng, all_kernels};
use half::{bf16, f16};
use halyard_kernels_cpu::{
    HeadRows, Kernels, KvDtype, LatentAttention, LatentLayout, e4m3_from_f32, e4m3_to_f32, latent_write,
};

const SCALE: f32 = 0.3;

struct Case {
    layout: LatentLayout,
    heads: usize,
    queries: usize,
    kv_len: usize,
    q_latent: Vec<f32>,
    q_rope: Vec<f32>,
    /// \[kv_len\] rows, as the cache rounds them.
    latents: Vec<f32>,
    keys: Vec<f32>,
    pool: Vec<u8>,
    table: Vec<i32>,
}

fn rounded(dtype: KvDtype, x: f32) -> f32 {
    match dtype {
        KvDtype::F32 => x,
        KvDtype::F16 => f16::from_f32(x).to_f32(),
        KvDtype::Bf16 => bf16::from_f32(x).to_f32(),
        KvDtype::E4m3 => e4m3_to_f32(e4m3_from_f32(x)),
        other => panic!("latents in {other:?}"),
    }
}

impl Case {
    fn new(layout: LatentLayout, heads: usize, kv_len: usize, queries: usize, rng: &mut Rng) -> Case {
        let blocks = kv_len.div_ceil(layout.block_size);
        // Blocks lie backwards, with gaps; slots that are never written hold NaN.
        let table: Vec<i32> = (0..blocks).map(|i| 2 * (blocks - i) as i32).collect();
        let mut pool = vec![0xff; layout.block_bytes() * (2 * blocks + 2)];
        let (latents, keys) = (rng.vec(kv_len * layout.latent_dim), rng.vec(kv_len * layout.rope_dim));
        for token in 0..kv_len {
            let block = table[token / layout.block_size] as usize * layout.block_bytes();
            let latent = &latents[token * layout.latent_dim..][..layout.latent_dim];
            let key = &keys[token * layout.rope_dim..][..layout.rope_dim];
            // SAFETY: the block lies inside the pool.
            unsafe {
                let block = pool.as_mut_ptr().add(block);
                latent_write(&layout, block, token % layout.block_size, latent, key);
            }
        }
        let round = |x: Vec<f32>| x.into_iter().map(|x| rounded(layout.dtype, x)).collect();
        Case {
            layout,
            heads,
            queries,
            kv_len,
            q_latent: rng.vec(queries * heads * layout.latent_dim),
            q_rope: rng.vec(queries * heads * layout.rope_dim),
            latents: round(latents),
            keys: round(keys),
            pool,
            table,
        }
    }

    fn run_part(&self, kernels: &Kernels, queries: Range<usize>, heads: Range<usize>, out: &mut [f32]) {
        let layout = self.layout;
        let mut scratch = vec![f32::NAN; layout.scratch(queries.len() * heads.len())];
        let rows = |values: &[f32], dim: usize| HeadRows {
            first: values.as_ptr(),
            stride: self.heads * dim,
            head_stride: dim,
        };
        // SAFETY: pool, queries and result are as large as the layout and the counts say.
        unsafe {
            kernels.latent_attention(LatentAttention {
                layout,
                pool: self.pool.as_ptr(),
                block_stride: layout.block_bytes(),
                block_table: &self.table,
                q_latent: rows(&self.q_latent, layout.latent_dim),
                q_rope: rows(&self.q_rope, layout.rope_dim),
                out: HeadRows {
                    first: out.as_mut_ptr(),
                    stride: self.heads * layout.latent_dim,
                    head_stride: layout.latent_dim,
                },
                queries,
                heads,
                first_position: self.kv_len - self.queries,
                scale: SCALE,
                scratch: &mut scratch,
            });
        }
    }

    fn expected(&self) -> Vec<f64> {
        let (dim, rope) = (self.layout.latent_dim, self.layout.rope_dim);
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
        let mut out = Vec::new();
        for row in 0..self.queries * self.heads {
            let seen = self.kv_len - self.queries + row / self.heads + 1;
            let score = |j: usize| {
                let latent = dot(&self.q_latent[row * dim..][..dim], &self.latents[j * dim..][..dim]);
                let key = dot(&self.q_rope[row * rope..][..rope], &self.keys[j * rope..][..rope]);
                f64::from(SCALE) * (latent + key)
            };
            let scores: Vec<f64> = (0..seen).map(score).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let total: f64 = weights.iter().sum();
            out.extend((0..dim).map(|d| {
                let terms = weights.iter().enumerate();
                terms
                    .map(|(j, w)| w * f64::from(self.latents[j * dim + d]))
                    .sum::<f64>()
                    / total
            }));
        }
        out
    }

    fn out(&self) -> Vec<f32> {
        vec![f32::NAN; self.queries * self.heads * self.layout.latent_dim]
    }
}

fn cases() -> Vec<Case> {
    let mut rng = Rng(7);
    let mut cases = Vec::new();
    for dtype in KvDtype::FLOATS {
        // Whole vectors and not; one row, fewer than a tile of rows, more; one tile of keys, several, a partial one.
        for (latent_dim, rope_dim, block_size, heads, kv_len, queries) in [
            (64, 16, 16, 4, 130, 1),
            (64, 16, 16, 4, 64, 64),
            (20, 6, 8, 5, 77, 3),
            (35, 8, 5, 1, 9, 9),
            (128, 64, 32, 16, 200, 2),
            (7, 2, 16, 2, 1, 1),
        ] {
            let layout = LatentLayout {
                dtype,
                block_size,
                latent_dim,
                rope_dim,
            };
            cases.push(Case::new(layout, heads, kv_len, queries, &mut rng));
        }
    }
    cases
}

#[test]
fn results_are_the_softmax_of_the_scores() {
    for case in cases() {
        let expected = case.expected();
        for kernels in all_kernels() {
            let mut out = case.out();
            case.run_part(kernels, 0..case.queries, 0..case.heads, &mut out);
            for (i, (found, expected)) in out.iter().zip(&expected).enumerate() {
                // Sums of up to 200 values below 1, and scores of up to 192 products, in f32.
                let near = (f64::from(*found) - expected).abs() <= 1e-5;
                let layout = case.layout;
                assert!(
                    near,
                    "{:?}, {layout:?}: value {i} is {found}, not {expected}",
                    kernels.isa()
                );
            }
        }
    }
}

#[test]
fn a_row_is_the_same_whatever_else_a_call_computes() {
    for case in cases() {
        for kernels in all_kernels() {
            let (mut whole, mut parts) = (case.out(), case.out());
            case.run_part(kernels, 0..case.queries, 0..case.heads, &mut whole);
            for query in 0..case.queries {
                for head in (0..case.heads).step_by(3) {
                    let heads = head..(head + 3).min(case.heads);
                    case.run_part(kernels, query..query + 1, heads, &mut parts);
                }
            }
            assert!(whole == parts, "{:?}, {:?}", kernels.isa(), case.layout);
        }
    }
}
