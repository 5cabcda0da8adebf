//! Tens of tokens over plain weights on Hopper's matrix units: a block a tile, whose weights are on their way before
//! the kernel before is over. Where a matrix has few tiles, some blocks share out a tile's depth.

use std::ops::RangeInclusive;

use halyard_kernels_gpu::LINEAR_HOPPER;
use halyard_platform_api::ops;
use halyard_platform_api::{DType, Result};

use super::call::{Call, Path, rows_aligned};
use super::fusion::SmallBatchCall;
use super::layout::WeightLayout;
use crate::driver::{Facts, Function};
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::ops::names::{epilogue_code, type_name};
use crate::policy::Policy;

const THREADS: u32 = 256;
/// Values of depth of a piece; a row of it is 128 bytes.
const DEPTH: u32 = 64;
const ROW_BYTES: u32 = 128;
/// Weight rows of a block, pieces of its ring, and how many blocks may share out a tile (a cluster); the better first.
/// Memory is busiest where nearly all multiprocessors have a block: 128 blocks of 112 rows read 4.2 TB/s on an H200,
/// 112 of 128 rows 3.8. Where blocks share a tile, fewer of them leave room for the next kernel to begin: a step of 8B
/// with 64 tokens on two H200s takes 3.11 ms with tiles of 128 rows there and 3.24 with 112.
const RINGS: [(u32, u32, RangeInclusive<u32>); 3] = [(112, 10, 1..=1), (128, 8, 2..=4), (224, 6, 1..=1)];
/// Pieces that each of them has at least.
const MIN_PIECES: u32 = 4;

/// How a matrix is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    rows: u32,
    splits: u32,
    stages: u32,
}

impl Form {
    fn shared_bytes(self) -> u32 {
        1024 + self.stages * (self.rows + DenseTiles::MAX_TOKENS) * ROW_BYTES
    }
}

/// Blocks that run at a time where `splits` of them are a cluster. A cluster's are neighbours, so that some
/// multiprocessors stay without: an H200 has 132 of them and runs 66, 39 and 30 clusters of 2, 3 and 4 at a time. What
/// is left over waits for all others, and that takes twice as long.
fn at_once(splits: u32, num_sms: u32) -> u32 {
    match splits {
        1 => num_sms,
        _ => num_sms * 9 / 10,
    }
}

/// The form for a matrix of `n` rows of `k` values: all blocks run at a time, and there are enough of them for memory
/// to be busy.
fn form(n: u32, k: u32, facts: &Facts) -> Option<Form> {
    let sms = facts.num_sms;
    RINGS.iter().find_map(|(rows, stages, splits)| {
        let (rows, stages, tiles) = (*rows, *stages, n.div_ceil(*rows));
        let runs = |&splits: &u32| tiles * splits <= at_once(splits, sms) && k / DEPTH >= splits * MIN_PIECES;
        let splits = splits.clone().rev().find(runs)?;
        let form = Form { rows, splits, stages };
        (tiles * splits * 3 >= sms * 2 && form.shared_bytes() <= facts.max_shared_bytes).then_some(form)
    })
}

/// The form for a linear; with `gated`, one whose results have a gate's row and an up part's each.
fn form_of(op: &ops::Linear, layout: WeightLayout, gated: bool, facts: &Facts, policy: &Policy) -> Option<Form> {
    let rows = op.out_features.checked_mul(if gated { 2 } else { 1 })?;
    let matrix_units = matches!(op.act, DType::BF16 | DType::F16) && layout == WeightLayout::Plain(op.act);
    let whole = op.in_features.is_multiple_of(8) && op.out_features.is_multiple_of(8);
    match policy.dense_tiles && matrix_units && whole && facts.arch == "sm_90a" {
        true => form(rows, op.in_features, facts),
        false => None,
    }
}

/// Compiled.
pub(in crate::ops) struct DenseTiles {
    form: Form,
    function: Function,
    gated: bool,
    n: u32,
    k: u32,
}

impl DenseTiles {
    /// Most tokens: those of a block. More would read the weights once more.
    pub(in crate::ops) const MAX_TOKENS: u32 = 64;

    /// Whether it computes a linear on a device; with `gated`, one whose results have a gate's row and an up part's.
    pub(in crate::ops) fn takes(
        op: &ops::Linear,
        layout: WeightLayout,
        gated: bool,
        facts: &Facts,
        policy: &Policy,
    ) -> bool {
        form_of(op, layout, gated, facts, policy).is_some()
    }

    /// Whether it computes a call. All that it reads or writes lies at 16 bytes.
    pub(in crate::ops) fn takes_call(call: &SmallBatchCall) -> bool {
        let at_16 = [call.weight, call.weight_up, call.bias, call.bias_up].map(|ptr| ptr.is_multiple_of(16));
        let rows = [&call.x, &call.residual, &call.out].map(|view| view.is_none() || rows_aligned(view, 16));
        call.out.len() <= DenseTiles::MAX_TOKENS && at_16 == [true; 4] && rows == [true; 3]
    }

