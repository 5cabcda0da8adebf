//! Attention over keys and values that are codes (`kv_coded`): sums are taken over codes, and a token's scale is
//! multiplied into its score and its weight, once for all dimensions. Owns these products; tiles, masks and softmax
//! are `attention`'s.

use std::mem::MaybeUninit;

use crate::attention_job::{
    Attention, KEYS, PANELS, Panel, State, finish_scores, key_panels, load_left, store_left, vectors,
};
use crate::kv_coded::{MAX_U4_HEAD_DIM, turn};
use crate::kv_layout::KvElement;
use crate::simd::{LANES, Simd, unroll};

/// Scale and minimum of a panel's 16 tokens.
#[inline(always)]
unsafe fn maps<S: Simd, E: KvElement>(job: &Attention<'_>, part: usize, panel: &Panel) -> (S::F, Option<S::F>) {
    // SAFETY: a panel has 16 words.
    unsafe {
        let words = panel.block.add(job.layout.words(part, job.kv_head, panel.index));
        if E::PER_BYTE == 1 {
            return (S::load(words.cast()), None);
        }
        let [scale, minimum] = S::bf16_pair(S::load_i(words));
        (scale, Some(minimum))
    }
}

/// The queries of a tile's rows, turned as keys of 4 bits are, and the sum of each one's elements, which a key's
/// minimum is multiplied by.
pub(crate) struct TurnedQueries<const R: usize> {
    turned: [[MaybeUninit<f32>; MAX_U4_HEAD_DIM]; R],
    sums: [f32; R],
}

impl<const R: usize> TurnedQueries<R> {
    /// Nothing is written until `turn_queries`.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        TurnedQueries {
            turned: [[MaybeUninit::uninit(); MAX_U4_HEAD_DIM]; R],
            sums: [0.0; R],
        }
    }
}

/// Turns the rows' queries; the rows read what is in `queries` from here on.
///
/// # Safety
/// The CPU has `S`'s instruction set; the rows' queries hold head_dim ≤ [`MAX_U4_HEAD_DIM`] elements.
#[inline(always)]
pub(crate) unsafe fn turn_queries<S: Simd, const R: usize>(
    job: &Attention<'_>,
    state: &mut State<R>,
    queries: &mut TurnedQueries<R>,
) {
    let dim = job.layout.head_dim;
    for r in 0..R {
        // SAFETY: d < dim; as many elements are written before they are read.
        unsafe {
            let to = queries.turned[r].as_mut_ptr().cast::<f32>();
            std::ptr::copy_nonoverlapping(state.q[r], to, dim);
            turn(std::slice::from_raw_parts_mut(to, dim));
            state.q[r] = to;
            let mut sum = S::splat(0.0);
            let mut d = 0;
            while d < dim {
                sum = S::add(sum, load_left::<S>(to.add(d), dim - d));
                d += LANES;
            }
            queries.sums[r] = S::sum(sum);
        }
    }
}

/// q·k of R rows and P panels from `at` on, one chain a score in the order of the dimensions.
///
/// # Safety
/// The CPU has `S`'s instruction set; the panels' keys are readable; the rows' queries were turned where keys
/// are.
#[inline(always)]
pub(crate) unsafe fn dots_coded<S: Simd, E: KvElement, const R: usize, const P: usize>(
    job: &Attention<'_>,
    state: &State<R>,
    queries: &TurnedQueries<R>,
    panels: &[Panel; PANELS],
    at: usize,
    scores: &mut [[f32; KEYS]; R],
) {
    let dim = job.layout.head_dim;
    // SAFETY: a panel of keys holds 16 bytes for each dimension, or for two.
    unsafe {
        let mut keys = key_panels::<P>(job, panels, at);
        let mut sums = [[S::splat(0.0); P]; R];
        let mut d = 0;
        while d < dim {
            let mut k = [S::splat(0.0); P];
            for p in 0..P {
                k[p] = E::load::<S>(keys[p]);
            }
            unroll!(r in 0..R => {
                let q = S::splat(*state.q[r].add(d));
                for p in 0..P {
                    sums[r][p] = S::fma(q, k[p], sums[r][p]);
                }
            });
            if E::PER_BYTE == 2 && d + 1 < dim {
                for p in 0..P {
                    k[p] = E::load_upper::<S>(keys[p]);
                }
                unroll!(r in 0..R => {
                    let q = S::splat(*state.q[r].add(d + 1));
                    for p in 0..P {
                        sums[r][p] = S::fma(q, k[p], sums[r][p]);
                    }
                });
            }
            for p in 0..P {
                keys[p] = keys[p].add(LANES);
            }
            d += E::PER_BYTE;
        }
        for p in 0..P {
            let (scale, minimum) = maps::<S, E>(job, 0, &panels[at + p]);
            unroll!(r in 0..R => {
                sums[r][p] = match minimum {
                    Some(minimum) => S::fma(scale, sums[r][p], S::mul(minimum, S::splat(queries.sums[r]))),
                    None => S::mul(scale, sums[r][p]),
                };
            });
        }
        finish_scores::<S, R, P>(job, &sums, at, scores);
    }
}

