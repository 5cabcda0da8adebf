//! Storage formats of weights: one table with what each block holds, and what is generic over it. How a block's codes
//! and scales are taken apart: [`unpack`]; rows: [`rows`].

use crate::abi::wire_enum;

mod block;
pub mod blocks;
mod k_quants;
mod rows;
mod tables;
mod unpack;

pub use block::{MAX_BLOCK, MAX_GROUPS, Unpacked};
pub use rows::{convert_row, dequantise_row, put_group};
pub use tables::{E2M1, FP4, IQ4_NL, NF4, e8m0_to_f32, f16_to_f32};
pub use unpack::unpack;

wire_enum! {
    /// Storage format of a weight's rows: what model files hold, before a backend packs it. A row is a whole number of
    /// blocks, one behind the other, and the row's tail, where there is one. All numbers are little-endian. The block
    /// formats below 32 are GGUF's (ggml-common.h). Those from 40 on are canonical: a block is a group of 16, 32, 64 or
    /// 128 values with one scale, and every format of 2 to 8 bits has one of them that holds its values. A platform
    /// that refuses a format is offered that one.
    pub enum WeightFormat {
        /// 32-bit floats.
        F32 = 0,
        /// 16-bit IEEE floats.
        F16 = 1,
        /// bfloat16.
        BF16 = 2,
        /// f16 d, 16 bytes of nibbles; value = d·(q − 8). Byte j holds value j in its low nibble, value j + 16 in its
        /// high one.
        Q4_0 = 3,
        /// f16 d, f16 m, 16 bytes of nibbles as in Q4_0; value = d·q + m.
        Q4_1 = 4,
        /// f16 d, u32 whose bit j is the fifth bit of value j, 16 bytes of nibbles as in Q4_0; value = d·(q − 16).
        Q5_0 = 5,
        /// f16 d, 32 signed bytes; value = d·q.
        Q8_0 = 6,
        /// f16 d, f16 dmin, 12 bytes of scales and mins, 128 bytes of nibbles. 8 groups of 32 values; value = d·scale·q
        /// − dmin·min. Groups 2i and 2i + 1 are the low and the high nibbles of the nibbles' bytes 32i to 32i + 31. Of
        /// the 12 bytes, the low 6 bits of g and g + 4 are scale and min of a group g below 4. Those of the other
        /// groups are the low and the high nibble of byte g + 4, with the top 2 bits of the bytes g − 4 and g above
        /// them.
        Q4K = 7,
        /// 128 bytes of low nibbles, 64 bytes of high pairs, 16 signed scales, f16 d. 2 halves of 4 quarters of 32
        /// values; value l of quarter k of half h = d·scale·(q − 32). The low 4 bits of q are in byte 64h + 32·(k mod
        /// 2) + l, in the low nibble for k below 2, else in the high one; its high 2 bits are bits 2k and 2k + 1 of
        /// byte 128 + 32h + l; its scale is byte 192 + 8h + 2k + ⌊l/16⌋.
        Q6K = 8,
        /// One 8-bit float (OCP OFP8 E4M3) a value; the row's tail is its scale as f32; value = scale·q. Rows of a
        /// tensor with one scale all carry the same one.
        F8E4M3 = 9,
        /// f16 d, f16 m, u32 whose bit j is the fifth bit of value j, 16 bytes of nibbles as in Q4_0; value = d·q + m.
        Q5_1 = 10,
        /// 16 bytes, one for each 16 values: scale in the low nibble, min in the high one; 64 bytes of pairs of bits,
        /// f16 d, f16 dmin; value = d·scale·q − dmin·min. Of the 128 values of half h, value l of quarter k of 32 is in
        /// bits 2k and 2k + 1 of pairs' byte 32h + l.
        Q2K = 11,
        /// 32 bytes of third bits (bit g of byte l is that of value 32g + l), 64 bytes of pairs as in Q2_K, 12 bytes of
        /// scales, f16 d; value = d·(scale − 32)·(q − 4). Scale j of 16, of 6 bits: its low nibble is in byte j mod 8,
        /// the low half for j below 8; its upper pair is bits 2·⌊j/4⌋ and up of byte 8 + j mod 4.
        Q3K = 12,
        /// As Q4_K, with 32 bytes of fifth bits (bit g of byte l is that of value 32g + l) before the nibbles.
        Q5K = 13,
        /// f16 d, 16 bytes of nibbles as in Q4_0; value = d·t, where t is number q of −127, −104, −83, −65, −49, −35,
        /// −22, −10, 1, 13, 25, 38, 53, 69, 89, 113.
        IQ4NL = 14,
        /// f16 d, u16 high, 4 bytes of low nibbles of scales, 8 groups of 16 bytes of nibbles; value = d·(scale −
        /// 32)·t, nibbles and t as in IQ4_NL. Bits 2j and 2j + 1 of `high` are the upper bits of group j's scale.
        IQ4XS = 15,
        /// f16 d, 64 bytes, 8 × u32; value = d/4·(2·scale + 1)·t. Four values a byte, a point of a grid of 256; a word
        /// has the signs of 32 values, 7 bits for eight (the eighth makes their number even), and 4 bits of scale.
        IQ3XXS = 16,
        /// f16 d, 64 bytes, 8 bytes of ninth bits, 32 bytes of signs, 4 bytes of scales of 32 values; value =
        /// d·(2·scale + 1)·t. Four values a byte and its ninth bit, a point of a grid of 512.
        IQ3S = 17,
        /// f16 d, 8 × (4 bytes, u32); value = d/8·(2·scale + 1)·t. Eight values a byte, a point of a grid of 256; words
        /// as in IQ3_XXS.
        IQ2XXS = 18,
        /// f16 d, 32 × u16, 8 bytes of scales of 16 values; value = d/8·(2·scale + 1)·t. Eight values a word: 9 bits
        /// are a point of a grid of 512, 7 the signs as in IQ3_XXS.
        IQ2XS = 19,
        /// f16 d, 32 bytes, 32 bytes of signs, 8 bytes of upper pairs, 8 bytes of scales of 16 values; value =
        /// d/8·(2·scale + 1)·t. Eight values a byte and its upper pair, a point of a grid of 1024.
        IQ2S = 20,
        /// f16 d, 32 bytes, 8 × u16; value = d·(2·scale + 1)·(t ± 1/8). Eight values a byte and 3 bits of the word, a
        /// point of a grid of 2048; above these the word has 3 bits of scale and the sign of the eighth, 1 for minus.
        IQ1S = 21,
        /// 32 bytes, 32 nibbles, 4 × u16; value as in IQ1_S. A nibble has the upper 3 bits of eight values' point and
        /// the sign of the eighth; a word four scales of 16 values, of 3 bits, and above them 4 bits of the f16 d.
        IQ1M = 22,
        /// 48 bytes of five values, 4 bytes of four, f16 d; value = d·(q − 1). A byte b holds digits to base 3 of
        /// b/256, the most significant one first; value l of digit n is in byte l of 32, of 16 and of 4 bytes in turn.
        TQ1_0 = 23,
        /// 64 bytes of pairs as in Q2_K, f16 d; value = d·(q − 1).
        TQ2_0 = 24,
        /// One byte e, 16 bytes of nibbles as in Q4_0; value = 2^(e − 127)·E2M1\[q\], with E2M1\[0..8\] = 0, 0.5, 1,
        /// 1.5, 2, 3, 4, 6 and E2M1\[8 + i\] = −E2M1\[i\] (OCP Microscaling Formats 1.0). e = 255 is NaN.
        Mxfp4 = 32,
        /// One byte s, an 8-bit float as in F8E4M3, 8 bytes of nibbles: byte j holds value j in its low nibble, value
        /// j + 8 in its high one. The row's tail is t, an f32; value = (t·s)·E2M1\[q\], E2M1 as in Mxfp4.
        Nvfp4 = 33,
        /// Rows as in F8G128. In `linear`, 128 rows of the matrix from a multiple of 128 on (the last ones may be
        /// fewer) have the same scales of groups: there is one for each block of 128 × 128.
        F8B128 = 34,
        /// f32 d, f32 m, 8 bytes of nibbles as in Nvfp4; value = d·q + m.
        U4G16 = 40,
        /// f32 d, f32 m, 16 bytes of nibbles as in Q4_0; value = d·q + m.
        U4G32 = 41,
        /// f32 d, f32 m, 32 bytes of nibbles: 2 runs of 32 values, each as in Q4_0; value = d·q + m.
        U4G64 = 42,
        /// f32 d, f32 m, 64 bytes of nibbles: 4 runs of 32 values, each as in Q4_0; value = d·q + m.
        U4G128 = 43,
        /// f32 d, f32 m, 16 signed bytes; value = d·q + m.
        I8G16 = 44,
        /// f32 d, f32 m, 32 signed bytes; value = d·q + m.
        I8G32 = 45,
        /// f32 d, f32 m, 64 signed bytes; value = d·q + m.
        I8G64 = 46,
        /// f32 d, f32 m, 128 signed bytes; value = d·q + m.
        I8G128 = 47,
        /// f32 d, 8 bytes of nibbles as in Nvfp4; value = d·E2M1\[q\], E2M1 as in Mxfp4.
        E2M1G16 = 48,
        /// f32 d, 16 bytes of nibbles as in Q4_0; value = d·E2M1\[q\], E2M1 as in Mxfp4.
        E2M1G32 = 49,
        /// f32 d, 32 bytes of nibbles as in U4G64; value = d·NF4\[q\]: the 16 values of the data type NF4 (Dettmers et
        /// al. 2023, arXiv 2305.14314, appendix E).
        Nf4G64 = 50,
        /// f32 d, 32 bytes of nibbles as in U4G64; value = d·FP4\[q\] with FP4\[0..8\] = 0, 0.0625/12, 8/12, 1, 4/12,
        /// 6/12, 2/12, 3/12 and FP4\[8 + i\] = −FP4\[i\] (bitsandbytes).
        Fp4G64 = 51,
        /// f32 d, 16 bytes of nibbles as in Q4_0; value = d·K\[q\] with K = −127, −104, −83, −65, −49, −35, −22, −10,
        /// 1, 13, 25, 38, 53, 69, 89, 113 (ggml's IQ4_NL).
        Iq4NlG32 = 52,
        /// f32 d, 32 8-bit floats as in F8E4M3; value = d·q.
        F8G32 = 53,
        /// f32 d, 64 8-bit floats as in F8E4M3; value = d·q.
        F8G64 = 54,
        /// f32 d, 128 8-bit floats as in F8E4M3; value = d·q.
        F8G128 = 55,
    }
}

