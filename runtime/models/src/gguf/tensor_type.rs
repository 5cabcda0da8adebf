//! The storage types that a GGUF tensor table can name, with block sizes, and which of them the engine
//! computes with. Numbers and sizes: `enum ggml_type` and the type table of ggml.

use halyard_platform_api::WeightFormat;

/// A storage type of ggml.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorType {
    code: u32,
    name: &'static str,
    block_values: u32,
    block_bytes: u32,
    format: Option<WeightFormat>,
}

/// The formats that [`TensorType::weight_format`] knows; for messages.
pub(crate) const SUPPORTED: &str = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, \
    IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ4_NL, IQ4_XS, TQ1_0, TQ2_0, MXFP4";

const fn plain(code: u32, name: &'static str, values: u32, bytes: u32) -> TensorType {
    TensorType {
        code,
        name,
        block_values: values,
        block_bytes: bytes,
        format: None,
    }
}

const fn usable(code: u32, name: &'static str, format: WeightFormat) -> TensorType {
    TensorType {
        code,
        name,
        block_values: format.block_values() as u32,
        block_bytes: format.block_bytes() as u32,
        format: Some(format),
    }
}

const TYPES: [TensorType; 35] = [
    usable(0, "F32", WeightFormat::F32),
    usable(1, "F16", WeightFormat::F16),
    usable(2, "Q4_0", WeightFormat::Q4_0),
    usable(3, "Q4_1", WeightFormat::Q4_1),
    usable(6, "Q5_0", WeightFormat::Q5_0),
    usable(7, "Q5_1", WeightFormat::Q5_1),
    usable(8, "Q8_0", WeightFormat::Q8_0),
    plain(9, "Q8_1", 32, 36),
    usable(10, "Q2_K", WeightFormat::Q2K),
    usable(11, "Q3_K", WeightFormat::Q3K),
    usable(12, "Q4_K", WeightFormat::Q4K),
    usable(13, "Q5_K", WeightFormat::Q5K),
    usable(14, "Q6_K", WeightFormat::Q6K),
    plain(15, "Q8_K", 256, 292),
    usable(16, "IQ2_XXS", WeightFormat::IQ2XXS),
    usable(17, "IQ2_XS", WeightFormat::IQ2XS),
    usable(18, "IQ3_XXS", WeightFormat::IQ3XXS),
    usable(19, "IQ1_S", WeightFormat::IQ1S),
    usable(20, "IQ4_NL", WeightFormat::IQ4NL),
    usable(21, "IQ3_S", WeightFormat::IQ3S),
    usable(22, "IQ2_S", WeightFormat::IQ2S),
    usable(23, "IQ4_XS", WeightFormat::IQ4XS),
    plain(24, "I8", 1, 1),
    plain(25, "I16", 1, 2),
    plain(26, "I32", 1, 4),
    plain(27, "I64", 1, 8),
    plain(28, "F64", 1, 8),
    usable(29, "IQ1_M", WeightFormat::IQ1M),
    usable(30, "BF16", WeightFormat::BF16),
    usable(34, "TQ1_0", WeightFormat::TQ1_0),
    usable(35, "TQ2_0", WeightFormat::TQ2_0),
    usable(39, "MXFP4", WeightFormat::Mxfp4),
    plain(40, "NVFP4", 64, 36),
    plain(41, "Q1_0", 128, 18),
    plain(42, "Q2_0", 64, 18),
];

impl TensorType {
    /// The type with ggml's number `code`.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        TYPES.into_iter().find(|t| t.code == code)
    }

    /// The type that stores `format`.
    #[must_use]
    pub fn of(format: WeightFormat) -> Self {
        let mut types = TYPES.into_iter();
        types.find(|t| t.format == Some(format)).unwrap_or(TYPES[0])
    }

    /// ggml's number.
    #[must_use]
    pub fn code(self) -> u32 {
        self.code
    }

    /// ggml's name, such as `Q4_K`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Values in one block.
    #[must_use]
    pub fn block_values(self) -> u64 {
        self.block_values.into()
    }

    /// Bytes of one block.
    #[must_use]
    pub fn block_bytes(self) -> u64 {
        self.block_bytes.into()
    }

    /// The engine's format for it, `None` where the engine cannot compute with it.
    #[must_use]
    pub fn weight_format(self) -> Option<WeightFormat> {
        self.format
    }
}
