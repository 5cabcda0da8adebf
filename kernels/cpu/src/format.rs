//! Weight formats as they lie in files: block sizes and the exact dequantisation of one row. Owns the knowledge of
//! the GGUF block layouts (ggml-common.h of the GGML project); packing and gathering read rows through it.

use half::{bf16, f16};

use crate::e4m3::e4m3_to_f32;

/// Formats.
pub(crate) const NUM_FORMATS: usize = 27;

/// How the elements of a weight row are stored in a file ("canonical" bytes).
///
/// GGUF blocks, little endian, in field order:
/// - `Q4_0` 32 elements, 18 bytes: d f16; 16 bytes, element i in the low nibble of byte i, i + 16 in the high one.
///   w = d·(q − 8).
/// - `Q4_1` 32, 20: d f16, m f16, nibbles. w = d·q + m.
/// - `Q5_0` 32, 22: d f16, 32 fifth bits, nibbles. w = d·(q − 16).
/// - `Q8_0` 32, 34: d f16, 32 × i8. w = d·q.
/// - `Q4K` 256, 144: d f16, dmin f16, eight 6-bit (scale, min) pairs in 12 bytes, nibbles by 64 elements.
///   w = d·scale·q − dmin·min.
/// - `Q6K` 256, 210: low nibbles 128 bytes, high bit pairs 64 bytes, 16 × i8 scales, d f16. w = d·scale·(q − 32).
///
/// `F8E4M3` is no block format: a byte an element, and the row's scale as f32 behind them. w = scale·q.
///
/// The formats from `Int5` on are this crate's own, for the integers of few bits that GGUF's other formats are made of.
/// Their rows are what the caller took apart, in blocks of 32 or 256 elements: d f32, dmin f32, the numbers of codes
/// i8\[16\], for each 16 elements a scale i8 and a min u8 (first all scales), and a byte an element, its code.
/// w = d·scale·n − dmin·min, where n is the code, or the number that it stands for.
///
/// Groups of G elements (`U4G16` has groups of 16, and so on):
/// - `U4` d f32, m f32, G/2 bytes of nibbles in runs of 32 elements (16 where G is), each as in Q4_0. w = d·q + m.
/// - `I8` d f32, m f32, G × i8. w = d·q + m.
/// - `F8` d f32, G 8-bit floats. w = d·q.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WeightFormat {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// GGUF Q4_0.
    Q4_0,
    /// GGUF Q4_1.
    Q4_1,
    /// GGUF Q5_0.
    Q5_0,
    /// GGUF Q8_0.
    Q8_0,
    /// GGUF Q4_K.
    Q4K,
    /// GGUF Q6_K.
    Q6K,
    /// 8-bit floats with one scale a row.
    F8E4M3,
    /// Blocks of 32; codes of 5 bits, d and dmin of 16 bits, scale 1.
    Int5,
    /// Blocks of 256; codes of 5 bits, d and dmin of 16 bits, scale and min the same for each 32 elements.
    Int5Scaled,
    /// Blocks of 256; codes of 2 bits, d and dmin of 16 bits, scales and mins of 4 bits.
    Int2Scaled,
    /// Blocks of 256; codes of 2 bits for the numbers from −1 on, d of 16 bits, scale 1, no min.
    Int2,
    /// Blocks of 256; codes of 3 bits for the numbers from −4 on, d of 16 bits, no min.
    Int3Scaled,
    /// Blocks of 256; codes of 3 bits, numbers within ±63, no min.
    Table3Scaled,
    /// The same, numbers from −16 to 15: more of their products add up in 16 bits.
    Table3Small,
    /// Blocks of 256; codes of 4 bits, scale the same for each 32 elements, no min.
    Table4Scaled,
    /// Blocks of 32; codes of 4 bits, d of 16 bits, scale 1, no min.
    Table4,
    /// Four bits with scale and minimum, groups of 16.
    U4G16,
    /// The same, groups of 32.
    U4G32,
    /// The same, groups of 128.
    U4G128,
    /// Signed bytes with scale and minimum, groups of 16.
    I8G16,
    /// The same, groups of 32.
    I8G32,
    /// The same, groups of 128.
    I8G128,
    /// 8-bit floats, groups of 32.
    F8G32,
    /// The same, groups of 128.
    F8G128,
}

