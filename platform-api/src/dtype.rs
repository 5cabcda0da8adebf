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
    }
}

impl WeightFormat {
    /// Every format, in code order.
    pub const ALL: [WeightFormat; 10] = [
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
    ];

    /// Values in one block (1 for the plain floats).
    pub const fn block_values(self) -> usize {
        match self {
            WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16 | WeightFormat::F8E4M3 => 1,
            WeightFormat::Q4_0 | WeightFormat::Q4_1 | WeightFormat::Q5_0 | WeightFormat::Q8_0 => 32,
            WeightFormat::Q4K | WeightFormat::Q6K => 256,
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
