//! What a step gives: for each row a token with its log-probabilities, or why there is none.

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
    /// The token that stands there.
    pub chosen: Logprob,
    /// Its rank; 1 is the most likely.
    pub rank: u32,
    /// The most likely ones, descending; as many as were asked.
    pub top: Vec<Logprob>,
}

/// What a step returned.
#[derive(Debug, Default)]
pub struct StepResult {
    /// One entry a row of the step: its token, if it emitted one, and, when asked, the token's log-probabilities.
    pub rows: Vec<(Option<u32>, Option<TokenLogprobs>)>,
    /// Prompt log-probabilities: request, position of the scored token, value. The token's id is `u32::MAX`: the caller
    /// knows it.
    pub prompt: Vec<(RequestId, u32, TokenLogprobs)>,
    /// Emitting rows without a token, and prompt positions without log-probabilities.
    pub faults: Vec<RowFault>,
}

/// Why a row has no token.
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

/// Where a row stands in its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The next token of the output.
    Output,
    /// A scored position of the prompt.
    Prompt(u32),
}

/// A row of a step that gave no token.
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
