//! One vector shape for every instruction set: 16 lanes of f32 or i32. Kernels are written once over this trait and
//! compiled once per instruction set inside a `#[target_feature]` wrapper (see `table`). Owns the vocabulary; a
//! kernel never calls an intrinsic itself.
//!
//! Everything here and every kernel over it is `#[inline(always)]` and free of closures: code that is not inlined
//! into the wrapper would be compiled without the instruction set.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod portable;

use crate::act::INT8_QUADS;

/// Runs the body for t in 0..n (a constant, at most 24) written out n times. A loop that the compiler leaves rolled
/// would index its array of sums at run time and so keep it in memory instead of registers.
macro_rules! unroll {
    ($t:ident in 0..$n:expr => $body:block) => {
        crate::simd::unroll!(@ $t $n, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23)
    };
    (@ $t:ident $n:expr, $body:block, $($i:literal)*) => {$(
        if $i < $n {
            let $t: usize = $i;
            $body
        }
    )*};
}
pub(crate) use unroll;

/// Lanes of a vector, and rows of a weight panel.
pub const LANES: usize = 16;

/// The range of a weight format's unsigned quants.
#[derive(Clone, Copy)]
pub(crate) struct Quants {
    /// The largest.
    pub max: u32,
    /// log2 of the quant that means zero, or `None` where the format has an offset of its own.
    pub zero_log2: Option<u32>,
}

/// What an integer sum starts from: −zero · Σ quants of a token.
///
/// # Safety
/// The CPU has `S`'s instruction set.
#[inline(always)]
pub(crate) unsafe fn zero_point<S: Simd>(quants: Quants, negative_sum: i32) -> S::I {
    // SAFETY: the caller's promise.
    unsafe {
        let v = S::splat_i(negative_sum);
        match quants.zero_log2 {
            None => S::splat_i(0),
            Some(0) => v,
            Some(2) => S::shl::<2>(v),
            Some(3) => S::shl::<3>(v),
            Some(4) => S::shl::<4>(v),
            Some(5) => S::shl::<5>(v),
            Some(6) => S::shl::<6>(v),
            Some(_) => S::shl::<7>(v),
        }
    }
}

