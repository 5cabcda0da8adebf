//! `argmax`, `sample` and `top_logprobs`. Sums over the vocabulary are in f64: the oracle should be on the right side
//! of a threshold.

use halyard_platform_api::ops::{Argmax, NO_TOKEN, NOT_FINITE, Sample, SamplingRow, TopLogprobs};
use halyard_platform_api::{DType, Result};

use super::logits::{is_bad, sampling_row};
use crate::operand::Args;
use crate::philox::philox4x32;

pub(super) fn argmax(op: &Argmax, args: &Args<'_>) -> Result<()> {
    let vocab = op.vocab as usize;
    let logits = args.typed(0, DType::F32, &[vocab])?.floats();
    let out = args.typed(1, DType::I32, &[])?;
    args.expect_rows(1, logits.len() / vocab)?;
    let best: Vec<i32> = logits
        .chunks_exact(vocab)
        .map(|row| without_token(row).unwrap_or_else(|| largest(row)))
        .collect();
    out.store_ints(&best);
    Ok(())
}

/// The code of a row without a distribution, in place of a token.
fn without_token(logits: &[f32]) -> Option<i32> {
    if logits.iter().any(|&logit| is_bad(logit)) {
        Some(NOT_FINITE)
    } else if logits.iter().all(|&logit| logit == f32::NEG_INFINITY) {
        Some(NO_TOKEN)
    } else {
        None
    }
}

/// The lowest index of the largest value.
fn largest(logits: &[f32]) -> i32 {
    let mut best = 0;
    let mut value = f32::NEG_INFINITY;
    for (v, &logit) in logits.iter().enumerate() {
        if logit > value {
            best = v as i32;
            value = logit;
        }
    }
    best
}

pub(super) fn sample(op: &Sample, args: &Args<'_>) -> Result<()> {
    let vocab = op.vocab as usize;
    let logits = args.typed(0, DType::F32, &[vocab])?;
    let step_rows = args.ints(1)?;
    args.expect_rows(0, step_rows.len())?;
    let row_sampling = args.typed(2, DType::U8, &[size_of::<SamplingRow>()])?;
    let row_num_tokens = args.ints(3)?;
    let out = args.typed(4, DType::I32, &[])?;
    let mut tokens = Vec::with_capacity(step_rows.len());
    for (s, &row) in step_rows.iter().enumerate() {
        if row == -1 {
            tokens.push(-1);
            continue;
        }
        let params = sampling_row(row_sampling, row).map_err(|e| args.error(1, e.message))?;
        let values = logits.row(s as i32)?.floats();
        let output_index = (row_num_tokens[row as usize] as u32).wrapping_sub(params.prompt_len);
        tokens.push(if let Some(none) = without_token(&values) {
            none
        } else if params.temperature == 0.0 {
            largest(&values)
        } else {
            draw(&filtered(&values, &params), uniform(params.seed, output_index))
        });
    }
    args.expect_rows(4, tokens.len())?;
    out.store_ints(&tokens);
    Ok(())
}

/// The row's random number in (0, 1).
fn uniform(seed: u64, output_index: u32) -> f64 {
    let words = philox4x32([output_index, 0, 0, 0], [seed as u32, (seed >> 32) as u32]);
    (f64::from(words[0]) + 0.5) / 2f64.powi(32)
}

/// Probabilities at the row's temperature; 0 for what min_p, top_k and top_p drop. Not normalised again.
fn filtered(logits: &[f32], params: &SamplingRow) -> Vec<f64> {
    // Below the largest f32: a quotient that overflows is no more than the most likely token.
    let scaled: Vec<f64> = logits
        .iter()
        .map(|l| f64::from((l / params.temperature).min(f32::MAX)))
        .collect();
    let max = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // e^(x − max) is the probability times a factor that every later step divides out.
    let mut p: Vec<f64> = scaled
        .iter()
        .map(|x| if *x == f64::NEG_INFINITY { 0.0 } else { (x - max).exp() })
        .collect();
    let min_p = f64::from(params.min_p);
    p.iter_mut().filter(|p| **p < min_p).for_each(|p| *p = 0.0);
    let mut order: Vec<usize> = (0..p.len()).filter(|&v| p[v] > 0.0).collect();
    order.sort_by(|&a, &b| p[b].total_cmp(&p[a]));
    let k = params.top_k as usize;
    if k > 0 && k < order.len() {
        let kth = p[order[k - 1]];
        order.retain(|&v| p[v] >= kth);
        p.iter_mut().filter(|p| **p < kth).for_each(|p| *p = 0.0);
    }
    if params.top_p < 1.0 {
        // top_p is a part of what min_p and top_k left.
        let target = f64::from(params.top_p) * order.iter().map(|&v| p[v]).sum::<f64>();
        let mut sum = 0.0;
        for &v in &order {
            let reached = sum > 0.0 && sum >= target;
            sum += p[v];
            if reached {
                p[v] = 0.0;
            }
        }
    }
    p
}

