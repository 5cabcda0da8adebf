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

    /// Appends its launch over the choices of `experts`.
    pub(super) fn encode(self, encoding: &mut Encoding, op: &ops::MoeLinear, experts: &View, elsewhere: Elsewhere) {
        let (groups, choices) = (Self::num_groups(op, elsewhere), experts.len() * op.top_k);
        let args = [
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
            None => (self.one, 1),
        };
        encoding.launch(function, [blocks, 1, 1], THREADS, 12 * groups, &args);
    }
}
