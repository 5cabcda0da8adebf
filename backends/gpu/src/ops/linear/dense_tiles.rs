//! Up to some hundred tokens on Hopper's matrix units, over plain weights, or over 8-bit floats where tokens may be
//! rounded to such: a block a tile, whose weights are on their way before the kernel before is over. Where a matrix has
//! few tiles, some blocks share out a tile's depth.

use std::ops::RangeInclusive;

use halyard_kernels_gpu::LINEAR_HOPPER;
use halyard_platform_api::ops;
use halyard_platform_api::{DType, Result};

use super::call::{Call, Path, rows_aligned};
use super::fusion::{Fusion, SmallBatchCall};
use super::layout::{GROUP, RECORD_ROWS, RECORDS_OF_FLOATS, WeightLayout, record_bytes, scales_at};
use super::round_groups;
use super::round_tokens::{self, Norm, RoundTokens};
use crate::driver::{Facts, Function};
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::ops::names::{epilogue_code, type_name};
use crate::policy::Policy;

const THREADS: u32 = 256;
/// Bytes of a row of a piece.
const ROW_BYTES: u32 = 128;
/// Where scales of rounded tokens begin in scratch: a multiple of this.
const ALIGN: u64 = 256;
/// Tokens of a block, ascending.
const TOKENS: [u32; 2] = [64, 128];

/// What a block may be.
struct Ring {
    /// Weight rows.
    rows: u32,
    /// Pieces of its ring, of each number of tokens.
    stages: [u32; 2],
    /// Blocks that may share out a tile, a cluster.
    splits: RangeInclusive<u32>,
    /// Percent of the multiprocessors for which there must be a block.
    least: u32,
}

impl Ring {
    const fn new(rows: u32, stages: [u32; 2], splits: RangeInclusive<u32>, least: u32) -> Ring {
        Ring {
            rows,
            stages,
            splits,
            least,
        }
    }
}

/// The better first. Memory is busiest where nearly all multiprocessors have a block: 128 blocks of 112 rows read 4.2
/// TB/s on an H200, 112 of 128 rows 3.8. Where blocks share a tile, fewer of them leave room for the next kernel to
/// begin: a step of 8B with 64 tokens on two H200s takes 3.11 ms with tiles of 128 rows there and 3.24 with 112.
const RINGS: [Ring; 3] = [
    Ring::new(112, [10, 7], 1..=1, 66),
    Ring::new(128, [8, 7], 2..=4, 66),
    Ring::new(224, [6, 5], 1..=1, 66),
];
/// The same for smaller matrices, of 16-bit weights.
const SMALL_RINGS: [Ring; 3] = [
    Ring::new(64, [10, 8], 1..=4, 50),
    Ring::new(32, [10, 10], 1..=4, 50),
    Ring::new(16, [10, 10], 1..=4, 33),
];
/// Most bytes of a matrix for which these also do better than the library with 65 to 128 tokens, and up to 256.
/// Measured on an H200, ms a step by the library and by tiles: a 135M model (matrices of at most 3.4 MiB) with 128 and
/// 256 tokens 1.33 and 1.53, 1.13 and 1.35; 0.6B (4 to 12 MiB) with 128 2.24 and 2.09; 1B (8 to 64 MiB), all of them in
/// tiles, with 256 2.15 and 2.60.
const SMALL_BYTES: u64 = 8 << 20;
const SMALLEST_BYTES: u64 = 4 << 20;
/// Pieces that each of them has at least.
const MIN_PIECES: u32 = 4;

/// How a matrix is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    rows: u32,
    splits: u32,
    stages: [u32; 2],
    /// A piece of the ring also has a scale a row.
    has_scales: bool,
}

impl Form {
    /// Of blocks with the number of tokens of this index.
    fn shared_bytes(self, of: usize) -> u32 {
        let scales = if self.has_scales { 4 * self.rows } else { 0 };
        1024 + self.stages[of] * ((self.rows + TOKENS[of]) * ROW_BYTES + scales)
    }

