//! Products of vectors with a few plain rows, for adapters. (`linear` needs packed weights that serve all tokens.) Long
//! rows are multiplied as they are stored. Short rows, whose sums would cost more than their products, are first laid
//! out as columns, once for all tokens.

use crate::simd::{LANES, Simd};

/// Rows that share the loads of x: enough sums at once to hide the latency of an addition.
const ROWS: usize = 4;
/// Vectors of outputs that share the loads of x: the same for columns.
const VECTORS: usize = 4;

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
        let mut out = [0.0; N];
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = S::sum(sum);
        }
        out
    }
}

/// columns\[k·N + i\] = rows\[i·K + k\]: N rows of K values become K columns of N.
///
/// # Safety
/// The CPU has `S`'s instruction set; both hold N·K values, a multiple of `k`.
#[inline(always)]
pub(crate) unsafe fn transpose<S: Simd>(rows: &[f32], k: usize, columns: &mut [f32]) {
    let n = rows.len() / k;
    for first in (0..n).step_by(LANES) {
        for at in (0..k).step_by(LANES) {
            // SAFETY: a tile inside both, cut off at their ends.
            unsafe {
                let from = rows.as_ptr().add(first * k + at);
                let to = columns.as_mut_ptr().add(at * n + first);
                if n - first >= LANES && k - at >= LANES {
                    tile::<S>(from, k, to, n);
                } else {
                    part::<S>(from, k, to, n, (n - first).min(LANES), (k - at).min(LANES));
                }
            }
        }
    }
}

/// 16 × 16 values, with so many values from a row to the next one, and from a column.
///
/// # Safety
/// As [`transpose`], of values inside both.
#[inline(always)]
unsafe fn tile<S: Simd>(from: *const f32, row: usize, to: *mut f32, column: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut vectors = [S::splat(0.0); LANES];
        for (i, vector) in vectors.iter_mut().enumerate() {
            *vector = S::load(from.add(i * row));
        }
        for (j, vector) in S::transpose(vectors).into_iter().enumerate() {
            S::store(to.add(j * column), vector);
        }
    }
}

/// The same of `rows` × `width` values, each at most 16.
///
/// # Safety
/// As [`tile`], of that many values.
#[inline(always)]
unsafe fn part<S: Simd>(from: *const f32, row: usize, to: *mut f32, column: usize, rows: usize, width: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut vectors = [S::splat(0.0); LANES];
        for (i, vector) in vectors.iter_mut().take(rows).enumerate() {
            *vector = S::load_n(from.add(i * row), width, 0.0);
        }
        for (j, vector) in S::transpose(vectors).into_iter().take(width).enumerate() {
            S::store_n(to.add(j * column), vector, rows);
        }
    }
}

/// out\[i\] += scale · Σₖ x\[k\]·columns\[k·N + i\], with N = out.len().
///
/// # Safety
/// The CPU has `S`'s instruction set; `columns` holds N values for each of `x`.
#[inline(always)]
pub(crate) unsafe fn add_columns<S: Simd>(columns: &[f32], x: &[f32], scale: f32, out: &mut [f32]) {
    let n = out.len();
    let mut at = 0;
    // SAFETY: whole vectors inside `out` and each column, then what is left of both.
    unsafe {
        while n - at >= VECTORS * LANES {
            let sums = column_sums::<S, VECTORS>(columns.as_ptr().add(at), n, x);
            for (i, sum) in sums.into_iter().enumerate() {
                let out = out.as_mut_ptr().add(at + i * LANES);
                S::store(out, S::fma(S::splat(scale), sum, S::load(out)));
            }
            at += VECTORS * LANES;
        }
        while n - at >= LANES {
            let [sum] = column_sums::<S, 1>(columns.as_ptr().add(at), n, x);
            let out = out.as_mut_ptr().add(at);
            S::store(out, S::fma(S::splat(scale), sum, S::load(out)));
            at += LANES;
        }
        if at < n {
            let rest = n - at;
            let mut sum = S::splat(0.0);
            for (k, &x) in x.iter().enumerate() {
                let column = S::load_n(columns.as_ptr().add(k * n + at), rest, 0.0);
                sum = S::fma(S::splat(x), column, sum);
            }
            let out = out.as_mut_ptr().add(at);
            S::store_n(out, S::fma(S::splat(scale), sum, S::load_n(out, rest, 0.0)), rest);
        }
    }
}

/// Σₖ x\[k\]·column k of `N` vectors that stand one behind the other.
///
/// # Safety
/// As [`add_columns`], for `N` vectors.
#[inline(always)]
unsafe fn column_sums<S: Simd, const N: usize>(columns: *const f32, n: usize, x: &[f32]) -> [S::F; N] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [S::splat(0.0); N];
        for (k, &x) in x.iter().enumerate() {
            let x = S::splat(x);
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = S::fma(x, S::load(columns.add(k * n + i * LANES)), *sum);
            }
        }
        sums
    }
}
