//! Products of one vector with a few plain rows, for adapters: out of `linear`'s reach, whose weights are packed once and serve all tokens.

use crate::simd::{LANES, Simd};

/// Rows that share the loads of x: enough sums at once to hide the latency of an addition.
const ROWS: usize = 4;

/// out\[i\] += scale · Σₖ x\[k\]·rows\[i·K + k\], with K = x.len().
///
/// # Safety
/// The CPU has `S`'s instruction set; `rows` holds K values for each of `out`.
#[inline(always)]
pub(crate) unsafe fn add_products<S: Simd>(rows: &[f32], x: &[f32], scale: f32, out: &mut [f32]) {
    let k = x.len();
    let mut blocks = out.chunks_exact_mut(ROWS);
    let mut row = rows.as_ptr();
    // SAFETY: the caller's promise: each block's rows stand behind the last one's.
    unsafe {
        for out in &mut blocks {
            let sums = products::<S, ROWS>(row, x);
            for (out, sum) in out.iter_mut().zip(sums) {
                *out += scale * sum;
            }
            row = row.add(ROWS * k);
        }
        for out in blocks.into_remainder() {
            *out += scale * products::<S, 1>(row, x)[0];
            row = row.add(k);
        }
    }
}

/// Σ x·row of `N` rows that stand one behind the other.
///
/// # Safety
/// As [`add_products`], for `N` rows.
#[inline(always)]
unsafe fn products<S: Simd, const N: usize>(rows: *const f32, x: &[f32]) -> [f32; N] {
    let k = x.len();
    // SAFETY: whole vectors inside x and each row, then what is left of both.
    unsafe {
        let mut sums = [S::splat(0.0); N];
        let whole = k / LANES * LANES;
        for at in (0..whole).step_by(LANES) {
            let x = S::load(x.as_ptr().add(at));
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = S::fma(x, S::load(rows.add(i * k + at)), *sum);
            }
        }
        if whole < k {
            let x = S::load_n(x.as_ptr().add(whole), k - whole, 0.0);
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = S::fma(x, S::load_n(rows.add(i * k + whole), k - whole, 0.0), *sum);
            }
        }
        sums.map(|sum| S::sum(sum))
    }
}
