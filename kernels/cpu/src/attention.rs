//! Paged attention of one sequence and one KV head: online softmax over the sequence's blocks (Milakov and
//! Gimelshein, 2018). Owns the tiles: 4 rows (query × head of the group) against 64 keys. Decode is the case of one
//! query. Caches in bf16 and of codes have products of their own, in `attention_bf16` and `attention_coded`.
//!
//! Keys are visited in panels of 16 and tiles of 4 panels that begin at fixed positions of the sequence, and a tile
//! without a visible key leaves a row's state bitwise as it was. A row's result therefore depends on its own query
//! and keys alone: not on the chunk of queries, nor on other rows.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use crate::attention_bf16::{QueryPairs, dots_pairs, round_queries, values_pairs};
use crate::attention_coded::{TurnedQueries, dots_coded, turn_queries, values_coded};
use crate::attention_job::{Attention, KEYS, PANELS, Panel, State, finish_scores, key_panels, vectors};
use crate::kv_layout::{KvElement, KvLayout};
use crate::math::exp2_nonpositive;
use crate::simd::{LANES, Simd, unroll};

/// Rows of a tile.
const ROWS: usize = 4;

/// What some caches want to have of the queries of a tile's rows besides themselves.
struct QueryForms<const R: usize> {
    /// Over a cache in bf16: them in bf16.
    pairs: QueryPairs<R>,
    /// Over one in codes of 4 bits: them turned.
    turned: TurnedQueries<R>,
}

/// Computes the rows of the call that begin at one of them; gives how many these were.
pub(crate) type TileFn = unsafe fn(&Attention<'_>, usize) -> usize;
/// For 1, 2 and 3 rows that are left, and for 4 or more. Each may compute fewer than that.
pub(crate) type Tiles = [TileFn; ROWS];

/// Runs the call. Each tile is a function of its own: together they are half a megabyte, which as one function takes a
/// compiler minutes.
///
/// # Safety
/// The CPU has the instruction set of `tiles`, which are of the layout's element type; the promises of
/// `Kernels::attention`.
pub(crate) unsafe fn run(job: &Attention<'_>, tiles: &Tiles) {
    let (mut row, end) = (job.queries.start * job.group, job.queries.end * job.group);
    while row < end {
        // SAFETY: rows row .. row + R lie inside the queries; the caller's promise.
        row += unsafe { tiles[(end - row).min(ROWS) - 1](job, row) };
    }
}

/// Index of the panel of `position`. Panels are counted through the whole sequence; tiles begin at multiples of
/// PANELS.
#[inline(always)]
pub(crate) fn panel_of(layout: &KvLayout, position: usize) -> usize {
    position / layout.block_size * layout.panels() + position % layout.block_size / LANES
}

/// R rows from `first_row` on; gives R.
///
/// # Safety
/// The CPU has `S`'s instruction set; the rows lie inside the queries; the promises of `Kernels::attention`.
#[inline(always)]
pub(crate) unsafe fn tile<S: Simd, E: KvElement, const R: usize>(job: &Attention<'_>, first_row: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        let mut state = start::<R>(job, first_row);
        let mut forms = QueryForms::<R> {
            pairs: QueryPairs::new(),
            turned: TurnedQueries::new(),
        };
        if E::PAIRS {
            round_queries::<S, R>(job, &state, &mut forms.pairs);
        }
        if E::PER_BYTE == 2 {
            turn_queries::<S, R>(job, &mut state, &mut forms.turned);
        }
        let (mut lo, mut hi) = (usize::MAX, 0);
        for visible in &state.visible {
            if !visible.is_empty() {
                (lo, hi) = (lo.min(visible.start), hi.max(visible.end));
            }
        }
        if lo < hi {
            let last = panel_of(&job.layout, hi - 1);
            let mut panel = panel_of(&job.layout, lo) / PANELS * PANELS;
            while panel <= last {
                keys::<S, E, R>(job, &mut state, &forms, panel, last, &(lo..hi));
                panel += PANELS;
            }
        }
        for r in 0..R {
            let sum = S::sum(S::load(state.sum[r].as_ptr()));
            // A row that sees no key gives zeros.
            let scale = if sum > 0.0 || sum.is_nan() { 1.0 / sum } else { 0.0 };
            for d in 0..job.layout.head_dim {
                *state.out[r].add(d) *= scale;
            }
        }
    }
    R
}

