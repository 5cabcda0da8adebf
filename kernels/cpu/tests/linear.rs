//! The products of every format, mode and instruction set against sums in f64, and the promise that a token's result
//! does not depend on its batch.
#![allow(missing_docs)]

mod common;

use common::{Rng, all_kernels, element, is_coded, numbers, random_row};
use half::bf16;
use halyard_kernels_cpu::{
    ActMode, Isa, Kernels, LINEAR_SCRATCH, Linear, WeightFormat, act_bytes, dequantize_row, linear_supports,
    num_act_parts, num_panels, pack, packed_bytes, panel_bytes,
};

const MODES: [ActMode; 5] = [
    ActMode::F32,
    ActMode::Bf16,
    ActMode::Tiles,
    ActMode::Int8,
    ActMode::Int8Tiles,
];

struct Case {
    format: WeightFormat,
    n: usize,
    k: usize,
    rows: Vec<Vec<u8>>,
    packed: Vec<u8>,
}

impl Case {
    fn new(format: WeightFormat, n: usize, k: usize, rng: &mut Rng) -> Case {
        Case::from_rows(format, k, (0..n).map(|_| random_row(format, k, rng)).collect())
    }

    fn from_rows(format: WeightFormat, k: usize, rows: Vec<Vec<u8>>) -> Case {
        let n = rows.len();
        // Garbage first: packing must write every byte that a kernel reads.
        let mut packed = vec![0xa5; packed_bytes(format, n, k)];
        pack(format, k, &rows.concat(), &mut packed, 0);
        Case {
            format,
            n,
            k,
            rows,
            packed,
        }
    }

    fn weight(&self, row: usize, i: usize) -> f64 {
        element(self.format, &self.rows[row], i)
    }

    /// \[tokens, n\] with rows n + 3 apart; the gaps hold −7.
    fn run(&self, kernels: &Kernels, mode: ActMode, x: &[f32], options: &Options) -> Vec<f32> {
        let (n, k) = (self.n, self.k);
        let tokens = x.len() / k;
        let mut act = vec![0xa5u8; act_bytes(mode, tokens, k)];
        let parts = num_act_parts(mode, tokens);
        for parts in [0..parts / 2, parts / 2..parts] {
            // SAFETY: x holds `tokens` rows of k, act the bytes that the crate asks for.
            unsafe { kernels.prepare_act(mode, x.as_ptr(), k, tokens, k, parts, act.as_mut_ptr()) };
        }
        let stride = n + 3;
        let mut out = vec![-7f32; tokens * stride];
        if let Some(start) = options.start {
            out.fill(start);
        }
        let mut scratch = vec![f32::NAN; LINEAR_SCRATCH];
        let panels = num_panels(n);
        let cut = options.cut.min(panels);
        for panels in [0..cut, cut..panels] {
            // SAFETY: the buffers have the sizes that the crate asks for; one thread.
            unsafe {
                kernels.linear(Linear {
                    format: self.format,
                    mode,
                    n,
                    k,
                    tokens,
                    weight: &self.packed,
                    act: &act,
                    panels,
                    out: out.as_mut_ptr(),
                    out_stride: stride,
                    bias: options.bias.as_deref(),
                    accumulate: options.start.is_some(),
                    scratch: &mut scratch,
                });
            }
        }
        for row in out.chunks(stride) {
            assert!(
                row[n..].iter().all(|&gap| gap == options.start.unwrap_or(-7.0)),
                "wrote past row {n}"
            );
        }
        out.chunks(stride).flat_map(|row| row[..n].to_vec()).collect()
    }
}

#[derive(Default)]
struct Options {
    /// Panels of the first of two calls.
    cut: usize,
    bias: Option<Vec<f32>>,
    /// Accumulate onto this value.
    start: Option<f32>,
}

/// x as the mode sees it: (value, bound of its own rounding) is not needed, the mode's definition is exact.
fn seen_by(mode: ActMode, x: &[f32]) -> Vec<f64> {
    match mode {
        ActMode::F32 => x.iter().map(|&x| f64::from(x)).collect(),
        ActMode::Bf16 | ActMode::Tiles => x.iter().map(|&x| f64::from(bf16::from_f32(x))).collect(),
        ActMode::Int8 | ActMode::Int8Tiles => x
            .chunks(32)
            .flat_map(|block| {
                let d = block.iter().fold(0f32, |m, x| m.max(x.abs())) / 127.0;
                let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
                block
                    .iter()
                    .map(|x| f64::from(d) * f64::from((x * inverse).round_ties_even()))
                    .collect::<Vec<_>>()
            })
            .collect(),
    }
}

