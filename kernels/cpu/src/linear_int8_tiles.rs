//! The quantised product on matrix units (AMX): 16 tokens × 32 elements of K times 32 elements × a panel of 16 columns,
//! one instruction, integer sums. The sums are exact, and what follows them is that of `linear_int8`: a result has the
//! same bits as there, so a product may take either by its number of tokens.
//!
//! A panel's quants are decoded once for a group of tokens, with their zero point taken off, which lets sums start from
//! nothing. Other instruction sets have the same loop around a plain product; it is there to be compared with.

use std::mem::MaybeUninit;

use crate::act::{INT8_WORDS, TILE_ROWS};
use crate::linear::{LINEAR_SCRATCH, Linear};
use crate::linear_int8::add_block;
use crate::pack::{BLOCK, padded_k};
use crate::panel::{QuantFormat, Scales};
use crate::simd::{LANES, Simd, unroll};

/// Integer sums of 16 tokens × a panel.
type Sums = [[i32; LANES]; TILE_ROWS];

/// Sums of two units: of two blocks, or of the halves of one.
#[repr(C, align(64))]
struct Pair([Sums; 2]);

/// A block of a panel as products read it: quants in quads, \[32 / 4\]\[16\] of four bytes, then scales.
#[repr(C, align(64))]
struct Decoded<S: Simd> {
    quants: [u8; BLOCK * LANES],
    scales: Scales<S>,
}

/// Blocks of K whose decoded weights stay in a first-level cache of 48 KiB while a group of tokens is multiplied.
const DEEP: usize = 48;
/// Tiles of tokens whose f32 sums the scratch holds, beside the weights.
const TILES: usize = 32;
/// Bytes of activations that stay in a second-level cache of 2 MiB while all panels are multiplied.
const GROUP_BYTES: usize = 5 << 18;
/// Bytes of a tile's block of activations.
const BLOCK_BYTES: usize = INT8_WORDS * TILE_ROWS * 4;
/// f32 sums of a tile, in elements.
const TILE_SUMS: usize = TILE_ROWS * LANES;

// Two vectors for each half are the most that scales take.
const _: () = assert!(DEEP * (BLOCK * LANES + 4 * 64) + TILES * TILE_SUMS * 4 + 64 <= LINEAR_SCRATCH * 4);

/// What multiplies tiles of bytes.
pub(crate) trait Tiles {
    /// Makes ready for units of `rows` quads.
    unsafe fn take(rows: usize);
    /// Ends that.
    unsafe fn release();
    /// sums\[i\] = x\[i\] · w\[i\] of units of `rows` quads: tokens' bytes are 32 apart.
    unsafe fn two(rows: usize, x: [*const u8; 2], w: [*const u8; 2], sums: *mut [Sums; 2]);
}

/// Plain loops.
pub(crate) struct Plain;

impl Tiles for Plain {
    #[inline(always)]
    unsafe fn take(_: usize) {}
    #[inline(always)]
    unsafe fn release() {}
    // Once for all formats.
    #[inline(never)]
    unsafe fn two(rows: usize, x: [*const u8; 2], w: [*const u8; 2], sums: *mut [Sums; 2]) {
        for unit in 0..2 {
            for t in 0..TILE_ROWS {
                for lane in 0..LANES {
                    let mut sum = 0;
                    for i in 0..4 * rows {
                        // SAFETY: the caller's promise: `rows` quads of each lane and token.
                        unsafe {
                            let x = *x[unit].add(BLOCK * t + i).cast::<i8>();
                            let w = *w[unit].add((i / 4 * LANES + lane) * 4 + i % 4).cast::<i8>();
                            sum += i32::from(x) * i32::from(w);
                        }
                    }
                    // SAFETY: `sums` has both units.
                    unsafe { (*sums)[unit][t][lane] = sum };
                }
            }
        }
    }
}

/// The tile registers.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Amx;

#[cfg(target_arch = "x86_64")]
impl Tiles for Amx {
    #[inline(always)]
    unsafe fn take(rows: usize) {
        // SAFETY: the caller's promise.
        unsafe { crate::amx::take_int8(rows == 4) };
    }
    #[inline(always)]
    unsafe fn release() {
        // SAFETY: the caller's promise.
        unsafe { crate::amx::release() };
    }
    #[inline(always)]
    unsafe fn two(_: usize, x: [*const u8; 2], w: [*const u8; 2], sums: *mut [Sums; 2]) {
        // SAFETY: the caller's promise.
        unsafe { crate::amx::int8(x, w, sums.cast()) };
    }
}

/// Runs the job.
///
/// # Safety
/// The CPU has `S`'s and `T`'s instructions; the job passed `Kernels::linear`'s checks.
#[inline(always)]
pub(crate) unsafe fn run<S: Simd, W: QuantFormat, T: Tiles>(job: &mut Linear<'_>) {
    let blocks = padded_k(job.k) / BLOCK;
    let num_tiles = job.tokens.div_ceil(TILE_ROWS);
    let tiles = (GROUP_BYTES / (blocks * BLOCK_BYTES).max(1)).clamp(1, TILES);
    let scratch = job.scratch.as_mut_ptr();
    let weights = scratch.wrapping_add(TILES * TILE_SUMS).cast::<u8>();
    let weights = weights.wrapping_add(weights.align_offset(64)).cast::<Decoded<S>>();
    // SAFETY: the caller's promise; panels and tiles belong to the job, sums and weights lie apart in the scratch.
    unsafe {
        T::take(rows::<W>());
        for first in (0..num_tiles).step_by(tiles) {
            let group = first..num_tiles.min(first + tiles);
            for panel in job.panels.clone() {
                for from in (0..blocks).step_by(DEEP) {
                    let deep = (blocks - from).min(DEEP);
                    for b in 0..deep {
                        decode::<S, W>(job.panel(panel), from + b, weights.add(b));
                    }
                    for tile in group.clone() {
                        let sums = scratch.add((tile - first) * TILE_SUMS);
                        let x = job.act.as_ptr().add((tile * blocks + from) * BLOCK_BYTES);
                        let is_last = from + deep == blocks;
                        product::<S, W, T>(job, [tile, panel], x, weights, deep, sums, [from == 0, is_last]);
                    }
                }
            }
        }
        T::release();
    }
}

