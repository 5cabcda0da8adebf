//! Paged attention of every instruction set against a direct softmax in f64, and the promise that a query's result
//! does not depend on its chunk.
#![allow(missing_docs)]

mod common;

use common::{Rng, all_kernels};
use half::{bf16, f16};
use halyard_kernels_cpu::{Attention, Kernels, KvDtype, KvLayout, e4m3_from_f32, e4m3_to_f32, kv_read, kv_write};

struct Case {
    layout: KvLayout,
    group: usize,
    kv_len: usize,
    first_position: usize,
    causal: bool,
    window: Option<usize>,
    softcap: Option<f32>,
    sinks: Option<Vec<f32>>,
    q: Vec<f32>,
    /// \[kv_len\]\[kv_head\]\[head_dim\], as the cache rounds them.
    k: Vec<f32>,
    v: Vec<f32>,
    pool: Vec<u8>,
    table: Vec<i32>,
}

fn rounded(dtype: KvDtype, x: f32) -> f32 {
    match dtype {
        KvDtype::F32 => x,
        KvDtype::F16 => f16::from_f32(x).to_f32(),
        KvDtype::Bf16 => bf16::from_f32(x).to_f32(),
        KvDtype::E4m3 => e4m3_to_f32(e4m3_from_f32(x)),
    }
}

impl Case {
    fn new(layout: KvLayout, group: usize, kv_len: usize, queries: usize, rng: &mut Rng) -> Case {
        let elements = layout.num_kv_heads * layout.head_dim;
        let blocks = kv_len.div_ceil(layout.block_size);
        // Blocks lie backwards, with gaps; slots that are never written hold NaN.
        let table: Vec<i32> = (0..blocks).map(|i| 2 * (blocks - i) as i32).collect();
        let mut pool = vec![0xff; layout.block_bytes() * (2 * blocks + 2)];
        let (k, v) = (rng.vec(kv_len * elements), rng.vec(kv_len * elements));
        for token in 0..kv_len {
            let block = table[token / layout.block_size] as usize * layout.block_bytes();
            let at = token * elements..(token + 1) * elements;
            // SAFETY: the block lies inside the pool.
            unsafe {
                let block = pool.as_mut_ptr().add(block);
                kv_write(&layout, block, token % layout.block_size, &k[at.clone()], &v[at]);
            }
        }
        let round = |x: Vec<f32>| x.into_iter().map(|x| rounded(layout.dtype, x)).collect();
        Case {
            layout,
            group,
            kv_len,
            first_position: kv_len - queries,
            causal: true,
            window: None,
            softcap: None,
            sinks: None,
            q: rng.vec(queries * elements * group).iter().map(|x| 3.0 * x).collect(),
            k: round(k),
            v: round(v),
            pool,
            table,
        }
    }

    fn heads(&self) -> usize {
        self.layout.num_kv_heads * self.group
    }

    fn queries(&self) -> usize {
        self.q.len() / self.heads() / self.layout.head_dim
    }

    /// All heads of the queries in `chunks`, one call a chunk and KV head.
    fn run(&self, kernels: &Kernels, chunks: &[usize]) -> Vec<f32> {
        let dim = self.layout.head_dim;
        let mut out = vec![f32::NAN; self.q.len()];
        let mut begin = 0;
        for &chunk in chunks {
            for kv_head in 0..self.layout.num_kv_heads {
                let at = kv_head * self.group * dim;
                // SAFETY: q and out hold every query and head; the pool every block.
                unsafe {
                    kernels.attention(&Attention {
                        layout: self.layout,
                        pool: self.pool.as_ptr(),
                        block_stride: self.layout.block_bytes(),
                        block_table: &self.table,
                        kv_len: self.kv_len,
                        kv_head,
                        group: self.group,
                        q: self.q.as_ptr().add(at),
                        q_stride: self.heads() * dim,
                        q_head_stride: dim,
                        out: out.as_mut_ptr().add(at),
                        out_stride: self.heads() * dim,
                        out_head_stride: dim,
                        queries: begin..begin + chunk,
                        first_position: self.first_position,
                        scale: 0.3,
                        softcap: self.softcap,
                        causal: self.causal,
                        window: self.window,
                        sinks: self.sinks.as_deref(),
                    });
                }
            }
            begin += chunk;
        }
        assert_eq!(begin, self.queries());
        out
    }

