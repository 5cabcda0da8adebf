//! `moe_route`, `moe_linear` and `moe_combine`.

use halyard_platform_api::ops::{MoeCombine, MoeLinear, MoeRoute, Scoring};
use halyard_platform_api::weight_format::dequantise_row;
use halyard_platform_api::{DType, Result};

use super::dot;
use crate::operand::Args;

pub(super) fn route(op: &MoeRoute, args: &Args<'_>) -> Result<()> {
    let (experts, k) = (op.num_experts as usize, op.top_k as usize);
    let logits = args.typed(0, DType::F32, &[experts])?.floats();
    let out_experts = args.typed(1, DType::I32, &[k])?;
    let out_weights = args.typed(2, DType::F32, &[k])?;
    let bias = args.optional(3, DType::F32, &[experts])?.map(|b| b.floats());
    let (mut chosen, mut weights) = (Vec::new(), Vec::new());
    for logits in logits.chunks_exact(experts) {
        let scores = scores(op.scoring, logits);
        let choices: Vec<f32> = match &bias {
            Some(bias) => scores.iter().zip(bias).map(|(s, b)| s + b).collect(),
            None => scores.clone(),
        };
        let mut order = eligible(op, &choices);
        // A stable sort: equal choices stay in index order.
        order.sort_by(|&a, &b| choices[b].total_cmp(&choices[a]));
        let total: f32 = order[..k].iter().map(|&e| scores[e]).sum();
        let divisor = if op.normalize { total } else { 1.0 };
        for &expert in &order[..k] {
            chosen.push(expert as i32);
            weights.push(scores[expert] / divisor * op.factor);
        }
    }
    args.expect_rows(1, chosen.len() / k)?;
    args.expect_rows(2, chosen.len() / k)?;
    out_experts.store_ints(&chosen);
    out_weights.store_floats(&weights);
    Ok(())
}

/// The experts that may be chosen, in index order.
fn eligible(op: &MoeRoute, choices: &[f32]) -> Vec<usize> {
    if op.num_groups == 0 {
        return (0..choices.len()).collect();
    }
    let width = choices.len() / op.num_groups as usize;
    let sums: Vec<f32> = choices
        .chunks_exact(width)
        .map(|group| {
            let mut group = group.to_vec();
            group.sort_by(|a, b| b.total_cmp(a));
            group[..op.group_best as usize].iter().sum()
        })
        .collect();
    let mut groups: Vec<usize> = (0..sums.len()).collect();
    groups.sort_by(|&a, &b| sums[b].total_cmp(&sums[a]));
    groups.truncate(op.top_groups as usize);
    groups.sort_unstable();
    groups
        .into_iter()
        .flat_map(|group| group * width..(group + 1) * width)
        .collect()
}

fn scores(scoring: Scoring, logits: &[f32]) -> Vec<f32> {
    match scoring {
        Scoring::Sigmoid => logits.iter().map(|l| 1.0 / (1.0 + (-l).exp())).collect(),
        Scoring::Softmax => {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let powers: Vec<f32> = logits.iter().map(|l| (l - max).exp()).collect();
            let total: f32 = powers.iter().sum();
            powers.iter().map(|p| p / total).collect()
        }
    }
}

pub(super) fn linear(op: &MoeLinear, args: &Args<'_>) -> Result<()> {
    let (k, n, choices) = (op.in_features as usize, op.out_features as usize, op.top_k as usize);
    let x = args.typed(0, op.dtype, &[k])?;
    let weight = args.typed(1, DType::U8, &[])?;
    let experts = args.typed(2, DType::I32, &[choices])?;
    let out = args.typed(3, op.dtype, &[choices, n])?;
    let bias = args.optional(4, DType::F32, &[n])?.map(|b| b.floats());
    let inputs = x.dim(1);
    if x.tensor.rank != 3 || (inputs != 1 && inputs != choices) {
        return Err(args.error(
            0,
            format!("shape {:?}, expected [T, 1 or {choices}, {k}]", x.tensor.dims()),
        ));
    }
    let row_bytes = op.weight.row_bytes(k).unwrap_or(0);
    let mut row = vec![0.0; k];
    for t in 0..x.dim(0) as i32 {
        let token = x.row(t)?.floats();
        let mut y = Vec::with_capacity(choices * n);
        for (j, expert) in experts.row(t)?.ints().into_iter().enumerate() {
            if expert < 0 || expert as u32 >= op.all_experts() {
                return Err(args.error(2, format!("expert {expert} of {}", op.all_experts())));
            }
            let Some(place) = op.place(expert as u32) else {
                y.resize(y.len() + n, 0.0);
                continue;
            };
            let input = &token[if inputs == 1 { 0 } else { j * k }..][..k];
            for column in 0..n {
                let bytes = weight.raw((place * n + column) * row_bytes, row_bytes)?;
                dequantise_row(op.weight, &bytes, &mut row);
                let bias = bias.as_ref().map_or(0.0, |bias| bias[place * n + column]);
                y.push(dot(input, &row) + bias);
            }
        }
        out.row(t)?.store_floats(&y);
    }
    Ok(())
}

pub(super) fn combine(op: &MoeCombine, args: &Args<'_>) -> Result<()> {
    let (width, k) = (op.width as usize, op.top_k as usize);
    let x = args.typed(0, op.dtype, &[k, width])?.floats();
    let weights = args.typed(1, DType::F32, &[k])?.floats();
    let out = args.typed(2, op.dtype, &[width])?;
    args.expect_rows(1, out.dim(0))?;
    args.expect_rows(0, out.dim(0))?;
    let mut y = vec![0.0; out.elements()];
    for (t, y) in y.chunks_exact_mut(width).enumerate() {
        for j in 0..k {
            let weight = weights[t * k + j];
            for (sum, value) in y.iter_mut().zip(&x[(t * k + j) * width..][..width]) {
                *sum += weight * value;
            }
        }
    }
    out.store_floats(&y);
    Ok(())
}