/// The first index at which the running sum reaches u times the whole.
fn draw(p: &[f64], u: f64) -> i32 {
    let target = u * p.iter().sum::<f64>();
    let mut sum = 0.0;
    let mut last = 0;
    for (v, &p) in p.iter().enumerate() {
        sum += p;
        if p > 0.0 {
            last = v as i32;
            if sum >= target {
                break;
            }
        }
    }
    last
}

pub(super) fn top_logprobs(op: &TopLogprobs, args: &Args<'_>) -> Result<()> {
    let (vocab, k) = (op.vocab as usize, op.k as usize);
    let logits = args.typed(0, DType::F32, &[vocab])?;
    let chosen = args.ints(1)?;
    args.expect_rows(0, chosen.len())?;
    let (mut logprobs, mut ranks) = (Vec::new(), Vec::new());
    let (mut top_tokens, mut top_values) = (Vec::new(), Vec::new());
    for (n, &token) in chosen.iter().enumerate() {
        let values = logits.row(n as i32)?.floats();
        if without_token(&values).is_some() {
            logprobs.push(f32::NAN);
            ranks.push(0);
            top_tokens.extend(vec![0; k]);
            top_values.extend(vec![f32::NAN; k]);
            continue;
        }
        let logsumexp = logsumexp(&values);
        let logprob = |v: usize| (f64::from(values[v]) - logsumexp) as f32;
        if token < 0 {
            logprobs.push(0.0);
            ranks.push(0);
        } else {
            let v = token as usize;
            if v >= vocab {
                return Err(args.error(1, format!("token {token} of a vocabulary of {vocab}")));
            }
            logprobs.push(logprob(v));
            ranks.push(1 + values.iter().filter(|&&l| l > values[v]).count() as i32);
        }
        let mut order: Vec<usize> = (0..vocab).collect();
        order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
        top_tokens.extend(order[..k].iter().map(|&v| v as i32));
        top_values.extend(order[..k].iter().map(|&v| logprob(v)));
    }
    args.expect_rows(2, chosen.len())?;
    args.typed(2, DType::F32, &[])?.store_floats(&logprobs);
    args.expect_rows(3, chosen.len())?;
    args.typed(3, DType::I32, &[])?.store_ints(&ranks);
    if k > 0 {
        args.expect_rows(4, chosen.len())?;
        args.typed(4, DType::I32, &[k])?.store_ints(&top_tokens);
        args.expect_rows(5, chosen.len())?;
        args.typed(5, DType::F32, &[k])?.store_floats(&top_values);
    }
    Ok(())
}

fn logsumexp(values: &[f32]) -> f64 {
    let max = f64::from(values.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + values.iter().map(|&l| (f64::from(l) - max).exp()).sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> SamplingRow {
        SamplingRow {
            seed: 7,
            ..SamplingRow::PLAIN
        }
    }

    fn kept(logits: &[f32], params: SamplingRow) -> Vec<usize> {
        let p = filtered(logits, &params);
        (0..p.len()).filter(|&v| p[v] > 0.0).collect()
    }

    #[test]
    fn filters_keep_what_they_document() {
        let logits = [0.4f32, 0.3, 0.2, 0.1].map(f32::ln);
        assert_eq!(kept(&logits, SamplingRow { top_p: 0.6, ..params() }), [0, 1]);
        assert_eq!(kept(&logits, SamplingRow { top_p: 0.0, ..params() }), [0]);
        assert_eq!(kept(&logits, SamplingRow { top_k: 3, ..params() }), [0, 1, 2]);
        assert_eq!(kept(&logits, SamplingRow { min_p: 0.6, ..params() }), [0, 1]);
        // After top_k the rest sums to 0.7: 0.4 is less than 0.6 of it, 0.7 is enough.
        assert_eq!(
            kept(
                &logits,
                SamplingRow {
                    top_k: 2,
                    top_p: 0.6,
                    ..params()
                }
            ),
            [0, 1]
        );
        assert_eq!(
            kept(&[1.0, 2.0, 1.0, 0.0], SamplingRow { top_k: 2, ..params() }),
            [0, 1, 2]
        );
    }

    #[test]
    fn a_draw_takes_the_first_index_that_reaches_u() {
        let p = [0.0, 0.25, 0.0, 0.75, 0.0];
        assert_eq!(draw(&p, 0.1), 1);
        assert_eq!(draw(&p, 0.25), 1);
        assert_eq!(draw(&p, 0.26), 3);
        assert_eq!(draw(&p, 1.0), 3);
    }

    #[test]
    fn a_row_without_a_distribution_has_no_token() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        assert_eq!(largest(&[-inf, 1.0, 3.0, 3.0]), 2);
        assert_eq!(without_token(&[-inf, 1.0, 3.0, 3.0]), None);
        assert_eq!(without_token(&[nan, 1.0, 3.0]), Some(NOT_FINITE));
        assert_eq!(without_token(&[1.0, inf]), Some(NOT_FINITE));
        assert_eq!(without_token(&[nan, -inf]), Some(NOT_FINITE));
        assert_eq!(without_token(&[-inf; 3]), Some(NO_TOKEN));
    }
}