/// out = out · factor + Σ weight · V, in the order of the tokens. `weights` is used up.
///
/// # Safety
/// The CPU has `S`'s instruction set; tokens from `from` to `len` of every panel are in the cache; the rows' outputs
/// are writable.
#[inline(always)]
pub(crate) unsafe fn values_coded<S: Simd, E: KvElement, const R: usize>(
    job: &Attention<'_>,
    state: &State<R>,
    panels: &[Panel],
    weights: &mut [[f32; KEYS]; R],
    factors: &[f32; R],
) {
    let dim = job.layout.head_dim;
    // SAFETY: the caller's promise, in pieces of the dimensions.
    unsafe {
        let offsets = scale_weights::<S, E, R>(job, panels, weights);
        let mut d = 0;
        while d < dim {
            d += match vectors::<S, R>() {
                4 if dim - d >= 4 * LANES => dims::<S, E, R, 2>(job, state, panels, weights, factors, &offsets, d),
                _ => dims::<S, E, R, 1>(job, state, panels, weights, factors, &offsets, d),
            };
        }
    }
}

/// Multiplies the weights by their tokens' scales, and gives Σ weight · minimum of each row.
#[inline(always)]
unsafe fn scale_weights<S: Simd, E: KvElement, const R: usize>(
    job: &Attention<'_>,
    panels: &[Panel],
    weights: &mut [[f32; KEYS]; R],
) -> [f32; R] {
    let mut offsets = [0f32; R];
    // SAFETY: a panel has 16 weights of each row.
    unsafe {
        let mut sums = [S::splat(0.0); R];
        for (i, panel) in panels.iter().enumerate() {
            let (scale, minimum) = maps::<S, E>(job, 1, panel);
            if let Some(mut minimum) = minimum {
                if panel.from > 0 || panel.len < LANES {
                    // What was never written is no number, and its weight of 0 would not hide it.
                    let mut lanes = [0f32; LANES];
                    S::store(lanes.as_mut_ptr(), minimum);
                    lanes[..panel.from].fill(0.0);
                    lanes[panel.len.max(panel.from)..].fill(0.0);
                    minimum = S::load(lanes.as_ptr());
                }
                for r in 0..R {
                    sums[r] = S::fma(S::load(weights[r].as_ptr().add(i * LANES)), minimum, sums[r]);
                }
            }
            for r in 0..R {
                let weight = weights[r].as_mut_ptr().add(i * LANES);
                S::store(weight, S::mul(S::load(weight), scale));
            }
        }
        if E::PER_BYTE == 2 {
            for r in 0..R {
                offsets[r] = S::sum(sums[r]);
            }
        }
    }
    offsets
}

/// The dimensions from `d` to `d` + 32·C, or to the end of the head if that is nearer; gives 32·C.
#[inline(always)]
unsafe fn dims<S: Simd, E: KvElement, const R: usize, const C: usize>(
    job: &Attention<'_>,
    state: &State<R>,
    panels: &[Panel],
    weights: &[[f32; KEYS]; R],
    factors: &[f32; R],
    offsets: &[f32; R],
    d: usize,
) -> usize {
    let dim = job.layout.head_dim;
    let width = job.layout.value_dim();
    // The last vector of a head may be cut, or be missing.
    let wide = dim - d > LANES;
    // SAFETY: rows of codes are padded to whole vectors; tokens below `len` are in the cache.
    unsafe {
        let mut sums = [[[S::splat(0.0); 2]; C]; R];
        for r in 0..R {
            for c in 0..C {
                for half in 0..2 {
                    let first = d + (2 * c + half) * LANES;
                    if first < dim {
                        let out = load_left::<S>(state.out[r].add(first), dim - first);
                        sums[r][c][half] = S::fma(out, S::splat(factors[r]), S::splat(offsets[r]));
                    }
                }
            }
        }
        // 16 codes of 8 bits a vector; 32 of 4 bits a pair of vectors.
        let pair_bytes = 2 * LANES / E::PER_BYTE;
        for (i, panel) in panels.iter().enumerate() {
            let first = job.layout.v_row(job.kv_head, panel.index * LANES + panel.from) + d / E::PER_BYTE;
            let mut row = panel.block.add(first);
            for t in panel.from..panel.len {
                let mut v = [[S::splat(0.0); 2]; C];
                for c in 0..C {
                    let codes = row.add(c * pair_bytes);
                    v[c][0] = E::load::<S>(codes);
                    if E::PER_BYTE == 2 {
                        v[c][1] = E::load_upper::<S>(codes);
                    } else if wide {
                        v[c][1] = E::load::<S>(codes.add(LANES));
                    }
                }
                unroll!(r in 0..R => {
                    let weight = S::splat(weights[r][i * LANES + t]);
                    for c in 0..C {
                        sums[r][c][0] = S::fma(weight, v[c][0], sums[r][c][0]);
                        sums[r][c][1] = S::fma(weight, v[c][1], sums[r][c][1]);
                    }
                });
                row = row.add(width);
            }
        }
        for r in 0..R {
            for c in 0..C {
                for half in 0..2 {
                    let first = d + (2 * c + half) * LANES;
                    if first < dim {
                        store_left::<S>(state.out[r].add(first), sums[r][c][half], dim - first);
                    }
                }
            }
        }
    }
    C * 2 * LANES
}