/// Runs the body for each token of a tile: written out, or, where code is to stay small, as a loop.
macro_rules! each_token {
    ($t:ident => $body:block) => {
        if S::TILES {
            unroll!($t in 0..TILE_ROWS => $body);
        } else {
            for $t in 0..TILE_ROWS $body
        }
    };
}

/// Quads of a unit.
const fn rows<W: QuantFormat>() -> usize {
    if W::SPLIT { 4 } else { 8 }
}

/// Quants without their zero point, and scales, of block `b`.
#[inline(always)]
unsafe fn decode<S: Simd, W: QuantFormat>(panel: *const u8, b: usize, to: *mut Decoded<S>) {
    // SAFETY: the panel has a block b, `to` room for it.
    unsafe {
        let quants = &raw mut (*to).quants;
        let quads = quants.cast::<S::I>();
        unroll!(v in 0..4 => {
            let [low, high] = W::quads::<S>(panel, b, v);
            quads.add(2 * v).write_unaligned(low);
            quads.add(2 * v + 1).write_unaligned(high);
        });
        if let Some(log2) = W::QUANTS.zero_log2 {
            for quant in &mut *quants {
                *quant = quant.wrapping_sub(1 << log2);
            }
        }
        (&raw mut (*to).scales).write(crate::linear_int8::scales::<S, W>(panel, b));
    }
}

/// `deep` blocks of one tile of tokens × a panel, added to `sums`, or, `is_last`, put into the output.
#[inline(always)]
unsafe fn product<S: Simd, W: QuantFormat, T: Tiles>(
    job: &Linear<'_>,
    [tile, panel]: [usize; 2],
    x: *const u8,
    weights: *const Decoded<S>,
    deep: usize,
    sums: *mut f32,
    [is_first, is_last]: [bool; 2],
) {
    let steps = if W::SPLIT { deep } else { deep.div_ceil(2) };
    let mut ring = MaybeUninit::<[Pair; 2]>::uninit();
    let ring = ring.as_mut_ptr().cast::<Pair>();
    // SAFETY: blocks of activations and of weights below `deep`; sums of a tile.
    unsafe {
        let mut total = [[S::splat(0.0); TILE_ROWS]; 1];
        if !is_first {
            each_token!(t => { total[0][t] = S::load(sums.add(t * LANES)); });
        }
        // The products of a step are under way while the sums of the one before are scaled.
        step::<S, W, T>(0, deep, x, weights, ring);
        for i in 0..steps {
            if i + 1 < steps {
                step::<S, W, T>(i + 1, deep, x, weights, ring.add((i + 1) % 2));
            }
            let pair = &(*ring.add(i % 2)).0;
            let (first, count) = if W::SPLIT {
                (i, 1)
            } else {
                (2 * i, (deep - 2 * i).min(2))
            };
            for j in 0..count {
                let scales = (*weights.add(first + j)).scales;
                let words = x.add((first + j) * BLOCK_BYTES + BLOCK * TILE_ROWS).cast::<i32>();
                each_token!(t => {
                    let low = S::load_i(pair[j][t].as_ptr().cast());
                    let high = if W::SPLIT { S::load_i(pair[1][t].as_ptr().cast()) } else { low };
                    total[0][t] = add_block::<S, W>([low, high], &scales, words.add(t), TILE_ROWS, total[0][t]);
                });
            }
        }
        let token = tile * TILE_ROWS;
        if S::TILES && is_last && token + TILE_ROWS <= job.tokens {
            job.finish::<S, 1, TILE_ROWS>(token, panel, &total, true);
            return;
        }
        each_token!(t => { S::store(sums.add(t * LANES), total[0][t]); });
        if is_last {
            for t in 0..TILE_ROWS.min(job.tokens - token) {
                job.finish::<S, 1, 1>(token + t, panel, &[[S::load(sums.add(t * LANES))]], true);
            }
        }
    }
}

/// Products of two blocks, or of the halves of one. Past an odd last block, that block again: nobody reads it.
#[inline(always)]
unsafe fn step<S: Simd, W: QuantFormat, T: Tiles>(
    i: usize,
    deep: usize,
    x: *const u8,
    weights: *const Decoded<S>,
    sums: *mut Pair,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let quants = |b: usize| (&raw const (*weights.add(b)).quants).cast::<u8>();
        let (x, w) = if W::SPLIT {
            let (x, w) = (x.add(i * BLOCK_BYTES), quants(i));
            ([x, x.add(BLOCK / 2)], [w, w.add(BLOCK / 2 * LANES)])
        } else {
            let pair = [2 * i, (2 * i + 1).min(deep - 1)];
            (pair.map(|b| x.add(b * BLOCK_BYTES)), pair.map(quants))
        };
        T::two(rows::<W>(), x, w, (&raw mut (*sums).0).cast());
    }
}
