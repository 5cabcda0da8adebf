//! `truncate_prompt_tokens`, which shortens a prompt where the client asked for it. No prompt is ever shortened
//! unasked.

use serde::Deserialize;

use super::lenient::Int;
use super::model::ModelContext;
use super::prompt::Prompt;
use crate::api_error::ApiError;

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Side {
    Left,
    Right,
}

/// The fields `truncate_prompt_tokens` and `truncation_side` of a body.
#[derive(Debug, Deserialize)]
pub struct TruncationFields {
    truncate_prompt_tokens: Option<Int>,
    truncation_side: Option<Side>,
}

/// How many tokens of a prompt are kept, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    keep: usize,
    side: Side,
}

impl TruncationFields {
    /// The truncation that was asked for. -1 keeps as many tokens as fit into the context together with an answer of
    /// `answer` tokens, at least one (vLLM keeps all but one, and shortens the answer); without a side the last tokens
    /// stay, as in vLLM.
    ///
    /// # Errors
    /// 400 for a number below -1, 0 (nothing would be left) and a number above the context.
    pub fn read(&self, answer: Option<Int>, model: ModelContext<'_>) -> Result<Option<Truncation>, ApiError> {
        let Some(Int(asked)) = self.truncate_prompt_tokens else {
            return Ok(None);
        };
        let context = i64::from(model.max_model_len);
        let keep = match asked {
            // An answer that does not fit at all is refused later.
            -1 => (context - answer.map_or(1, |Int(answer)| answer.max(1))).max(1),
            1.. if asked <= context => asked,
            _ => {
                let message = format!(
                    "truncate_prompt_tokens is {asked}; it must be between 1 and {context} (the context), \
                     or -1 to keep what fits"
                );
                return Err(ApiError::field("truncate_prompt_tokens", message));
            }
        };
        Ok(Some(Truncation {
            keep: usize::try_from(keep).unwrap_or(usize::MAX),
            side: self.truncation_side.unwrap_or(Side::Left),
        }))
    }
}

impl Truncation {
    /// Shortens the prompt. Its text goes when tokens went: it says more than the ids then.
    pub fn apply(self, prompt: &mut Prompt) {
        let surplus = prompt.token_ids.len().saturating_sub(self.keep);
        if surplus == 0 {
            return;
        }
        match self.side {
            Side::Left => drop(prompt.token_ids.drain(..surplus)),
            Side::Right => prompt.token_ids.truncate(self.keep),
        }
        prompt.text = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_prompt_keeps_the_tokens_of_its_side() {
        let keep = |keep, side| {
            let mut prompt = Prompt {
                text: Some("a b c d".to_owned()),
                token_ids: vec![1, 2, 3, 4],
            };
            Truncation { keep, side }.apply(&mut prompt);
            (prompt.token_ids, prompt.text.is_some())
        };
        assert_eq!(keep(2, Side::Left), (vec![3, 4], false));
        assert_eq!(keep(2, Side::Right), (vec![1, 2], false));
        assert_eq!(keep(4, Side::Left), (vec![1, 2, 3, 4], true));
        assert_eq!(keep(9, Side::Right), (vec![1, 2, 3, 4], true));
    }
}