/// Pointers, visible keys and zeroed outputs of the tile's rows.
#[inline(always)]
unsafe fn start<const R: usize>(job: &Attention<'_>, first_row: usize) -> State<R> {
    const NONE: Range<usize> = 0..0;
    let mut state = State {
        visible: [NONE; R],
        max: [f32::NEG_INFINITY; R],
        sum: [[0.0; LANES]; R],
        q: [std::ptr::null(); R],
        out: [std::ptr::null_mut(); R],
    };
    for r in 0..R {
        let (query, head) = ((first_row + r) / job.group, (first_row + r) % job.group);
        state.visible[r] = job.visible(job.first_position + query);
        if let Some(sinks) = job.sinks {
            // A sink is a key seen before all others, with this score and no value.
            (state.max[r], state.sum[r][0]) = (sinks[head] * LOG2_E, 1.0);
        }
        // SAFETY: query and head lie inside q and out.
        unsafe {
            state.q[r] = job.q.add(query * job.q_stride + head * job.q_head_stride);
            state.out[r] = job.out.add(query * job.out_stride + head * job.out_head_stride);
            std::ptr::write_bytes(state.out[r], 0, job.layout.head_dim);
        }
    }
    state
}

/// The panels from `first` to `last` of a tile, and how many there are.
///
/// # Safety
/// Every panel up to `last` holds a token below kv_len.
#[inline(always)]
pub(crate) unsafe fn tile_of_panels(
    job: &Attention<'_>,
    first: usize,
    last: usize,
    seen: &Range<usize>,
) -> ([Panel; PANELS], usize) {
    let per_block = job.layout.panels();
    let mut panels = [Panel {
        block: std::ptr::null(),
        index: 0,
        start: 0,
        len: 0,
        from: 0,
    }; PANELS];
    let count = PANELS.min(last + 1 - first);
    for (i, panel) in panels[..count].iter_mut().enumerate() {
        let (block, index) = ((first + i) / per_block, (first + i) % per_block);
        let start = block * job.layout.block_size + index * LANES;
        let len = LANES
            .min(job.layout.block_size - index * LANES)
            .min(seen.end.saturating_sub(start));
        *panel = Panel {
            // SAFETY: the block holds a token below kv_len, so it is in the table.
            block: unsafe { job.block(block) },
            index,
            start,
            len,
            from: seen.start.saturating_sub(start).min(len),
        };
    }
    (panels, count)
}

/// One tile of keys: scores, softmax update, values.
#[inline(always)]
unsafe fn keys<S: Simd, E: KvElement, const R: usize>(
    job: &Attention<'_>,
    state: &mut State<R>,
    forms: &QueryForms<R>,
    first: usize,
    last: usize,
    seen: &Range<usize>,
) {
    // SAFETY: every panel up to `last` holds a token below kv_len, so its block is in the table.
    unsafe {
        let (panels, count) = tile_of_panels(job, first, last, seen);
        let mut scores = [[0f32; KEYS]; R];
        let mut i = 0;
        while i < count {
            i += match vectors::<S, R>() {
                4 if count - i >= 4 => scores_of::<S, E, R, 4>(job, state, forms, &panels, i, &mut scores),
                2 if count - i >= 2 => scores_of::<S, E, R, 2>(job, state, forms, &panels, i, &mut scores),
                _ => scores_of::<S, E, R, 1>(job, state, forms, &panels, i, &mut scores),
            };
        }
        let mut factors = [1f32; R];
        let mut weights = [[0; KEYS / 2]; R];
        let panels = &panels[..count];
        let whole = count == PANELS && panels.iter().all(|panel| panel.len == LANES);
        for r in 0..R {
            let visible = &state.visible[r];
            if !whole || visible.start > panels[0].start || visible.end < panels[PANELS - 1].start + LANES {
                mask(visible, panels, &mut scores[r]);
            }
            let running = (&mut state.max[r], &mut state.sum[r]);
            let pairs = if E::PAIRS { Some(&mut weights[r]) } else { None };
            factors[r] = softmax_row::<S>(running, &mut scores[r], pairs);
        }
        if E::PAIRS {
            values_pairs::<S, R>(job, state, panels, &weights, &factors);
            return;
        }
        if E::CODED {
            values_coded::<S, E, R>(job, state, panels, &mut scores, &factors);
            return;
        }
        let dim = job.layout.head_dim;
        let mut d = 0;
        while d + LANES <= dim {
            d += match vectors::<S, R>() {
                4 if dim - d >= 4 * LANES => values::<S, E, R, 4>(job, state, panels, &scores, &factors, d),
                2 if dim - d >= 2 * LANES => values::<S, E, R, 2>(job, state, panels, &scores, &factors, d),
                _ => values::<S, E, R, 1>(job, state, panels, &scores, &factors, d),
            };
        }
        while d < dim {
            value_scalar::<E, R>(job, state, panels, &scores, &factors, d);
            d += 1;
        }
    }
}