impl WeightFormat {
    /// Every format.
    pub const ALL: [WeightFormat; NUM_FORMATS] = [
        WeightFormat::F32,
        WeightFormat::F16,
        WeightFormat::Bf16,
        WeightFormat::Q4_0,
        WeightFormat::Q4_1,
        WeightFormat::Q5_0,
        WeightFormat::Q8_0,
        WeightFormat::Q4K,
        WeightFormat::Q6K,
        WeightFormat::F8E4M3,
        WeightFormat::Int5,
        WeightFormat::Int5Scaled,
        WeightFormat::Int2Scaled,
        WeightFormat::Int2,
        WeightFormat::Int3Scaled,
        WeightFormat::Table3Scaled,
        WeightFormat::Table3Small,
        WeightFormat::Table4Scaled,
        WeightFormat::Table4,
        WeightFormat::U4G16,
        WeightFormat::U4G32,
        WeightFormat::U4G128,
        WeightFormat::I8G16,
        WeightFormat::I8G32,
        WeightFormat::I8G128,
        WeightFormat::F8G32,
        WeightFormat::F8G128,
    ];

    /// Whether rows are coded rows.
    pub const fn is_coded(self) -> bool {
        self as usize > WeightFormat::F8E4M3 as usize && (self as usize) < WeightFormat::U4G16 as usize
    }

    /// Whether codes of coded rows stand for the numbers that each block brings.
    pub const fn has_numbers(self) -> bool {
        self.has_table() || matches!(self, WeightFormat::Int2 | WeightFormat::Int3Scaled)
    }

    /// Whether panels have a table of these numbers; without it they are known.
    pub const fn has_table(self) -> bool {
        matches!(
            self,
            WeightFormat::Table3Scaled | WeightFormat::Table3Small | WeightFormat::Table4Scaled | WeightFormat::Table4
        )
    }

    /// Elements in a block (1 for the float formats).
    pub const fn block_len(self) -> usize {
        match self {
            WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16 | WeightFormat::F8E4M3 => 1,
            WeightFormat::Q4_0 | WeightFormat::Q4_1 | WeightFormat::Q5_0 | WeightFormat::Q8_0 => 32,
            WeightFormat::Int5 | WeightFormat::Table4 => 32,
            WeightFormat::Q4K | WeightFormat::Q6K => 256,
            WeightFormat::Int5Scaled | WeightFormat::Int2Scaled => 256,
            WeightFormat::Int2 | WeightFormat::Int3Scaled => 256,
            WeightFormat::Table3Scaled | WeightFormat::Table3Small | WeightFormat::Table4Scaled => 256,
            WeightFormat::U4G16 | WeightFormat::I8G16 => 16,
            WeightFormat::U4G32 | WeightFormat::I8G32 | WeightFormat::F8G32 => 32,
            WeightFormat::U4G128 | WeightFormat::I8G128 | WeightFormat::F8G128 => 128,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            WeightFormat::F32 => 4,
            WeightFormat::F16 | WeightFormat::Bf16 => 2,
            WeightFormat::Q4_0 => 18,
            WeightFormat::Q4_1 => 20,
            WeightFormat::Q5_0 => 22,
            WeightFormat::Q8_0 => 34,
            WeightFormat::Q4K => 144,
            WeightFormat::Q6K => 210,
            WeightFormat::F8E4M3 => 1,
            WeightFormat::U4G16 | WeightFormat::U4G32 | WeightFormat::U4G128 => 8 + self.block_len() / 2,
            WeightFormat::I8G16 | WeightFormat::I8G32 | WeightFormat::I8G128 => 8 + self.block_len(),
            WeightFormat::F8G32 | WeightFormat::F8G128 => 4 + self.block_len(),
            _ => CODED_HEAD + self.block_len() / 8 + self.block_len(),
        }
    }

    /// Bytes behind the blocks of a row.
    pub const fn tail_bytes(self) -> usize {
        match self {
            WeightFormat::F8E4M3 => 4,
            _ => 0,
        }
    }

    /// Elements of a group that has f32 scales; 0 for other formats.
    pub(crate) const fn group(self) -> usize {
        if self as usize >= WeightFormat::U4G16 as usize {
            self.block_len()
        } else {
            0
        }
    }

    /// Whether groups have a minimum.
    pub(crate) const fn has_group_min(self) -> bool {
        self.group() > 0 && !matches!(self, WeightFormat::F8G32 | WeightFormat::F8G128)
    }

    /// Bytes of a row of `k` elements, or `None` if `k` is no multiple of the block length.
    pub const fn row_bytes(self, k: usize) -> Option<usize> {
        if k.is_multiple_of(self.block_len()) {
            Some(k / self.block_len() * self.block_bytes() + self.tail_bytes())
        } else {
            None
        }
    }
}

