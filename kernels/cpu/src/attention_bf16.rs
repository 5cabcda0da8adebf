//! Attention over a cache in bf16: queries and softmax weights are rounded to bf16 and multiplied by dot products of
//! pairs, with f32 sums. Owns these products; tiles, masks and softmax are `attention`'s.

use std::mem::MaybeUninit;

use half::bf16;

use crate::attention_job::{Attention, KEYS, PANELS, Panel, State, finish_scores, key_panels, load_left, vectors};
use crate::simd::{LANES, Simd, unroll};

/// Largest head dimension of a cache in bf16: queries are rounded into a buffer of that length on the stack.
pub const MAX_HEAD_DIM: usize = 1024;

/// The queries of a tile's rows as pairs of bf16; a last odd dimension is paired with zero.
pub(crate) struct QueryPairs<const R: usize>([[MaybeUninit<u32>; MAX_HEAD_DIM / 2]; R]);

impl<const R: usize> QueryPairs<R> {
    /// Nothing is written until `round_queries`.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        QueryPairs([[MaybeUninit::uninit(); MAX_HEAD_DIM / 2]; R])
    }
}

/// Rounds the queries of the rows.
///
/// # Safety
/// The CPU has `S`'s instruction set; the rows' queries hold head_dim ≤ [`MAX_HEAD_DIM`] elements.
#[inline(always)]
pub(crate) unsafe fn round_queries<S: Simd, const R: usize>(
    job: &Attention<'_>,
    state: &State<R>,
    pairs: &mut QueryPairs<R>,
) {
    let dim = job.layout.head_dim;
    for r in 0..R {
        let to = pairs.0[r].as_mut_ptr().cast::<u16>();
        let mut d = 0;
        while d < dim {
            // SAFETY: d < dim; MAX_HEAD_DIM is a multiple of 16, so that a whole vector always fits.
            unsafe {
                S::store_bf16(to.add(d), load_left::<S>(state.q[r].add(d), dim - d));
            }
            d += LANES;
        }
    }
}

/// q·k of R rows and P panels from `at` on.
///
/// # Safety
/// The CPU has `S`'s instruction set; the panels' keys are readable, the queries were rounded.
#[inline(always)]
pub(crate) unsafe fn dots_pairs<S: Simd, const R: usize, const P: usize>(
    job: &Attention<'_>,
    pairs: &QueryPairs<R>,
    panels: &[Panel; PANELS],
    at: usize,
    scores: &mut [[f32; KEYS]; R],
) {
    // SAFETY: a panel of keys holds a vector a pair of dimensions, and the queries as many pairs.
    unsafe {
        let keys = key_panels::<P>(job, panels, at);
        let mut sums = [[S::splat(0.0); P]; R];
        for pair in 0..job.layout.head_dim.div_ceil(2) {
            let mut k = [S::splat_i(0); P];
            for p in 0..P {
                k[p] = S::load_i(keys[p].add(pair * LANES * 4));
            }
            unroll!(r in 0..R => {
                let q = S::splat_i(pairs.0[r].as_ptr().add(pair).cast::<i32>().read());
                for p in 0..P {
                    sums[r][p] = S::dot_bf16(sums[r][p], k[p], q);
                }
            });
        }
        finish_scores::<S, R, P>(job, &sums, at, scores);
    }
}

/// The softmax weights of a tile as pairs of bf16, token fastest.
pub(crate) type WeightPairs<const R: usize> = [[u32; KEYS / 2]; R];

/// out = out · factor + Σ weight · V, in the order of the tokens.
///
/// # Safety
/// The CPU has `S`'s instruction set; tokens from `from` to `len` of every panel are in the cache; the rows' outputs
/// are writable.
#[inline(always)]
pub(crate) unsafe fn values_pairs<S: Simd, const R: usize>(
    job: &Attention<'_>,
    state: &State<R>,
    panels: &[Panel],
    weights: &WeightPairs<R>,
    factors: &[f32; R],
) {
    let dim = job.layout.head_dim;
    let mut d = 0;
    // SAFETY: the caller's promise, in pieces of the dimensions.
    unsafe {
        while d + LANES <= dim {
            d += match vectors::<S, R>() {
                4 if dim - d >= 4 * LANES => dims::<S, R, 4>(job, state, panels, weights, factors, d),
                2 if dim - d >= 2 * LANES => dims::<S, R, 2>(job, state, panels, weights, factors, d),
                _ => dims::<S, R, 1>(job, state, panels, weights, factors, d),
            };
        }
        while d < dim {
            one_dim::<R>(job, state, panels, weights, factors, d);
            d += 1;
        }
    }
}

