//! The bf16 product on matrix units (AMX): 16 tokens × 32 elements of K times 32 elements × a panel of 16 columns, one
//! instruction, f32 sums. A panel's block of `Bf16` is a tile as it lies, and so are 16 tokens' blocks in
//! `ActMode::Tiles`; there is nothing to decode.
//!
//! An output element's sum depends on neither the other tokens nor the other panels: for each block of 32 elements the
//! even and the odd products are summed apart, and both sums are added (Intel SDM, TDPBF16PS). Other instruction sets
//! have the same products in plain loops, in another order; they are there to be compared with.

#[cfg(target_arch = "x86_64")]
use std::mem::MaybeUninit;
#[cfg(target_arch = "x86_64")]
use std::ops::Range;

use crate::act::TILE_ROWS;
#[cfg(target_arch = "x86_64")]
use crate::amx;
#[cfg(target_arch = "x86_64")]
use crate::linear::LINEAR_SCRATCH;
use crate::linear::Linear;
use crate::pack::{BLOCK, padded_k};
use crate::simd::{LANES, Simd};

/// Bytes of a tile of weights or of activations.
const TILE_BYTES: usize = 1024;

/// Sums of a tile of tokens and two panels.
type Sums = [[f32; 2 * LANES]; TILE_ROWS];

/// Runs the job by dot products.
///
/// # Safety
/// The CPU has `S`'s instruction set; the job passed `Kernels::linear`'s checks.
#[inline(always)]
pub(crate) unsafe fn run<S: Simd>(job: &mut Linear<'_>) {
    for panel in job.panels.clone() {
        for token in 0..job.tokens {
            // SAFETY: a panel holds 16 vectors a block, a token's row of a tile 16 pairs.
            unsafe {
                let (mut w, mut x) = (job.panel(panel), row_of(job, token));
                let mut sums = [[S::splat(0.0); 1]];
                for _ in 0..padded_k(job.k) / BLOCK {
                    for pair in 0..BLOCK / 2 {
                        let weights = S::load_i(w.add(64 * pair));
                        sums[0][0] = S::dot_bf16(sums[0][0], weights, S::splat_i(*x.cast::<i32>().add(pair)));
                    }
                    (w, x) = (w.add(TILE_BYTES), x.add(TILE_BYTES));
                }
                job.finish::<S, 1, 1>(token, panel, &sums, true);
            }
        }
    }
}

/// Where a token's first block lies.
#[inline(always)]
fn row_of(job: &Linear<'_>, token: usize) -> *const u8 {
    let (tile, row) = (token / TILE_ROWS, token % TILE_ROWS);
    let tile_bytes = padded_k(job.k) / BLOCK * TILE_BYTES;
    job.act.as_ptr().wrapping_add(tile * tile_bytes + row * BLOCK * 2)
}

/// Ends the sums of a tile: `panels` panels from `panel` on, the tokens that there are.
///
/// # Safety
/// The CPU has `S`'s instruction set; panels and tokens belong to the job.
#[inline(always)]
unsafe fn finish<S: Simd>(job: &Linear<'_>, tile: usize, panel: usize, panels: usize, sums: &Sums) {
    let first = tile * TILE_ROWS;
    for t in 0..TILE_ROWS.min(job.tokens - first) {
        // SAFETY: rows of 16 sums; the rest is the caller's promise.
        unsafe {
            let low = [S::load(sums[t].as_ptr())];
            if panels == 2 {
                let high = [S::load(sums[t].as_ptr().add(LANES))];
                job.finish::<S, 2, 1>(first + t, panel, &[low, high], true);
            } else {
                job.finish::<S, 1, 1>(first + t, panel, &[low], true);
            }
        }
    }
}

/// Blocks of K whose weights, of two panels, stay in a first-level cache of 48 KiB while all tokens are multiplied:
/// activations do not go through it.
#[cfg(target_arch = "x86_64")]
const DEEP: usize = 18;
/// Bytes of activations that stay in a second-level cache of 2 MiB while all panels are multiplied.
#[cfg(target_arch = "x86_64")]
const GROUP_BYTES: usize = 1 << 20;
/// Pairs of tiles whose sums the scratch holds.
#[cfg(target_arch = "x86_64")]
const PAIRS: usize = LINEAR_SCRATCH / (4 * LANES * TILE_ROWS);

