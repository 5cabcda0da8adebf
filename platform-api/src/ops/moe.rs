//! Mixture of experts: `moe_route`, `moe_linear`, `moe_combine` (Shazeer et al. 2017, arXiv 1701.06538).

use std::ops::RangeInclusive;

use crate::abi::wire_enum;
use crate::status::{Error, Result};
use crate::{DType, WeightFormat};

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
    /// The top_k experts of each token by choice, score + bias (ties: the lower index), in descending order, and their
    /// weights: the scores, divided by their sum if `normalize`, times `factor`.
    ///
    /// With groups (DeepSeek-AI 2024, arXiv 2412.19437) expert e belongs to group e / (num_experts / num_groups), and
    /// only the experts of the top_groups best groups are chosen: by the sum of the `group_best` largest choices in the
    /// group (ties: the lower index).
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
    } appended {
        /// Groups of experts; divides num_experts. 0: none, and the next two are 0.
        num_groups: u32,
        /// Groups whose experts may be chosen, 1 to num_groups; they hold top_k experts or more.
        top_groups: u32,
        /// How many choices of a group are summed, 1 to its experts.
        group_best: u32,
    }
    operands {
        /// \[T, num_experts\] f32.
        logits: Read,
        /// \[T, top_k\] i32.
        experts: Write,
        /// \[T, top_k\] f32.
        weights: Write,
        /// \[num_experts\] f32: added to the scores for choosing, not for weighing. Absent: 0.
        bias: Const?y,
    }
}

impl MoeRoute {
    /// Checks that so many experts can be chosen, and from such groups.
    ///
    /// # Errors
    /// `InvalidArgument` naming the field, its value and what it may be.
    pub fn check(&self) -> Result<()> {
        let MoeRoute {
            num_experts,
            top_k,
            num_groups,
            top_groups,
            group_best,
            ..
        } = *self;
        let inside = |name: &str, value: u32, range: RangeInclusive<u32>| match range.contains(&value) {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "moe_route: {name} {value} is not in {} ..= {}",
                range.start(),
                range.end()
            ))),
        };
        inside("top_k", top_k, 1..=num_experts)?;
        if num_groups == 0 {
            inside("top_groups without groups", top_groups, 0..=0)?;
            return inside("group_best without groups", group_best, 0..=0);
        }
        if !num_experts.is_multiple_of(num_groups) {
            return Err(Error::invalid(format!(
                "moe_route: num_groups {num_groups} does not divide num_experts {num_experts}"
            )));
        }
        let each = num_experts / num_groups;
        inside("top_groups", top_groups, 1..=num_groups)?;
        inside("group_best", group_best, 1..=each)?;
        inside("top_k of the groups that are taken", top_k, 1..=top_groups * each)
    }
}

op! {
    /// out\[t, j\] = x\[t, j or 0\] · Wₑᵀ + biasₑ with e = experts\[t, j\].
    ///
    /// Of expert parallel ranks each has some of the experts: weight and bias are those of the experts from
    /// first_expert on, and out\[t, j\] is 0 where e is another one.
    pub struct MoeLinear = 23 "moe_linear", wire MoeLinearDesc = "halyard_moe_linear_desc" {
        /// K: values of a row of x.
        in_features: u32,
        /// N of one expert.
        out_features: u32,
        /// Experts whose matrices are here.
        num_experts: u32,
        /// Experts of a token.
        top_k: u32,
        /// Format of the weight.
        weight: WeightFormat,
        /// Type of x and out.
        dtype: DType,
        /// Most tokens of one call.
        max_tokens: u32,
    } appended {
        /// The first of them; first_expert + num_experts is at most total_experts.
        first_expert: u32,
        /// Experts that are chosen from. 0: num_experts, which are all, and first_expert is 0.
        total_experts: u32,
        /// The backend may round activations further (e.g. int8 blocks for quantised weights) for speed. Readers of an
        /// ops interface before 0.4 are shown 0.
        allow_quantized_act: bool => informs from 4,
    }
    operands {
        /// \[T, top_k, in_features\] `dtype`; or \[T, 1, in_features\]: one input for all choices.
        x: Read,
        /// Packed weight of num_experts · out_features rows of in_features values, expert by expert.
        weight: Const,
        /// \[T, top_k\] i32, each from 0 to num_experts − 1, or to total_experts − 1 where that is not 0.
        experts: Read,
        /// \[T, top_k, out_features\] `dtype`.
        out: Write,
        /// \[num_experts, out_features\] f32.
        bias: Const?y,
    }
}

impl MoeLinear {
    /// Checks that the experts that are here are some of all.
    ///
    /// # Errors
    /// `InvalidArgument` naming the fields and their values.
    pub fn check(&self) -> Result<()> {
        let (first, here, all) = (self.first_expert, self.num_experts, self.total_experts);
        let fits = match all {
            0 => first == 0,
            all => first.checked_add(here).is_some_and(|end| end <= all),
        };
        match fits {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "moe_linear: first_expert {first} and num_experts {here} are not in total_experts {all}"
            ))),
        }
    }

    /// Where an expert's matrix is; `None`: on another rank.
    pub fn place(&self, expert: u32) -> Option<usize> {
        let place = expert.checked_sub(self.first_expert)?;
        (place < self.num_experts).then_some(place as usize)
    }

    /// Experts that are chosen from.
    pub fn all_experts(&self) -> u32 {
        self.total_experts.max(self.num_experts)
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
