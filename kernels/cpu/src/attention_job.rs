//! One call of paged attention, and what its tiles and their products share: rows' state, panels of keys, how many
//! vectors fit, how sums become scores. `attention` runs it; caches in bf16 and of codes have their products in
//! `attention_bf16` and `attention_coded`.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use crate::elementwise::softcap_vector;
use crate::kv_layout::KvLayout;
use crate::simd::{LANES, Simd, unroll};

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
    pub(crate) visible: [Range<usize>; R],
    /// Largest score so far. Scores are base-2 logarithms of weights.
    pub(crate) max: [f32; R],
    /// Σ 2^(score − max), in parts.
    pub(crate) sum: [[f32; LANES]; R],
    pub(crate) q: [*const f32; R],
    pub(crate) out: [*mut f32; R],
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

/// Where the keys of P panels from `at` on begin.
///
/// # Safety
/// The panels' blocks are in the cache; at + P ≤ PANELS.
#[inline(always)]
pub(crate) unsafe fn key_panels<const P: usize>(
    job: &Attention<'_>,
    panels: &[Panel; PANELS],
    at: usize,
) -> [*const u8; P] {
    let mut keys = [std::ptr::null(); P];
    for p in 0..P {
        let panel = &panels[at + p];
        // SAFETY: a block holds the keys of all its panels.
        keys[p] = unsafe { panel.block.add(job.layout.k_panel(job.kv_head, panel.index)) };
    }
    keys
}

/// The next 16 of `left` elements, or all that are left and zeros.
///
/// # Safety
/// The CPU has `S`'s instruction set; so many elements are readable.
#[inline(always)]
pub(crate) unsafe fn load_left<S: Simd>(from: *const f32, left: usize) -> S::F {
    // SAFETY: the caller's promise.
    unsafe {
        match left >= LANES {
            true => S::load(from),
            false => S::load_n(from, left, 0.0),
        }
    }
}

/// Writes what `load_left` read.
///
/// # Safety
/// The CPU has `S`'s instruction set; so many elements are writable.
#[inline(always)]
pub(crate) unsafe fn store_left<S: Simd>(to: *mut f32, v: S::F, left: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match left >= LANES {
            true => S::store(to, v),
            false => S::store_n(to, v, left),
        }
    }
}
