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
        coded => panic!("{coded:?} has no value of its own"),
    }
}

/// The bf16 next to x that is not below it (`up`), or not above.
fn bf16_beside(x: f32, up: bool) -> f32 {
    let near = bf16::from_f32(x);
    let beyond = if up { near.to_f32() < x } else { near.to_f32() > x };
    match beyond {
        false => near.to_f32(),
        // Bits of one sign are in the order of the magnitudes.
        true if (x > 0.0) == up => bf16::from_bits(near.to_bits() + 1).to_f32(),
        true => bf16::from_bits(near.to_bits() - 1).to_f32(),
    }
}

/// Sylvester's matrix of n = 2^i times x, over √n, half by half.
fn hadamard(x: &[f32]) -> Vec<f32> {
    fn product(x: &[f32]) -> Vec<f32> {
        if x.len() == 1 {
            return x.to_vec();
        }
        let (upper, lower) = x.split_at(x.len() / 2);
        let (upper, lower) = (product(upper), product(lower));
        let sums = upper.iter().zip(&lower).map(|(a, b)| a + b);
        sums.chain(upper.iter().zip(&lower).map(|(a, b)| a - b)).collect()
    }
    let factor = 1.0 / (x.len() as f32).sqrt();
    product(x).iter().map(|x| x * factor).collect()
}

/// A head turned in runs of the largest power of two that divides it.
fn turned(x: &[f32]) -> Vec<f32> {
    let run = (1..=x.len())
        .rev()
        .find(|n| n.is_power_of_two() && x.len().is_multiple_of(*n));
    x.chunks(run.expect("1 divides all")).flat_map(hadamard).collect()
}

/// What a cache holds of one head's key.
fn held_key(dtype: KvDtype, x: &[f32]) -> Vec<f32> {
    match dtype {
        KvDtype::U4 => turned(&held(dtype, &turned(x))),
        _ => held(dtype, x),
    }
}

/// What a cache holds of one head's values.
fn held(dtype: KvDtype, x: &[f32]) -> Vec<f32> {
    let (least, most) = x.iter().fold((x[0], x[0]), |(lo, hi), &x| (lo.min(x), hi.max(x)));
    let (scale, minimum) = match dtype {
        KvDtype::I8 => (most.max(-least) / 127.0, 0.0),
        KvDtype::U4 => {
            let minimum = bf16_beside(least, false);
            (bf16_beside((most - minimum) / 15.0, true), minimum)
        }
        other => return x.iter().map(|&x| rounded(other, x)).collect(),
    };
    let code = |x: f32| match scale == 0.0 {
        true => 0.0,
        false => ((x - minimum) / scale).round_ties_even(),
    };
    x.iter().map(|&x| scale * code(x) + minimum).collect()
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
        let round = |x: Vec<f32>, held: fn(KvDtype, &[f32]) -> Vec<f32>| {
            x.chunks(layout.head_dim)
                .flat_map(|head| held(layout.dtype, head))
                .collect()
        };
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
            k: round(k, held_key),
            v: round(v, held),
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
            (KvDtype::I8, 16),
            (KvDtype::I8, 21),
            (KvDtype::U4, 20),
            (KvDtype::U4, 32),
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
            (KvDtype::I8, 32, Some(90)),
            (KvDtype::U4, 12, Some(70)),
            (KvDtype::U4, 64, None),
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
                    let at = head * dim..(head + 1) * dim;
                    assert_eq!(k_out, held_key(dtype, &k[at.clone()]), "{layout:?} token {token}");
                    assert_eq!(v_out, held(dtype, &v[at]), "{layout:?} token {token}");
                }
            }
        }
    }
}

/// Writes one head as a key and as values, and reads both.
fn through(dtype: KvDtype, x: &[f32]) -> [Vec<f32>; 2] {
    let layout = layout(dtype, 16, 1, x.len());
    let mut block = vec![0xffu8; layout.block_bytes()];
    let (mut k, mut v) = (vec![0f32; x.len()], vec![0f32; x.len()]);
    // SAFETY: the block has the layout's size.
    unsafe {
        kv_write(&layout, block.as_mut_ptr(), 3, x, x);
        kv_read(&layout, block.as_ptr(), 0, 3, &mut k, &mut v);
    }
    [k, v]
}

#[test]
fn codes_of_unusual_heads_are_as_the_formats_say() {
    let ramp: Vec<f32> = (0..48).map(|i| i as f32).collect();
    let heads = [
        vec![0.0; 17],
        vec![-3.25; 16],
        // No bf16 holds it: the minimum lies below.
        vec![1.001; 16],
        ramp.clone(),
        ramp.iter().map(|x| x - 100.0).collect(),
        ramp.iter().map(|x| x * 1e-41).collect(),
        ramp.iter().map(|x| (x - 24.0) * 1e34).collect(),
        vec![7.0],
    ];
    for dtype in [KvDtype::I8, KvDtype::U4] {
        for x in &heads {
            let [key, values] = through(dtype, x);
            assert_eq!(key, held_key(dtype, x), "{dtype:?} of {x:?}");
            assert_eq!(values, held(dtype, x), "{dtype:?} of {x:?}");
            let (least, most) = x.iter().fold((x[0], x[0]), |(lo, hi), &x| (lo.min(x), hi.max(x)));
            // Half a step; of U4 a step is longer by what rounding scale and minimum outwards adds.
            let limit = match dtype {
                KvDtype::I8 => most.max(-least) / 254.0 * 1.0001,
                // 2^-133 is the smallest bf16 above 0.
                _ => (most - least + least.abs() / 128.0) / 30.0 * 1.01 + f32::from_bits(1 << 16),
            } + 1e-44;
            for (value, x) in values.iter().zip(x) {
                assert!((value - x).abs() <= limit, "{dtype:?}: {x} became {value}");
            }
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = ramp.clone();
            x[5] = bad;
            for found in through(dtype, &x) {
                assert!(found.iter().all(|x| x.is_nan()), "{dtype:?} with {bad}: {found:?}");
            }
        }
    }
}

/// Codes and a word of 4 bytes a token and head, keys and values alike.
#[test]
fn blocks_of_codes_are_small() {
    let bytes = |dtype| layout(dtype, 16, 3, 64).block_bytes();
    assert_eq!(bytes(KvDtype::I8), 2 * 16 * 3 * (64 + 4));
    assert_eq!(bytes(KvDtype::U4), 2 * 16 * 3 * (32 + 4));
}
