//! Reads what a finished step left in its entry of the result rings.

use crate::device_model::{DeviceModel, ScoredRange};
use crate::error::RunnerError;
use crate::flight::{Flight, StepRow};
use crate::result::{NoToken, Place, RowFault, StepResult};
use crate::row::RowOutput;

/// The results of a step that is done.
///
/// # Errors
/// Errors of the device; an entry of another step.
pub(crate) fn read_back(model: &mut DeviceModel, flight: &Flight) -> Result<StepResult, RunnerError> {
    let mut result = StepResult::with_rows(flight.rows.len());
    read_tokens(model, flight, &mut result)?;
    read_logprobs(model, flight, &mut result)?;
    read_prompt_logprobs(model, flight, &mut result)?;
    read_hidden_states(model, flight, &mut result)?;
    Ok(result)
}

fn read_tokens(model: &mut DeviceModel, flight: &Flight, result: &mut StepResult) -> Result<(), RunnerError> {
    let capacities = model.capacities();
    let (vocab, width) = (capacities.vocab, capacities.result_words() as usize);
    let words = model.read_entry(flight.entry, flight.step.0, flight.rows.len() as u32)?;
    let words = words.ok_or(RunnerError::Internal("a result ring entry holds another step"))?;
    let mut drafts = &flight.drafts[..];
    for (i, row) in flight.rows.iter().enumerate() {
        let (drafted, rest) = drafts.split_at(row.num_drafts as usize);
        drafts = rest;
        if row.gives_token() {
            let (count, found) = words[width * flight.place(i)..][..width].split_at(1);
            let found = &found[..(count[0] as usize).min(found.len())];
            if let Err(why) = accept(found, drafted, vocab, |token| result.push_token(token)) {
                result.faults.push(fault(row, why, Place::Output));
            }
        }
        result.end_row();
    }
    Ok(())
}

/// Takes the accepted drafts and the one token after them: token i of `found` is the model's after the first i of
/// `drafted`.
///
/// # Errors
/// Why the first token is none. A later one is left to the step that computes its position again.
fn accept(found: &[u32], drafted: &[u32], vocab: u32, mut take: impl FnMut(u32)) -> Result<(), NoToken> {
    for (i, &word) in found.iter().enumerate() {
        match NoToken::read(word, vocab) {
            Ok(token) => take(token),
            Err(why) if i == 0 => return Err(why),
            Err(_) => break,
        }
        if drafted.get(i) != Some(&word) {
            break;
        }
    }
    Ok(())
}

fn read_logprobs(model: &mut DeviceModel, flight: &Flight, result: &mut StepResult) -> Result<(), RunnerError> {
    if !flight.reads_logprobs {
        return Ok(());
    }
    let num_sampled = flight.rows.iter().filter(|row| row.gives_token()).count() as u32;
    let range = ScoredRange {
        first: 0,
        count: num_sampled * flight.stride,
    };
    let scores = model.read_scores(flight.entry, range)?;
    for (i, row) in flight.rows.iter().enumerate() {
        let first = flight.place(i) * flight.stride as usize;
        for j in 0..result.tokens(i).len() {
            let token = result.tokens(i)[j];
            result.push_logprobs(row.logprobs.map(|k| scores.at(first + j, token, k)));
        }
    }
    Ok(())
}

fn read_prompt_logprobs(model: &mut DeviceModel, flight: &Flight, result: &mut StepResult) -> Result<(), RunnerError> {
    for span in &flight.spans {
        let row = &flight.rows[span.row];
        let scores = model.read_scores(flight.entry, span.range)?;
        for i in 0..span.range.count {
            // The scored token is one position after the one whose logits scored it.
            let position = span.position + i + 1;
            let scored = scores.at(i as usize, u32::MAX, span.k);
            if scored.chosen.logprob.is_nan() {
                result
                    .faults
                    .push(fault(row, NoToken::NotFinite, Place::Prompt(position)));
            }
            result.prompt.push((row.id, position, scored));
        }
    }
    Ok(())
}

fn read_hidden_states(model: &mut DeviceModel, flight: &Flight, result: &mut StepResult) -> Result<(), RunnerError> {
    let rows = flight.rows.iter();
    let rows = rows.filter(|row| row.output.is_some_and(RowOutput::is_hidden_state));
    for (i, row) in rows.enumerate() {
        let state = model.read_hidden_state(flight.entry, i as u32)?;
        match state.iter().all(|value| value.is_finite()) {
            true => result.hidden_states.push((row.id, state)),
            false => result.faults.push(fault(row, NoToken::NotFinite, Place::Output)),
        }
    }
    Ok(())
}

fn fault(row: &StepRow, why: NoToken, place: Place) -> RowFault {
    RowFault { id: row.id, why, place }
}

#[cfg(test)]
mod tests {
    use halyard_platform_api::ops::{NO_TOKEN, NOT_FINITE};

    use super::*;

    fn accepted(found: &[u32], drafted: &[u32]) -> Result<Vec<u32>, NoToken> {
        let mut tokens = Vec::new();
        accept(found, drafted, 100, |token| tokens.push(token)).map(|()| tokens)
    }

    #[test]
    fn tokens_are_taken_up_to_the_first_wrong_draft() {
        assert_eq!(accepted(&[7], &[]), Ok(vec![7]));
        assert_eq!(accepted(&[], &[]), Ok(vec![]));
        assert_eq!(accepted(&[7, 8, 9], &[7, 8]), Ok(vec![7, 8, 9]));
        assert_eq!(accepted(&[7, 8, 9], &[7, 5]), Ok(vec![7, 8]));
        assert_eq!(accepted(&[7, 8, 9], &[5, 8]), Ok(vec![7]));
    }

    #[test]
    fn a_word_that_is_no_token_ends_what_is_taken() {
        assert_eq!(accepted(&[NOT_FINITE as u32], &[]), Err(NoToken::NotFinite));
        assert_eq!(accepted(&[NO_TOKEN as u32, 8], &[3]), Err(NoToken::NothingAllowed));
        assert_eq!(accepted(&[7, NOT_FINITE as u32, 9], &[7, 8]), Ok(vec![7]));
        // Not even where the draft is the same word.
        assert_eq!(accepted(&[7, 200], &[7, 200]), Ok(vec![7]));
    }
}
