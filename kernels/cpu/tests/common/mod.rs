//! What the kernel tests share: seeded numbers, random rows of every weight format, and a dequantiser written element
//! by element from the format's definition, independent of the crate's.
#![allow(dead_code, missing_docs)]

use half::{bf16, f16};
use halyard_kernels_cpu::{Isa, Kernels, WeightFormat};

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in −1..1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn vec(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }
}

/// Every kernel set that this CPU runs, portable first.
pub fn all_kernels() -> Vec<&'static Kernels> {
    Isa::ALL.into_iter().filter_map(Kernels::for_isa).collect()
}

fn is_group(format: WeightFormat) -> bool {
    format as usize >= WeightFormat::U4G16 as usize
}

/// A scale or minimum of a group: 16 bits of it are used, as files have them.
fn group_scale(rng: &mut Rng, largest: f32) -> f32 {
    f16::from_f32(rng.unit() / largest).to_f32()
}

fn random_groups(format: WeightFormat, row: &mut [u8], rng: &mut Rng) {
    for b in row.chunks_mut(format.block_bytes()) {
        let is_float = matches!(format, WeightFormat::F8G32 | WeightFormat::F8G128);
        let largest = match format.block_bytes() > format.block_len() {
            true if is_float => 448.0,
            true => 128.0,
            false => 15.0,
        };
        b[..4].copy_from_slice(&group_scale(rng, largest).to_le_bytes());
        if is_float {
            b[4..]
                .iter_mut()
                .filter(|code| **code & 0x7f == 0x7f)
                .for_each(|code| *code = 0);
        } else {
            b[4..8].copy_from_slice(&group_scale(rng, 2.0).to_le_bytes());
        }
    }
}

fn single_at(b: &[u8], at: usize) -> f64 {
    f64::from(f32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]))
}

/// A random row of canonical bytes.
pub fn random_row(format: WeightFormat, k: usize, rng: &mut Rng) -> Vec<u8> {
    let mut row: Vec<u8> = (0..format.row_bytes(k).unwrap()).map(|_| rng.next() as u8).collect();
    if is_group(format) {
        random_groups(format, &mut row, rng);
        return row;
    }
    let mut half = |at: &mut [u8], scale: f32| {
        at.copy_from_slice(&f16::from_f32(rng.unit() * scale).to_le_bytes());
    };
    match format {
        WeightFormat::F32 => row
            .chunks_mut(4)
            .for_each(|b| b.copy_from_slice(&rng.unit().to_le_bytes())),
        WeightFormat::F16 => row.chunks_mut(2).for_each(|b| half(b, 1.0)),
        WeightFormat::Bf16 => {
            row.chunks_mut(2)
                .for_each(|b| b.copy_from_slice(&bf16::from_f32(rng.unit()).to_le_bytes()));
        }
        WeightFormat::F8E4M3 => {
            let (codes, scale) = row.split_at_mut(k);
            codes
                .iter_mut()
                .filter(|code| **code & 0x7f == 0x7f)
                .for_each(|code| *code = 0);
            scale.copy_from_slice(&(rng.unit() / 448.0).to_le_bytes());
        }
        _ if is_coded(format) => row
            .chunks_mut(format.block_bytes())
            .for_each(|b| coded_block(format, b, rng)),
        WeightFormat::Q6K => row.chunks_mut(210).for_each(|b| half(&mut b[208..], 0.001)),
        _ => row.chunks_mut(format.block_bytes()).for_each(|b| {
            half(&mut b[..2], 0.05);
            if matches!(format, WeightFormat::Q4_1 | WeightFormat::Q4K) {
                half(&mut b[2..4], 0.05);
            }
        }),
    }
    row
}

/// Whether rows are coded rows, this crate's own.
pub fn is_coded(format: WeightFormat) -> bool {
    format.is_coded()
}