    /// The same with scales in its ring, which is as much shorter as need be.
    fn with_scales(self, facts: &Facts) -> Form {
        let form = |stages| Form {
            stages: [stages; 2],
            has_scales: true,
            ..self
        };
        let fits = |of: usize, stages: u32| form(stages).shared_bytes(of) <= facts.max_shared_bytes;
        let shorter = |of: usize| (1..=self.stages[of]).rev().find(|&stages| fits(of, stages));
        Form {
            stages: [0, 1].map(|of| shorter(of).unwrap_or(1)),
            ..form(1)
        }
    }
}

/// Whether weights are 8-bit floats, which rounded tokens meet.
fn rounds(layout: WeightLayout) -> bool {
    matches!(layout, WeightLayout::Scaled | RECORDS_OF_FLOATS)
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

/// The form for a matrix of `n` rows of so many bytes, where `over` blocks take each tile's rows for some of the tokens
/// each: all blocks run at a time, and there are enough of them for memory to be busy.
fn form(rings: &[Ring], n: u32, row_bytes: u32, over: u32, facts: &Facts) -> Option<Form> {
    let sms = facts.num_sms;
    rings.iter().find_map(|ring| {
        let (rows, stages, tiles) = (ring.rows, ring.stages, n.div_ceil(ring.rows) * over);
        let runs =
            |&splits: &u32| tiles * splits <= at_once(splits, sms) && row_bytes / ROW_BYTES >= splits * MIN_PIECES;
        let splits = ring.splits.clone().rev().find(runs)?;
        let form = Form {
            rows,
            splits,
            stages,
            has_scales: false,
        };
        let fits = (0..TOKENS.len()).all(|of| form.shared_bytes(of) <= facts.max_shared_bytes);
        (tiles * splits * 100 >= sms * ring.least && fits).then_some(form)
    })
}

/// Calls of up to so many tokens, in blocks of the number of tokens of an index, each of a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Calls {
    most: u32,
    of: usize,
    form: Form,
}

impl Calls {
    const fn new(most: u32, of: usize, form: Form) -> Calls {
        Calls { most, of, form }
    }
}

/// The calls for which tiles do better than the library, ascending; none where there is no form for them. With `gated`
/// each result has a gate's row and an up part's. Measured on an H200, a step of an 8B model with 72 and 128 tokens: in
/// bf16 6.00 and 6.51 ms, 5.66 and 6.40 by the library; in 8 bits 4.62 and 5.10 ms, by the library 5.15 with 65 tokens
/// and 5.69 with 128. Small matrices lie in the second-level cache, and a launch takes longer than what it computes.
fn calls_of(op: &ops::Linear, layout: WeightLayout, gated: bool, facts: &Facts, policy: &Policy) -> Vec<Calls> {
    calls_or_none(op, layout, gated, facts, policy).unwrap_or_default()
}

fn calls_or_none(
    op: &ops::Linear,
    layout: WeightLayout,
    gated: bool,
    facts: &Facts,
    policy: &Policy,
) -> Option<Vec<Calls>> {
    let rows = op.out_features.checked_mul(if gated { 2 } else { 1 })?;
    let plain = matches!(op.act, DType::BF16 | DType::F16) && layout == WeightLayout::Plain(op.act);
    let row_bytes = match plain {
        true => op.in_features.checked_mul(op.act.bytes() as u32)?,
        false => op.in_features,
    };
    let matrix_units = plain || DenseTiles::may_take(op, layout);
    let whole = row_bytes.is_multiple_of(16) && op.out_features.is_multiple_of(8);
    if !(policy.dense_tiles && matrix_units && whole && facts.arch == "sm_90a") {
        return None;
    }
    let large = form(&RINGS, rows, row_bytes, 1, facts);
    Some(match layout {
        // Beyond these the library multiplies copies of codes, sooner where it takes whole blocks. Every block of 128
        // tokens reads the weights again.
        RECORDS_OF_FLOATS => {
            let form = large?.with_scales(facts);
            let most = if round_groups::has_blocks(op) { 384 } else { 512 };
            vec![Calls::new(64, 0, form), Calls::new(most, 1, form)]
        }
        WeightLayout::Scaled => vec![Calls::new(64, 0, large?), Calls::new(128, 1, large?)],
        _ => match large {
            Some(form) => vec![Calls::new(64, 0, form)],
            None => {
                let of = |over| form(&SMALL_RINGS, rows, row_bytes, over, facts);
                let (one, bytes) = (of(1)?, u64::from(rows) * u64::from(row_bytes));
                let mut calls = vec![Calls::new(64, 0, one)];
                if bytes <= SMALL_BYTES {
                    calls.push(Calls::new(128, 1, one));
                }
                if bytes <= SMALLEST_BYTES {
                    calls.extend(of(2).map(|two| Calls::new(256, 1, two)));
                }
                calls
            }
        },
    })
}

