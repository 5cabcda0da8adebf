//! `moe_linear` of many tokens over weights of any type and format: a product an expert on matrix units.

use halyard_kernels_gpu::MOE_GROUPED;
use halyard_platform_api::{DType, Result, ops};

use super::expert_list::{Elsewhere, ExpertList};
use super::support::MAX_EXPERTS;
use crate::driver::{DevicePtr, Function};
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::ops::names::type_name;
use crate::view::View;

/// Threads of a block of the product.
const THREADS: u32 = 128;
/// Its features, and its choices.
const TILE: u32 = 64;
/// Most blocks that share an expert's choices.
const MAX_SHARES: u32 = 8;

/// The compiled kernels.
#[derive(Clone, Copy)]
pub(super) struct Grouped {
    list: ExpertList,
    product: Function,
}

impl Grouped {
    /// Compiles them; `None` where matrix units do not take the op. `defines` name the types.
    ///
    /// # Errors
    /// Errors of the compiler.
    pub(super) fn prepare(
        cx: &Preparation<'_>,
        op: &ops::MoeLinear,
        defines: &[(&str, &str)],
    ) -> Result<Option<Grouped>> {
        let fits = cx.facts().matrix_units
            && matches!(op.dtype, DType::F16 | DType::BF16)
            && op.in_features.is_multiple_of(8)
            && op.num_experts <= MAX_EXPERTS;
        if !fits {
            return Ok(None);
        }
        Ok(Some(Grouped {
            list: ExpertList::prepare(cx, type_name(op.dtype))?,
            product: cx.function(MOE_GROUPED, defines, "moe_linear_grouped", 0)?,
        }))
    }

    /// Whether a call is worth it (an expert has several choices on average) and its rows can be read 16 bytes at a
    /// time.
    pub(super) fn suits(op: &ops::MoeLinear, x: &View, weight: &View, out: &View) -> bool {
        let bytes = x.dtype.bytes() as u64;
        let mut strides = x.strides[..2].iter().map(|&stride| u64::from(stride) * bytes);
        x.ptr.is_multiple_of(16)
            && strides.all(|bytes| bytes.is_multiple_of(16))
            && weight.ptr.is_multiple_of(16)
            && out.len() <= op.max_tokens
            && out.len() * op.top_k >= 2 * op.all_experts()
    }

    /// Appends the launches over x, weight, experts and out, with a bias or 0.
    pub(super) fn encode(
        &self,
        encoding: &mut Encoding,
        op: &ops::MoeLinear,
        row_bytes: u64,
        operands: [&View; 4],
        bias: DevicePtr,
    ) {
        let [x, weight, experts, out] = operands;
        let choices = out.len() * op.top_k;
        self.list.encode(encoding, op, experts, Elsewhere::Zeros, None);
        let product = [
            Arg::Ptr(x.ptr),
            Arg::U32(x.strides[0]),
            Arg::U32(if x.shape[1] == 1 { 0 } else { x.strides[1] }),
            Arg::Ptr(weight.ptr),
            Arg::U64(row_bytes),
            Arg::Scratch(0),
            Arg::Ptr(out.ptr),
            Arg::U32(out.strides[0]),
            Arg::U32(out.strides[1]),
            Arg::Ptr(bias),
            Arg::U32(op.top_k),
            Arg::U32(op.num_experts),
            Arg::U32(ExpertList::num_groups(op, Elsewhere::Zeros)),
            Arg::U32(op.in_features),
            Arg::U32(op.out_features),
        ];
        // Twice the share of an even spread: a popular expert is several blocks' work.
        let shares = (2 * choices).div_ceil(op.all_experts() * TILE).clamp(1, MAX_SHARES);
        let grid = [
            op.out_features.div_ceil(TILE),
            ExpertList::most_chosen(op, Elsewhere::Zeros, choices),
            shares,
        ];
        encoding.launch(self.product, grid, THREADS, 0, &product);
    }
}

#[cfg(test)]
mod tests {
    use super::super::support::eight_experts as op;
    use super::*;

    fn view(shape: [u32; 3]) -> View {
        View {
            ptr: 1 << 12,
            shape: [shape[0], shape[1], shape[2], 1],
            strides: [shape[1] * shape[2], shape[2], 1, 1],
            dtype: DType::BF16,
            rank: 3,
        }
    }

    #[test]
    fn decodes_of_few_tokens_and_odd_rows_take_a_warp_a_choice() {
        let suits = |tokens, width| {
            let (x, weight, out) = (view([tokens, 1, width]), view([560, 64, 1]), view([tokens, 2, 70]));
            Grouped::suits(&op(), &x, &weight, &out)
        };
        assert!(suits(8, 64), "16 choices of 8 experts");
        assert!(!suits(7, 64), "14 choices");
        assert!(!suits(8, 68), "rows of 136 bytes");
        assert!(!suits(101, 64), "more tokens than scratch was asked for");
    }

    #[test]
    fn a_prompt_is_sorted_and_then_covers_all_features_of_all_experts() {
        let grouped = Grouped {
            list: ExpertList {
                one: Function(1),
                parts: None,
                near_bytes: 0,
            },
            product: Function(2),
        };
        let mut encoding = Encoding::default();
        let (x, weight, experts, out) = (
            view([100, 1, 64]),
            view([560, 64, 1]),
            view([100, 2, 1]),
            view([100, 2, 70]),
        );
        grouped.encode(&mut encoding, &op(), 128, [&x, &weight, &experts, &out], 0);
        let grids: Vec<[u32; 3]> = encoding
            .commands
            .iter()
            .map(|command| match command {
                crate::encoding::Command::Launch(launch) => launch.grid,
                _ => [0; 3],
            })
            .collect();
        assert_eq!(grids, [[1, 1, 1], [2, 8, 1]]);
        assert_eq!(ExpertList::bytes(&op()), 4 * (4 + 32 + 200));
        let rank = ops::MoeLinear {
            first_expert: 8,
            total_experts: 24,
            ..op()
        };
        grouped.encode(&mut encoding, &rank, 128, [&x, &weight, &experts, &out], 0);
        let last = match encoding.commands.last() {
            Some(crate::encoding::Command::Launch(launch)) => launch.grid,
            _ => [0; 3],
        };
        assert_eq!(last, [2, 9, 1], "one group more for the choices of experts elsewhere");
        assert_eq!(ExpertList::bytes(&rank), 4 * (4 + 36 + 200));
    }
}
