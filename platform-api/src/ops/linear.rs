//! `linear`: the matrix product with a packed weight, in every weight format.

use crate::abi::wire_enum;
use crate::{DType, WeightFormat};

wire_enum! {
    /// What a linear does with its product before writing it.
    pub enum Epilogue {
        /// Nothing.
        None = 0,
        /// x / (1 + e^−x).
        Silu = 1,
        /// Gelu by tanh, as that of the op gelu.
        GeluTanh = 2,
        /// Gelu by erf, as that of the op gelu.
        GeluErf = 3,
    }
}

op! {
    /// out\[t, n\] = epilogue(Σₖ x\[t, k\]·dequantise(weight)\[n, k\] + bias\[n\]) + residual\[t, n\]. Rows of x,
    /// residual and out may be strided. out must not overlap x.
    pub struct Linear = 2 "linear", wire LinearDesc = "halyard_linear_desc" {
        /// K: values of a row of x.
        in_features: u32,
        /// N: values of a row of out.
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
    operands {
        /// \[T, in_features\] `act`.
        x: Read,
        /// Packed weight of out_features rows of in_features values.
        weight: Const,
        /// \[out_features\] f32.
        bias: Const?y,
        /// \[T, out_features\] `out`; may be the same tensor as out.
        residual: Read?y,
        /// \[T, out_features\] `out`.
        out: Write,
    }
}