/// Compiled.
pub(in crate::ops) struct DenseTiles {
    layout: WeightLayout,
    /// What its calls need.
    calls: Vec<(Calls, Function)>,
    /// Most tokens.
    most_tokens: u32,
    /// Over 8-bit weights: of tokens as they are, and of tokens to norm first.
    rounding: Option<RoundTokens>,
    rounding_normed: Option<RoundTokens>,
    gated: bool,
    n: u32,
    k: u32,
}

impl DenseTiles {
    /// Most tokens for which it does better than the library; 0 where it does not compute a linear on a device. With
    /// `gated`, of one whose results have a gate's row and an up part's.
    pub(in crate::ops) fn most_tokens(
        op: &ops::Linear,
        layout: WeightLayout,
        gated: bool,
        facts: &Facts,
        policy: &Policy,
    ) -> u32 {
        calls_of(op, layout, gated, facts, policy)
            .last()
            .map_or(0, |calls| calls.most)
    }

    /// Up to how many tokens the kernel of small batches, which also makes the norm, is better than these tiles.
    /// Measured on an H200: a step of an 8B model with 12 and 16 tokens takes 4.31 and 4.32 ms with tiles, and 4.52 and
    /// 4.65 without; of a model of 0.6B with 16 and 24 tokens 1.05 and 1.30, and 1.00 and 1.39.
    pub(in crate::ops) fn small_batches_to(
        op: &ops::Linear,
        layout: WeightLayout,
        gated: bool,
        facts: &Facts,
        policy: &Policy,
    ) -> Option<u32> {
        let first = *calls_of(op, layout, gated, facts, policy).first()?;
        Some(if first.form.rows < RINGS[0].rows { 16 } else { 8 })
    }

    /// Whether it multiplies rounded tokens by weights of this layout, on devices that have it.
    pub(in crate::ops) fn may_take(op: &ops::Linear, layout: WeightLayout) -> bool {
        rounds(layout) && round_tokens::may_round(op)
    }

    /// Whether it computes a linear on a device; with `gated`, one whose results have a gate's row and an up part's.
    pub(in crate::ops) fn takes(
        op: &ops::Linear,
        layout: WeightLayout,
        gated: bool,
        facts: &Facts,
        policy: &Policy,
    ) -> bool {
        DenseTiles::most_tokens(op, layout, gated, facts, policy) > 0
    }

    /// Whether it computes a call. All that it reads or writes lies at 16 bytes.
    pub(in crate::ops) fn takes_call(&self, call: &SmallBatchCall) -> bool {
        let pointers = [
            call.weight,
            call.weight_up,
            call.scale,
            call.scale_up,
            call.bias,
            call.bias_up,
        ];
        let at_16 = pointers.iter().all(|ptr| ptr.is_multiple_of(16));
        let rows = [&call.x, &call.residual, &call.out].map(|view| view.is_none() || rows_aligned(view, 16));
        call.out.len() <= self.most_tokens && at_16 && rows == [true; 3]
    }

    /// Whether it makes the norm of a region itself: where tokens are rounded in a launch of their own.
    pub(in crate::ops) fn norms(op: &ops::Linear, layout: WeightLayout) -> bool {
        rounds(layout) && round_tokens::norms(op.in_features)
    }