/// Numbers of codes: those of TQ2_0, of Q3_K, of IQ2's grids, of IQ1's with the ends of what fits, and of IQ4_NL.
pub fn numbers(format: WeightFormat) -> [i8; 16] {
    match format {
        WeightFormat::Int2 => [-1, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        WeightFormat::Int3Scaled => [-4, -3, -2, -1, 0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0],
        WeightFormat::Table3Scaled => [-43, -25, -8, 8, 25, 43, 63, -63, 0, 0, 0, 0, 0, 0, 0, 0],
        WeightFormat::Table3Small => [-16, -9, -7, -1, 1, 7, 9, 15, 0, 0, 0, 0, 0, 0, 0, 0],
        _ => [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113],
    }
}

/// A random block of a coded row over random bytes.
fn coded_block(format: WeightFormat, block: &mut [u8], rng: &mut Rng) {
    let scaled = !matches!(format, WeightFormat::Int5 | WeightFormat::Int2 | WeightFormat::Table4);
    let size = match format {
        WeightFormat::Int5 | WeightFormat::Int2Scaled | WeightFormat::Int2 => 0.05,
        WeightFormat::Int5Scaled => 0.01,
        _ => 0.0004,
    };
    let mut factor = |at: usize| {
        let value = f16::from_f32(rng.unit() * size).to_f32();
        block[at..at + 4].copy_from_slice(&value.to_le_bytes());
    };
    factor(0);
    factor(4);
    if format.has_numbers() {
        block[4..8].fill(0);
    }
    for (to, number) in block[8..24].iter_mut().zip(numbers(format)) {
        *to = number as u8;
    }
    let groups = format.block_len() / 16;
    let (scales, codes) = block[24..].split_at_mut(2 * groups);
    let (scales, mins) = scales.split_at_mut(groups);
    let (mask, by_32) = match format {
        WeightFormat::Int5Scaled => (63, true),
        WeightFormat::Int2Scaled => (15, false),
        WeightFormat::Int3Scaled | WeightFormat::Table3Scaled | WeightFormat::Table3Small => (255, false),
        _ => (255, true),
    };
    for i in 0..groups {
        let from = if by_32 { i / 2 * 2 } else { i };
        scales[i] = if scaled { scales[from] & mask } else { 1 };
        mins[i] = if format.has_numbers() {
            0
        } else if scaled {
            mins[from] & mask
        } else {
            1
        };
    }
    let bits = match format {
        WeightFormat::Int2Scaled | WeightFormat::Int2 => 3,
        WeightFormat::Int3Scaled | WeightFormat::Table3Scaled | WeightFormat::Table3Small => 7,
        WeightFormat::Int5 | WeightFormat::Int5Scaled => 31,
        _ => 15,
    };
    codes.iter_mut().for_each(|code| *code &= bits);
}

fn half_at(b: &[u8], at: usize) -> f64 {
    f64::from(f16::from_le_bytes([b[at], b[at + 1]]))
}

/// Element `i` of a canonical row, exact in f64.
pub fn element(format: WeightFormat, row: &[u8], i: usize) -> f64 {
    let b = &row[i / format.block_len() * format.block_bytes()..];
    let j = i % format.block_len();
    if is_coded(format) {
        let float = |at: usize| f64::from(f32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]));
        let groups = format.block_len() / 16;
        let code = b[24 + 2 * groups + j];
        let number = if format.has_numbers() {
            f64::from(b[8 + code as usize] as i8)
        } else {
            f64::from(code)
        };
        let (scale, min) = (b[24 + j / 16] as i8, b[24 + groups + j / 16]);
        return float(0) * f64::from(scale) * number - float(4) * f64::from(min);
    }
    let nibble = |qs: &[u8]| f64::from(if j < 16 { qs[j] & 15 } else { qs[j - 16] >> 4 });
    match format {
        WeightFormat::F32 => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        WeightFormat::F16 => half_at(b, 0),
        WeightFormat::Bf16 => f64::from(bf16::from_le_bytes([b[0], b[1]])),
        WeightFormat::Q4_0 => half_at(b, 0) * (nibble(&b[2..]) - 8.0),
        WeightFormat::Q4_1 => half_at(b, 0) * nibble(&b[4..]) + half_at(b, 2),
        WeightFormat::Q5_0 => {
            let fifth = f64::from(b[2 + j / 8] >> (j % 8) & 1);
            half_at(b, 0) * (nibble(&b[6..]) + 16.0 * fifth - 16.0)
        }
        WeightFormat::Q8_0 => half_at(b, 0) * f64::from(b[2 + j] as i8),
        WeightFormat::U4G16 | WeightFormat::U4G32 | WeightFormat::U4G128 => {
            let half = format.block_len().min(32) / 2;
            let byte = b[8 + j / (2 * half) * half + j % half];
            let q = if (j / half).is_multiple_of(2) {
                byte & 15
            } else {
                byte >> 4
            };
            single_at(b, 0) * f64::from(q) + single_at(b, 4)
        }
        WeightFormat::I8G16 | WeightFormat::I8G32 | WeightFormat::I8G128 => {
            single_at(b, 0) * f64::from(b[8 + j] as i8) + single_at(b, 4)
        }
        WeightFormat::F8G32 | WeightFormat::F8G128 => {
            // The row format's arm, on this group alone.
            let row = [&b[4..format.block_bytes()], &b[..4]].concat();
            element(WeightFormat::F8E4M3, &row, j)
        }
        WeightFormat::Q4K => {
            let (group, sub) = (j / 64, j / 32);
            let byte = b[16 + 32 * group + j % 32];
            let q = if j % 64 < 32 { byte & 15 } else { byte >> 4 };
            let s = &b[4..16];
            let (scale, min) = if sub < 4 {
                (s[sub] & 63, s[sub + 4] & 63)
            } else {
                (
                    (s[sub + 4] & 15) | (s[sub - 4] >> 6 << 4),
                    (s[sub + 4] >> 4) | (s[sub] >> 6 << 4),
                )
            };
            half_at(b, 0) * f64::from(scale) * f64::from(q) - half_at(b, 2) * f64::from(min)
        }
        WeightFormat::F8E4M3 => {
            let (exponent, mantissa) = (i32::from(b[0] >> 3 & 15), f64::from(b[0] & 7));
            let magnitude = match exponent {
                0 => mantissa / 512.0,
                _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
            };
            let tail = &row[row.len() - 4..];
            let scale = f64::from(f32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
            if b[0] < 128 {
                scale * magnitude
            } else {
                -scale * magnitude
            }
        }
        WeightFormat::Q6K => {
            let (half, r) = (j / 128, j % 128);
            let (quarter, l) = (r / 32, r % 32);
            let low = b[64 * half + l + 32 * (quarter % 2)];
            let low = if quarter < 2 { low & 15 } else { low >> 4 };
            let high = b[128 + 32 * half + l] >> (2 * quarter) & 3;
            let scale = f64::from(b[192 + j / 16] as i8);
            half_at(b, 208) * scale * (f64::from(low | high << 4) - 32.0)
        }
        _ => unreachable!("coded rows came first"),
    }
}
