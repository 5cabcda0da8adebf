//! Element types of tensors and storage formats of weights, with their sizes.

use crate::abi::wire_enum;

wire_enum! {
    /// Element type of a tensor.
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
        /// 8-bit float, 4 exponent and 3 mantissa bits, no infinities (OCP OFP8 E4M3).
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
    /// Canonical storage format of a weight matrix row: what model files hold, before a backend packs it.
    ///
    /// The block formats are GGUF's (ggml-common.h): a row of `in_features` values is `in_features / block` blocks,
    /// except where [`WeightFormat::row_tail_bytes`] says that more follows.
    pub enum WeightFormat {
        /// 32-bit floats.
        F32 = 0,
        /// 16-bit IEEE floats.
        F16 = 1,
        /// bfloat16.
        BF16 = 2,
        /// 32 values: f16 d, 16 bytes of nibbles; value = d·(q−8).
        Q4_0 = 3,
        /// 32 values: f16 d, f16 m, 16 bytes of nibbles; value = d·q + m.
        Q4_1 = 4,
        /// 32 values: f16 d, u32 of fifth bits, 16 bytes of nibbles; value = d·(q−16).
        Q5_0 = 5,
        /// 32 values: f16 d, 32 signed bytes; value = d·q.
        Q8_0 = 6,
        /// 256 values: f16 d, f16 dmin, 12 bytes of 6-bit scales and mins, 128 bytes of nibbles.
        Q4K = 7,
        /// 256 values: 128 low nibbles, 64 high pairs, 16 signed scales, f16 d.
        Q6K = 8,
        /// One 8-bit float (OCP OFP8 E4M3) a value, and behind the row's values its scale as f32; value = scale·q. Rows
        /// of one tensor's scale all carry the same one.
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
