//! 8-bit weights with a scale for 128 neighbours of a row (records), by tokens that are rounded likewise: what a
//! library's product of such operands takes. Only where the op allows activations to be rounded.

use std::ops::Range;

use halyard_kernels_gpu::LINEAR_SCALED_TOKENS;
use halyard_platform_api::{Result, ops};

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

/// Bytes of the scales of a row of `k` values.
pub(super) fn scale_bytes(k: u32) -> u64 {
    u64::from(k / DEPTH) * 4
}

/// Compiled.
pub(super) struct RoundGroups {
    tokens: Function,
    weights: Function,
    k: u32,
}

impl RoundGroups {
    /// Compiles both kernels.
    ///
    /// # Errors
    /// Errors of the compiler.
    pub(super) fn prepare(cx: &Preparation<'_>, op: &ops::Linear) -> Result<RoundGroups> {
        let defines = [
            ("ACT", type_name(op.act)),
            ("KEPT", "1"),
            ("NORM", "0"),
            ("RECORDS", "1"),
        ];
        let function = |name| cx.function(LINEAR_SCALED_TOKENS, &defines, name, 0);
        Ok(RoundGroups {
            tokens: function("scaled_groups")?,
            weights: function("rows_of_records")?,
            k: op.in_features,
        })
    }

    /// Rounds the rows of x, which are 16-byte aligned, to codes, and to scales \[k / 128, columns\], at these offsets
    /// in scratch.
    pub(super) fn encode_tokens(&self, encoding: &mut Encoding, x: &View, codes: u64, scales: u64, columns: u32) {
        let args = [
            Arg::Ptr(x.ptr),
            Arg::U32(x.row_stride()),
            Arg::Scratch(codes),
            Arg::Scratch(scales),
            Arg::U32(self.k),
            Arg::U32(columns),
        ];
        encoding.launch(self.tokens, [x.len(), 1, 1], THREADS, 0, &args);
    }

    /// Brings rows of a weight to codes, and to scales \[k / 128, rows\], at these offsets in scratch. The first row is
    /// a record's first.
    pub(super) fn encode_weights(
        &self,
        encoding: &mut Encoding,
        weight: DevicePtr,
        rows: Range<u32>,
        codes: u64,
        scales: u64,
    ) {
        let count = rows.end - rows.start;
        let records = u64::from(count).div_ceil(RECORD_ROWS) * u64::from(self.k / DEPTH);
        let args = [
            Arg::Ptr(weight),
            Arg::Scratch(codes),
            Arg::Scratch(scales),
            Arg::U32(self.k),
            Arg::U32(rows.start),
            Arg::U32(count),
        ];
        encoding.launch(self.weights, [records.div_ceil(4) as u32, 1, 1], THREADS, 0, &args);
    }
}
