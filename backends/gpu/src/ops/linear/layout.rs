//! How a weight lies in device memory. Plain values stay row-major \[N, K\]; formats in blocks, GGUF's and canonical
//! ones, lie as planes, in CUDA C++ as records (`quantized.cuh`), 8-bit floats as rows of codes and a scale a row
//! (`scaled.cuh`).

use halyard_platform_api::weight_format::Codes;
use halyard_platform_api::{DType, WeightFormat, ops};

use crate::ops::formats::in_blocks;

/// Values of a group of planes: four chunks of 32.
pub(crate) const GROUP: u64 = 128;

/// Rows of a record (`quantized.cuh`).
pub(crate) const RECORD_ROWS: u64 = 8;

/// Records of 8-bit floats with a scale for every group of a row.
pub(super) const RECORDS_OF_FLOATS: WeightLayout = WeightLayout::Planes(WeightFormat::F8G128);

/// The layout of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightLayout {
    /// Row-major values of this type.
    Plain(DType),
    /// Planes, or records, of this format.
    Planes(WeightFormat),
    /// Codes of 8-bit floats, and a scale a row.
    Scaled,
}

impl WeightLayout {
    /// 16-bit activations meet weights of their own type; f32 ones meet the file's.
    pub(crate) fn of(op: &ops::Linear) -> WeightLayout {
        let canonical = match op.weight {
            WeightFormat::F32 => DType::F32,
            WeightFormat::F16 => DType::F16,
            WeightFormat::BF16 => DType::BF16,
            WeightFormat::F8E4M3 => return WeightLayout::Scaled,
            WeightFormat::F8B128 => return RECORDS_OF_FLOATS,
            format => return WeightLayout::Planes(format),
        };
        WeightLayout::Plain(if op.act == DType::F32 { canonical } else { op.act })
    }

    /// Whether small batches run on the matrix units of `Facts::matrix_units`: the kernels load 16 bytes of a row at a
    /// time.
    pub(crate) fn takes_small_batches(self, op: &ops::Linear) -> bool {
        op.act != DType::F32
            && match self {
                WeightLayout::Plain(weight) => weight == op.act && op.in_features.is_multiple_of(8),
                WeightLayout::Planes(format) => has_quick_operands(format),
                WeightLayout::Scaled => op.in_features.is_multiple_of(16),
            }
    }

    /// Bytes of n rows of k values.
    pub(super) fn bytes(self, n: u64, k: u64) -> u64 {
        match self {
            WeightLayout::Plain(dtype) => n * k * dtype.bytes() as u64,
            WeightLayout::Planes(format) => plane_bytes(format, n, k),
            WeightLayout::Scaled => scales_at(n, k) + 4 * n,
        }
    }
}

/// Whether a few instructions make operands of matrix units from a format's codes (`groups_product.cuh`): whole numbers
/// and floats of 4 and 8 bits, no tables.
pub(crate) fn has_operands(format: WeightFormat) -> bool {
    use WeightFormat::{Fp4G64, Iq4NlG32, Nf4G64};
    in_blocks(format) && !matches!(format, Nf4G64 | Fp4G64 | Iq4NlG32)
}

/// Whether `linear` makes them. 8-bit floats stay out until a fault is gone: streamed tokens gave NaN over F8G128 on an
/// H200.
pub(super) fn has_quick_operands(format: WeightFormat) -> bool {
    use WeightFormat::{F8G32, F8G64, F8G128};
    has_operands(format) && !matches!(format, F8G32 | F8G64 | F8G128)
}

/// Whether a format's codes are bytes.
pub(crate) fn has_bytes(format: WeightFormat) -> bool {
    planes(format).0[0] == GROUP
}

/// Whether a format has minima.
pub(crate) fn has_minima(format: WeightFormat) -> bool {
    match format.is_canonical() {
        true => matches!(format.layout().codes, Codes::Integer { .. }),
        false => matches!(format, WeightFormat::Q4_1 | WeightFormat::Q4K),
    }
}

/// Neighbours in a row that share a scale.
pub(crate) fn run_values(format: WeightFormat) -> u32 {
    match format {
        WeightFormat::Q6K => 16,
        WeightFormat::Q4K => 32,
        _ => format.block_values() as u32,
    }
}

/// Bytes of a record: eight rows of a group.
pub(super) fn record_bytes(format: WeightFormat) -> u64 {
    RECORD_ROWS * u64::from(row_bytes(format))
}

/// Bytes that a record has for a row: 128 codes, their higher bits and scales. K-quants' blocks are of 256 values:
/// their scales of scales stand in both records.
pub(super) fn row_bytes(format: WeightFormat) -> u32 {
    let ([codes, high, scales], blocks) = planes(format);
    (codes + high + scales) as u32 + if blocks { 4 } else { 0 }
}

/// Bytes a group of each plane, and whether there is a word for every two groups: quants, high bits, scales.
fn planes(format: WeightFormat) -> ([u64; 3], bool) {
    if format.is_canonical() {
        let layout = format.layout();
        let (values, scales) = (layout.block_values as u64, layout.scale_bytes() as u64);
        let codes = layout.block_bytes as u64 - scales;
        return ([codes * GROUP / values, 0, scales * GROUP / values], false);
    }
    match format {
        WeightFormat::Q4_1 => ([64, 0, 16], false),
        WeightFormat::Q5_0 => ([64, 16, 8], false),
        WeightFormat::Q8_0 => ([128, 0, 8], false),
        WeightFormat::Q4K => ([64, 0, 8], true),
        WeightFormat::Q6K => ([64, 32, 8], true),
        _ => ([64, 0, 8], false),
    }
}

/// Bytes of planes, which the kernels compute the same, and enough for records too.
pub(crate) fn plane_bytes(format: WeightFormat, n: u64, k: u64) -> u64 {
    let groups = k.div_ceil(GROUP);
    let (bytes, blocks) = planes(format);
    let planes: u64 = bytes.iter().map(|b| (n * groups * b).next_multiple_of(256)).sum();
    let planes = planes + if blocks { n * groups * 2 } else { 0 };
    planes.max(n.div_ceil(RECORD_ROWS) * groups * record_bytes(format))
}

/// Where the scales of n rows of codes begin; the kernels compute the same.
pub(crate) const fn scales_at(n: u64, k: u64) -> u64 {
    (n * k.next_multiple_of(16)).next_multiple_of(256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_stand_behind_padded_rows() {
        assert_eq!(WeightLayout::Scaled.bytes(3, 37), 256 + 12);
        assert_eq!(WeightLayout::Scaled.bytes(4096, 4096), 4096 * 4096 + 4 * 4096);
    }
}
