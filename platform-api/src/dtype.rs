//! Element types of tensors, with their sizes. Formats of weights: [`crate::weight_format`].

use crate::abi::wire_enum;

wire_enum! {
    /// Element type of a tensor. No tensor has one of 4 bits: what is packed that tightly crosses as U8.
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
        /// Signed 8-bit. As the type of a KV cache: codes with a scale for each token and head.
        I8 = 5,
        /// 8-bit float, 4 exponent and 3 mantissa bits, no infinities (OCP OFP8 E4M3). What is written as one rounds to
        /// the nearest, of two the even one; beyond ±448 it is ±448; NaN stays NaN.
        F8E4M3 = 6,
        /// Signed 64-bit.
        I64 = 7,
        /// Codes of 4 bits with a scale and a minimum for each token and head: the type of a KV cache, never of a
        /// tensor.
        U4 = 8,
    }
}

impl DType {
    /// Bytes of one element; of U4, of the two that share a byte.
    pub const fn bytes(self) -> usize {
        match self {
            DType::U8 | DType::I8 | DType::F8E4M3 | DType::U4 => 1,
            DType::F16 | DType::BF16 => 2,
            DType::F32 | DType::I32 => 4,
            DType::I64 => 8,
        }
    }
}