    /// Compiles the kernel for what it [`DenseTiles::takes`]; `gate` is the activation's number where results are
    /// gated, else "0".
    ///
    /// # Errors
    /// Errors of the compiler.
    pub(in crate::ops) fn prepare(
        cx: &Preparation<'_>,
        op: &ops::Linear,
        layout: WeightLayout,
        gate: &'static str,
    ) -> Result<Option<DenseTiles>> {
        let gated = gate != "0";
        let Some(form) = form_of(op, layout, gated, cx.facts(), cx.policy()) else {
            return Ok(None);
        };
        let names = [form.rows, DenseTiles::MAX_TOKENS, form.splits, form.stages].map(|v| v.to_string());
        let defines = [
            ("ACT", type_name(op.act)),
            ("OUT", type_name(op.out)),
            ("ROWS", names[0].as_str()),
            ("TOKENS", names[1].as_str()),
            ("SPLITS", names[2].as_str()),
            ("STAGES", names[3].as_str()),
            ("EPILOGUE", epilogue_code(op.epilogue)),
            ("GATE", gate),
        ];
        let function = cx.function(LINEAR_HOPPER, &defines, "linear_hopper", form.shared_bytes())?;
        Ok(Some(DenseTiles {
            form,
            function,
            gated,
            n: op.out_features,
            k: op.in_features,
        }))
    }

    /// Appends the launch of a call that it takes; x is normed already.
    pub(in crate::ops) fn encode_gated(&self, encoding: &mut Encoding, call: &SmallBatchCall) {
        let pointers = [
            call.x.ptr,
            call.weight,
            call.weight_up,
            call.bias,
            call.bias_up,
            call.residual.ptr,
            call.out.ptr,
        ];
        let strides = [&call.x, &call.residual, &call.out].map(|view| Arg::U32(view.row_stride()));
        let sizes = [call.out.len(), self.n, self.k].map(Arg::U32);
        let args = [&pointers.map(Arg::Ptr)[..], &strides, &sizes].concat();
        let features = self.form.rows / if self.gated { 2 } else { 1 };
        let grid = [self.n.div_ceil(features), 1, self.form.splits];
        encoding.launch(self.function, grid, THREADS, self.form.shared_bytes(), &args);
    }

    fn call(&self, call: &Call) -> SmallBatchCall {
        SmallBatchCall {
            x: call.x,
            weight: call.weight.ptr,
            bias: call.bias.ptr,
            residual: call.residual,
            out: call.out,
            ..SmallBatchCall::new(self.k, self.n)
        }
    }
}

impl Path for DenseTiles {
    fn takes(&self, call: &Call) -> bool {
        DenseTiles::takes_call(&self.call(call))
    }

    fn encode(&self, encoding: &mut Encoding, call: &Call) {
        self.encode_gated(encoding, &self.call(call));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_blocks_of_a_matrix_run_at_a_time() {
        let h200 = crate::ops::tests::facts("sm_90a", 132, 232_448);
        let of = |n, k| form(n, k, &h200).map(|form| (form.rows, form.splits));
        // An 8B model's matrices, on one of two ranks and on one device.
        assert_eq!(of(3072, 4096), Some((128, 4)));
        assert_eq!(of(4096, 2048), Some((128, 3)));
        assert_eq!(of(4096, 7168), Some((128, 3)));
        assert_eq!(of(14_336, 4096), Some((112, 1)));
        assert_eq!(of(6144, 4096), Some((128, 2)));
        assert_eq!(of(28_672, 4096), Some((224, 1)));
        // The large products and blocks of the conformance suite, which are there for these kernels.
        assert_eq!(of(3000, 1096), Some((128, 4)));
        assert_eq!(of(2984, 1088), Some((128, 4)));
        assert_eq!(of(9992, 264), Some((112, 1)));
        assert_eq!(of(2 * 1504, 1096), Some((128, 4)));
        assert_eq!(of(2 * 9864, 264), Some((224, 1)));
        // More tiles than fit, too few to fill the device, and too short a depth to share out.
        assert_eq!(of(128_256, 4096), None);
        assert_eq!(of(576, 1536), None);
        assert_eq!(of(4096, 512), None);
        for n in (8..40_000).step_by(8) {
            for k in [64, 2048, 4096, 14_336] {
                let Some(form) = form(n, k, &h200) else { continue };
                let blocks = n.div_ceil(form.rows) * form.splits;
                assert!((88..=132).contains(&blocks), "{n} {k}: {form:?}");
                assert!(form.shared_bytes() <= h200.max_shared_bytes);
            }
        }
    }
}