    /// Compiles the kernel for what it [`DenseTiles::takes`], with the norm of what it [`DenseTiles::norms`].
    ///
    /// # Errors
    /// Errors of the compiler.
    pub(in crate::ops) fn prepare(
        cx: &Preparation<'_>,
        op: &ops::Linear,
        layout: WeightLayout,
        fusion: &Fusion,
    ) -> Result<Option<DenseTiles>> {
        let gated = fusion.gate != "0";
        let mut calls = calls_of(op, layout, gated, cx.facts(), cx.policy());
        let Some(most_tokens) = calls.last().map(|calls| calls.most.min(op.max_tokens)) else {
            return Ok(None);
        };
        let needed = calls.iter().position(|calls| calls.most >= most_tokens);
        calls.truncate(needed.map_or(calls.len(), |last| last + 1));
        let rounding = match rounds(layout) {
            true => Some(RoundTokens::prepare(cx, op, layout, false)?),
            false => None,
        };
        let rounding_normed = match fusion.norm && DenseTiles::norms(op, layout) {
            true => Some(RoundTokens::prepare(cx, op, layout, true)?),
            false => None,
        };
        let function = |Calls { of, form, .. }: Calls| {
            let names = [form.rows, TOKENS[of], form.splits, form.stages[of]].map(|v| v.to_string());
            let defines = [
                ("ACT", if rounding.is_some() { "u8" } else { type_name(op.act) }),
                ("OUT", type_name(op.out)),
                ("ROWS", names[0].as_str()),
                ("TOKENS", names[1].as_str()),
                ("SPLITS", names[2].as_str()),
                ("STAGES", names[3].as_str()),
                ("EPILOGUE", epilogue_code(op.epilogue)),
                ("GATE", fusion.gate),
                ("RECORDS", if layout == RECORDS_OF_FLOATS { "1" } else { "0" }),
            ];
            cx.function(LINEAR_HOPPER, &defines, "linear_hopper", form.shared_bytes(of))
        };
        let compiled = calls.into_iter().map(|calls| Ok((calls, function(calls)?)));
        Ok(Some(DenseTiles {
            layout,
            calls: compiled.collect::<Result<_>>()?,
            most_tokens,
            rounding,
            rounding_normed,
            gated,
            n: op.out_features,
            k: op.in_features,
        }))
    }

    /// Whether it was compiled to compute the norm of a region, too.
    pub(in crate::ops) fn computes_norm(&self) -> bool {
        self.rounding_normed.is_some()
    }

    /// Where scales of rounded tokens stand in scratch, behind their codes.
    fn scales_in_scratch(&self) -> u64 {
        (u64::from(self.most_tokens) * u64::from(self.k)).next_multiple_of(ALIGN)
    }

    /// Scratch of a call, for rounded tokens.
    pub(in crate::ops) fn scratch_bytes(&self) -> u64 {
        match &self.rounding {
            Some(_) => self.scales_in_scratch() + 4 * u64::from(self.most_tokens),
            None => 0,
        }
    }

    /// Appends the launches of a call that it takes; x is normed already, unless the call has a norm's weight and it
    /// was compiled for that.
    pub(in crate::ops) fn encode_fused(&self, encoding: &mut Encoding, call: &SmallBatchCall) {
        let norm = (call.norm != 0).then_some(Norm {
            weight: call.norm,
            offset: call.norm_offset,
            eps: call.eps,
        });
        let rounding = match norm {
            Some(_) => &self.rounding_normed,
            None => &self.rounding,
        };
        let (x, x_scales, x_stride) = match rounding {
            None => (Arg::Ptr(call.x.ptr), Arg::Ptr(0), call.x.row_stride()),
            Some(rounding) => {
                let scales = self.scales_in_scratch();
                rounding.encode(encoding, &call.x, norm, 0, scales);
                (Arg::Scratch(0), Arg::Scratch(scales), self.k)
            }
        };
        let above = match self.layout {
            WeightLayout::Planes(format) => {
                let groups = u64::from(self.k).div_ceil(GROUP);
                u64::from(call.first_up) / RECORD_ROWS * groups * record_bytes(format)
            }
            _ => 0,
        };
        let matrices = [call.weight, call.weight_up + above].map(Arg::Ptr);
        let scales = [call.scale, call.scale_up].map(Arg::Ptr);
        let around = [call.bias, call.bias_up, call.residual.ptr, call.out.ptr].map(Arg::Ptr);
        let strides = [x_stride, call.residual.row_stride(), call.out.row_stride()].map(Arg::U32);
        let sizes = [call.out.len(), self.n, self.k].map(Arg::U32);
        let args = [&[x][..], &matrices, &[x_scales], &scales, &around, &strides, &sizes].concat();
        let tokens = call.out.len();
        let fits = |(calls, _): &&(Calls, Function)| tokens <= calls.most;
        let Some(&(Calls { of, form, .. }, function)) = self.calls.iter().find(fits).or(self.calls.last()) else {
            return;
        };
        let features = form.rows / if self.gated { 2 } else { 1 };
        let grid = [self.n.div_ceil(features), tokens.div_ceil(TOKENS[of]), form.splits];
        encoding.launch(function, grid, THREADS, form.shared_bytes(of), &args);
    }