/// `values_pairs` at dimensions d .. d + 16·C; gives 16·C.
#[inline(always)]
unsafe fn dims<S: Simd, const R: usize, const C: usize>(
    job: &Attention<'_>,
    state: &State<R>,
    panels: &[Panel],
    weights: &WeightPairs<R>,
    factors: &[f32; R],
    d: usize,
) -> usize {
    // SAFETY: d + 16·C ≤ head_dim; pairs up to `len` lie inside the block.
    unsafe {
        let mut sums = [[S::splat(0.0); C]; R];
        for r in 0..R {
            for c in 0..C {
                sums[r][c] = S::mul(S::load(state.out[r].add(d + c * LANES)), S::splat(factors[r]));
            }
        }
        for (i, panel) in panels.iter().enumerate() {
            if panel.from >= panel.len {
                continue;
            }
            let first = job.layout.v_pair(job.kv_head, panel.index * LANES / 2) + 4 * d;
            let (values, stride) = (panel.block.add(first), 4 * job.layout.head_dim);
            let weights_at = i * LANES / 2;
            // A pair of which one token alone is seen: the other may never have been written, and NaN · 0 is NaN.
            if !panel.from.is_multiple_of(2) {
                let pair = panel.from / 2;
                let second = Some(0xffff_0000_u32 as i32);
                step::<S, R, C>(&mut sums, values.add(pair * stride), weights, weights_at + pair, second);
            }
            for pair in panel.from.div_ceil(2)..panel.len / 2 {
                step::<S, R, C>(&mut sums, values.add(pair * stride), weights, weights_at + pair, None);
            }
            if !panel.len.is_multiple_of(2) {
                let pair = panel.len / 2;
                step::<S, R, C>(
                    &mut sums,
                    values.add(pair * stride),
                    weights,
                    weights_at + pair,
                    Some(0xffff),
                );
            }
        }
        for r in 0..R {
            for c in 0..C {
                S::store(state.out[r].add(d + c * LANES), sums[r][c]);
            }
        }
    }
    C * LANES
}

/// Adds one pair of tokens, of which `mask` may leave one.
#[inline(always)]
unsafe fn step<S: Simd, const R: usize, const C: usize>(
    sums: &mut [[S::F; C]; R],
    values: *const u8,
    weights: &WeightPairs<R>,
    at: usize,
    mask: Option<i32>,
) {
    // SAFETY: 16·C pairs are readable at `values`; at < 32.
    unsafe {
        let mut v = [S::splat_i(0); C];
        for c in 0..C {
            v[c] = S::load_i(values.add(4 * c * LANES));
            if let Some(mask) = mask {
                v[c] = S::and_i(v[c], S::splat_i(mask));
            }
        }
        unroll!(r in 0..R => {
            let weight = S::splat_i(*weights[r].as_ptr().add(at) as i32);
            for c in 0..C {
                sums[r][c] = S::dot_bf16(sums[r][c], v[c], weight);
            }
        });
    }
}

/// `values_pairs` for one dimension: the tail of a head_dim that is no multiple of 16.
#[inline(always)]
unsafe fn one_dim<const R: usize>(
    job: &Attention<'_>,
    state: &State<R>,
    panels: &[Panel],
    weights: &WeightPairs<R>,
    factors: &[f32; R],
    d: usize,
) {
    // SAFETY: d < head_dim; tokens below `len` are in the cache.
    unsafe {
        for r in 0..R {
            let mut sum = *state.out[r].add(d) * factors[r];
            for (i, panel) in panels.iter().enumerate() {
                for t in panel.from..panel.len {
                    let weight = (weights[r][(i * LANES + t) / 2] >> (16 * (t % 2))) as u16;
                    let at = job.layout.v_element(job.kv_head, panel.index * LANES + t, d);
                    let value = panel.block.add(at).cast::<bf16>().read_unaligned();
                    sum += bf16::from_bits(weight).to_f32() * value.to_f32();
                }
            }
            *state.out[r].add(d) = sum;
        }
    }
}
