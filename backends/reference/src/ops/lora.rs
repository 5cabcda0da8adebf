//! `lora_shrink` and `lora_expand`.

use halyard_platform_api::ops::{LoraExpand, LoraShrink};
use halyard_platform_api::{DType, Result};

use super::dot;
use crate::operand::{Args, Operand};

pub(super) fn shrink(op: &LoraShrink, args: &Args<'_>) -> Result<()> {
    let (k, rank) = (op.in_features as usize, op.max_rank as usize);
    let x = args.typed(0, op.act, &[k])?.floats();
    let a = args.typed(1, op.weight, &[op.num_slots as usize, rank, k])?;
    let slots = args.ints(2)?;
    args.expect_rows(0, slots.len())?;
    let out = args.typed(3, DType::F32, &[rank])?;
    args.expect_rows(3, slots.len())?;
    let mut y = vec![0.0; slots.len() * rank];
    let mut adapters = Adapters::new(a);
    for (t, &slot) in slots.iter().enumerate() {
        let Some(a) = adapters.slot(slot)? else { continue };
        for r in 0..rank {
            y[t * rank + r] = dot(&x[t * k..][..k], &a[r * k..][..k]);
        }
    }
    out.store_floats(&y);
    Ok(())
}

pub(super) fn expand(op: &LoraExpand, args: &Args<'_>) -> Result<()> {
    let (n, rank) = (op.out_features as usize, op.max_rank as usize);
    let starts = op.part_starts();
    let width = (starts.len() - 1) * rank;
    let x = args.typed(0, DType::F32, &[width])?.floats();
    let b = args.typed(1, op.weight, &[op.num_slots as usize, n, rank])?;
    let scales = args.typed(2, DType::F32, &[op.num_slots as usize])?.floats();
    let slots = args.ints(3)?;
    args.expect_rows(0, slots.len())?;
    let out = args.typed(4, op.out, &[n])?;
    args.expect_rows(4, slots.len())?;
    let mut adapters = Adapters::new(b);
    for (t, &slot) in slots.iter().enumerate() {
        let Some(b) = adapters.slot(slot)? else { continue };
        let row = out.row(t as i32)?;
        let mut y = row.floats();
        for (column, value) in y.iter_mut().enumerate() {
            let part = starts[1..].iter().filter(|&&start| start as usize <= column).count();
            let x = &x[t * width + part * rank..][..rank];
            *value += scales[slot as usize] * dot(x, &b[column * rank..][..rank]);
        }
        row.store_floats(&y);
    }
    Ok(())
}

/// The adapter used last, so that a run of tokens of one adapter reads it once.
struct Adapters<'a> {
    weights: &'a Operand,
    loaded: Option<(i32, Vec<f32>)>,
}

impl<'a> Adapters<'a> {
    fn new(weights: &'a Operand) -> Self {
        Adapters { weights, loaded: None }
    }

    /// The weights of a slot; none for −1.
    fn slot(&mut self, slot: i32) -> Result<Option<&[f32]>> {
        if slot == -1 {
            return Ok(None);
        }
        if self.loaded.as_ref().is_none_or(|(held, _)| *held != slot) {
            self.loaded = Some((slot, self.weights.row(slot)?.floats()));
        }
        Ok(self.loaded.as_ref().map(|(_, values)| values.as_slice()))
    }
}
