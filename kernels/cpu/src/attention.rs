//! Paged attention of one sequence and one KV head: online softmax over the sequence's blocks (Milakov and
//! Gimelshein, 2018). Owns the tiles: 4 rows (query × head of the group) against 64 keys. Decode is the case of one
//! query. Caches in bf16 and of codes have products of their own, in `attention_bf16` and `attention_coded`.
//!
//! Keys are visited in panels of 16 and tiles of 4 panels that begin at fixed positions of the sequence, and a tile
//! without a visible key leaves a row's state bitwise as it was. A row's result therefore depends on its own query
//! and keys alone: not on the chunk of queries, nor on other rows.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use half::{bf16, f16};

use crate::attention_bf16::{QueryPairs, dots_pairs, round_queries, values_pairs};
use crate::attention_coded::{TurnedQueries, dots_coded, turn_queries, values_coded};
use crate::elementwise::softcap_vector;
use crate::kv::{E4m3, KvDtype, KvElement, KvLayout};
use crate::kv_coded::{I8, U4};
use crate::math::exp2_nonpositive;
use crate::simd::{LANES, Simd, unroll};

/// Rows of a tile.
const ROWS: usize = 4;
/// Key panels of a tile.
pub(crate) const PANELS: usize = 4;
/// Keys of a tile.
pub(crate) const KEYS: usize = PANELS * LANES;

/// One call: some queries of one sequence, all query heads that share one KV head.
#[derive(Debug, Clone)]
pub struct Attention<'a> {
    /// Layout of the blocks.
    pub layout: KvLayout,
    /// First block of the pool, at this layer's bytes.
    pub pool: *const u8,
    /// Bytes between two blocks of the pool, at least `layout.block_bytes()`.
    pub block_stride: usize,
    /// The sequence's blocks in order; enough for `kv_len` tokens. Entries wholly outside every query's window may be
    /// stale or negative; the others may not.
    pub block_table: &'a [i32],
    /// Tokens of the sequence in the cache, those of this step included.
    pub kv_len: usize,
    /// The KV head.
    pub kv_head: usize,
    /// Query heads per KV head; head h of the group is query head kv_head · group + h.
    pub group: usize,
    /// Queries \[num_queries\]\[heads\]\[head_dim\] f32; points to query 0, head kv_head · group.
    pub q: *const f32,
    /// Elements between two queries.
    pub q_stride: usize,
    /// Elements between two query heads.
    pub q_head_stride: usize,
    /// Output, shaped as `q`; points to query 0, head kv_head · group.
    pub out: *mut f32,
    /// Elements between two output queries.
    pub out_stride: usize,
    /// Elements between two output heads.
    pub out_head_stride: usize,
    /// Queries that this call computes, as indices into `q` and `out`.
    pub queries: Range<usize>,
    /// Position of query 0 in the sequence.
    pub first_position: usize,
    /// Factor on q·k.
    pub scale: f32,
    /// cap · tanh(score / cap) after scaling.
    pub softcap: Option<f32>,
    /// A query at position p sees keys at positions ≤ p; without it, every key.
    pub causal: bool,
    /// A query at position p sees keys at positions > p − window.
    pub window: Option<usize>,
    /// Logit of a sink per head of the group: it takes part in the sum and has no value.
    pub sinks: Option<&'a [f32]>,
}

impl Attention<'_> {
    /// Keys that the query at `position` sees.
    #[inline(always)]
    pub(crate) fn visible(&self, position: usize) -> Range<usize> {
        let end = if self.causal {
            self.kv_len.min(position + 1)
        } else {
            self.kv_len
        };
        let start = match self.window {
            Some(window) => (position + 1).saturating_sub(window),
            None => 0,
        };
        start.min(end)..end
    }

    /// The block that holds `block_index` of the sequence.
    #[inline(always)]
    pub(crate) unsafe fn block(&self, block_index: usize) -> *const u8 {
        // A tile may begin in a block that left the window, whose entry says nothing: its keys are masked, so any block
        // will do.
        let id = self.block_table[block_index].max(0);
        // SAFETY: the caller of `Kernels::attention` promised the pool.
        unsafe { self.pool.add(id as usize * self.block_stride) }
    }
}

/// Running softmax of a tile's rows.
pub(crate) struct State<const R: usize> {
    /// Keys each row sees.
    visible: [Range<usize>; R],
    /// Largest score so far. Scores are base-2 logarithms of weights.
    max: [f32; R],
    /// Σ 2^(score − max), in parts.
    sum: [[f32; LANES]; R],
    pub(crate) q: [*const f32; R],
    pub(crate) out: [*mut f32; R],
}