/// Bytes of a block of coded rows before its scales: d, dmin, and 16 numbers.
pub(crate) const CODED_HEAD: usize = 4 + 4 + 16;

/// A block of a coded row.
pub(crate) struct CodedBlock<'a> {
    pub d: f32,
    pub dmin: f32,
    pub numbers: &'a [u8],
    pub scales: &'a [u8],
    pub mins: &'a [u8],
    pub codes: &'a [u8],
}

impl CodedBlock<'_> {
    /// Of the block's bytes.
    pub fn of(block: &[u8]) -> CodedBlock<'_> {
        let float = |at: usize| f32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
        // A byte an element, and an eighth of it for scales and mins.
        let groups = (block.len() - CODED_HEAD) / 18;
        let (scales, rest) = block[CODED_HEAD..].split_at(groups);
        let (mins, codes) = rest.split_at(groups);
        CodedBlock {
            d: float(0),
            dmin: float(4),
            numbers: &block[8..CODED_HEAD],
            scales,
            mins,
            codes,
        }
    }

    fn dequantize(&self, has_numbers: bool, out: &mut [f32]) {
        for (i, (out, &code)) in out.iter_mut().zip(self.codes).enumerate() {
            let number = match has_numbers {
                true => f32::from(self.numbers[usize::from(code & 15)] as i8),
                false => f32::from(code),
            };
            let scale = self.d * f32::from(self.scales[i / 16] as i8);
            *out = scale * number - self.dmin * f32::from(self.mins[i / 16]);
        }
    }
}

pub(crate) fn f32_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The codes of a group as bytes: of `I8` formats shifted by +128, of `F8` formats as they are.
pub(crate) fn group_codes(format: WeightFormat, block: &[u8]) -> [u8; 128] {
    let mut q = [0u8; 128];
    let codes = &block[if format.has_group_min() { 8 } else { 4 }..];
    match format {
        WeightFormat::U4G16 | WeightFormat::U4G32 | WeightFormat::U4G128 => {
            let half = format.block_len().min(32) / 2;
            for (i, &b) in codes.iter().enumerate() {
                let at = i / half * 2 * half + i % half;
                (q[at], q[at + half]) = (b & 15, b >> 4);
            }
        }
        WeightFormat::F8G32 | WeightFormat::F8G128 => q[..codes.len()].copy_from_slice(codes),
        _ => q.iter_mut().zip(codes).for_each(|(q, &b)| *q = b ^ 0x80),
    }
    q
}

pub(crate) fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_bits(u16::from_le_bytes([bytes[at], bytes[at + 1]])).to_f32()
}

/// Codes and scale of a canonical `F8E4M3` row.
pub(crate) fn split_e4m3(row: &[u8]) -> (&[u8], f32) {
    let (codes, scale) = row.split_at(row.len() - WeightFormat::F8E4M3.tail_bytes());
    (codes, f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]))
}

/// The 6-bit scale and min of sub-block `j` (0..8) of a Q4_K block, from its 12 packed bytes.
pub(crate) fn q4k_scale_min(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (
            (packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4),
            (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4),
        )
    }
}

/// The unsigned quants of one 32-element block (`Q4_0` … `Q8_0`; Q8_0 shifted by +128).
pub(crate) fn quants32(format: WeightFormat, block: &[u8]) -> [u8; 32] {
    let mut q = [0u8; 32];
    match format {
        WeightFormat::Q8_0 => {
            for (q, &b) in q.iter_mut().zip(&block[2..34]) {
                *q = b ^ 0x80;
            }
        }
        _ => {
            let nibbles = match format {
                WeightFormat::Q4_0 => &block[2..18],
                WeightFormat::Q4_1 => &block[4..20],
                _ => &block[6..22],
            };
            for (i, &b) in nibbles.iter().enumerate() {
                q[i] = b & 15;
                q[i + 16] = b >> 4;
            }
            if format == WeightFormat::Q5_0 {
                let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
                for (i, q) in q.iter_mut().enumerate() {
                    *q |= ((high >> i & 1) as u8) << 4;
                }
            }
        }
    }
    q
}

