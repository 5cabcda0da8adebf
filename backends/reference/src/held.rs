//! One head of a key or of values as a KV cache holds it: each value rounded to the type, or codes followed by what
//! they are scaled by.

use half::bf16;
use halyard_platform_api::DType;

use crate::element::{read_float, write_float};

/// Bytes of a head of `head_dim` values: of I8, codes and an f32 scale; of U4, two codes a byte (the first in the lower
/// half), and scale and minimum in bf16.
pub(crate) fn head_bytes(kv: DType, head_dim: usize) -> usize {
    match kv {
        DType::I8 => head_dim + 4,
        DType::U4 => head_dim.div_ceil(2) + 4,
        other => head_dim * other.bytes(),
    }
}

/// A head's values as bytes. Keys (`is_key`) in U4 are turned before.
pub(crate) fn encode(kv: DType, x: &[f32], is_key: bool) -> Vec<u8> {
    match kv {
        DType::I8 => encode_i8(x),
        DType::U4 if is_key => encode_u4(&turned(x)),
        DType::U4 => encode_u4(x),
        other => {
            let mut bytes = vec![0; x.len() * other.bytes()];
            for (value, bytes) in x.iter().zip(bytes.chunks_exact_mut(other.bytes())) {
                write_float(other, *value, bytes);
            }
            bytes
        }
    }
}

/// The values that `encode` left in `bytes`.
pub(crate) fn decode(kv: DType, bytes: &[u8], head_dim: usize, is_key: bool) -> Vec<f32> {
    match kv {
        DType::I8 => {
            let (codes, scale) = bytes.split_at(head_dim);
            let scale = read_float(DType::F32, scale);
            codes.iter().map(|&code| scale * f32::from(code as i8)).collect()
        }
        DType::U4 => {
            let (codes, map) = bytes.split_at(head_dim.div_ceil(2));
            let (scale, minimum) = (read_float(DType::BF16, &map[..2]), read_float(DType::BF16, &map[2..]));
            let code = |d: usize| f32::from(codes[d / 2] >> (d % 2 * 4) & 0xF);
            let values: Vec<f32> = (0..head_dim).map(|d| scale * code(d) + minimum).collect();
            match is_key {
                true => turned(&values),
                false => values,
            }
        }
        other => bytes
            .chunks_exact(other.bytes())
            .map(|bytes| read_float(other, bytes))
            .collect(),
    }
}

fn encode_i8(x: &[f32]) -> Vec<u8> {
    let scale = match x.iter().all(|x| x.is_finite()) {
        true => x.iter().fold(0f32, |most, x| most.max(x.abs())) / 127.0,
        false => f32::NAN,
    };
    let code = |x: f32| match scale == 0.0 {
        true => 0,
        false => (x / scale).round_ties_even() as i8,
    };
    let mut bytes: Vec<u8> = x.iter().map(|&x| code(x) as u8).collect();
    bytes.extend(scale.to_le_bytes());
    bytes
}

fn encode_u4(x: &[f32]) -> Vec<u8> {
    let (mut scale, mut minimum) = (bf16::NAN, bf16::NAN);
    if x.iter().all(|x| x.is_finite()) {
        let least = x.iter().copied().fold(f32::INFINITY, f32::min);
        let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        minimum = not_above(least);
        // Rounding up is rounding down on the other side of 0.
        scale = -not_above(-((most - minimum.to_f32()) / 15.0));
    }
    let code = |x: &f32| match scale == bf16::ZERO {
        true => 0,
        false => ((x - minimum.to_f32()) / scale.to_f32()).round_ties_even() as u8,
    };
    let mut bytes: Vec<u8> = x
        .chunks(2)
        .map(|pair| code(&pair[0]) | pair.get(1).map_or(0, code) << 4)
        .collect();
    bytes.extend(scale.to_le_bytes());
    bytes.extend(minimum.to_le_bytes());
    bytes
}

/// The largest bf16 that is not above x.
fn not_above(x: f32) -> bf16 {
    let near = bf16::from_f32(x);
    match near.to_f32() > x {
        false => near,
        // One step towards −∞: of positive numbers the bits go down, of negative ones up. A positive one that lies
        // above is not 0.
        true if near.to_f32() > 0.0 => bf16::from_bits(near.to_bits() - 1),
        true => bf16::from_bits((near.to_bits() | 0x8000) + 1),
    }
}