    fn expected(&self) -> Vec<f64> {
        let dim = self.layout.head_dim;
        // Over a cache in bf16, queries are rounded to it; the rounding of softmax weights is left to the tolerance.
        let query_dtype = match self.layout.dtype {
            KvDtype::Bf16 => KvDtype::Bf16,
            _ => KvDtype::F32,
        };
        let mut out = Vec::new();
        for query in 0..self.queries() {
            let position = self.first_position + query;
            for head in 0..self.heads() {
                let q = &self.q[(query * self.heads() + head) * dim..][..dim];
                let row = |x: &[f32], token: usize, d: usize| {
                    f64::from(x[(token * self.layout.num_kv_heads + head / self.group) * dim + d])
                };
                let mut scores: Vec<(usize, f64)> = Vec::new();
                for token in 0..self.kv_len {
                    let seen = !self.causal || token <= position;
                    if !seen || self.window.is_some_and(|window| token + window <= position) {
                        continue;
                    }
                    let mut s: f64 = (0..dim)
                        .map(|d| f64::from(rounded(query_dtype, q[d])) * row(&self.k, token, d))
                        .sum::<f64>()
                        * 0.3;
                    if let Some(cap) = self.softcap {
                        s = f64::from(cap) * (s / f64::from(cap)).tanh();
                    }
                    scores.push((token, s));
                }
                let sink = self.sinks.as_ref().map(|sinks| f64::from(sinks[head % self.group]));
                let max = scores.iter().map(|&(_, s)| s).chain(sink).fold(f64::MIN, f64::max);
                let total: f64 = scores
                    .iter()
                    .map(|&(_, s)| s)
                    .chain(sink)
                    .map(|s| (s - max).exp())
                    .sum();
                for d in 0..dim {
                    let sum: f64 = scores
                        .iter()
                        .map(|&(token, s)| (s - max).exp() * row(&self.v, token, d))
                        .sum();
                    out.push(if total > 0.0 { sum / total } else { 0.0 });
                }
            }
        }
        out
    }

    fn check(&self, kernels: &Kernels, chunks: &[usize]) {
        let (out, want) = (self.run(kernels, chunks), self.expected());
        let tolerance = match self.layout.dtype {
            // A weight in bf16 errs by 2^-9 of itself, and the weights sum to 1.
            KvDtype::Bf16 => 2e-3,
            _ => 2e-5,
        };
        for (i, (&got, want)) in out.iter().zip(want).enumerate() {
            assert!(
                (f64::from(got) - want).abs() < tolerance,
                "{} {:?} group {} kv_len {} element {i}: {got}, not {want}",
                kernels.isa(),
                self.layout,
                self.group,
                self.kv_len
            );
        }
    }
}

fn layout(dtype: KvDtype, block_size: usize, num_kv_heads: usize, head_dim: usize) -> KvLayout {
    KvLayout {
        dtype,
        block_size,
        num_kv_heads,
        head_dim,
    }
}

#[test]
fn agrees_with_a_direct_softmax_over_shapes_and_dtypes() {
    for kernels in all_kernels() {
        let mut rng = Rng(1);
        for dtype in KvDtype::ALL {
            for (block_size, kv_heads, dim, group, kv_len, queries) in [
                (16, 3, 64, 3, 1, 1),
                (16, 1, 64, 1, 37, 37),
                (32, 2, 80, 4, 150, 1),
                (32, 1, 256, 4, 200, 9),
                (8, 2, 40, 2, 70, 5),
                (24, 1, 128, 8, 131, 3),
                (1, 1, 16, 5, 20, 2),
                (64, 1, 7, 1, 65, 65),
                (64, 2, 64, 3, 130, 130),
                (32, 1, 128, 5, 77, 30),
            ] {
                let case = Case::new(
                    layout(dtype, block_size, kv_heads, dim),
                    group,
                    kv_len,
                    queries,
                    &mut rng,
                );
                case.check(kernels, &[queries]);
            }
        }
    }
}

#[test]
fn windows_softcaps_sinks_and_full_attention_agree() {
    for kernels in all_kernels() {
        let mut rng = Rng(2);
        for (dtype, block_size) in [
            (KvDtype::F16, 16),
            (KvDtype::F16, 20),
            (KvDtype::Bf16, 16),
            (KvDtype::Bf16, 21),
            (KvDtype::Bf16, 32),
            (KvDtype::Bf16, 64),
        ] {
            let mut case = Case::new(layout(dtype, block_size, 1, 64), 3, 300, 40, &mut rng);
            for window in [1, 7, 64, 100, 1000] {
                case.window = Some(window);
                case.check(kernels, &[40]);
            }
            case.window = Some(50);
            case.sinks = Some(vec![3.0, -2.0, 100.0]);
            case.check(kernels, &[13, 27]);
            case.softcap = Some(2.0);
            case.check(kernels, &[40]);
            (case.sinks, case.window, case.causal) = (None, None, false);
            case.check(kernels, &[40]);
        }
    }
}

