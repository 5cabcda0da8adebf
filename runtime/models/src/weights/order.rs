//! The matrix whose product is a vector in another order: its rows have a 1 in one column each.

use std::ops::Range;

use halyard_platform_api::WeightFormat;
use halyard_platform_api::weight_format::put_group;

/// The format of a matrix of zeros and ones with rows of `columns` values.
pub(super) fn format_of_order(columns: usize) -> WeightFormat {
    WeightFormat::U4G128.narrowed(columns).unwrap_or(WeightFormat::F32)
}

/// Appends some columns of a row that has a 1 at `one` and zeros elsewhere.
pub(super) fn put_order_row(format: WeightFormat, one: u32, columns: Range<usize>, out: &mut Vec<u8>) {
    let one = one as usize;
    let size = format.block_values();
    for first in columns.step_by(size) {
        if format == WeightFormat::F32 {
            out.extend(if first == one { 1.0f32 } else { 0.0 }.to_le_bytes());
            continue;
        }
        let mut codes = vec![0; size];
        if let Some(code) = one.checked_sub(first).and_then(|at| codes.get_mut(at)) {
            *code = 1;
        }
        put_group(format, &codes, 1.0, 0.0, out);
    }
}