/// 16 lanes of f32 (`F`) and 16 lanes of i32, seen also as 64 bytes (`I`).
///
/// # Safety
/// Every method may be called only where the CPU has the implementor's instruction set; pointers must be valid for
/// the lanes read or written (16, or `n`), of any alignment.
pub(crate) trait Simd: Copy + 'static {
    /// 16 × f32.
    type F: Copy;
    /// 16 × i32 = 64 × u8.
    type I: Copy;
    /// Registers for tiles of up to 12 tokens × 2 panels; without it, 4 tokens × 1 panel.
    const LARGE_TILES: bool;
    /// Worth compiling tiles of more than one token at all; false keeps the portable code small.
    const TILES: bool;

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn store(p: *mut f32, v: Self::F);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// a · b + c, rounded once where the hardware can.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a > b ? a : b` in each lane: b where either is NaN.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? a : b` in each lane: b where either is NaN.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? x : y` in each lane: y where either is NaN.
    unsafe fn select_lt(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F;
    unsafe fn abs(a: Self::F) -> Self::F;
    /// |a| with the sign of `s`.
    unsafe fn copysign(a: Self::F, s: Self::F) -> Self::F;
    /// Rounds to the nearest integer, ties to even.
    unsafe fn round_i32(a: Self::F) -> Self::I;
    unsafe fn i32_to_f32(a: Self::I) -> Self::F;
    /// 2^a for −126 ≤ a ≤ 127.
    unsafe fn pow2(a: Self::I) -> Self::F;
    /// To the nearest whole number, for |a| < 2³¹.
    #[inline(always)]
    unsafe fn round(a: Self::F) -> Self::F {
        // SAFETY: the caller's promise.
        unsafe { Self::i32_to_f32(Self::round_i32(a)) }
    }
    /// a · 2^n for whole n in −151..=129, over- and underflow included.
    #[inline(always)]
    unsafe fn scale_wide(a: Self::F, n: Self::F) -> Self::F {
        // SAFETY: the caller's promise. The two halves are normal powers of two. Halving rounds down on both signs.
        unsafe {
            let half = Self::round_i32(Self::mul(n, Self::splat(0.5)));
            let rest = Self::round_i32(Self::sub(n, Self::i32_to_f32(half)));
            Self::mul(Self::mul(a, Self::pow2(half)), Self::pow2(rest))
        }
    }
    /// a · 2^n for whole n where x ≥ −126 or is NaN, 0 elsewhere. x is n but for less than 1.
    #[inline(always)]
    unsafe fn scale_pow2(a: Self::F, n: Self::F, x: Self::F) -> Self::F {
        // SAFETY: the caller's promise.
        unsafe {
            let scaled = Self::mul(a, Self::pow2(Self::round_i32(n)));
            Self::select_lt(x, Self::splat(-126.0), Self::splat(0.0), scaled)
        }
    }
    unsafe fn load_f16(p: *const u16) -> Self::F;
    unsafe fn load_bf16(p: *const u16) -> Self::F;
    /// Rounds to nearest even; NaN stays NaN.
    unsafe fn store_f16(p: *mut u16, v: Self::F);
    /// Rounds to nearest even; NaN stays NaN.
    unsafe fn store_bf16(p: *mut u16, v: Self::F);
    /// The same of numbers of which none is subnormal.
    #[inline(always)]
    unsafe fn store_normal_bf16(p: *mut u16, v: Self::F) {
        // SAFETY: the caller's promise.
        unsafe { Self::store_bf16(p, v) }
    }

    unsafe fn splat_i(x: i32) -> Self::I;
    /// Reads 64 bytes.
    unsafe fn load_i(p: *const u8) -> Self::I;
    /// Asks for the cache line at an address to come to the second cache; the address need not be readable; nothing
    /// where the instruction is missing.
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        let _ = p;
    }
    /// Reads 16 bytes, zero extended.
    unsafe fn load_u8x16(p: *const u8) -> Self::I;
    /// Reads 16 bytes, sign extended.
    unsafe fn load_i8x16(p: *const u8) -> Self::I;
    /// Writes each lane's low byte: 16 bytes.
    unsafe fn store_i8x16(p: *mut u8, v: Self::I);
    unsafe fn and_i(a: Self::I, b: Self::I) -> Self::I;
    /// Wraps.
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I;
    /// Sum of the lanes, wrapping.
    unsafe fn sum_i(v: Self::I) -> i32;
    unsafe fn or_i(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn shl<const N: u32>(a: Self::I) -> Self::I;
    /// Logical shift right.
    unsafe fn shr<const N: u32>(a: Self::I) -> Self::I;
    /// Reads 16 bytes into each quarter.
    unsafe fn load_table(p: *const u8) -> Self::I;
    /// The bytes of a table (`load_table`) at the places that each byte of `places` says, all below 16.
    unsafe fn look_up(table: Self::I, places: Self::I) -> Self::I;
    /// The four unsigned bytes of each lane as four f32 vectors, lowest byte first.
    unsafe fn bytes_f32(a: Self::I) -> [Self::F; 4];
    /// The nibbles of each lane's bytes: low nibbles of bytes 0..4, then high nibbles of bytes 0..4.
    unsafe fn nibbles_f32(a: Self::I) -> [Self::F; 8];
    /// acc + Σ over a lane's four bytes of (unsigned w · signed x), exact. `WIDE` says that w may exceed 127.
    unsafe fn dot4<const WIDE: bool>(acc: Self::I, w: Self::I, x: Self::I) -> Self::I;
    /// Σ (weight − zero) · quant of C tokens over G quads, exact. The tokens' quants lie `INT8_QUADS` words apart at
    /// `x` and are within ±127; `negative_sums` holds −Σ quant of each token over these quads.
    #[inline(always)]
    unsafe fn dots<const G: usize, const C: usize>(
        w: &[Self::I; G],
        quants: Quants,
        x: *const i32,
        negative_sums: *const i32,
    ) -> [Self::I; C] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [Self::splat_i(0); C];
            unroll!(t in 0..C => { sums[t] = zero_point::<Self>(quants, *negative_sums.add(t)); });
            // One sum is a chain of G dot products, each of which waits for the last: tokens go side by side.
            unroll!(g in 0..G => { unroll!(t in 0..C => {
                let x = Self::splat_i(*x.add(t * INT8_QUADS + g));
                sums[t] = match quants.max > 127 {
                    true => Self::dot4::<true>(sums[t], w[g], x),
                    false => Self::dot4::<false>(sums[t], w[g], x),
                };
            }); });
            sums
        }
    }
    /// Each lane as two bf16, low half first: both as f32.
    unsafe fn bf16_pair(a: Self::I) -> [Self::F; 2];
    /// acc + w.lo · x.lo + w.hi · x.hi for lanes of two bf16. Rounding inside is the hardware's.
    unsafe fn dot_bf16(acc: Self::F, w: Self::I, x: Self::I) -> Self::F;

    /// Lane j of vector i becomes lane i of vector j.
    #[inline(always)]
    unsafe fn transpose(rows: [Self::F; LANES]) -> [Self::F; LANES] {
        // SAFETY: both hold 16 vectors; the instruction set is the caller's promise.
        unsafe {
            let mut from = [[0f32; LANES]; LANES];
            let mut to = [[0f32; LANES]; LANES];
            for (lanes, row) in from.iter_mut().zip(rows) {
                Self::store(lanes.as_mut_ptr(), row);
            }
            for (i, lanes) in from.iter().enumerate() {
                for (j, &lane) in lanes.iter().enumerate() {
                    to[j][i] = lane;
                }
            }
            let mut columns = rows;
            for (column, lanes) in columns.iter_mut().zip(&to) {
                *column = Self::load(lanes.as_ptr());
            }
            columns
        }
    }

    /// Sum of the lanes, in one fixed order.
    #[inline(always)]
    unsafe fn sum(v: Self::F) -> f32 {
        // SAFETY: `lanes` holds 16 floats; the instruction set is the caller's promise.
        unsafe {
            let mut lanes = [0f32; LANES];
            Self::store(lanes.as_mut_ptr(), v);
            let mut width = LANES / 2;
            while width > 0 {
                for i in 0..width {
                    lanes[i] += lanes[i + width];
                }
                width /= 2;
            }
            lanes[0]
        }
    }

    /// The sums of both vectors' lanes, each within ±127. One pass adds both up: a sum is within 16 bits, the other
    /// lies above it.
    #[inline(always)]
    unsafe fn sum_halves(v: [Self::I; 2]) -> [i32; 2] {
        // SAFETY: the caller has the instruction set.
        unsafe {
            let both = Self::sum_i(Self::add_i(v[0], Self::shl::<16>(v[1])));
            let low = i32::from(both as i16);
            [low, both.wrapping_sub(low) >> 16]
        }
    }

    /// Largest lane; NaN lanes are passed over (−∞ if there is nothing else).
    #[inline(always)]
    unsafe fn hmax(v: Self::F) -> f32 {
        // SAFETY: `lanes` holds 16 floats; the instruction set is the caller's promise.
        unsafe {
            let mut lanes = [0f32; LANES];
            Self::store(lanes.as_mut_ptr(), v);
            let mut best = f32::NEG_INFINITY;
            for lane in lanes {
                best = if lane > best { lane } else { best };
            }
            best
        }
    }

    /// The first `n` ≤ 16 lanes from memory, the rest `fill`.
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize, fill: f32) -> Self::F {
        // SAFETY: `n` floats are readable at `p` and `n` ≤ 16.
        unsafe {
            let mut lanes = [fill; LANES];
            std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n);
            Self::load(lanes.as_ptr())
        }
    }

    /// Writes the first `n` ≤ 16 lanes.
    #[inline(always)]
    unsafe fn store_n(p: *mut f32, v: Self::F, n: usize) {
        // SAFETY: `n` floats are writable at `p` and `n` ≤ 16.
        unsafe {
            let mut lanes = [0f32; LANES];
            Self::store(lanes.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n);
        }
    }
}