/// H·x / √n in each run of n values: Hadamard's matrix in Sylvester's order, n the largest power of 2 that divides the
/// length. It is its own inverse.
fn turned(x: &[f32]) -> Vec<f32> {
    let n = 1 << x.len().trailing_zeros();
    let mut x = x.to_vec();
    for run in x.chunks_exact_mut(n) {
        let mut apart = 1;
        while apart < n {
            for i in (0..n).filter(|i| i & apart == 0) {
                (run[i], run[i + apart]) = (run[i] + run[i + apart], run[i] - run[i + apart]);
            }
            apart *= 2;
        }
        let factor = 1.0 / (n as f32).sqrt();
        run.iter_mut().for_each(|x| *x *= factor);
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(kv: DType, x: &[f32], is_key: bool) -> Vec<f32> {
        let bytes = encode(kv, x, is_key);
        assert_eq!(bytes.len(), head_bytes(kv, x.len()));
        decode(kv, &bytes, x.len(), is_key)
    }

    #[test]
    fn bytes_of_a_head_are_as_the_format_says() {
        // 127 is one step; 1.5 and 2.5 lie between two codes, and the even one is taken.
        let x = [127.0, -127.0, 1.5, 2.5, 0.0];
        assert_eq!(encode(DType::I8, &x, true), [127, 129, 2, 2, 0, 0, 0, 0x80, 0x3F]);
        // From −3 to 12, a step of 1: bf16 1 is 0x3F80, −3 is 0xC040.
        let x = [-3.0, 12.0, 0.5, 1.5, 4.0];
        assert_eq!(encode(DType::U4, &x, false), [0xF0, 0x44, 0x07, 0x80, 0x3F, 0x40, 0xC0]);
        assert_eq!(through(DType::U4, &x, false), [-3.0, 12.0, 1.0, 1.0, 4.0]);
    }

    #[test]
    fn keys_are_turned_and_come_back() {
        // One large value among four is (8, ±8, …) when turned: two codes, and nothing is lost.
        let x = [16.0, 0.0, 0.0, 0.0];
        assert_eq!(turned(&x), [8.0, 8.0, 8.0, 8.0]);
        assert_eq!(turned(&[0.0, 16.0, 0.0, 0.0]), [8.0, -8.0, 8.0, -8.0]);
        assert_eq!(through(DType::U4, &x, true), x);
        // Of 6 values, runs of 2.
        let half = 0.5f32.sqrt();
        let found = turned(&[2.0, 0.0, 0.0, 0.0, 0.0, 4.0]);
        for (found, expected) in found.iter().zip([2.0, 2.0, 0.0, 0.0, 4.0, -4.0]) {
            assert!((found - expected * half).abs() < 1e-6, "{found}");
        }
        assert_eq!(turned(&[3.0, 1.0, 2.0]), [3.0, 1.0, 2.0]);
    }

    #[test]
    fn scale_and_minimum_are_rounded_outwards() {
        for x in [1.001f32, -1.001, 1.006, -1.006, 3e-41, -3e-41, 1e38, -1e38, 0.0] {
            let down = not_above(x);
            let above = match down.to_f32() {
                v if v < 0.0 => bf16::from_bits(down.to_bits() - 1),
                _ => bf16::from_bits(down.to_bits() + 1),
            };
            assert!(down.to_f32() <= x && above.to_f32() > x || x == 0.0, "{x}: {down}");
        }
        // 1.006 lies between the bf16 1 and 1.0078, nearer to that; 1/15 between 0.06641 (0x3D88) and 0.06689 (0x3D89).
        let bytes = encode(DType::U4, &[1.006, 2.0], false);
        assert_eq!(bytes[1..], [0x89, 0x3D, 0x80, 0x3F]);
    }

    #[test]
    fn what_is_not_finite_is_seen_in_the_whole_head() {
        for kv in [DType::I8, DType::U4] {
            for is_key in [false, true] {
                for bad in [f32::NAN, f32::INFINITY] {
                    let found = through(kv, &[1.0, bad, 2.0, 3.0], is_key);
                    assert!(found.iter().all(|x| x.is_nan()), "{kv:?}: {found:?}");
                }
                assert_eq!(through(kv, &[0.0; 4], is_key), [0.0; 4]);
            }
        }
    }
}