#[test]
fn a_query_gives_bitwise_the_same_output_in_every_chunk() {
    for kernels in all_kernels() {
        let mut rng = Rng(3);
        for (dtype, block_size, window) in [
            (KvDtype::F32, 16, None),
            (KvDtype::F16, 32, Some(30)),
            (KvDtype::Bf16, 12, Some(90)),
            (KvDtype::Bf16, 32, Some(90)),
            (KvDtype::Bf16, 64, None),
            (KvDtype::E4m3, 16, Some(70)),
        ] {
            let mut case = Case::new(layout(dtype, block_size, 2, 64), 3, 170, 50, &mut rng);
            case.window = window;
            let whole = case.run(kernels, &[50]);
            for chunks in [vec![1; 50], vec![7, 1, 30, 12], vec![49, 1]] {
                let out = case.run(kernels, &chunks);
                let same = out.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{} {dtype:?} {chunks:?}", kernels.isa());
            }
            // A step that ends earlier: the same query with fewer keys behind it in the cache.
            let per_query = case.q.len() / 50;
            let row = &whole[..per_query].to_vec();
            case.q.truncate(per_query);
            case.kv_len = case.first_position + 1;
            let alone = case.run(kernels, &[1]);
            assert!(
                alone.iter().zip(row).all(|(a, b)| a.to_bits() == b.to_bits()),
                "{} alone",
                kernels.isa()
            );
        }
    }
}

#[test]
fn large_scores_do_not_overflow() {
    for kernels in all_kernels() {
        let mut rng = Rng(4);
        let mut case = Case::new(layout(KvDtype::F32, 16, 1, 32), 1, 100, 4, &mut rng);
        case.q.iter_mut().for_each(|q| *q *= 1e4);
        let out = case.run(kernels, &[4]);
        for (got, want) in out.iter().zip(case.expected()) {
            assert!(
                (f64::from(*got) - want).abs() < 1e-2,
                "{}: {got}, not {want}",
                kernels.isa()
            );
        }
    }
}

/// Attention over one key gives its value: every code as a vector's lane and as the tail of a row.
#[test]
fn every_code_of_eight_bits_is_read_as_its_value() {
    for kernels in all_kernels() {
        for dim in [16, 17] {
            let mut case = Case::new(layout(KvDtype::E4m3, 16, 1, dim), 1, 1, 1, &mut Rng(6));
            for code in (0..=0xFF_u8).filter(|code| code & 0x7F != 0x7F) {
                case.v = vec![e4m3_to_f32(code); dim];
                let block = case.table[0] as usize * case.layout.block_bytes();
                // SAFETY: the block lies inside the pool.
                unsafe { kv_write(&case.layout, case.pool.as_mut_ptr().add(block), 0, &case.k, &case.v) };
                let out = case.run(kernels, &[1]);
                let same = out.iter().zip(&case.v).all(|(a, b)| a == b);
                assert!(same, "{}: code {code:#x} is {out:?}", kernels.isa());
            }
        }
    }
}

#[test]
fn a_written_token_reads_back_and_touches_no_other_slot() {
    let mut rng = Rng(5);
    for dtype in KvDtype::ALL {
        for (block_size, dim) in [(16, 64), (5, 7), (40, 16)] {
            let layout = layout(dtype, block_size, 2, dim);
            let mut block = vec![0u8; layout.block_bytes()];
            let rows: Vec<(Vec<f32>, Vec<f32>)> =
                (0..block_size).map(|_| (rng.vec(2 * dim), rng.vec(2 * dim))).collect();
            for (token, (k, v)) in rows.iter().enumerate() {
                // SAFETY: the block has the layout's size.
                unsafe { kv_write(&layout, block.as_mut_ptr(), token, k, v) };
            }
            for (token, (k, v)) in rows.iter().enumerate() {
                for head in 0..2 {
                    let (mut k_out, mut v_out) = (vec![0f32; dim], vec![0f32; dim]);
                    // SAFETY: the block has the layout's size.
                    unsafe { kv_read(&layout, block.as_ptr(), head, token, &mut k_out, &mut v_out) };
                    for d in 0..dim {
                        assert_eq!(k_out[d], rounded(dtype, k[head * dim + d]), "{layout:?} token {token}");
                        assert_eq!(v_out[d], rounded(dtype, v[head * dim + d]), "{layout:?} token {token}");
                    }
                }
            }
        }
    }
}
