//! Mixture of experts: `moe_route`, `moe_linear`, `moe_combine` (Shazeer et al. 2017, arXiv 1701.06538).

use crate::abi::wire_enum;
use crate::dtype::{DType, WeightFormat};

wire_enum! {
    /// Router scores from logits.
    pub enum Scoring {
        /// Softmax over all experts.
        Softmax = 0,
        /// Sigmoid of each.
        Sigmoid = 1,
    }
}

op! {
    /// The top_k experts of each token by score (ties: the lower index), in descending order, and their weights: the
    /// scores, divided by their sum if `normalize`, times `factor`.
    ///
    /// Operands: logits \[T, num_experts\] f32; experts \[T, top_k\] i32; weights \[T, top_k\] f32.
    pub struct MoeRoute = 22 "moe_route", wire MoeRouteDesc = "halyard_moe_route_desc" {
        /// Experts.
        num_experts: u32,
        /// Experts of a token.
        top_k: u32,
        /// Scores.
        scoring: Scoring,
        /// Divide by the sum of the chosen.
        normalize: bool,
        /// Factor of the weights.
        factor: f32,
    }
    operands { logits: Read, experts: Write, weights: Write }
}

op! {
    /// out\[t, j\] = x\[t, j or 0\] · Wₑᵀ with e = experts\[t, j\].
    ///
    /// Operands: x \[T, 1, in_features\] (one input for all choices) or \[T, top_k, in_features\], `dtype`; weight:
    /// packed \[num_experts · out_features, in_features\], expert by expert; experts \[T, top_k\] i32; out \[T, top_k,
    /// out_features\] `dtype`.
    pub struct MoeLinear = 23 "moe_linear", wire MoeLinearDesc = "halyard_moe_linear_desc" {
        /// K.
        in_features: u32,
        /// N of one expert.
        out_features: u32,
        /// Experts.
        num_experts: u32,
        /// Experts of a token.
        top_k: u32,
        /// Format of the weight.
        weight: WeightFormat,
        /// Type of x and out.
        dtype: DType,
        /// Most tokens of one call.
        max_tokens: u32,
    }
    operands { x: Read, weight: Const, experts: Read, out: Write }
}

op! {
    /// out\[t\] = Σⱼ weights\[t, j\]·x\[t, j\].
    ///
    /// Operands: x \[T, top_k, width\] `dtype`; weights \[T, top_k\] f32; out \[T, width\] `dtype`.
    pub struct MoeCombine = 24 "moe_combine", wire MoeCombineDesc = "halyard_moe_combine_desc" {
        /// Values of a row.
        width: u32,
        /// Experts of a token.
        top_k: u32,
        /// Type.
        dtype: DType,
    }
    operands { x: Read, weights: Read, out: Write }
}