/// The 256 unsigned quants of one K block.
pub(crate) fn quants256(format: WeightFormat, block: &[u8]) -> [u8; 256] {
    let mut q = [0u8; 256];
    if format == WeightFormat::Q4K {
        for (i, &b) in block[16..144].iter().enumerate() {
            let at = i / 32 * 64 + i % 32;
            q[at] = b & 15;
            q[at + 32] = b >> 4;
        }
        return q;
    }
    for half in 0..2 {
        let (low, high) = (&block[64 * half..], &block[128 + 32 * half..]);
        for l in 0..32 {
            let at = 128 * half + l;
            q[at] = (low[l] & 15) | ((high[l] & 3) << 4);
            q[at + 32] = (low[l + 32] & 15) | ((high[l] >> 2 & 3) << 4);
            q[at + 64] = (low[l] >> 4) | ((high[l] >> 4 & 3) << 4);
            q[at + 96] = (low[l + 32] >> 4) | ((high[l] >> 6) << 4);
        }
    }
    q
}

/// Dequantises one row of canonical bytes into f32, each element rounded once from its exact value.
///
/// # Panics
/// If `row` is not exactly `format.row_bytes(out.len())` long.
pub fn dequantize_row(format: WeightFormat, row: &[u8], out: &mut [f32]) {
    assert_eq!(
        Some(row.len()),
        format.row_bytes(out.len()),
        "bytes of a {format:?} row of {} elements",
        out.len()
    );
    let (len, bytes) = (format.block_len(), format.block_bytes());
    match format {
        WeightFormat::F32 => {
            for (out, b) in out.iter_mut().zip(row.chunks_exact(4)) {
                *out = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        WeightFormat::F16 => {
            for (out, b) in out.iter_mut().zip(row.chunks_exact(2)) {
                *out = f16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        WeightFormat::Bf16 => {
            for (out, b) in out.iter_mut().zip(row.chunks_exact(2)) {
                *out = bf16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        WeightFormat::F8E4M3 => {
            let (codes, scale) = split_e4m3(row);
            for (out, &code) in out.iter_mut().zip(codes) {
                *out = scale * e4m3_to_f32(code);
            }
        }
        format if format.group() > 0 => {
            let zero = if format.has_group_min() && bytes > len {
                128.0
            } else {
                0.0
            };
            for (out, block) in out.chunks_exact_mut(len).zip(row.chunks_exact(bytes)) {
                let (d, codes) = (f32_at(block, 0), group_codes(format, block));
                for (out, &code) in out.iter_mut().zip(&codes) {
                    *out = match format.has_group_min() {
                        true => (d * (f32::from(code) - zero)) + f32_at(block, 4),
                        false => d * e4m3_to_f32(code),
                    };
                }
            }
        }
        WeightFormat::Q4K | WeightFormat::Q6K => {
            for (out, block) in out.chunks_exact_mut(len).zip(row.chunks_exact(bytes)) {
                dequantize256(format, block, out);
            }
        }
        _ if format.is_coded() => {
            for (out, block) in out.chunks_exact_mut(len).zip(row.chunks_exact(bytes)) {
                CodedBlock::of(block).dequantize(format.has_numbers(), out);
            }
        }
        _ => {
            for (out, block) in out.chunks_exact_mut(len).zip(row.chunks_exact(bytes)) {
                let d = f16_at(block, 0);
                let (zero, m) = match format {
                    WeightFormat::Q4_0 => (8.0, 0.0),
                    WeightFormat::Q5_0 => (16.0, 0.0),
                    WeightFormat::Q8_0 => (128.0, 0.0),
                    _ => (0.0, f16_at(block, 2)),
                };
                for (out, q) in out.iter_mut().zip(quants32(format, block)) {
                    // d·(q − zero) has at most 19 bits: exact, so the addition is the only rounding.
                    *out = d * (f32::from(q) - zero) + m;
                }
            }
        }
    }
}

fn dequantize256(format: WeightFormat, block: &[u8], out: &mut [f32]) {
    let q = quants256(format, block);
    if format == WeightFormat::Q4K {
        let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
        for (j, out) in out.chunks_exact_mut(32).enumerate() {
            let (scale, min) = q4k_scale_min(&block[4..16], j);
            let (s, m) = (d * f32::from(scale), dmin * f32::from(min));
            for (out, &q) in out.iter_mut().zip(&q[32 * j..]) {
                *out = s * f32::from(q) - m;
            }
        }
    } else {
        let d = f16_at(block, 208);
        for (j, out) in out.chunks_exact_mut(16).enumerate() {
            let s = d * f32::from(block[192 + j] as i8);
            for (out, &q) in out.iter_mut().zip(&q[16 * j..]) {
                *out = s * (f32::from(q) - 32.0);
            }
        }
    }
}
