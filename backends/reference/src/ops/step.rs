//! Device rows and steps: `prepare_inputs`, `slot_mapping`, `update_rows`.

use halyard_platform_api::ops::{RESULT_HEADER, SlotMapping, UpdateRows};
use halyard_platform_api::{DType, Result};

use crate::operand::{Args, Operand};

pub(super) fn prepare_inputs(args: &Args<'_>) -> Result<()> {
    let step_rows = args.ints(0)?;
    let query_lens = args.ints(1)?;
    let row_tokens = args.typed(2, DType::I32, &[])?;
    let row_num_computed = args.ints(3)?;
    let row_lora = args.optional(4, DType::I32, &[])?.map(Operand::ints);
    let num_tokens = args.typed(5, DType::I32, &[])?.elements();
    let mut token_ids = vec![0; num_tokens];
    let mut positions = vec![0; num_tokens];
    let mut token_seq = vec![-1; num_tokens];
    let mut token_lora = vec![-1; num_tokens];
    let mut query_start_loc = vec![0];
    let mut seq_lens = Vec::new();
    let mut last_token_index = Vec::new();
    let mut next = 0;
    for (s, (&row, &query_len)) in step_rows.iter().zip(&query_lens).enumerate() {
        if row == -1 {
            query_start_loc.push(next as i32);
            seq_lens.push(0);
            last_token_index.push(-1);
            continue;
        }
        let history = row_tokens.row(row).map_err(|e| args.error(0, e.message))?.ints();
        let computed = row_num_computed[row as usize];
        for position in computed..computed + query_len {
            let Some(&token) = history.get(position as usize) else {
                return Err(args.error(
                    1,
                    format!(
                        "row {row}: position {position} is past its history of {} tokens",
                        history.len()
                    ),
                ));
            };
            if next == num_tokens {
                return Err(args.error(1, format!("the step's tokens are more than {num_tokens}")));
            }
            token_ids[next] = token;
            positions[next] = position;
            token_seq[next] = s as i32;
            token_lora[next] = row_lora.as_ref().map_or(-1, |slots| slots[row as usize]);
            next += 1;
        }
        query_start_loc.push(next as i32);
        seq_lens.push(computed + query_len);
        last_token_index.push(if query_len > 0 { next as i32 - 1 } else { -1 });
    }
    let outputs = [
        &token_ids,
        &positions,
        &token_seq,
        &token_lora,
        &query_start_loc,
        &seq_lens,
        &last_token_index,
    ];
    for (index, values) in (5..).zip(outputs) {
        let Some(out) = args.optional(index, DType::I32, &[])? else {
            continue;
        };
        args.expect_rows(index, values.len())?;
        out.store_ints(values);
    }
    Ok(())
}

pub(super) fn slot_mapping(op: &SlotMapping, args: &Args<'_>) -> Result<()> {
    let positions = args.ints(0)?;
    let token_seq = args.ints(1)?;
    let step_rows = args.ints(2)?;
    let block_table = args.typed(3, DType::I32, &[])?;
    let out = args.typed(4, DType::I32, &[])?;
    args.same_elements(0, 1)?;
    args.same_elements(0, 4)?;
    let block_size = op.block_size as i32;
    let mut slots = Vec::with_capacity(positions.len());
    for (&position, &seq) in positions.iter().zip(&token_seq) {
        let row = match usize::try_from(seq) {
            Ok(seq) => step_rows.get(seq).copied().unwrap_or(-1),
            Err(_) => -1,
        };
        if row == -1 {
            slots.push(-1);
            continue;
        }
        let pages = block_table.row(row).map_err(|e| args.error(2, e.message))?.ints();
        let Some(&page) = pages.get((position / block_size) as usize) else {
            return Err(args.error(
                3,
                format!("row {row}: position {position} is past its {} blocks", pages.len()),
            ));
        };
        slots.push(page * block_size + position % block_size);
    }
    out.store_ints(&slots);
    Ok(())
}

pub(super) fn update_rows(op: &UpdateRows, args: &Args<'_>) -> Result<()> {
    let max_sampled = op.max_sampled as usize;
    let header = args.ints(0)?;
    let step_rows = args.ints(1)?;
    let query_lens = args.ints(2)?;
    let emits = args.ints(3)?;
    let num_drafts = args.optional(4, DType::I32, &[])?.map(Operand::ints);
    let sampled = args.typed(5, DType::I32, &[max_sampled])?.ints();
    let num_sampled = args.optional(6, DType::I32, &[])?.map(Operand::ints);
    let row_tokens = args.typed(7, DType::I32, &[])?;
    let (row_num_tokens, row_num_computed) = (args.typed(8, DType::I32, &[])?, args.typed(9, DType::I32, &[])?);
    let results = args.typed(10, DType::I32, &[])?;
    let entry_words = RESULT_HEADER as usize + op.max_seqs as usize * (1 + max_sampled);
    args.typed(10, DType::I32, &[entry_words])?;
    if step_rows.len() > op.max_seqs as usize {
        return Err(args.error(
            1,
            format!("{} sequences, the bound is {}", step_rows.len(), op.max_seqs),
        ));
    }
    let (mut counts, mut computed) = (row_num_tokens.ints(), row_num_computed.ints());
    let entry = results.row(header[0]).map_err(|e| args.error(0, e.message))?;
    let mut words = entry.ints();
    words[..2].copy_from_slice(&header[1..3]);
    for (s, &row) in step_rows.iter().enumerate() {
        let result = &mut words[RESULT_HEADER as usize + s * (1 + max_sampled)..][..1 + max_sampled];
        result.fill(-1);
        result[0] = 0;
        if row == -1 {
            continue;
        }
        let history = row_tokens.row(row).map_err(|e| args.error(1, e.message))?;
        let r = row as usize;
        let drafts = num_drafts.as_ref().map_or(0, |d| d[s]);
        if emits[s] == 0 {
            computed[r] += query_lens[s];
            continue;
        }
        let n = num_sampled.as_ref().map_or(1, |n| n[s]);
        if n < 0 || n as usize > max_sampled {
            return Err(args.error(
                6,
                format!("sequence {s}: {n} sampled tokens, the bound is {max_sampled}"),
            ));
        }
        let tokens = &sampled[s * max_sampled..][..n as usize];
        result[0] = n;
        result[1..=tokens.len()].copy_from_slice(tokens);
        let mut known = history.ints();
        for (at, &token) in (counts[r] as usize..).zip(tokens) {
            if let Some(slot) = known.get_mut(at) {
                // What stands in place of a token is for the host.
                *slot = token.max(0);
            }
        }
        history.store_ints(&known);
        counts[r] += n;
        computed[r] += query_lens[s] - drafts + n - 1;
    }
    row_num_tokens.store_ints(&counts);
    row_num_computed.store_ints(&computed);
    entry.store_ints(&words);
    Ok(())
}