/// Runs the job on the tile registers.
///
/// Up to 16 tokens, weights stream by once. More tokens go in groups, and in each of them pairs of panels: as many
/// blocks of K as the first cache holds, for all of the group's tokens, then the next blocks.
///
/// # Safety
/// The CPU has `S`'s instruction set and the tiles, which the system lets this process use; the job passed
/// `Kernels::linear`'s checks.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn run_amx<S: Simd>(job: &mut Linear<'_>) {
    let blocks = padded_k(job.k) / BLOCK;
    let num_tiles = job.tokens.div_ceil(TILE_ROWS);
    let pairs = (GROUP_BYTES / (2 * blocks * TILE_BYTES).max(1)).clamp(1, PAIRS);
    // SAFETY: the caller's promise; panels and tiles belong to the job.
    unsafe {
        amx::take();
        for first in (0..num_tiles).step_by(2 * pairs) {
            let tiles = first..num_tiles.min(first + 2 * pairs);
            let mut panel = job.panels.start;
            while panel < job.panels.end {
                let panels = (job.panels.end - panel).min(2);
                match tiles.len() {
                    1 => one_tile::<S>(job, tiles.start, panel, panels),
                    _ => pairs_of_tiles::<S>(job, tiles.clone(), panel, panels),
                }
                panel += panels;
            }
        }
        amx::release();
    }
}

/// The panels, of which the second may be missing: then the first stands for it.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn pair_of_panels(job: &Linear<'_>, panel: usize, panels: usize) -> [*const u8; 2] {
    [job.panel(panel), job.panel(panel + panels - 1)]
}

/// One tile of tokens × one or two panels.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn one_tile<S: Simd>(job: &Linear<'_>, tile: usize, panel: usize, panels: usize) {
    let blocks = padded_k(job.k) / BLOCK;
    let (x, w) = (row_of(job, tile * TILE_ROWS), pair_of_panels(job, panel, panels));
    let mut sums = MaybeUninit::<Sums>::uninit();
    // SAFETY: whole tiles of activations, of weights and of sums.
    unsafe {
        amx::two(x, w, blocks, sums.as_mut_ptr(), ahead(blocks));
        finish::<S>(job, tile, panel, panels, sums.assume_init_ref());
    }
}

/// Tiles of tokens, two at a time, × one or two panels.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn pairs_of_tiles<S: Simd>(job: &mut Linear<'_>, tiles: Range<usize>, panel: usize, panels: usize) {
    let blocks = padded_k(job.k) / BLOCK;
    let weights = pair_of_panels(job, panel, panels);
    let sums = job.scratch.as_mut_ptr().cast::<[Sums; 2]>();
    let mut from = 0;
    while from < blocks {
        let deep = (blocks - from).min(DEEP);
        let last = from + deep == blocks;
        let w = weights.map(|w| w.wrapping_add(from * TILE_BYTES));
        for (i, tile) in tiles.clone().step_by(2).enumerate() {
            // The weights that come next: the following blocks of both panels, or the next pair's first ones. Each pair
            // of tiles asks for a part.
            let part = i * deep * 256;
            let half = deep * TILE_BYTES;
            let next = match part < half {
                true => w[0].wrapping_add(half + part),
                false => w[1].wrapping_add(part),
            };
            let second = (tile + 1).min(tiles.end - 1);
            let x = [tile, second].map(|tile| row_of(job, tile * TILE_ROWS).wrapping_add(from * TILE_BYTES));
            // SAFETY: whole tiles of activations and of weights; the scratch holds the group's sums.
            unsafe {
                let sums = sums.add(i);
                amx::four(x, w, deep, sums.cast(), from > 0, next);
                if last {
                    finish::<S>(job, tile, panel, panels, &(*sums)[0]);
                    if second > tile {
                        finish::<S>(job, second, panel, panels, &(*sums)[1]);
                    }
                }
            }
        }
        from += deep;
    }
}

/// How many bytes ahead of its use a line of weights is asked for, where few tokens wait for memory: that of the next
/// pair of panels, or, in long panels, one that is as far as memory is away.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn ahead(blocks: usize) -> usize {
    const FAR: usize = 64 << 10;
    const AWAY: usize = 16 << 10;
    match 2 * blocks * TILE_BYTES {
        pair if pair <= FAR => pair,
        _ => AWAY,
    }
}
