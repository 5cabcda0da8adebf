//! `linear`: the matrix product with a packed weight, in every weight format.

use crate::abi::wire_enum;
use crate::dtype::{DType, WeightFormat};

wire_enum! {
    /// What a linear does with its product before writing it.
    pub enum Epilogue {
        /// Nothing.
        None = 0,
        /// x / (1 + e^−x).
        Silu = 1,
        /// Gelu by tanh, as [`super::GeluKind::Tanh`].
        GeluTanh = 2,
        /// Gelu by erf.
        GeluErf = 3,
    }
}

op! {
    /// out\[t, n\] = epilogue(Σₖ x\[t, k\]·dequantise(w)\[n, k\] + bias\[n\]) + residual\[t, n\].
    ///
    /// Operands: x \[T, in_features\] `act`; weight: packed \[out_features, in_features\]; bias \[out_features\] f32,
    /// optional; residual \[T, out_features\] `out`, optional, may be the same tensor as out; out \[T, out_features\]
    /// `out`. Rows may be strided. out must not overlap x.
    pub struct Linear = 2 "linear", wire LinearDesc = "halyard_linear_desc" {
        /// K.
        in_features: u32,
        /// N.
        out_features: u32,
        /// Format of the weight.
        weight: WeightFormat,
        /// Type of x.
        act: DType,
        /// Type of out and residual.
        out: DType,
        /// Applied after the bias.
        epilogue: Epilogue,
        /// Most tokens of one call.
        max_tokens: u32,
        /// The backend may round activations further (e.g. int8 blocks for quantised weights) for speed.
        allow_quantized_act: bool,
    }
    operands { x: Read, weight: Const, bias: Const?y, residual: Read?y, out: Write }
}
