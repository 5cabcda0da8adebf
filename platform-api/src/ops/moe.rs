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
    operands {
        /// \[T, num_experts\] f32.
        logits: Read,
        /// \[T, top_k\] i32.
        experts: Write,
        /// \[T, top_k\] f32.
        weights: Write,
    }
}

op! {
    /// out\[t, j\] = x\[t, j or 0\] · Wₑᵀ with e = experts\[t, j\].
    pub struct MoeLinear = 23 "moe_linear", wire MoeLinearDesc = "halyard_moe_linear_desc" {
        /// K: values of a row of x.
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
    operands {
        /// \[T, top_k, in_features\] `dtype`; or \[T, 1, in_features\]: one input for all choices.
        x: Read,
        /// Packed weight of num_experts · out_features rows of in_features values, expert by expert.
        weight: Const,
        /// \[T, top_k\] i32, each from 0 to num_experts − 1.
        experts: Read,
        /// \[T, top_k, out_features\] `dtype`.
        out: Write,
    }
}

op! {
    /// out\[t\] = Σⱼ weights\[t, j\]·x\[t, j\].
    pub struct MoeCombine = 24 "moe_combine", wire MoeCombineDesc = "halyard_moe_combine_desc" {
        /// Values of a row.
        width: u32,
        /// Experts of a token.
        top_k: u32,
        /// Type.
        dtype: DType,
    }
    operands {
        /// \[T, top_k, width\] `dtype`.
        x: Read,
        /// \[T, top_k\] f32.
        weights: Read,
        /// \[T, width\] `dtype`.
        out: Write,
    }
}
