//! Elementwise ops: `silu_mul`, `gelu_mul`, `gelu`, `relu_squared`, `add`, `scale`, `softcap`. All rows \[T, width\],
//! strided.

use crate::abi::wire_enum;
use crate::dtype::DType;

wire_enum! {
    /// Which gelu (Hendrycks, Gimpel 2016, arXiv 1606.08415).
    pub enum GeluKind {
        /// 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))).
        Tanh = 0,
        /// 0.5·x·(1 + erf(x/√2)).
        Erf = 1,
    }
}

op! {
    /// out = g / (1 + e^−alpha·g) · (u + up_offset) (Shazeer 2020, arXiv 2002.05202), g = gate and u = up; where limit
    /// is not 0, g = min(gate, limit) and u = max(−limit, min(up, limit)) (gpt-oss: limit 7, alpha 1.702, up_offset 1).
    /// gate and up may be slices of one product.
    pub struct SiluMul = 10 "silu_mul", wire SiluMulDesc = "halyard_silu_mul_desc" {
        /// Values of a row.
        width: u32,
        /// Type.
        dtype: DType,
    } appended {
        /// Bound of gate from above and of up on both sides; 0: none.
        limit: f32,
        /// Factor in the exponent; 0 counts as 1.
        alpha: f32,
        /// Added to up.
        up_offset: f32,
    }
    operands {
        /// \[T, width\] `dtype`.
        gate: Read,
        /// \[T, width\] `dtype`.
        up: Read,
        /// \[T, width\] `dtype`.
        out: Write,
    }
}

impl SiluMul {
    /// out = gate / (1 + e^−gate) · up.
    pub fn plain(width: u32, dtype: DType) -> SiluMul {
        SiluMul {
            width,
            dtype,
            limit: 0.0,
            alpha: 0.0,
            up_offset: 0.0,
        }
    }

    /// Whether it is [`SiluMul::plain`].
    pub fn is_plain(&self) -> bool {
        self.limit == 0.0 && self.up_offset == 0.0 && (self.alpha == 0.0 || self.alpha == 1.0)
    }
}

op! {
    /// out = gelu(gate) · up. gate and up may be slices of one product.
    pub struct GeluMul = 11 "gelu_mul", wire GeluMulDesc = "halyard_gelu_mul_desc" {
        /// Values of a row.
        width: u32,
        /// Type.
        dtype: DType,
        /// Which gelu.
        kind: GeluKind,
    }
    operands {
        /// \[T, width\] `dtype`.
        gate: Read,
        /// \[T, width\] `dtype`.
        up: Read,
        /// \[T, width\] `dtype`.
        out: Write,
    }
}

op! {
    /// out = gelu(x).
    pub struct Gelu = 12 "gelu", wire GeluDesc = "halyard_gelu_desc" {
        /// Values of a row.
        width: u32,
        /// Type.
        dtype: DType,
        /// Which gelu.
        kind: GeluKind,
    }
    operands {
        /// \[T, width\] `dtype`.
        x: Read,
        /// \[T, width\] `dtype`.
        out: Write,
    }
}

op! {
    /// out = max(x, 0)² (So et al. 2021, arXiv 2109.08668).
    pub struct ReluSquared = 36 "relu_squared", wire ReluSquaredDesc = "halyard_relu_squared_desc" {
        /// Values of a row.
        width: u32,
        /// Type.
        dtype: DType,
    }
    operands {
        /// \[T, width\] `dtype`.
        x: Read,
        /// \[T, width\] `dtype`.
        out: Write,
    }
}

op! {
    /// out = a + b.
    pub struct Add = 13 "add", wire AddDesc = "halyard_add_desc" {
        /// Values of a row.
        width: u32,
        /// Type.
        dtype: DType,
    }
    operands {
        /// \[T, width\] `dtype`.
        a: Read,
        /// \[T, width\] `dtype`.
        b: Read,
        /// \[T, width\] `dtype`.
        out: Write,
    }
}

op! {
    /// out = factor · x.
    pub struct Scale = 14 "scale", wire ScaleDesc = "halyard_scale_desc" {
        /// Values of a row.
        width: u32,
        /// Type.
        dtype: DType,
        /// Factor.
        factor: f32,
    }
    operands {
        /// \[T, width\] `dtype`.
        x: Read,
        /// \[T, width\] `dtype`.
        out: Write,
    }
}

op! {
    /// out = cap · tanh(x / cap).
    pub struct Softcap = 15 "softcap", wire SoftcapDesc = "halyard_softcap_desc" {
        /// Values of a row.
        width: u32,
        /// Type.
        dtype: DType,
        /// Cap, above 0.
        cap: f32,
    }
    operands {
        /// \[T, width\] `dtype`.
        x: Read,
        /// \[T, width\] `dtype`.
        out: Write,
    }
}
