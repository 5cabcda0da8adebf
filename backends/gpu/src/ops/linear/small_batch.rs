//! Small batches on matrix units: one kernel for plain weights, one for 8-bit weights with a scale a row, and one for
//! records, behind one call.

use halyard_platform_api::Result;
use halyard_platform_api::ops;

use super::call::{Call, Path, rows_aligned};
use super::dense_small_batch::{self, DenseSmallBatch};
use super::fusion::{Fusion, SmallBatchCall};
use super::groups_small_batch::{self, GroupsSmallBatch};
use super::layout::{WeightLayout, scales_at};
use super::scaled_small_batch::{self, ScaledSmallBatch};
use crate::driver::Facts;
use crate::encoding::Encoding;
use crate::kernel::Preparation;
use crate::policy::Policy;

/// The compiled kernel.
pub(crate) struct SmallBatch {
    kernel: Kernel,
    n: u32,
    k: u32,
}

enum Kernel {
    Dense(DenseSmallBatch),
    Scaled(ScaledSmallBatch),
    Groups(GroupsSmallBatch),
}

impl SmallBatch {
    /// Compiles the kernel of a layout, of those that [`WeightLayout::takes_small_batches`] names.
    ///
    /// # Errors
    /// Errors of the compiler.
    pub(crate) fn prepare(
        cx: &Preparation<'_>,
        op: &ops::Linear,
        layout: WeightLayout,
        fusion: &Fusion,
    ) -> Result<SmallBatch> {
        let kernel = match layout {
            WeightLayout::Scaled => Kernel::Scaled(ScaledSmallBatch::prepare(cx, op, fusion)?),
            WeightLayout::Planes(format) => Kernel::Groups(GroupsSmallBatch::prepare(cx, op, format, fusion)?),
            WeightLayout::Plain(_) => Kernel::Dense(DenseSmallBatch::prepare(cx, op, fusion)?),
        };
        Ok(SmallBatch {
            kernel,
            n: op.out_features,
            k: op.in_features,
        })
    }

    /// Most tokens for which it beats what else there is. `gated`: a result has a gate's row and an up part's.
    pub(crate) fn most_tokens(
        op: &ops::Linear,
        layout: WeightLayout,
        gated: bool,
        facts: &Facts,
        policy: &Policy,
    ) -> u32 {
        match layout {
            WeightLayout::Scaled => scaled_small_batch::most_tokens(op, gated, facts, policy),
            WeightLayout::Planes(_) => groups_small_batch::most_tokens(op),
            WeightLayout::Plain(_) => dense_small_batch::most_tokens(op, gated, facts, policy),
        }
    }

    /// Whether it computes calls of this many tokens: normalised ones must fit shared memory, but for 8-bit weights.
    pub(crate) fn takes_tokens(&self, tokens: u32) -> bool {
        match &self.kernel {
            Kernel::Dense(kernel) => kernel.takes(tokens),
            Kernel::Scaled(_) => true,
            Kernel::Groups(kernel) => kernel.takes(tokens),
        }
    }

    /// Appends the launch. Rows of x are 16-byte aligned.
    pub(crate) fn encode_fused(&self, encoding: &mut Encoding, call: &SmallBatchCall) {
        match &self.kernel {
            Kernel::Dense(kernel) => kernel.encode(encoding, call),
            Kernel::Scaled(kernel) => kernel.encode(encoding, call),
            Kernel::Groups(kernel) => kernel.encode(encoding, call),
        }
    }
}

impl Path for SmallBatch {
    fn takes(&self, call: &Call) -> bool {
        rows_aligned(&call.x, 16)
    }

    fn encode(&self, encoding: &mut Encoding, call: &Call) {
        let call = SmallBatchCall {
            x: call.x,
            weight: call.weight.ptr,
            scale: call.weight.ptr + scales_at(u64::from(self.n), u64::from(self.k)),
            bias: call.bias.ptr,
            residual: call.residual,
            out: call.out,
            ..SmallBatchCall::new(self.k, self.n)
        };
        self.encode_fused(encoding, &call);
    }
}