fn check(case: &Case, kernels: &Kernels, mode: ActMode, x: &[f32]) {
    let out = case.run(kernels, mode, x, &Options::default());
    for (t, x) in x.chunks(case.k).enumerate() {
        let x = seen_by(mode, x);
        for row in 0..case.n {
            let (mut sum, mut size) = (0f64, 0f64);
            for (i, x) in x.iter().enumerate() {
                let w = case.weight(row, i);
                sum += w * x;
                size += (w * x).abs();
                // An offset format is scaled after the integer sum: its parts may be larger than their sum.
                if matches!(mode, ActMode::Int8 | ActMode::Int8Tiles) {
                    size += x.abs() * 0.8;
                }
            }
            let got = f64::from(out[t * case.n + row]);
            // f32 sums: a few units in the last place of the summed magnitudes.
            let bound = size * 1e-6 + 1e-30;
            assert!(
                (got - sum).abs() <= bound,
                "{} {:?} {mode:?} n {} k {} token {t} row {row}: {got} instead of {sum} ± {bound}",
                kernels.isa(),
                case.format,
                case.n,
                case.k
            );
        }
    }
}

fn modes(format: WeightFormat) -> impl Iterator<Item = ActMode> {
    MODES.into_iter().filter(move |&mode| linear_supports(format, mode))
}

#[test]
fn dequantises_every_format_to_the_exact_value_rounded_once() {
    let mut rng = Rng(1);
    for format in WeightFormat::ALL {
        for _ in 0..20 {
            let row = random_row(format, 512, &mut rng);
            let mut out = vec![0f32; 512];
            dequantize_row(format, &row, &mut out);
            for (i, &got) in out.iter().enumerate() {
                assert_eq!(got, element(format, &row, i) as f32, "{format:?} element {i}");
            }
        }
    }
}

#[test]
fn every_product_agrees_with_sums_in_f64() {
    for kernels in all_kernels() {
        let mut rng = Rng(2);
        for format in WeightFormat::ALL {
            let step = format.block_len();
            for (n, k, tokens) in [
                (1, 1, 1),
                (16, 2, 2),
                (40, 3, 3),
                (17, 1, 5),
                (33, 2, 13),
                (48, 1, 24),
                (64, 1, 39),
            ] {
                let k = if step == 1 {
                    [7, 64, 45, 33, 96][(n + k) % 5]
                } else {
                    k * step
                };
                let case = Case::new(format, n, k, &mut rng);
                let x = rng.vec(tokens * k);
                for mode in modes(format) {
                    check(&case, kernels, mode, &x);
                }
            }
        }
    }
}

#[test]
fn long_rows_are_summed_over_all_chunks() {
    for kernels in all_kernels() {
        let mut rng = Rng(3);
        for format in WeightFormat::ALL {
            let k = if format.block_len() == 1 { 2500 } else { 2560 };
            let case = Case::new(format, 20, k, &mut rng);
            for tokens in [1, 6] {
                let x = rng.vec(tokens * k);
                for mode in modes(format) {
                    check(&case, kernels, mode, &x);
                }
            }
        }
    }
}

