//! `rms_norm` (Zhang, Sennrich 2019, arXiv 1910.07467) and `layer_norm` (Ba et al. 2016, arXiv 1607.06450).

use crate::dtype::DType;

op! {
    /// out = x / √(mean(x²) + eps) · (weight + weight_offset), over the last axis.
    pub struct RmsNorm = 5 "rms_norm", wire RmsNormDesc = "halyard_rms_norm_desc" {
        /// Values that are normalised together.
        width: u32,
        /// Added under the root.
        eps: f32,
        /// Added to the weight (Gemma: 1).
        weight_offset: f32,
        /// Type of x and out.
        dtype: DType,
    }
    operands {
        /// \[T, width\] `dtype`; or \[T, G, width\], strided: norms of single heads.
        x: Read,
        /// \[width\] f32.
        weight: Const,
        /// As x.
        out: Write,
    }
}

op! {
    /// out = (x − mean(x)) / √(var(x) + eps) · weight + bias, over the last axis, with the biased variance.
    pub struct LayerNorm = 6 "layer_norm", wire LayerNormDesc = "halyard_layer_norm_desc" {
        /// Values that are normalised together.
        width: u32,
        /// Added under the root.
        eps: f32,
        /// Type of x and out.
        dtype: DType,
    } appended {
        /// G where each of the G groups of a token has a weight (and bias) of its own; 0: all have the same.
        num_weights: u32,
    }
    operands {
        /// \[T, width\] `dtype`; or \[T, G, width\], strided: norms of single heads.
        x: Read,
        /// \[width\] f32; or \[num_weights, width\].
        weight: Const,
        /// As the weight.
        bias: Const?y,
        /// As x.
        out: Write,
    }
}