/// What the codes of a format are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Codes {
    /// No codes: values are floats of this size, as they stand.
    Float,
    /// Integers from `low` on: value = scale·q + min.
    Integer {
        /// The smallest code.
        low: i8,
    },
    /// Indices: value = scale·table\[q\].
    Table(&'static [f32; 16]),
    /// 8-bit floats: value = scale·q.
    E4m3,
}

/// A row of the table of formats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FormatLayout {
    /// As users write it.
    pub name: &'static str,
    /// Values in one block.
    pub block_values: usize,
    /// Bytes of one block.
    pub block_bytes: usize,
    /// Bytes behind the blocks of a row.
    pub row_tail_bytes: usize,
    /// Values that share a scale, at most a block; 0: the whole row, by its tail.
    pub group: usize,
    /// What codes are.
    pub codes: Codes,
    /// What is offered to a platform that refuses this one, in groups that divide the row (see `narrowed`); `None`: it
    /// is canonical itself, or plain.
    pub canonical: Option<WeightFormat>,
}

/// A row of the table: name, values and bytes of a block, bytes of the tail, values of a group, codes.
const fn row(
    name: &'static str,
    [block_values, block_bytes, row_tail_bytes, group]: [usize; 4],
    codes: Codes,
) -> FormatLayout {
    FormatLayout {
        name,
        block_values,
        block_bytes,
        row_tail_bytes,
        group,
        codes,
        canonical: None,
    }
}