    fn call(&self, call: &Call) -> SmallBatchCall {
        let scales = match self.layout {
            WeightLayout::Scaled => call.weight.ptr + scales_at(u64::from(self.n), u64::from(self.k)),
            _ => 0,
        };
        SmallBatchCall {
            x: call.x,
            weight: call.weight.ptr,
            scale: scales,
            bias: call.bias.ptr,
            residual: call.residual,
            out: call.out,
            ..SmallBatchCall::new(self.k, self.n)
        }
    }
}

impl Path for DenseTiles {
    fn takes(&self, call: &Call) -> bool {
        self.takes_call(&self.call(call))
    }

    fn scratch_bytes(&self) -> u64 {
        DenseTiles::scratch_bytes(self)
    }

    fn encode(&self, encoding: &mut Encoding, call: &Call) {
        self.encode_fused(encoding, &self.call(call));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_blocks_of_a_matrix_run_at_a_time() {
        let h200 = crate::ops::tests::facts("sm_90a", 132, 232_448);
        let of = |n, k: u32| form(&RINGS, n, 2 * k, 1, &h200).map(|form| (form.rows, form.splits));
        // An 8B model's matrices, on one of two ranks and on one device.
        assert_eq!(of(3072, 4096), Some((128, 4)));
        assert_eq!(of(4096, 2048), Some((128, 3)));
        assert_eq!(of(4096, 7168), Some((128, 3)));
        assert_eq!(of(14_336, 4096), Some((112, 1)));
        assert_eq!(of(6144, 4096), Some((128, 2)));
        assert_eq!(of(28_672, 4096), Some((224, 1)));
        // In 8 bits rows are as long as half of their values in 16.
        assert_eq!(of(6144, 2048), Some((128, 2)));
        // The large products and blocks of the conformance suite, which are there for these kernels.
        assert_eq!(of(3000, 1096), Some((128, 4)));
        assert_eq!(of(2984, 1088), Some((128, 4)));
        assert_eq!(of(9992, 264), Some((112, 1)));
        assert_eq!(of(2 * 1504, 1096), Some((128, 4)));
        assert_eq!(of(2 * 9864, 264), Some((224, 1)));
        // Of smaller models: 135M's gate and up and its three others, and 1B's output and down projection.
        let small = |n, k: u32| form(&SMALL_RINGS, n, 2 * k, 1, &h200).map(|form| (form.rows, form.splits));
        assert_eq!(small(3072, 576), Some((64, 2)));
        assert_eq!(small(960, 576), Some((16, 1)));
        assert_eq!(small(576, 576), Some((16, 2)));
        assert_eq!(small(576, 1536), Some((32, 4)));
        assert_eq!(small(2048, 2048), Some((64, 3)));
        assert_eq!(small(2048, 8192), Some((64, 3)));
        // 135M's with 256 tokens, in two blocks each.
        let twice = |n, k: u32| form(&SMALL_RINGS, n, 2 * k, 2, &h200).map(|form| (form.rows, form.splits));
        assert_eq!(twice(3072, 576), Some((64, 1)));
        assert_eq!(twice(960, 576), Some((16, 1)));
        assert_eq!(twice(576, 576), Some((32, 2)));
        assert_eq!(twice(576, 1536), Some((64, 4)));
        // More tiles than fit, too few to fill the device, and too short a depth to share out.
        assert_eq!(of(128_256, 4096), None);
        assert_eq!(of(576, 1536), None);
        assert_eq!(of(4096, 512), None);
        for n in (8..40_000).step_by(8) {
            for k in [64, 2048, 4096, 14_336] {
                let Some(form) = form(&RINGS, n, 2 * k, 1, &h200) else {
                    continue;
                };
                let blocks = n.div_ceil(form.rows) * form.splits;
                assert!((88..=132).contains(&blocks), "{n} {k}: {form:?}");
                assert!((0..2).all(|of| form.shared_bytes(of) <= h200.max_shared_bytes));
            }
        }
    }
}
