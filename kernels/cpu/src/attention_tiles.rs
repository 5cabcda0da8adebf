//! Attention over a cache in bf16 on matrix units: 16 rows (query × head of the group) against 64 keys, both products
//! by tiles (`amx`). Blocks of the cache lie as tiles do: 32 dimensions of a panel of keys are one, and so are 32
//! tokens × 16 dimensions of values. Softmax, masks and the places where tiles begin are `attention`'s, so that a row's
//! result depends on its own query and keys alone here, too.

use std::ops::Range;

use crate::amx;
use crate::attention::{mask, panel_of, softmax_row, tile_of_panels};
use crate::attention_job::{Attention, KEYS, PANELS, Panel};
use crate::elementwise::softcap_vector;
use crate::kv_layout::{KvDtype, KvLayout};
use crate::simd::{LANES, Simd};

/// Rows of a tile.
const ROWS: usize = 16;
/// Dimensions of a tile of keys, and of all four tiles of values.
const DIMS: usize = 32;
const VALUE_DIMS: usize = 64;
/// Largest head dimension: a row's sums and queries stand on the stack.
const MAX_DIM: usize = 256;

/// Whether caches of this layout have whole tiles.
pub(crate) fn has_tiles(layout: &KvLayout) -> bool {
    layout.dtype == KvDtype::Bf16
        && layout.head_dim.is_multiple_of(VALUE_DIMS)
        && layout.head_dim <= MAX_DIM
        && layout.block_size.is_multiple_of(2 * LANES)
}

/// What a tile's rows hold.
#[repr(C, align(64))]
struct State {
    /// Queries in bf16: \[head_dim / 32\]\[row\]\[32\].
    q: [u16; ROWS * MAX_DIM],
    /// Σ weight · value: \[row\]\[head_dim\].
    out: [f32; ROWS * MAX_DIM],
    scores: [[f32; KEYS]; ROWS],
    /// In bf16, two an element.
    weights: [[u32; KEYS / 2]; ROWS],
    /// Values of a tile with tokens that nobody may read: \[pair\]\[head_dim\]\[2\] of 32 tokens, twice.
    values: [[u32; LANES * MAX_DIM]; 2],
    max: [f32; ROWS],
    sum: [[f32; LANES]; ROWS],
    visible: [Range<usize>; ROWS],
}

/// Runs the call.
///
/// # Safety
/// The CPU has `S`'s instruction set and the tiles; the layout has tiles; the promises of `Kernels::attention`.
#[inline(always)]
pub(crate) unsafe fn run<S: Simd>(job: &Attention<'_>) {
    // SAFETY: the caller's promise; rows lie inside the queries.
    unsafe {
        amx::take();
        let (mut row, end) = (job.queries.start * job.group, job.queries.end * job.group);
        let mut state = State {
            q: [0; ROWS * MAX_DIM],
            out: [0.0; ROWS * MAX_DIM],
            scores: [[0.0; KEYS]; ROWS],
            weights: [[0; KEYS / 2]; ROWS],
            values: [[0; LANES * MAX_DIM]; 2],
            max: [0.0; ROWS],
            sum: [[0.0; LANES]; ROWS],
            visible: [const { 0..0 }; ROWS],
        };
        while row < end {
            let rows = ROWS.min(end - row);
            tile::<S>(job, &mut state, row, rows);
            row += rows;
        }
        amx::release();
    }
}

/// `rows` rows from `first` on.
#[inline(always)]
unsafe fn tile<S: Simd>(job: &Attention<'_>, state: &mut State, first: usize, rows: usize) {
    let dim = job.layout.head_dim;
    // SAFETY: the caller's promise; rows of the tile behind the last are zeros or what an earlier tile left, and nobody
    // reads what becomes of them.
    unsafe {
        let (mut lo, mut hi) = (usize::MAX, 0);
        for r in 0..rows {
            start::<S>(job, state, first, r);
            let visible = &state.visible[r];
            if !visible.is_empty() {
                (lo, hi) = (lo.min(visible.start), hi.max(visible.end));
            }
        }
        if lo < hi {
            let last = panel_of(&job.layout, hi - 1);
            let mut panel = panel_of(&job.layout, lo) / PANELS * PANELS;
            while panel <= last {
                let (panels, count) = tile_of_panels(job, panel, last, &(lo..hi));
                keys::<S>(job, state, rows, &panels, count);
                panel += PANELS;
            }
        }
        for r in 0..rows {
            let sum = S::sum(S::load(state.sum[r].as_ptr()));
            // A row that sees no key gives zeros.
            let scale = S::splat(if sum > 0.0 || sum.is_nan() { 1.0 / sum } else { 0.0 });
            let (query, head) = ((first + r) / job.group, (first + r) % job.group);
            let out = job.out.add(query * job.out_stride + head * job.out_head_stride);
            for d in (0..dim).step_by(LANES) {
                S::store(out.add(d), S::mul(S::load(state.out.as_ptr().add(r * dim + d)), scale));
            }
        }
    }
}

