//! `embedding`.

use halyard_platform_api::ops::Embedding;
use halyard_platform_api::weight_format::dequantise_row;
use halyard_platform_api::{DType, Result};

use crate::operand::Args;

pub(super) fn embedding(op: &Embedding, args: &Args<'_>) -> Result<()> {
    let width = op.width as usize;
    let ids = args.ints(0)?;
    let table = args.typed(1, DType::U8, &[])?;
    let out = args.typed(2, op.out, &[width])?;
    args.expect_rows(2, ids.len())?;
    let row_bytes = op.weight.row_bytes(width).unwrap_or(0);
    let mut values = vec![0.0; ids.len() * width];
    for (&id, row) in ids.iter().zip(values.chunks_exact_mut(width)) {
        if id == -1 {
            continue;
        }
        if id < 0 || id as u32 >= op.num_rows {
            return Err(args.error(0, format!("id {id} is outside the table of {} rows", op.num_rows)));
        }
        let bytes = table.raw(id as usize * row_bytes, row_bytes)?;
        dequantise_row(op.weight, &bytes, row);
        row.iter_mut().for_each(|value| *value *= op.scale);
    }
    out.store_floats(&values);
    Ok(())
}
