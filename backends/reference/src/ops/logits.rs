//! `logits_process`, and reading a row's sampling parameters.

use halyard_platform_api::ops::{LogitsProcess, SamplingRow};
use halyard_platform_api::{DType, Error, Result};

use crate::operand::{Args, Operand};

/// Bytes of a [`SamplingRow`].
const ROW_BYTES: usize = size_of::<SamplingRow>();

/// Row `row` of row_sampling \[R, 128\] u8.
pub(super) fn sampling_row(rows: &Operand, row: i32) -> Result<SamplingRow> {
    let bytes = rows.row(row)?.bytes();
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let float = |at: usize| f32::from_bits(word(at));
    Ok(SamplingRow {
        seed: u64::from(word(0)) | u64::from(word(4)) << 32,
        prompt_len: word(8),
        temperature: float(12),
        top_k: word(16),
        top_p: float(20),
        min_p: float(24),
        repetition_penalty: float(28),
        presence_penalty: float(32),
        frequency_penalty: float(36),
        min_tokens: word(40),
        num_bias: word(44),
        num_stop: word(48),
        num_bad_words: word(52),
        use_mask: word(56),
        reserved: [0; 17],
    })
}

/// The lists that a row may use, as their operands.
struct Lists<'a> {
    allowed_mask: Option<&'a Operand>,
    bias_tokens: Option<&'a Operand>,
    bias_values: Option<&'a Operand>,
    stop_tokens: Option<&'a Operand>,
    bad_words: Option<&'a Operand>,
}

pub(super) fn logits_process(op: &LogitsProcess, args: &Args<'_>) -> Result<()> {
    let vocab = op.vocab as usize;
    let mask_words = vocab.div_ceil(32);
    let logits = args.typed(0, DType::F32, &[vocab])?;
    let step_rows = args.ints(1)?;
    args.expect_rows(0, step_rows.len())?;
    let row_sampling = args.typed(2, DType::U8, &[ROW_BYTES])?;
    let row_tokens = args.typed(3, DType::I32, &[])?;
    let row_num_tokens = args.ints(4)?;
    let lists = Lists {
        allowed_mask: args.optional(5, DType::I32, &[mask_words])?,
        bias_tokens: args.optional(6, DType::I32, &[])?,
        bias_values: args.optional(7, DType::F32, &[])?,
        stop_tokens: args.optional(8, DType::I32, &[])?,
        bad_words: args.optional(9, DType::I32, &[])?,
    };
    let grammar_mask = args.optional(10, DType::I32, &[mask_words])?;
    for (s, &row) in step_rows.iter().enumerate() {
        if row == -1 {
            continue;
        }
        let params = sampling_row(row_sampling, row).map_err(|e| args.error(1, e.message))?;
        let mut history = row_tokens.row(row)?.ints();
        history.truncate(row_num_tokens[row as usize].max(0) as usize);
        let target = logits.row(s as i32)?;
        let mut values = target.floats();
        if let Some(mask) = grammar_mask {
            apply_mask(&mut values, &mask.row(s as i32)?.ints());
        }
        apply_lists(&mut values, row, &params, &history, &lists)?;
        apply_penalties(&mut values, &params, &history);
        target.store_floats(&values);
    }
    Ok(())
}

/// A cleared bit makes its token impossible.
fn apply_mask(logits: &mut [f32], mask: &[i32]) {
    for (v, logit) in logits.iter_mut().enumerate() {
        if mask[v / 32] as u32 >> (v % 32) & 1 == 0 {
            forbid(logit);
        }
    }
}

/// Whether a row that holds this logit has no distribution: NaN or +∞.
pub(super) fn is_bad(logit: f32) -> bool {
    logit.is_nan() || logit == f32::INFINITY
}

/// Makes a token impossible. What the sampler reports must reach it: NaN and +∞ stay.
fn forbid(logit: &mut f32) {
    if !is_bad(*logit) {
        *logit = f32::NEG_INFINITY;
    }
}