/// Scores of R rows and P panels from `at` on; gives P.
#[inline(always)]
unsafe fn scores_of<S: Simd, E: KvElement, const R: usize, const P: usize>(
    job: &Attention<'_>,
    state: &State<R>,
    forms: &QueryForms<R>,
    panels: &[Panel; PANELS],
    at: usize,
    scores: &mut [[f32; KEYS]; R],
) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        if E::PAIRS {
            dots_pairs::<S, R, P>(job, &forms.pairs, panels, at, scores);
        } else if E::CODED {
            dots_coded::<S, E, R, P>(job, state, &forms.turned, panels, at, scores);
        } else {
            dots::<S, E, R, P>(job, state, panels, at, scores);
        }
    }
    P
}

/// q·k of R rows and P panels from `at` on, one chain a score in the order of the dimensions.
#[inline(always)]
unsafe fn dots<S: Simd, E: KvElement, const R: usize, const P: usize>(
    job: &Attention<'_>,
    state: &State<R>,
    panels: &[Panel; PANELS],
    at: usize,
    scores: &mut [[f32; KEYS]; R],
) {
    // SAFETY: a panel of keys holds head_dim vectors.
    unsafe {
        let keys = key_panels::<P>(job, panels, at);
        let mut sums = [[S::splat(0.0); P]; R];
        for d in 0..job.layout.head_dim {
            let mut k = [S::splat(0.0); P];
            for p in 0..P {
                k[p] = E::load::<S>(keys[p].add(d * LANES * E::BYTES));
            }
            unroll!(r in 0..R => {
                let q = S::splat(*state.q[r].add(d));
                for p in 0..P {
                    sums[r][p] = S::fma(q, k[p], sums[r][p]);
                }
            });
        }
        finish_scores::<S, R, P>(job, &sums, at, scores);
    }
}

/// Takes the scores of keys that a row does not see out of its tile.
#[inline(always)]
pub(crate) fn mask(visible: &Range<usize>, panels: &[Panel], scores: &mut [f32; KEYS]) {
    for (i, panel) in panels.iter().enumerate() {
        let scores = &mut scores[i * LANES..(i + 1) * LANES];
        // Also hides what an unwritten slot holds: garbage is replaced, never multiplied.
        let from = visible.start.saturating_sub(panel.start).min(LANES);
        let to = visible.end.saturating_sub(panel.start).min(panel.len);
        scores[..from].fill(f32::NEG_INFINITY);
        scores[to.max(from)..].fill(f32::NEG_INFINITY);
    }
    scores[panels.len() * LANES..].fill(f32::NEG_INFINITY);
}

