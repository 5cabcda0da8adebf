//! `rope`, from a table.

use halyard_platform_api::ops::{Rope, RopeStyle};
use halyard_platform_api::{DType, Result};

use crate::operand::Args;

pub(super) fn rope(op: &Rope, args: &Args<'_>) -> Result<()> {
    let half = op.rotary_dim as usize / 2;
    let head_dim = op.head_dim as usize;
    let positions = args.ints(0)?;
    let table = args.typed(1, DType::F32, &[op.rotary_dim as usize])?;
    let x = args.typed(2, op.dtype, &[head_dim])?;
    args.expect_rows(2, positions.len())?;
    for (t, &position) in positions.iter().enumerate() {
        let angles = table
            .row(position)
            .map_err(|_| {
                args.error(
                    0,
                    format!("position {position} is outside the table of {} positions", table.dim(0)),
                )
            })?
            .floats();
        let token = x.row(t as i32)?;
        let mut values = token.floats();
        for head in values.chunks_exact_mut(head_dim) {
            for i in 0..half {
                let (first, second) = match op.style {
                    RopeStyle::Neox => (i, i + half),
                    RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                };
                let (a, b) = (head[first], head[second]);
                let (cos, sin) = (angles[i], angles[half + i]);
                head[first] = a * cos - b * sin;
                head[second] = b * cos + a * sin;
            }
        }
        token.store_floats(&values);
    }
    Ok(())
}