#[test]
fn a_token_gives_bitwise_the_same_row_in_every_batch_and_split() {
    for kernels in all_kernels() {
        let mut rng = Rng(4);
        for format in WeightFormat::ALL {
            let k = if format.block_len() == 1 { 1100 } else { 1280 };
            let case = Case::new(format, 50, k, &mut rng);
            let x = rng.vec(37 * k);
            for mode in modes(format) {
                let whole = case.run(kernels, mode, &x, &Options::default());
                for tokens in 1..=26 {
                    for start in [0, 11] {
                        let part = &x[start * k..(start + tokens) * k];
                        let options = Options {
                            cut: 1 + tokens % 3,
                            ..Options::default()
                        };
                        let out = case.run(kernels, mode, part, &options);
                        let same = out
                            .iter()
                            .zip(&whole[start * 50..])
                            .all(|(a, b)| a.to_bits() == b.to_bits());
                        assert!(
                            same,
                            "{} {format:?} {mode:?}: {tokens} tokens from {start}",
                            kernels.isa()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn integer_products_have_the_same_bits_on_matrix_units() {
    // Other sets have the portable set's loop for tiles, which rounds between a product and its sum.
    let both = |kernels: &&Kernels| matches!(kernels.isa(), Isa::Portable | Isa::Amx);
    for kernels in all_kernels().into_iter().filter(both) {
        let mut rng = Rng(11);
        for format in WeightFormat::ALL {
            if !linear_supports(format, ActMode::Int8Tiles) {
                continue;
            }
            // K of one block, of an odd number, of more than stay in a cache; tokens of whole tiles and of parts.
            for (k, tokens) in [(format.block_len(), 16), (1280, 33), (2560, 9)] {
                let case = Case::new(format, 40, k, &mut rng);
                let x = rng.vec(tokens * k);
                let [vectors, tiles] =
                    [ActMode::Int8, ActMode::Int8Tiles].map(|mode| case.run(kernels, mode, &x, &Options::default()));
                for (i, (vectors, tiles)) in vectors.iter().zip(&tiles).enumerate() {
                    assert_eq!(
                        vectors.to_bits(),
                        tiles.to_bits(),
                        "{} {format:?} k {k}, token {} row {}: {vectors} and {tiles}",
                        kernels.isa(),
                        i / 40,
                        i % 40
                    );
                }
            }
        }
    }
}

#[test]
fn bias_and_accumulation_are_added_once() {
    for kernels in all_kernels() {
        let mut rng = Rng(5);
        for format in WeightFormat::ALL {
            let k = if format.block_len() == 1 { 1500 } else { 1536 };
            let case = Case::new(format, 21, k, &mut rng);
            let bias = rng.vec(21);
            for tokens in [2, 9] {
                let x = rng.vec(tokens * k);
                for mode in modes(format) {
                    let plain = case.run(kernels, mode, &x, &Options::default());
                    let options = Options {
                        bias: Some(bias.clone()),
                        start: Some(2.5),
                        cut: 1,
                    };
                    let out = case.run(kernels, mode, &x, &options);
                    for (i, (out, plain)) in out.iter().zip(&plain).enumerate() {
                        let want = plain + bias[i % 21] + 2.5;
                        assert!(
                            (out - want).abs() < 1e-4,
                            "{} {format:?} {mode:?}: {out}, {want}",
                            kernels.isa()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn integer_products_do_not_saturate_at_the_extremes() {
    for kernels in all_kernels() {
        for format in WeightFormat::ALL
            .into_iter()
            .filter(|&format| linear_supports(format, ActMode::Int8))
        {
            let k = format.block_len();
            for fill in [0x00, 0xff, 0x80, 0x7f] {
                let mut row = vec![fill; format.row_bytes(k).unwrap()];
                if is_coded(format) {
                    continue;
                }
                let one = half::f16::ONE.to_le_bytes();
                let at = if format == WeightFormat::Q6K { 208 } else { 0 };
                row[at..at + 2].copy_from_slice(&one);
                if format as usize >= WeightFormat::U4G16 as usize {
                    row[..4].copy_from_slice(&1f32.to_le_bytes());
                    row[4..8].copy_from_slice(&1f32.to_le_bytes());
                }
                if matches!(format, WeightFormat::Q4_1 | WeightFormat::Q4K) {
                    row[2..4].copy_from_slice(&one);
                }
                let case = Case::from_rows(format, k, vec![row]);
                for sign in [1.0, -1.0] {
                    // All at the largest quant, ±127.
                    let x = vec![sign * 127.0; k];
                    let want: f64 = (0..k).map(|i| case.weight(0, i) * f64::from(sign) * 127.0).sum();
                    for mode in [ActMode::Int8, ActMode::Int8Tiles] {
                        let out = case.run(kernels, mode, &x, &Options::default());
                        let error = (f64::from(out[0]) - want).abs();
                        assert!(
                            error <= want.abs() * 1e-5 + 1e-3,
                            "{} {format:?} {mode:?} {fill:#x}: {out:?}, {want}",
                            kernels.isa()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn integer_products_of_coded_rows_do_not_saturate_at_the_extremes() {
    for kernels in all_kernels() {
        for format in WeightFormat::ALL.into_iter().filter(|&format| is_coded(format)) {
            let k = format.block_len();
            let groups = k / 16;
            let (scale, min, last) = match format {
                WeightFormat::Int5 => (1, 1, 31),
                WeightFormat::Int5Scaled => (63, 63, 31),
                WeightFormat::Int2Scaled => (15, 15, 3),
                WeightFormat::Int2 => (1, 0, 3),
                WeightFormat::Int3Scaled | WeightFormat::Table3Scaled | WeightFormat::Table3Small => (0x80, 0, 7),
                WeightFormat::Table4Scaled => (0x80, 0, 15),
                _ => (1, 0, 15),
            };
            for code in [0, 1, last] {
                let (d, dmin) = (1f32.to_le_bytes(), if min > 0 { 1f32 } else { 0.0 }.to_le_bytes());
                let numbers = numbers(format).map(|number| number as u8);
                let row = [
                    &d[..],
                    &dmin,
                    &numbers,
                    &vec![scale; groups],
                    &vec![min; groups],
                    &vec![code; k],
                ]
                .concat();
                let case = Case::from_rows(format, k, vec![row]);
                for sign in [1.0, -1.0] {
                    let x = vec![sign * 127.0; k];
                    let want: f64 = (0..k).map(|i| case.weight(0, i) * f64::from(sign) * 127.0).sum();
                    for mode in [ActMode::Int8, ActMode::Int8Tiles] {
                        let out = case.run(kernels, mode, &x, &Options::default());
                        let error = (f64::from(out[0]) - want).abs();
                        let isa = kernels.isa();
                        assert!(
                            error <= want.abs() * 1e-5 + 1e-3,
                            "{isa} {format:?} {mode:?} {code}: {out:?}, {want}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_nan_or_infinite_activation_reaches_the_output() {
    for kernels in all_kernels() {
        let mut rng = Rng(6);
        for format in WeightFormat::ALL {
            let case = Case::new(format, 16, 256, &mut rng);
            for bad in [f32::NAN, f32::INFINITY] {
                let mut x = rng.vec(2 * 256);
                x[256 + 40] = bad;
                for mode in modes(format) {
                    let out = case.run(kernels, mode, &x, &Options::default());
                    assert!(
                        out[..16].iter().all(|y| y.is_finite()),
                        "{} {format:?} {mode:?}",
                        kernels.isa()
                    );
                    assert!(
                        out[16..].iter().all(|y| !y.is_finite()),
                        "{} {format:?} {mode:?} {bad}",
                        kernels.isa()
                    );
                }
            }
        }
    }
}

#[test]
fn a_nan_among_8_bit_floats_reaches_its_row_only() {
    for kernels in all_kernels() {
        let mut rng = Rng(9);
        let format = WeightFormat::F8E4M3;
        let mut rows: Vec<Vec<u8>> = (0..20).map(|_| random_row(format, 300, &mut rng)).collect();
        rows[18][299] = 0xff;
        let case = Case::from_rows(format, 300, rows);
        let x = rng.vec(6 * 300);
        for tokens in [1, 6] {
            let out = case.run(kernels, ActMode::F32, &x[..tokens * 300], &Options::default());
            for (i, y) in out.iter().enumerate() {
                assert_eq!(y.is_nan(), i % 20 == 18, "{} column {}", kernels.isa(), i % 20);
            }
        }
    }
}

#[test]
fn an_all_zero_row_of_activations_gives_zeros() {
    for kernels in all_kernels() {
        let mut rng = Rng(7);
        for format in WeightFormat::ALL {
            let case = Case::new(format, 18, 256, &mut rng);
            for mode in modes(format) {
                for x in [0.0, 1e-42] {
                    let out = case.run(kernels, mode, &[x; 256], &Options::default());
                    assert!(
                        out.iter().all(|y| y.abs() < 1e-36),
                        "{} {format:?} {mode:?}: {out:?}",
                        kernels.isa()
                    );
                }
            }
        }
    }
}

#[test]
fn packing_piece_by_piece_gives_the_same_bytes() {
    let mut rng = Rng(8);
    for format in WeightFormat::ALL {
        let k = 512;
        let rows: Vec<u8> = (0..70).flat_map(|_| random_row(format, k, &mut rng)).collect();
        let row_bytes = format.row_bytes(k).unwrap();
        let mut whole = vec![1u8; packed_bytes(format, 70, k)];
        pack(format, k, &rows, &mut whole, 0);
        let mut pieces = vec![2u8; whole.len()];
        for (first_panel, first_row, last_row) in [(3, 48, 70), (0, 0, 16), (1, 16, 48)] {
            pack(
                format,
                k,
                &rows[first_row * row_bytes..last_row * row_bytes],
                &mut pieces,
                first_panel,
            );
        }
        assert_eq!(whole, pieces, "{format:?}");
        assert_eq!(whole.len(), 5 * panel_bytes(format, k));
    }
}

#[test]
fn packed_weights_are_no_larger_than_the_files_by_more_than_three_percent() {
    for format in WeightFormat::ALL {
        // What GGUF's formats of such codes take: Q5_1, Q5_K, Q2_K, TQ2_0, Q3_K (a byte for its scales of 6 bits),
        // IQ4_XS (the same, and a table) and IQ4_NL.
        let canonical = match format {
            WeightFormat::Int5 => 64 * 1024 / 32 * 24,
            WeightFormat::Int5Scaled => 64 * 1024 / 256 * 176,
            WeightFormat::Int2Scaled => 64 * 1024 / 256 * 84,
            WeightFormat::Int2 => 64 * 1024 / 256 * 66,
            WeightFormat::Int3Scaled | WeightFormat::Table3Scaled | WeightFormat::Table3Small => 64 * 1024 / 256 * 114,
            WeightFormat::Table4Scaled => 64 * 1024 / 256 * 138,
            WeightFormat::Table4 => 64 * 1024 / 32 * 18,
            _ => 64 * format.row_bytes(1024).unwrap(),
        };
        let packed = packed_bytes(format, 64, 1024);
        assert!(
            packed >= canonical && packed * 100 <= canonical * 103,
            "{format:?}: {packed} for {canonical}"
        );
    }
}
