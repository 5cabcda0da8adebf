//! `linear`, on every weight format: dequantise a row, then one dot product a token.

use halyard_platform_api::ops::{Epilogue, GeluKind, Linear};
use halyard_platform_api::weight_format::dequantise_row;
use halyard_platform_api::{DType, Result};

use super::dot;
use super::pointwise::{gelu, silu};
use crate::operand::Args;

pub(super) fn linear(op: &Linear, args: &Args<'_>) -> Result<()> {
    let (k, n) = (op.in_features as usize, op.out_features as usize);
    let x = args.typed(0, op.act, &[k])?.floats();
    let weight = args.typed(1, DType::U8, &[])?;
    let bias = args.optional(2, DType::F32, &[n])?.map(|b| b.floats());
    let residual = args.optional(3, op.out, &[n])?.map(|r| r.floats());
    let out = args.typed(4, op.out, &[n])?;
    let tokens = args.any(0).elements() / k.max(1);
    args.expect_rows(4, tokens)?;
    if residual.is_some() {
        args.expect_rows(3, tokens)?;
    }
    let row_bytes = op.weight.row_bytes(k).unwrap_or(0);
    if weight.tensor.span_bytes() as usize != n * row_bytes {
        return Err(args.error(
            1,
            format!("{} bytes, expected {n} rows of {row_bytes}", weight.tensor.span_bytes()),
        ));
    }
    let mut y = vec![0.0; tokens * n];
    let mut row = vec![0.0; k];
    weight.with_raw(|bytes| {
        for (column, row_data) in bytes.chunks_exact(row_bytes.max(1)).enumerate() {
            dequantise_row(op.weight, row_data, &mut row);
            for t in 0..tokens {
                let product = dot(&x[t * k..][..k], &row) + bias.as_ref().map_or(0.0, |b| b[column]);
                y[t * n + column] = epilogue(op.epilogue, product);
            }
        }
    });
    if let Some(residual) = residual {
        y.iter_mut().zip(residual).for_each(|(y, r)| *y += r);
    }
    out.store_floats(&y);
    Ok(())
}

fn epilogue(kind: Epilogue, x: f32) -> f32 {
    match kind {
        Epilogue::None => x,
        Epilogue::Silu => silu(x),
        Epilogue::GeluTanh => gelu(GeluKind::Tanh, x),
        Epilogue::GeluErf => gelu(GeluKind::Erf, x),
    }
}
