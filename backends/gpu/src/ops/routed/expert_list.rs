//! The list of a step's choices, expert by expert, which products of experts read (layout in expert_list.cuh). It lies
//! at the start of scratch.

use halyard_kernels_gpu::MOE_LIST;
use halyard_platform_api::{Result, ops};

use crate::driver::Function;
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::view::View;

/// Threads of a block.
const THREADS: u32 = 1024;
/// Blocks that share out many choices where there are clusters, and from how many choices.
const PARTS: u32 = 8;
const MANY: u32 = 4096;
/// Blocks of `moe_list` that bring matrices near, and the part of the second-level cache that each of two may fill.
const NEAR_BLOCKS: u32 = 64;
const NEAR_PART: u64 = 5;

/// What becomes of the choices of experts that other ranks have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Elsewhere {
    /// Their results are zeros: the list has one more group, of these choices.
    Zeros,
    /// Nothing reads their results: the list leaves them out.
    LeftOut,
}

/// The compiled kernels.
#[derive(Clone, Copy)]
pub(super) struct ExpertList {
    pub(super) one: Function,
    pub(super) parts: Option<Function>,
    /// Bytes of a matrix that may be brought near.
    pub(super) near_bytes: u64,
}

impl ExpertList {
    /// Compiles it; `act` is the products' type.
    ///
    /// # Errors
    /// Errors of the compiler.
    pub(super) fn prepare(cx: &Preparation<'_>, act: &str) -> Result<ExpertList> {
        let function = |name| cx.function(MOE_LIST, &[("ACT", act)], name, 0);
        Ok(ExpertList {
            one: function("moe_list")?,
            parts: match cx.facts().capability >= 90 {
                true => Some(function("moe_list_parts")?),
                false => None,
            },
            near_bytes: cx.facts().l2_bytes / NEAR_PART,
        })
    }

    /// The experts, and where others are elsewhere one more group, of their choices.
    pub(super) fn num_groups(op: &ops::MoeLinear, elsewhere: Elsewhere) -> u32 {
        op.num_experts + u32::from(op.total_experts != 0 && elsewhere == Elsewhere::Zeros)
    }

    /// Most groups that so many choices can fall into.
    pub(super) fn most_chosen(op: &ops::MoeLinear, elsewhere: Elsewhere, choices: u32) -> u32 {
        Self::num_groups(op, elsewhere).min(choices)
    }

    /// Choices of an expert, on average and rounded up.
    pub(super) fn choices_each(op: &ops::MoeLinear, tokens: u32) -> u32 {
        (tokens * op.top_k).div_ceil(op.all_experts())
    }

    /// Bytes of the list.
    pub(super) fn bytes(op: &ops::MoeLinear) -> u64 {
        let groups = Self::num_groups(op, Elsewhere::Zeros);
        4 * (4 + 4 * u64::from(groups) + u64::from(op.max_tokens) * u64::from(op.top_k))
    }

    /// Appends its launch over the choices of `experts`. `matrices`: those of all experts that the next product reads,
    /// of gate and of up. If most experts are chosen, their first bytes are brought to the second-level cache: a step
    /// of Qwen3-30B-A3B with 64 tokens takes 1 % less on an H200.
    pub(super) fn encode(
        self,
        encoding: &mut Encoding,
        op: &ops::MoeLinear,
        experts: &View,
        elsewhere: Elsewhere,
        matrices: Option<[View; 2]>,
    ) {
        let (groups, choices) = (Self::num_groups(op, elsewhere), experts.len() * op.top_k);
        let mut args = vec![
            Arg::Ptr(experts.ptr),
            Arg::U32(experts.row_stride()),
            Arg::Scratch(0),
            Arg::U32(choices),
            Arg::U32(op.top_k),
            Arg::U32(op.first_expert),
            Arg::U32(op.num_experts),
            Arg::U32(groups),
        ];
        let (function, blocks) = match self.parts.filter(|_| choices >= MANY) {
            Some(parts) => (parts, PARTS),
            None => {
                let near = matrices.filter(|_| choices >= 2 * op.all_experts());
                let [first, up] = near.map_or([(0, 0); 2], |both| both.map(|view| (view.ptr, view.span_bytes())));
                let bytes = first.1.min(up.1).min(self.near_bytes);
                args.extend([Arg::Ptr(first.0), Arg::Ptr(up.0), Arg::U32(bytes as u32)]);
                (self.one, if bytes > 0 { 1 + NEAR_BLOCKS } else { 1 })
            }
        };
        encoding.launch(function, [blocks, 1, 1], THREADS, 12 * groups, &args);
    }
}

#[cfg(test)]
mod tests {
    use halyard_platform_api::DType;

    use super::super::support::eight_experts;
    use super::*;
    use crate::encoding::Command;

    #[test]
    fn matrices_come_near_where_most_experts_are_chosen() {
        let bytes = |ptr, count| View {
            ptr,
            shape: [count, 0, 0, 0],
            strides: [1, 0, 0, 0],
            dtype: DType::U8,
            rank: 1,
        };
        let list = |near_bytes| ExpertList {
            one: Function(1),
            parts: None,
            near_bytes,
        };
        // Blocks, and the bytes of each matrix.
        let launched = |near_bytes, tokens, matrices: Option<[View; 2]>| {
            let mut encoding = Encoding::default();
            let experts = View {
                shape: [tokens, 2, 0, 0],
                strides: [2, 1, 0, 0],
                dtype: DType::I32,
                rank: 2,
                ptr: 16,
            };
            list(near_bytes).encode(&mut encoding, &eight_experts(), &experts, Elsewhere::Zeros, matrices);
            match (&encoding.commands[..], encoding.args.last()) {
                ([Command::Launch(launch)], Some(&Arg::U32(bytes))) => (launch.grid[0], bytes),
                _ => panic!("one launch that ends in a number of bytes"),
            }
        };
        let both = Some([bytes(4096, 5000), bytes(65536, 4000)]);
        assert_eq!(
            launched(1 << 20, 8, both),
            (1 + NEAR_BLOCKS, 4000),
            "as much as both have"
        );
        assert_eq!(
            launched(3000, 8, both),
            (1 + NEAR_BLOCKS, 3000),
            "as much as there is room for"
        );
        assert_eq!(launched(1 << 20, 7, both), (1, 0), "14 choices of 8 experts");
        assert_eq!(launched(1 << 20, 8, None), (1, 0));
        assert_eq!(
            launched(0, 8, both),
            (1, 0),
            "a device that does not say how large its cache is"
        );
    }
}