/// Turns a row's scores into 2^(score − max), rounded into `pairs` where they are given and in place elsewhere, and
/// gives the factor for what was summed before.
#[inline(always)]
pub(crate) unsafe fn softmax_row<S: Simd>(
    (max, sum): (&mut f32, &mut [f32; LANES]),
    scores: &mut [f32; KEYS],
    mut pairs: Option<&mut [u32; KEYS / 2]>,
) -> f32 {
    // SAFETY: the caller has the instruction set; `scores` and `pairs` hold 64 elements, `sum` 16.
    unsafe {
        let mut s = [S::splat(0.0); PANELS];
        for p in 0..PANELS {
            s[p] = S::load(scores.as_ptr().add(p * LANES));
        }
        let best = S::max(S::max(s[1], s[0]), S::max(s[3], s[2]));
        let new = S::hmax(best).max(*max);
        let shift = if new == f32::NEG_INFINITY { 0.0 } else { new };
        let factor = if *max == new {
            1.0
        } else {
            exp2_scalar::<S>(*max - shift)
        };
        for p in 0..PANELS {
            s[p] = exp2_nonpositive::<S>(S::sub(s[p], S::splat(shift)));
            match &mut pairs {
                Some(pairs) => S::store_normal_bf16(pairs.as_mut_ptr().cast::<u16>().add(p * LANES), s[p]),
                None => S::store(scores.as_mut_ptr().add(p * LANES), s[p]),
            }
        }
        *max = new;
        let sums = S::add(S::add(s[0], s[1]), S::add(s[2], s[3]));
        let before = S::mul(S::load(sum.as_ptr()), S::splat(factor));
        S::store(sum.as_mut_ptr(), S::add(before, sums));
        factor
    }
}

#[inline(always)]
unsafe fn exp2_scalar<S: Simd>(x: f32) -> f32 {
    // SAFETY: the caller has the instruction set; `lanes` holds 16 floats.
    unsafe {
        let mut lanes = [0f32; LANES];
        S::store(lanes.as_mut_ptr(), exp2_nonpositive::<S>(S::splat(x)));
        lanes[0]
    }
}

/// out = out · factor + Σ weight · V at dimensions d .. d + 16·C, in the order of the tokens; gives 16·C.
#[inline(always)]
unsafe fn values<S: Simd, E: KvElement, const R: usize, const C: usize>(
    job: &Attention<'_>,
    state: &State<R>,
    panels: &[Panel],
    weights: &[[f32; KEYS]; R],
    factors: &[f32; R],
    d: usize,
) -> usize {
    // SAFETY: d + 16·C ≤ head_dim; tokens below `len` are in the cache.
    unsafe {
        let mut sums = [[S::splat(0.0); C]; R];
        for r in 0..R {
            for c in 0..C {
                sums[r][c] = S::mul(S::load(state.out[r].add(d + c * LANES)), S::splat(factors[r]));
            }
        }
        for (i, panel) in panels.iter().enumerate() {
            let first = job.layout.v_row(job.kv_head, panel.index * LANES + panel.from) + d * E::BYTES;
            let mut row = panel.block.add(first);
            for t in panel.from..panel.len {
                let mut v = [S::splat(0.0); C];
                for c in 0..C {
                    v[c] = E::load::<S>(row.add(c * LANES * E::BYTES));
                }
                unroll!(r in 0..R => {
                    let weight = S::splat(weights[r][i * LANES + t]);
                    for c in 0..C {
                        sums[r][c] = S::fma(weight, v[c], sums[r][c]);
                    }
                });
                row = row.add(job.layout.head_dim * E::BYTES);
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

/// `values` for one dimension: the tail of a head_dim that is no multiple of 16.
#[inline(always)]
unsafe fn value_scalar<E: KvElement, const R: usize>(
    job: &Attention<'_>,
    state: &State<R>,
    panels: &[Panel],
    weights: &[[f32; KEYS]; R],
    factors: &[f32; R],
    d: usize,
) {
    // SAFETY: d < head_dim; tokens below `len` are in the cache.
    unsafe {
        for r in 0..R {
            let mut sum = *state.out[r].add(d) * factors[r];
            for (i, panel) in panels.iter().enumerate() {
                for t in panel.from..panel.len {
                    let row = job.layout.v_row(job.kv_head, panel.index * LANES + t) + d * E::BYTES;
                    sum += weights[r][i * LANES + t] * E::read(panel.block.add(row));
                }
            }
            *state.out[r].add(d) = sum;
        }
    }
}
