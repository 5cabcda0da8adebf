//! Element types of tensors and storage formats of weights, with their sizes.

use crate::abi::wire_enum;

wire_enum! {
    /// Element type of a tensor. Types of 4 bits are none: what is packed that tightly crosses as U8.
    pub enum DType {
        /// Bytes without a meaning of their own (KV pages, packed weights, row structs).
        U8 = 0,
        /// IEEE 754 binary32.
        F32 = 1,
        /// IEEE 754 binary16.
        F16 = 2,
        /// bfloat16: the upper half of a binary32.
        BF16 = 3,
        /// Signed 32-bit.
        I32 = 4,
        /// Signed 8-bit.
        I8 = 5,
        /// 8-bit float, 4 exponent and 3 mantissa bits, no infinities (OCP OFP8 E4M3). What is written as one rounds to
        /// the nearest, of two the even one; beyond ±448 it is ±448; NaN stays NaN.
        F8E4M3 = 6,
        /// Signed 64-bit.
        I64 = 7,
    }
}

impl DType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            DType::U8 | DType::I8 | DType::F8E4M3 => 1,
            DType::F16 | DType::BF16 => 2,
            DType::F32 | DType::I32 => 4,
            DType::I64 => 8,
        }
    }
}

wire_enum! {
    /// Storage format of a weight's rows: what model files hold, before a backend packs it. A row is a whole number of
    /// blocks, one behind the other, and the row's tail, where there is one. All numbers are little-endian. The block
    /// formats are GGUF's (ggml-common.h).
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
        /// f16 d, u16 high, 4 bytes of low nibbles of scales, 8 groups of 16 bytes of nibbles; value = d·(scale − 32)·t,
        /// nibbles and t as in IQ4_NL. Bits 2j and 2j + 1 of `high` are the upper bits of group j's scale.
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
    }
}

impl WeightFormat {
    /// Every format, in code order.
    pub const ALL: [WeightFormat; 25] = [
        WeightFormat::F32,
        WeightFormat::F16,
        WeightFormat::BF16,
        WeightFormat::Q4_0,
        WeightFormat::Q4_1,
        WeightFormat::Q5_0,
        WeightFormat::Q8_0,
        WeightFormat::Q4K,
        WeightFormat::Q6K,
        WeightFormat::F8E4M3,
        WeightFormat::Q5_1,
        WeightFormat::Q2K,
        WeightFormat::Q3K,
        WeightFormat::Q5K,
        WeightFormat::IQ4NL,
        WeightFormat::IQ4XS,
        WeightFormat::IQ3XXS,
        WeightFormat::IQ3S,
        WeightFormat::IQ2XXS,
        WeightFormat::IQ2XS,
        WeightFormat::IQ2S,
        WeightFormat::IQ1S,
        WeightFormat::IQ1M,
        WeightFormat::TQ1_0,
        WeightFormat::TQ2_0,
    ];

    /// Values in one block (1 for the plain floats).
    pub const fn block_values(self) -> usize {
        match self {
            WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16 | WeightFormat::F8E4M3 => 1,
            WeightFormat::Q4_0 | WeightFormat::Q4_1 | WeightFormat::Q5_0 | WeightFormat::Q8_0 => 32,
            WeightFormat::Q5_1 | WeightFormat::IQ4NL => 32,
            _ => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            WeightFormat::F32 => 4,
            WeightFormat::F16 | WeightFormat::BF16 => 2,
            WeightFormat::Q4_0 => 18,
            WeightFormat::Q4_1 => 20,
            WeightFormat::Q5_0 => 22,
            WeightFormat::Q8_0 => 34,
            WeightFormat::Q4K => 144,
            WeightFormat::Q6K => 210,
            WeightFormat::Q5_1 => 24,
            WeightFormat::Q2K => 84,
            WeightFormat::Q3K => 110,
            WeightFormat::Q5K => 176,
            WeightFormat::IQ4NL => 18,
            WeightFormat::IQ4XS => 136,
            WeightFormat::IQ3XXS => 98,
            WeightFormat::IQ3S => 110,
            WeightFormat::IQ2XXS => 66,
            WeightFormat::IQ2XS => 74,
            WeightFormat::IQ2S => 82,
            WeightFormat::IQ1S => 50,
            WeightFormat::IQ1M => 56,
            WeightFormat::TQ1_0 => 54,
            WeightFormat::TQ2_0 => 66,
            WeightFormat::F8E4M3 => 1,
        }
    }

    /// Bytes behind the blocks of a row: its scale, where a row has one.
    pub const fn row_tail_bytes(self) -> usize {
        match self {
            WeightFormat::F8E4M3 => 4,
            _ => 0,
        }
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
}
