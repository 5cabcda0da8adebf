//! y = x · Wᵀ over packed weights: sizes, the job that one call does, and the store that ends every product. The
//! products themselves are in `linear_f32`, `linear_bf16`, `linear_tiles`, `linear_int8` and `linear_int8_tiles`.
//!
//! Order of summation: each output element is one chain of fused multiply-adds over K, in K's order, restarted every
//! 1024 elements in the exact mode and every 32 in the int8 mode. It depends neither on the number of tokens nor on
//! the panels of a call, so a token's result is bitwise the same in every batch, within one mode and instruction set.

use std::ops::Range;

use crate::act::{ActMode, act_token_bytes, is_one_tile, num_tiles, tile};
use crate::format::WeightFormat;
use crate::pack::panel_bytes;
use crate::simd::{LANES, Simd, unroll};

/// Elements of K whose sum the exact mode forms before adding it to the output.
pub(crate) const CHUNK: usize = 1024;

/// Bytes of weights that are multiplied with a tile of activations before the next tile.
const GROUP_BYTES: usize = 512 << 10;

/// f32 elements of scratch that a call of `Kernels::linear` needs (the exact mode decodes weights into it).
pub const LINEAR_SCRATCH: usize = 2 * CHUNK * LANES;

/// Whether a product of this format exists in this mode.
pub const fn linear_supports(format: WeightFormat, mode: ActMode) -> bool {
    match mode {
        ActMode::F32 => true,
        ActMode::Bf16 | ActMode::Tiles => matches!(format, WeightFormat::Bf16),
        ActMode::Int8 | ActMode::Int8Tiles => !matches!(
            format,
            WeightFormat::F32
                | WeightFormat::F16
                | WeightFormat::Bf16
                | WeightFormat::F8E4M3
                | WeightFormat::F8G32
                | WeightFormat::F8G128
        ),
    }
}

/// A product of one instruction set.
pub(crate) type LinearFn = unsafe fn(&mut Linear<'_>);

/// One call: some panels of a weight \[n, k\] times all tokens.
#[derive(Debug)]
pub struct Linear<'a> {
    /// Format that the weight was packed from.
    pub format: WeightFormat,
    /// Mode that the activations were prepared for; see [`linear_supports`].
    pub mode: ActMode,
    /// Rows of the weight, columns of the output.
    pub n: usize,
    /// Columns of the weight.
    pub k: usize,
    /// Rows of x and of the output.
    pub tokens: usize,
    /// The whole packed weight (`pack`), `packed_bytes(format, n, k)`.
    pub weight: &'a [u8],
    /// The whole prepared x (`Kernels::prepare_act`), `act_bytes(mode, tokens, k)`.
    pub act: &'a [u8],
    /// Panels of 16 output columns that this call computes.
    pub panels: Range<usize>,
    /// Output \[tokens, n\] f32; only the columns of `panels` are touched.
    pub out: *mut f32,
    /// Elements between two output rows, at least `n`.
    pub out_stride: usize,
    /// Added to each row, \[n\].
    pub bias: Option<&'a [f32]>,
    /// out = out + (x · Wᵀ + bias) instead of overwriting.
    pub accumulate: bool,
    /// At least [`LINEAR_SCRATCH`] elements, used by this call alone.
    pub scratch: &'a mut [f32],
}

impl Linear<'_> {
    /// First byte of a panel.
    #[inline(always)]
    pub(crate) fn panel(&self, panel: usize) -> *const u8 {
        // SAFETY of users: `Kernels::linear` checked that `weight` holds every panel of the call.
        self.weight
            .as_ptr()
            .wrapping_add(panel * panel_bytes(self.format, self.k))
    }

    /// The panels in groups that all tokens are multiplied with before the next group. Groups of two, if the
    /// activations and two panels fit into the second-level cache together: the panels then come from the first level.
    /// Else so many that half of a second-level cache of 1 MiB stays free, and the activations are read from further
    /// away only once a group. Even numbers, for products that take pairs.
    #[inline(always)]
    pub(crate) fn groups(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let size = if self.act.len() <= GROUP_BYTES {
            2
        } else {
            (GROUP_BYTES / panel_bytes(self.format, self.k).max(1)).max(2) & !1
        };
        let (start, end) = (self.panels.start, self.panels.end);
        (start..end)
            .step_by(size)
            .map(move |first| first..(first + size).min(end))
    }

    /// Tiles of tokens.
    #[inline(always)]
    pub(crate) fn num_tiles(&self) -> usize {
        if is_one_tile(self.mode, self.tokens) {
            1
        } else {
            num_tiles(self.tokens)
        }
    }

    /// (first token, width, prepared activations) of a tile.
    #[inline(always)]
    pub(crate) fn tile(&self, i: usize) -> (usize, usize, *const u8) {
        if is_one_tile(self.mode, self.tokens) {
            return (0, self.tokens, self.act.as_ptr());
        }
        let (t0, width) = tile(self.tokens, i);
        (
            t0,
            width,
            self.act.as_ptr().wrapping_add(t0 * act_token_bytes(self.mode, self.k)),
        )
    }

    /// Ends the sums of T tokens from `token` on and P panels from `panel` on: bias, accumulation, and the rows past
    /// `n` cut off. `first` says that no earlier part of K was stored.
    ///
    /// # Safety
    /// The CPU has `S`'s instruction set; tokens and panels belong to the job.
    #[inline(always)]
    pub(crate) unsafe fn finish<S: Simd, const P: usize, const T: usize>(
        &self,
        token: usize,
        panel: usize,
        sums: &[[S::F; T]; P],
        first: bool,
    ) {
        let plain = !(self.bias.is_some() && first) && (panel + P) * LANES <= self.n;
        if plain {
            // SAFETY: P whole panels of T rows of the output; the rest is the caller's promise.
            unsafe {
                let out = self.out.add(token * self.out_stride + panel * LANES);
                let add = self.accumulate || !first;
                unroll!(t in 0..T => {
                    let row = out.add(t * self.out_stride);
                    for p in 0..P {
                        let to = row.add(p * LANES);
                        S::store(to, if add { S::add(S::load(to), sums[p][t]) } else { sums[p][t] });
                    }
                });
            }
            return;
        }
        let mut buffer = [[[0f32; LANES]; T]; P];
        // SAFETY: `buffer` holds 16 floats a sum; the rest is the caller's promise.
        unsafe {
            for p in 0..P {
                unroll!(t in 0..T => { S::store(buffer[p][t].as_mut_ptr(), sums[p][t]); });
            }
            for (p, sums) in buffer.iter().enumerate() {
                for (t, sum) in sums.iter().enumerate() {
                    self.finish_one::<S>(token + t, panel + p, sum, first);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn finish_one<S: Simd>(&self, token: usize, panel: usize, sum: &[f32; LANES], first: bool) {
        let row = panel * LANES;
        // SAFETY: `out` holds `tokens` rows of n elements, `bias` n elements; row < n.
        unsafe {
            let out = self.out.add(token * self.out_stride + row);
            let whole = row + LANES <= self.n;
            let rows = if whole { LANES } else { self.n - row };
            let mut sum = S::load(sum.as_ptr());
            if let (Some(bias), true) = (self.bias, first) {
                let p = bias.as_ptr().add(row);
                sum = S::add(sum, if whole { S::load(p) } else { S::load_n(p, rows, 0.0) });
            }
            if self.accumulate || !first {
                sum = S::add(if whole { S::load(out) } else { S::load_n(out, rows, 0.0) }, sum);
            }
            if whole {
                S::store(out, sum);
            } else {
                S::store_n(out, sum, rows);
            }
        }
    }
}
