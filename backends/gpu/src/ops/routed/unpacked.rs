//! Products of many choices an expert over records: matrices are unpacked to scratch, those of some experts at a time,
//! and multiplied as plain ones are. So a code becomes an operand once, not once for every tile of tokens.

use halyard_kernels_gpu::MOE_UNPACK;
use halyard_platform_api::{Result, WeightFormat, ops};

use super::expert_list::ExpertList;
use super::many::Matrices;
use crate::driver::Function;
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::ops::formats::code;
use crate::ops::linear::{GROUP, has_minima, hopper_tokens};

/// Most scratch for matrices, where one expert's do not take more.
const SCRATCH_BYTES: u64 = 512 << 20;
/// Threads of moe_unpack's blocks.
const THREADS: u64 = 256;
/// Where in scratch matrices begin.
const ALIGNMENT: u64 = 256;

/// Choices an expert from which this is faster than tiles over records: measured on an H200
/// (docs/notes/2026-11-30-experts-of-prompts.md; 33, 192 and 256 before moe_many, in 2026-11-30-gguf-on-h200.md).
pub(super) fn pays_from(format: WeightFormat) -> u32 {
    match hopper_tokens(format) {
        // There are no such tiles.
        [] => 33,
        [32] if has_minima(format) => 48,
        [32] => 192,
        _ if has_minima(format) => 96,
        _ => 256,
    }
}

/// How matrices lie in scratch, behind the list of choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    at: u64,
    /// Experts at a time.
    experts: u32,
    /// Bytes of the matrices of one kind (gate, up) of one expert, and kinds.
    matrix_bytes: u64,
    kinds: u32,
}

impl Layout {
    /// Equal parts of all experts, as few as fit.
    fn of(op: &ops::MoeLinear, kinds: u32) -> Layout {
        let matrix_bytes = u64::from(op.out_features) * u64::from(op.in_features) * op.dtype.bytes() as u64;
        let most = (SCRATCH_BYTES / (matrix_bytes * u64::from(kinds)).max(1)).max(1);
        let parts = u64::from(op.num_experts).div_ceil(most).max(1);
        Layout {
            at: ExpertList::bytes(op).next_multiple_of(ALIGNMENT),
            experts: u64::from(op.num_experts).div_ceil(parts) as u32,
            matrix_bytes,
            kinds,
        }
    }

    fn end(&self) -> u64 {
        self.at + u64::from(self.kinds) * u64::from(self.experts) * self.matrix_bytes
    }
}

/// Compiled.
pub(super) struct Unpacked {
    unpack: Function,
    layout: Layout,
}

impl Unpacked {
    /// Compiles it. `gated`: gate and up are joined.
    ///
    /// # Errors
    /// Errors of the compiler.
    pub(super) fn prepare(cx: &Preparation<'_>, op: &ops::MoeLinear, act: &str, gated: bool) -> Result<Unpacked> {
        let defines = [("FORMAT", code(op.weight)), ("ACT", act)];
        let unpack = cx.function(MOE_UNPACK, &defines, "moe_unpack", 0)?;
        Ok(Unpacked::of(op, gated, unpack))
    }

    pub(super) fn of(op: &ops::MoeLinear, gated: bool, unpack: Function) -> Unpacked {
        Unpacked {
            unpack,
            layout: Layout::of(op, 1 + u32::from(gated)),
        }
    }

    /// Scratch, the list of choices included.
    pub(super) fn scratch_bytes(&self) -> u64 {
        self.layout.end()
    }

    /// Appends the launches over up to `chosen` entries of the list: for each part of them `multiply` appends a
    /// product's.
    pub(super) fn encode(
        &self,
        encoding: &mut Encoding,
        op: &ops::MoeLinear,
        [weight, weight_up]: [Arg; 2],
        chosen: u32,
        mut multiply: impl FnMut(&mut Encoding, Matrices),
    ) {
        let Layout {
            at,
            matrix_bytes,
            kinds,
            experts,
        } = self.layout;
        let parts = u64::from(op.out_features) * 4 * u64::from(op.in_features).div_ceil(GROUP);
        let mut first = 0;
        while first < chosen {
            let count = experts.min(chosen - first);
            let args = [
                weight,
                weight_up,
                Arg::Scratch(0),
                Arg::Scratch(at),
                Arg::U32(first),
                Arg::U32(op.num_experts),
                Arg::U32(op.in_features),
                Arg::U32(op.out_features),
            ];
            let grid = [parts.div_ceil(THREADS) as u32, count, kinds];
            encoding.launch(self.unpack, grid, THREADS as u32, 0, &args);
            let up = at + u64::from(kinds - 1) * u64::from(count) * matrix_bytes;
            multiply(encoding, Matrices::of_entries([at, up], first, count));
            first += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use halyard_platform_api::DType;

    use super::*;

    #[test]
    fn matrices_of_equal_parts_of_the_experts_fit_scratch() {
        let layout = |num_experts, out_features, in_features, kinds| {
            let op = ops::MoeLinear {
                in_features,
                out_features,
                num_experts,
                top_k: 8,
                weight: WeightFormat::Q4K,
                dtype: DType::BF16,
                max_tokens: 8192,
                first_expert: 0,
                total_experts: 0,
                allow_quantized_act: false,
            };
            let layout = Layout::of(&op, kinds);
            assert!(layout.at >= ExpertList::bytes(&op));
            layout
        };
        // Qwen3-30B-A3B's gates and ups, gpt-oss-20b's, and one expert that is larger than all scratch.
        let qwen = layout(128, 768, 2048, 2);
        assert_eq!((qwen.experts, qwen.end() - qwen.at), (64, 64 * 2 * 768 * 2048 * 2));
        assert_eq!(layout(32, 2880, 2880, 2).experts, 16);
        assert!(qwen.end() - qwen.at <= SCRATCH_BYTES);
        assert_eq!(layout(8, 32_768, 16_384, 1).experts, 1);
    }
}
