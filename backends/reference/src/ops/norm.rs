//! `rms_norm` and `layer_norm`.

use halyard_platform_api::ops::{LayerNorm, RmsNorm};
use halyard_platform_api::{DType, Result};

use crate::operand::Args;

pub(super) fn rms_norm(op: &RmsNorm, args: &Args<'_>) -> Result<()> {
    let width = op.width as usize;
    let mut x = args.typed(0, op.dtype, &[width])?.floats();
    let weight = args.typed(1, DType::F32, &[width])?.floats();
    let out = args.typed(2, op.dtype, &[width])?;
    args.same_elements(0, 2)?;
    for row in x.chunks_exact_mut(width) {
        let mean_square = row.iter().map(|v| v * v).sum::<f32>() / width as f32;
        let inverse = 1.0 / (mean_square + op.eps).sqrt();
        for (value, w) in row.iter_mut().zip(&weight) {
            *value = *value * inverse * (w + op.weight_offset);
        }
    }
    out.store_floats(&x);
    Ok(())
}

pub(super) fn layer_norm(op: &LayerNorm, args: &Args<'_>) -> Result<()> {
    let (width, weights) = (op.width as usize, op.num_weights.max(1) as usize);
    // As many weights as groups: the same for every token.
    let shape = if op.num_weights == 0 {
        vec![width]
    } else {
        vec![weights, width]
    };
    let mut x = args.typed(0, op.dtype, &shape)?.floats();
    let weight = args.typed(1, DType::F32, &shape)?.floats();
    let bias = args.optional(2, DType::F32, &shape)?.map(|b| b.floats());
    let out = args.typed(3, op.dtype, &shape)?;
    args.same_elements(0, 3)?;
    for (at, row) in x.chunks_exact_mut(width).enumerate() {
        let first = at % weights * width;
        let mean = row.iter().sum::<f32>() / width as f32;
        let variance = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / width as f32;
        let inverse = 1.0 / (variance + op.eps).sqrt();
        for (i, value) in row.iter_mut().enumerate() {
            let bias = bias.as_ref().map_or(0.0, |b| b[first + i]);
            *value = (*value - mean) * inverse * weight[first + i] + bias;
        }
    }
    out.store_floats(&x);
    Ok(())
}