/// What some caches want to have of the queries of a tile's rows besides themselves.
struct QueryForms<const R: usize> {
    /// Over a cache in bf16: them in bf16.
    pairs: QueryPairs<R>,
    /// Over one in codes of 4 bits: them turned.
    turned: TurnedQueries<R>,
}

/// One panel of keys of the sequence.
#[derive(Clone, Copy)]
pub(crate) struct Panel {
    pub(crate) block: *const u8,
    /// Panel inside its block.
    pub(crate) index: usize,
    /// Position of its first token, and the number of its tokens that are in the cache.
    pub(crate) start: usize,
    pub(crate) len: usize,
    /// First of its tokens that any row of the tile sees: what lies before may never have been written.
    pub(crate) from: usize,
}

/// Runs the call for one element type.
///
/// # Safety
/// The CPU has `S`'s instruction set; the promises of `Kernels::attention`.
#[inline(always)]
pub(crate) unsafe fn run<S: Simd>(job: &Attention<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match job.layout.dtype {
            KvDtype::F32 => rows::<S, f32>(job),
            KvDtype::F16 => rows::<S, f16>(job),
            KvDtype::Bf16 => rows::<S, bf16>(job),
            KvDtype::E4m3 => rows::<S, E4m3>(job),
            KvDtype::I8 => rows::<S, I8>(job),
            KvDtype::U4 => rows::<S, U4>(job),
        }
    }
}

/// Index of the panel of `position`. Panels are counted through the whole sequence; tiles begin at multiples of
/// PANELS.
#[inline(always)]
pub(crate) fn panel_of(layout: &KvLayout, position: usize) -> usize {
    position / layout.block_size * layout.panels() + position % layout.block_size / LANES
}

#[inline(always)]
unsafe fn rows<S: Simd, E: KvElement>(job: &Attention<'_>) {
    let (mut row, end) = (job.queries.start * job.group, job.queries.end * job.group);
    while row < end {
        // SAFETY: rows row .. row + R lie inside the queries.
        unsafe {
            row += if S::TILES {
                match end - row {
                    1 => tile::<S, E, 1>(job, row),
                    2 => tile::<S, E, 2>(job, row),
                    3 => tile::<S, E, 3>(job, row),
                    _ => tile::<S, E, ROWS>(job, row),
                }
            } else {
                tile::<S, E, 1>(job, row)
            };
        }
    }
}

/// R rows from `first_row` on; gives R.
#[inline(always)]
unsafe fn tile<S: Simd, E: KvElement, const R: usize>(job: &Attention<'_>, first_row: usize) -> usize {
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

/// Vectors that R rows are multiplied with at once (panels of keys, or pieces of values): as many as leave all sums in
/// registers.
#[inline(always)]
pub(crate) const fn vectors<S: Simd, const R: usize>() -> usize {
    match R {
        _ if !S::TILES => 1,
        _ if S::LARGE_TILES => 4,
        1 => 4,
        2 => 2,
        _ => 1,
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
        let mut keys = [std::ptr::null::<u8>(); P];
        for p in 0..P {
            let panel = &panels[at + p];
            keys[p] = panel.block.add(job.layout.k_panel(job.kv_head, panel.index));
        }
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

/// Scales and caps the sums of P panels from `at` on, and stores them as base-2 logarithms.
///
/// # Safety
/// The CPU has `S`'s instruction set; at + P ≤ PANELS.
#[inline(always)]
pub(crate) unsafe fn finish_scores<S: Simd, const R: usize, const P: usize>(
    job: &Attention<'_>,
    sums: &[[S::F; P]; R],
    at: usize,
    scores: &mut [[f32; KEYS]; R],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let scale = S::splat(if job.softcap.is_some() {
            job.scale
        } else {
            job.scale * LOG2_E
        });
        unroll!(r in 0..R => {
            for p in 0..P {
                S::store(scores[r].as_mut_ptr().add((at + p) * LANES), S::mul(sums[r][p], scale));
            }
        });
        if let Some(cap) = job.softcap {
            for scores in scores.iter_mut() {
                for p in at..at + P {
                    let score = scores.as_mut_ptr().add(p * LANES);
                    let capped = softcap_vector::<S>(S::load(score), cap);
                    S::store(score, S::mul(capped, S::splat(LOG2_E)));
                }
            }
        }
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