impl FormatLayout {
    const fn or(mut self, canonical: WeightFormat) -> FormatLayout {
        self.canonical = Some(canonical);
        self
    }
}

impl WeightFormat {
    /// Every format, in code order.
    pub const ALL: [WeightFormat; WeightFormat::VARIANTS.len()] = WeightFormat::VARIANTS;

    /// The table of formats.
    pub const fn layout(self) -> FormatLayout {
        use WeightFormat as F;
        const fn integer(low: i8) -> Codes {
            Codes::Integer { low }
        }
        match self {
            F::F32 => row("F32", [1, 4, 0, 1], Codes::Float),
            F::F16 => row("F16", [1, 2, 0, 1], Codes::Float),
            F::BF16 => row("BF16", [1, 2, 0, 1], Codes::Float),
            F::Q4_0 => row("Q4_0", [32, 18, 0, 32], integer(-8)).or(F::U4G32),
            F::Q4_1 => row("Q4_1", [32, 20, 0, 32], integer(0)).or(F::U4G32),
            F::Q5_0 => row("Q5_0", [32, 22, 0, 32], integer(-16)).or(F::I8G32),
            F::Q8_0 => row("Q8_0", [32, 34, 0, 32], integer(-128)).or(F::I8G32),
            F::Q4K => row("Q4_K", [256, 144, 0, 32], integer(0)).or(F::U4G32),
            F::Q6K => row("Q6_K", [256, 210, 0, 16], integer(-32)).or(F::I8G16),
            F::F8E4M3 => row("F8_E4M3", [1, 1, 4, 0], Codes::E4m3).or(F::F8G128),
            F::Q5_1 => row("Q5_1", [32, 24, 0, 32], integer(0)).or(F::I8G32),
            F::Q2K => row("Q2_K", [256, 84, 0, 16], integer(0)).or(F::U4G16),
            F::Q3K => row("Q3_K", [256, 110, 0, 16], integer(-4)).or(F::U4G16),
            F::Q5K => row("Q5_K", [256, 176, 0, 32], integer(0)).or(F::I8G32),
            F::IQ4NL => row("IQ4_NL", [32, 18, 0, 32], Codes::Table(&IQ4_NL)).or(F::Iq4NlG32),
            F::IQ4XS => row("IQ4_XS", [256, 136, 0, 32], Codes::Table(&IQ4_NL)).or(F::Iq4NlG32),
            F::IQ3XXS => row("IQ3_XXS", [256, 98, 0, 32], integer(-62)).or(F::I8G32),
            F::IQ3S => row("IQ3_S", [256, 110, 0, 32], integer(-15)).or(F::I8G32),
            F::IQ2XXS => row("IQ2_XXS", [256, 66, 0, 32], integer(-43)).or(F::I8G32),
            F::IQ2XS => row("IQ2_XS", [256, 74, 0, 16], integer(-43)).or(F::I8G16),
            F::IQ2S => row("IQ2_S", [256, 82, 0, 16], integer(-43)).or(F::I8G16),
            F::IQ1S => row("IQ1_S", [256, 50, 0, 32], integer(-9)).or(F::I8G32),
            F::IQ1M => row("IQ1_M", [256, 56, 0, 16], integer(-9)).or(F::I8G16),
            F::TQ1_0 => row("TQ1_0", [256, 54, 0, 128], integer(-1)).or(F::U4G128),
            F::TQ2_0 => row("TQ2_0", [256, 66, 0, 128], integer(-1)).or(F::U4G128),
            F::Mxfp4 => row("MXFP4", [32, 17, 0, 32], Codes::Table(&E2M1)).or(F::E2M1G32),
            F::Nvfp4 => row("NVFP4", [16, 9, 4, 16], Codes::Table(&E2M1)).or(F::E2M1G16),
            F::F8B128 => row("F8_B128", [128, 132, 0, 128], Codes::E4m3).or(F::F8G128),
            F::U4G16 => row("U4_G16", [16, 16, 0, 16], integer(0)),
            F::U4G32 => row("U4_G32", [32, 24, 0, 32], integer(0)),
            F::U4G64 => row("U4_G64", [64, 40, 0, 64], integer(0)),
            F::U4G128 => row("U4_G128", [128, 72, 0, 128], integer(0)),
            F::I8G16 => row("I8_G16", [16, 24, 0, 16], integer(-128)),
            F::I8G32 => row("I8_G32", [32, 40, 0, 32], integer(-128)),
            F::I8G64 => row("I8_G64", [64, 72, 0, 64], integer(-128)),
            F::I8G128 => row("I8_G128", [128, 136, 0, 128], integer(-128)),
            F::E2M1G16 => row("E2M1_G16", [16, 12, 0, 16], Codes::Table(&E2M1)),
            F::E2M1G32 => row("E2M1_G32", [32, 20, 0, 32], Codes::Table(&E2M1)),
            F::Nf4G64 => row("NF4_G64", [64, 36, 0, 64], Codes::Table(&NF4)),
            F::Fp4G64 => row("FP4_G64", [64, 36, 0, 64], Codes::Table(&FP4)),
            F::Iq4NlG32 => row("IQ4_NL_G32", [32, 20, 0, 32], Codes::Table(&IQ4_NL)),
            F::F8G32 => row("F8_G32", [32, 36, 0, 32], Codes::E4m3),
            F::F8G64 => row("F8_G64", [64, 68, 0, 64], Codes::E4m3),
            F::F8G128 => row("F8_G128", [128, 132, 0, 128], Codes::E4m3),
        }
    }