/// Mask, stop tokens, bias and bad words, in the documented order.
fn apply_lists(logits: &mut [f32], row: i32, params: &SamplingRow, history: &[i32], lists: &Lists<'_>) -> Result<()> {
    if let (1, Some(mask)) = (params.use_mask, lists.allowed_mask) {
        apply_mask(logits, &mask.row(row)?.ints());
    }
    let output_len = history.len().saturating_sub(params.prompt_len as usize);
    if output_len < params.min_tokens as usize {
        for token in used(lists.stop_tokens, row, params.num_stop, "stop_tokens")? {
            forbid(at(logits, token, "stop_tokens")?);
        }
    }
    let bias_tokens = used(lists.bias_tokens, row, params.num_bias, "bias_tokens")?;
    let bias_values = match lists.bias_values {
        Some(values) => values.row(row)?.floats(),
        None => Vec::new(),
    };
    for (token, bias) in bias_tokens.into_iter().zip(bias_values) {
        *at(logits, token, "bias_tokens")? += bias;
    }
    apply_bad_words(logits, row, params.num_bad_words, history, lists.bad_words)?;
    Ok(())
}

/// A sequence of tokens is forbidden by its last one, once the earlier ones end the history.
fn apply_bad_words(logits: &mut [f32], row: i32, count: u32, history: &[i32], list: Option<&Operand>) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let Some(list) = list else {
        return Err(Error::invalid(format!(
            "row {row} uses {count} bad words and bad_words is absent"
        )));
    };
    let words = list.row(row)?.ints();
    let mut rest = words.as_slice();
    for _ in 0..count {
        let len = rest.first().map_or(0, |&len| len.max(0) as usize);
        if len == 0 || len >= rest.len() {
            return Err(Error::invalid(format!(
                "bad_words of row {row}: a sequence of {len} tokens with {} entries left",
                rest.len()
            )));
        }
        let (sequence, next) = rest[1..].split_at(len);
        let (earlier, last) = sequence.split_at(len - 1);
        if history.ends_with(earlier) {
            forbid(at(logits, last[0], "bad_words")?);
        }
        rest = next;
    }
    Ok(())
}

/// The used entries of a row's list.
fn used(list: Option<&Operand>, row: i32, count: u32, name: &str) -> Result<Vec<i32>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let Some(list) = list else {
        return Err(Error::invalid(format!(
            "row {row} uses {count} entries of {name}, which is absent"
        )));
    };
    let mut values = list.row(row)?.ints();
    if count as usize > values.len() {
        return Err(Error::invalid(format!(
            "row {row} uses {count} entries of {name}, which holds {}",
            values.len()
        )));
    }
    values.truncate(count as usize);
    Ok(values)
}

fn at<'a>(logits: &'a mut [f32], token: i32, name: &str) -> Result<&'a mut f32> {
    let vocab = logits.len();
    usize::try_from(token)
        .ok()
        .and_then(|token| logits.get_mut(token))
        .ok_or_else(|| Error::invalid(format!("{name}: token {token} of a vocabulary of {vocab}")))
}

/// Repetition over prompt and output; frequency and presence over the output alone.
fn apply_penalties(logits: &mut [f32], params: &SamplingRow, history: &[i32]) {
    let mut seen = vec![false; logits.len()];
    let mut output_counts = vec![0u32; logits.len()];
    for (index, &token) in history.iter().enumerate() {
        let Some(flag) = usize::try_from(token).ok().and_then(|t| seen.get_mut(t)) else {
            continue;
        };
        *flag = true;
        if index >= params.prompt_len as usize {
            output_counts[token as usize] += 1;
        }
    }
    for (v, logit) in logits.iter_mut().enumerate() {
        if seen[v] {
            if *logit > 0.0 {
                *logit /= params.repetition_penalty;
            } else {
                *logit *= params.repetition_penalty;
            }
        }
        if output_counts[v] > 0 {
            *logit -= params.frequency_penalty * output_counts[v] as f32;
            *logit -= params.presence_penalty;
        }
    }
}
