//! Rows of any format: their values, and the same values in another format. For load time and tests: never a fast path.

use super::block::{MAX_BLOCK, MAX_GROUPS, Unpacked, float};
use super::tables::f16_to_f32;
use super::unpack::unpack;
use super::{Codes, WeightFormat};
use crate::e4m3;
use crate::status::{Error, Result};

/// The values of a row. `row` has [`WeightFormat::row_bytes`] bytes of `out.len()` values. Nothing is rounded but the
/// product and the sum of a value's formula.
pub fn dequantise_row(format: WeightFormat, row: &[u8], out: &mut [f32]) {
    let layout = format.layout();
    let (blocks, tail) = row.split_at(row.len() - layout.row_tail_bytes);
    let blocks = blocks.chunks_exact(layout.block_bytes);
    match layout.codes {
        Codes::Float => {
            for (block, value) in blocks.zip(out) {
                *value = match format {
                    WeightFormat::F32 => float(block, 0),
                    WeightFormat::F16 => f16_to_f32([block[0], block[1]]),
                    _ => f32::from_le_bytes([0, 0, block[0], block[1]]),
                };
            }
        }
        // One value a block.
        Codes::E4m3 if layout.group == 0 => {
            let scale = float(tail, 0);
            for (block, value) in blocks.zip(out) {
                *value = scale * e4m3::to_f32(block[0]);
            }
        }
        codes => {
            let mut unpacked = Unpacked::default();
            for (block, values) in blocks.zip(out.chunks_exact_mut(layout.block_values)) {
                unpack(format, block, tail, &mut unpacked);
                for (at, (value, &code)) in values.iter_mut().zip(&unpacked.codes).enumerate() {
                    let group = at / layout.group;
                    let scale = unpacked.scales[group];
                    *value = match codes {
                        // Nothing is added to formats without a minimum: it would lose the sign of a zero.
                        Codes::Integer { .. } => match unpacked.mins[group] {
                            0.0 => scale * f32::from(code),
                            min => scale * f32::from(code) + min,
                        },
                        Codes::Table(table) => scale * table[usize::from(code as u8 & 15)],
                        Codes::E4m3 | Codes::Float => scale * e4m3::to_f32(code as u8),
                    };
                }
            }
        }
    }
}

/// Appends a block of a canonical format: a group of codes with its scale and minimum. Codes of `U4` formats are 0 to
/// 15, as indices are; other formats ignore the minimum.
pub fn put_group(format: WeightFormat, codes: &[i8], scale: f32, min: f32, out: &mut Vec<u8>) {
    out.extend(scale.to_le_bytes());
    let layout = format.layout();
    if matches!(layout.codes, Codes::Integer { .. }) {
        out.extend(min.to_le_bytes());
    }
    if (layout.block_bytes - layout.scale_bytes()) == layout.block_values {
        return out.extend(codes.iter().map(|&code| code as u8));
    }
    for run in codes.chunks_exact(layout.block_values.min(32)) {
        let (low, high) = run.split_at(run.len() / 2);
        out.extend(
            low.iter()
                .zip(high)
                .map(|(&low, &high)| low as u8 & 15 | (high as u8) << 4),
        );
    }
}

/// Appends the row `row` of format `from` in the canonical format `to`. Exact where codes and scales are as they are
/// and the format has no minimum of its own; where an offset of codes becomes a minimum, exact for scales of 16 bits.
///
/// # Errors
/// `InvalidArgument` where `to` does not hold such codes, or its groups do not divide those of `from`.
pub fn convert_row(from: WeightFormat, to: WeightFormat, row: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let (own, wanted) = (from.layout(), to.layout());
    let shift = match (own.codes, wanted.codes) {
        (Codes::Integer { low }, Codes::Integer { low: 0 }) => Some(low),
        (Codes::Integer { .. }, Codes::Integer { .. }) => Some(0),
        (Codes::Table(a), Codes::Table(b)) if a == b => Some(0),
        (Codes::E4m3, Codes::E4m3) => Some(0),
        _ => None,
    };
    // A row with one scale holds groups of any size.
    let fits = to.is_canonical() && !from.is_plain() && own.group.is_multiple_of(wanted.group);
    let (Some(shift), true) = (shift, fits) else {
        return Err(Error::invalid(format!("rows of {} as {}", from.name(), to.name())));
    };
    let (blocks, tail) = row.split_at(row.len() - own.row_tail_bytes);
    if own.group == 0 {
        let scale = float(tail, 0);
        for codes in blocks.chunks_exact(wanted.group) {
            out.extend(scale.to_le_bytes());
            out.extend(codes);
        }
        return Ok(());
    }
    let mut unpacked = Unpacked::default();
    for block in blocks.chunks_exact(own.block_bytes) {
        unpack(from, block, tail, &mut unpacked);
        let codes = &mut unpacked.codes[..own.block_values];
        codes.iter_mut().for_each(|code| *code -= shift);
        for (at, codes) in codes.chunks_exact(wanted.group).enumerate() {
            let group = at * wanted.group / own.group;
            let scale = unpacked.scales[group];
            let min = unpacked.mins[group] + scale * f32::from(shift);
            put_group(to, codes, scale, min, out);
        }
    }
    Ok(())
}

const _: () = {
    let mut at = 0;
    while at < WeightFormat::ALL.len() {
        let layout = WeightFormat::ALL[at].layout();
        assert!(layout.block_values <= MAX_BLOCK);
        assert!(layout.group == 0 || layout.block_values / layout.group <= MAX_GROUPS);
        at += 1;
    }
};
