//! The results of a step: for each row a token with its log-probabilities, or the reason why there is none.

use halyard_platform_api::ops::{NO_TOKEN, NOT_FINITE};
use halyard_scheduler::RequestId;
use serde::Serialize;

/// A token's log-probability.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Logprob {
    /// Token id.
    pub token: u32,
    /// ln p under the model's own distribution (before temperature and penalties).
    pub logprob: f32,
}

/// Log-probabilities at one position.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenLogprobs {
    /// The token at the position.
    pub chosen: Logprob,
    /// Its rank; 1 is the most likely.
    pub rank: u32,
    /// The most likely ones, descending; as many as were asked.
    pub top: Vec<Logprob>,
}

/// The results of a step.
#[derive(Debug, Default)]
pub struct StepResult {
    /// Of all rows, one row's behind those of the row before.
    tokens: Vec<u32>,
    /// Where each row's tokens end.
    ends: Vec<usize>,
    /// One entry a token where some row asked for them, otherwise empty.
    logprobs: Vec<Option<TokenLogprobs>>,
    /// Prompt log-probabilities: request, position of the scored token, value. The token's id is `u32::MAX`: the caller
    /// knows it.
    pub prompt: Vec<(RequestId, u32, TokenLogprobs)>,
    /// Hidden states \[hidden\], by request.
    pub hidden_states: Vec<(RequestId, Vec<f32>)>,
    /// Rows without what they should have given, and prompt positions without log-probabilities.
    pub faults: Vec<RowFault>,
}

impl StepResult {
    pub(crate) fn with_rows(num_rows: usize) -> StepResult {
        StepResult {
            tokens: Vec::with_capacity(num_rows),
            ends: Vec::with_capacity(num_rows),
            ..StepResult::default()
        }
    }

    pub(crate) fn push_token(&mut self, token: u32) {
        self.tokens.push(token);
    }

    /// No more tokens of this row will be pushed.
    pub(crate) fn end_row(&mut self) {
        self.ends.push(self.tokens.len());
    }

    /// Of the first token that has none yet.
    pub(crate) fn push_logprobs(&mut self, logprobs: Option<TokenLogprobs>) {
        self.logprobs.push(logprobs);
    }

    fn range(&self, row: usize) -> std::ops::Range<usize> {
        let first = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        first..self.ends[row]
    }

    /// The tokens of the step's row `row`: drafts that were right and one more, or none.
    pub fn tokens(&self, row: usize) -> &[u32] {
        &self.tokens[self.range(row)]
    }

    /// Log-probabilities of the `i`-th token of row `row`, where they were asked for.
    pub fn logprobs(&self, row: usize, i: usize) -> Option<&TokenLogprobs> {
        self.logprobs.get(self.range(row).start + i)?.as_ref()
    }
}

/// Why a row has no token, or no hidden state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoToken {
    /// A logit is NaN or +∞.
    NotFinite,
    /// Every logit is −∞.
    NothingAllowed,
    /// The device gave an id that the vocabulary does not have.
    OutsideVocabulary(u32),
}

impl NoToken {
    /// What a word of the result ring says: a token, or why there is none.
    pub(crate) fn read(word: u32, vocab: u32) -> Result<u32, NoToken> {
        match word as i32 {
            _ if word < vocab => Ok(word),
            NOT_FINITE => Err(NoToken::NotFinite),
            NO_TOKEN => Err(NoToken::NothingAllowed),
            _ => Err(NoToken::OutsideVocabulary(word)),
        }
    }

    /// What was seen, in words.
    pub fn seen(self) -> String {
        match self {
            NoToken::NotFinite => "not finite (NaN or +infinity)".to_string(),
            NoToken::NothingAllowed => "all -infinity".to_string(),
            NoToken::OutsideVocabulary(id) => format!("of no use: the device gave token {} for them", id as i32),
        }
    }
}

/// The position of a row in its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The next token of the output.
    Output,
    /// A scored position of the prompt.
    Prompt(u32),
}

/// A row of a step that did not give what it should have.
#[derive(Clone, Copy, Debug)]
pub struct RowFault {
    /// Of which request.
    pub id: RequestId,
    /// Why.
    pub why: NoToken,
    /// Where.
    pub place: Place,
}

/// What likely made logits no numbers, and what to do.
pub const REMEDY: &str = "the checkpoint or its adapter is damaged, or a value overflows: check the files' checksums, \
                          then try another --dtype (bfloat16, float32) or --kv-cache-dtype (auto)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_ring_are_tokens_or_say_why_not() {
        assert_eq!(NoToken::read(0, 10), Ok(0));
        assert_eq!(NoToken::read(9, 10), Ok(9));
        assert_eq!(NoToken::read(NOT_FINITE as u32, 10), Err(NoToken::NotFinite));
        assert_eq!(NoToken::read(NO_TOKEN as u32, 10), Err(NoToken::NothingAllowed));
        for word in [10, u32::MAX, 1 << 31] {
            assert_eq!(NoToken::read(word, 10), Err(NoToken::OutsideVocabulary(word)));
        }
    }
}
