//! Moving and converting: `gather_rows`, `scatter_rows`, `quantize_act`, `pool`, `copy`, `fill_random`.

use halyard_platform_api::ops::{
    Copy, FillRandom, GatherRows, Pool, PoolMode, QuantizeAct, QuantizeScheme, ScatterRows,
};
use halyard_platform_api::{DType, Result};

use crate::operand::Args;
use crate::philox::philox4x32;

pub(super) fn gather_rows(op: &GatherRows, args: &Args<'_>) -> Result<()> {
    let x = args.typed(0, op.dtype, &[op.width as usize])?;
    let index = args.ints(1)?;
    let out = args.typed(2, op.dtype, &[op.width as usize])?;
    args.expect_rows(2, index.len())?;
    for (i, &from) in index.iter().enumerate() {
        if from != -1 {
            out.row(i as i32)?
                .store_bytes(&x.row(from).map_err(|e| args.error(1, e.message))?.bytes());
        }
    }
    Ok(())
}

pub(super) fn scatter_rows(op: &ScatterRows, args: &Args<'_>) -> Result<()> {
    let x = args.typed(0, op.dtype, &[op.width as usize])?;
    let index = args.ints(1)?;
    let out = args.typed(2, op.dtype, &[op.width as usize])?;
    args.expect_rows(0, index.len())?;
    for (i, &to) in index.iter().enumerate() {
        if to != -1 {
            out.row(to)
                .map_err(|e| args.error(1, e.message))?
                .store_bytes(&x.row(i as i32)?.bytes());
        }
    }
    Ok(())
}

pub(super) fn quantize_act(op: &QuantizeAct, args: &Args<'_>) -> Result<()> {
    let width = op.width as usize;
    let (group, q_dtype, limit) = match op.scheme {
        QuantizeScheme::Int8Row => (width, DType::I8, 127.0),
        QuantizeScheme::Int8Block32 => (32, DType::I8, 127.0),
        QuantizeScheme::Fp8Row => (width, DType::F8E4M3, 448.0),
    };
    let mut x = args.typed(0, op.dtype, &[width])?.floats();
    let q = args.typed(1, q_dtype, &[width])?;
    let scales = args.typed(2, DType::F32, &[width / group.max(1)])?;
    args.same_elements(0, 1)?;
    let mut group_scales = Vec::new();
    for group in x.chunks_exact_mut(group.max(1)) {
        let scale = group.iter().fold(0.0f32, |max, v| max.max(v.abs())) / limit;
        for value in group.iter_mut() {
            *value = if scale == 0.0 { 0.0 } else { *value / scale };
        }
        group_scales.push(scale);
    }
    // Storing rounds to nearest even, in both types.
    q.store_floats(&x);
    if scales.elements() != group_scales.len() {
        return Err(args.error(
            2,
            format!("{} scales, expected {}", scales.elements(), group_scales.len()),
        ));
    }
    scales.store_floats(&group_scales);
    Ok(())
}

pub(super) fn pool(op: &Pool, args: &Args<'_>) -> Result<()> {
    let width = op.width as usize;
    let x = args.typed(0, op.dtype, &[width])?;
    let starts = args.ints(1)?;
    let out = args.typed(2, DType::F32, &[width])?;
    for (s, range) in starts.windows(2).enumerate() {
        let (start, end) = (range[0], range[1]);
        let mut pooled = vec![0.0; width];
        if start < end {
            pooled = match op.mode {
                PoolMode::First => x.row(start)?.floats(),
                PoolMode::Last => x.row(end - 1)?.floats(),
                PoolMode::Mean => {
                    for t in start..end {
                        for (sum, value) in pooled.iter_mut().zip(x.row(t)?.floats()) {
                            *sum += value;
                        }
                    }
                    pooled.iter().map(|sum| sum / (end - start) as f32).collect()
                }
            };
        }
        if op.normalize {
            let norm = pooled.iter().map(|v| v * v).sum::<f32>().sqrt().max(1e-12);
            pooled.iter_mut().for_each(|v| *v /= norm);
        }
        out.row(s as i32)?.store_floats(&pooled);
    }
    Ok(())
}

pub(super) fn copy(op: &Copy, args: &Args<'_>) -> Result<()> {
    let x = args.typed(0, op.dtype, &[])?;
    let dims: Vec<usize> = x.tensor.dims().iter().map(|&d| d as usize).collect();
    let out = args.typed(1, op.dtype, &dims)?;
    args.same_elements(0, 1)?;
    out.store_bytes(&x.bytes());
    Ok(())
}

pub(super) fn fill_random(op: &FillRandom, args: &Args<'_>) -> Result<()> {
    let out = args.typed(0, op.dtype, &[])?;
    let value = |i: u64| {
        let words = philox4x32([(i / 4) as u32, 0, 0, 0], [op.seed_low, op.seed_high]);
        let upper = (words[(i % 4) as usize] >> 8) as f32;
        (upper / (1 << 23) as f32 - 1.0) * op.scale
    };
    let first = u64::from(op.first);
    let values: Vec<f32> = (0..out.elements() as u64).map(|i| value(first + i)).collect();
    out.store_floats(&values);
    Ok(())
}