/// Begins row `r`: its query in bf16, what it sees, and no sums.
#[inline(always)]
unsafe fn start<S: Simd>(job: &Attention<'_>, state: &mut State, first: usize, r: usize) {
    let (query, head) = ((first + r) / job.group, (first + r) % job.group);
    let dim = job.layout.head_dim;
    state.visible[r] = job.visible(job.first_position + query);
    (state.max[r], state.sum[r]) = (f32::NEG_INFINITY, [0.0; LANES]);
    if let Some(sinks) = job.sinks {
        // A sink is a key seen before all others, with this score and no value.
        (state.max[r], state.sum[r][0]) = (sinks[head] * std::f32::consts::LOG2_E, 1.0);
    }
    state.out[r * dim..(r + 1) * dim].fill(0.0);
    // SAFETY: query and head lie inside q; head_dim is a multiple of 32.
    unsafe {
        let from = job.q.add(query * job.q_stride + head * job.q_head_stride);
        for d in (0..dim).step_by(LANES) {
            let to = (d / DIMS * ROWS + r) * DIMS + d % DIMS;
            S::store_bf16(state.q.as_mut_ptr().add(to), S::load(from.add(d)));
        }
    }
}

/// One tile of keys: scores, softmax update, values.
#[inline(always)]
unsafe fn keys<S: Simd>(job: &Attention<'_>, state: &mut State, rows: usize, panels: &[Panel; PANELS], count: usize) {
    let dim = job.layout.head_dim;
    let of_panel = |i: usize| &panels[i.min(count - 1)];
    // SAFETY: a panel of keys holds head_dim / 32 tiles; the rest is the caller's promise.
    unsafe {
        let at = |i: usize| {
            of_panel(i)
                .block
                .add(job.layout.k_panel(job.kv_head, of_panel(i).index))
        };
        let keys = [at(0), at(1), at(2), at(3)];
        amx::scores(
            state.q.as_ptr().cast(),
            keys,
            dim / DIMS,
            state.scores.as_mut_ptr().cast(),
        );
        let seen = &panels[..count];
        let whole = count == PANELS && seen.iter().all(|panel| panel.len == LANES);
        for r in 0..rows {
            scale::<S>(job, &mut state.scores[r]);
            let visible = &state.visible[r];
            if !whole || visible.start > panels[0].start || visible.end < panels[PANELS - 1].start + LANES {
                mask(visible, seen, &mut state.scores[r]);
            }
            let running = (&mut state.max[r], &mut state.sum[r]);
            let factor = softmax_row::<S>(running, &mut state.scores[r], Some(&mut state.weights[r]));
            if factor != 1.0 {
                let factor = S::splat(factor);
                for d in (0..dim).step_by(LANES) {
                    let out = state.out.as_mut_ptr().add(r * dim + d);
                    S::store(out, S::mul(S::load(out), factor));
                }
            }
        }
        let values = [values_of(job, state, seen, 0), values_of(job, state, seen, 1)];
        for d in (0..dim).step_by(VALUE_DIMS) {
            let out = state.out.as_mut_ptr().add(d);
            let values = values.map(|values| values.add(4 * d));
            amx::values(state.weights.as_ptr().cast(), values, 4 * dim, out);
        }
    }
}

/// The pairs of values of 32 tokens, panels 2·`half` and the next: where they lie, or without the tokens that nobody
/// may read. Where there are none, what stands for them has the weight 0.
#[inline(always)]
unsafe fn values_of(job: &Attention<'_>, state: &mut State, panels: &[Panel], half: usize) -> *const u8 {
    let dim = job.layout.head_dim;
    let of_half = &panels[(2 * half).min(panels.len())..(2 * half + 2).min(panels.len())];
    // SAFETY: tokens below `len` are in the cache; a block holds whole pairs of panels.
    unsafe {
        let pairs = |panel: &Panel| {
            let first = job.layout.v_pair(job.kv_head, panel.index * LANES / 2);
            panel.block.add(first)
        };
        if let [first, second] = of_half
            && first.from == 0
            && [first.len, second.len, LANES - second.from] == [LANES; 3]
        {
            return pairs(first);
        }
        let clean = &mut state.values[half];
        clean[..LANES * dim].fill(0);
        for (i, panel) in of_half.iter().enumerate() {
            let from = pairs(panel).cast::<u16>();
            let to = clean[i * LANES / 2 * dim..].as_mut_ptr().cast::<u16>();
            for token in panel.from..panel.len {
                let at = token / 2 * 2 * dim + token % 2;
                for d in 0..dim {
                    *to.add(at + 2 * d) = *from.add(at + 2 * d);
                }
            }
        }
        clean.as_ptr().cast()
    }
}

/// Scales and caps a row's scores, as base-2 logarithms.
#[inline(always)]
unsafe fn scale<S: Simd>(job: &Attention<'_>, scores: &mut [f32; KEYS]) {
    let log2_e = std::f32::consts::LOG2_E;
    // SAFETY: the caller has the instruction set; four vectors of scores.
    unsafe {
        for p in 0..PANELS {
            let to = scores.as_mut_ptr().add(p * LANES);
            let score = match job.softcap {
                None => S::mul(S::load(to), S::splat(job.scale * log2_e)),
                Some(cap) => {
                    let capped = softcap_vector::<S>(S::mul(S::load(to), S::splat(job.scale)), cap);
                    S::mul(capped, S::splat(log2_e))
                }
            };
            S::store(to, score);
        }
    }
}