    /// The name of a format as users write it.
    pub const fn name(self) -> &'static str {
        self.layout().name
    }

    /// Values in one block (1 for the plain floats).
    pub const fn block_values(self) -> usize {
        self.layout().block_values
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        self.layout().block_bytes
    }

    /// Bytes behind the blocks of a row: its scale, where a row has one.
    pub const fn row_tail_bytes(self) -> usize {
        self.layout().row_tail_bytes
    }

    /// Whether values stand as they are, without codes.
    pub const fn is_plain(self) -> bool {
        matches!(self.layout().codes, Codes::Float)
    }

    /// Whether it is one of the forms that other formats become: a block is a group with an f32 scale.
    pub const fn is_canonical(self) -> bool {
        self as u32 >= WeightFormat::U4G16 as u32
    }

    /// Bytes of a row of `in_features` values, or `None` when that is not a whole number of blocks.
    pub const fn row_bytes(self, in_features: usize) -> Option<usize> {
        if !in_features.is_multiple_of(self.block_values()) {
            return None;
        }
        match (in_features / self.block_values()).checked_mul(self.block_bytes()) {
            Some(bytes) => bytes.checked_add(self.row_tail_bytes()),
            None => None,
        }
    }

    /// The canonical format with this format's codes whose group divides `columns` and this format's group: the
    /// largest such. Any group divides a row that has one scale. `None` where there is none, or this format is plain.
    pub fn narrowed(self, columns: usize) -> Option<WeightFormat> {
        let own = self.layout();
        let canonical = own.canonical.unwrap_or(self);
        if !canonical.is_canonical() {
            return None;
        }
        let wanted = canonical.layout();
        let bits = |layout: &FormatLayout| (layout.block_bytes - layout.scale_bytes()) * 8 / layout.block_values;
        let fits = WeightFormat::ALL.into_iter().filter(|format| {
            let layout = format.layout();
            format.is_canonical()
                && layout.codes == wanted.codes
                && bits(&layout) == bits(&wanted)
                && own.group.is_multiple_of(layout.group)
                && columns.is_multiple_of(layout.group)
        });
        fits.max_by_key(|format| format.layout().group)
    }
}

impl FormatLayout {
    /// Of a canonical format: bytes of the scale, and of the minimum where there is one.
    pub const fn scale_bytes(&self) -> usize {
        match self.codes {
            Codes::Integer { .. } => 8,
            _ => 4,
        }
    }
}
