//! 8-bit weights with a scale for 128 neighbours of a row (records), by tokens that are rounded likewise: what a
//! library's product of such operands takes. Only where the op allows activations to be rounded.

use halyard_kernels_gpu::LINEAR_SCALED_TOKENS;
use halyard_platform_api::{Result, WeightFormat, ops};

use super::layout::{GROUP, RECORD_ROWS, RECORDS_OF_FLOATS, WeightLayout};
use super::round_tokens;
use crate::driver::{DevicePtr, Facts, Function};
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::ops::names::type_name;
use crate::view::View;

const THREADS: u32 = 256;
/// Depths that share a scale.
pub(super) const DEPTH: u32 = GROUP as u32;

/// Whether the library multiplies a linear's tokens once they are rounded: cuBLASLt does on Hopper.
pub(super) fn takes(op: &ops::Linear, layout: WeightLayout, facts: &Facts) -> bool {
    layout == RECORDS_OF_FLOATS
        && round_tokens::may_round(op)
        && op.in_features.is_multiple_of(DEPTH)
        && facts.arch == "sm_90a"
}

/// Whether every `DEPTH` rows of the weight share their scales.
pub(super) fn has_blocks(op: &ops::Linear) -> bool {
    op.weight == WeightFormat::F8B128 && op.out_features.is_multiple_of(DEPTH)
}

/// Bytes of the scales of a row of `k` values.
pub(super) fn scale_bytes(k: u32) -> u64 {
    u64::from(k / DEPTH) * 4
}

/// A kernel of the library's operands.
fn function(cx: &Preparation<'_>, op: &ops::Linear, name: &str) -> Result<Function> {
    let defines = [
        ("ACT", type_name(op.act)),
        ("KEPT", "1"),
        ("NORM", "0"),
        ("RECORDS", "1"),
    ];
    cx.function(LINEAR_SCALED_TOKENS, &defines, name, 0)
}

/// Rounds tokens.
pub(super) struct RoundGroups {
    function: Function,
    k: u32,
}

impl RoundGroups {
    /// Compiles it.
    ///
    /// # Errors
    /// Errors of the compiler.
    pub(super) fn prepare(cx: &Preparation<'_>, op: &ops::Linear) -> Result<RoundGroups> {
        Ok(RoundGroups {
            function: function(cx, op, "scaled_groups")?,
            k: op.in_features,
        })
    }

    /// Rounds the rows of x, which are 16-byte aligned, to codes, and to scales \[k / 128, columns\], at these offsets
    /// in scratch.
    pub(super) fn encode(&self, encoding: &mut Encoding, x: &View, codes: u64, scales: u64, columns: u32) {
        let args = [
            Arg::Ptr(x.ptr),
            Arg::U32(x.row_stride()),
            Arg::Scratch(codes),
            Arg::Scratch(scales),
            Arg::U32(self.k),
            Arg::U32(columns),
        ];
        encoding.launch(self.function, [x.len(), 1, 1], THREADS, 0, &args);
    }
}

/// Takes records apart.
pub(super) struct UnpackCodes {
    function: Function,
    k: u32,
    blocks: bool,
}

impl UnpackCodes {
    /// Compiles it.
    ///
    /// # Errors
    /// Errors of the compiler.
    pub(super) fn prepare(cx: &Preparation<'_>, op: &ops::Linear) -> Result<UnpackCodes> {
        Ok(UnpackCodes {
            function: function(cx, op, "rows_of_records")?,
            k: op.in_features,
            blocks: has_blocks(op),
        })
    }

    /// Brings rows of a weight to `codes`, and to `scales` \[k / 128, rows\], or those of blocks \[rows / 128, k / 128,
    /// but a multiple of four\]. The first row is a record's first, or a block's.
    pub(super) fn encode(
        &self,
        encoding: &mut Encoding,
        weight: DevicePtr,
        codes: Arg,
        scales: Arg,
        first_row: u32,
        rows: u32,
    ) {
        let records = u64::from(rows).div_ceil(RECORD_ROWS) * u64::from(self.k / DEPTH);
        let args = [
            Arg::Ptr(weight),
            codes,
            scales,
            Arg::U32(self.k),
            Arg::U32(first_row),
            Arg::U32(rows),
            Arg::U32(u32::from(self.blocks)),
        ];
        encoding.launch(self.function, [records.div_ceil(4) as u32, 1, 1], THREADS, 0, &args);
    }
}
