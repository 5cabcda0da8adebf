//! Drafts by prompt lookup (vLLM's method `ngram`): if the last few tokens occurred before, the tokens that followed
//! them then are the draft. The model verifies all of a draft in one step.

use halyard_runner::{RowOutput, RowSpec, Sampler};

use crate::config::SpeculativeConfig;

/// A sequence's tokens and what is drafted behind them.
pub(crate) struct Drafting {
    /// Prompt and output.
    history: Vec<u32>,
    drafts: Vec<u32>,
}

impl Drafting {
    /// Of a sequence whose steps verify drafts: one that takes the likeliest token, under no mask.
    pub(crate) fn of(row: &RowSpec) -> Option<Drafting> {
        (row.sampler == Sampler::Greedy && row.output == RowOutput::Token).then(|| Drafting {
            history: row.prompt.to_vec(),
            drafts: Vec::new(),
        })
    }

    /// A token came.
    pub(crate) fn push(&mut self, token: u32) {
        self.history.push(token);
    }

    /// Drafts anew.
    pub(crate) fn propose(&mut self, config: &SpeculativeConfig) {
        self.drafts.clear();
        look_up(config, &self.history, &mut self.drafts);
    }

    /// Drafts nothing.
    pub(crate) fn clear(&mut self) {
        self.drafts.clear();
    }

    /// What was drafted last.
    pub(crate) fn drafts(&self) -> &[u32] {
        &self.drafts
    }
}

/// The tokens that stood behind the latest earlier place of the longest ending of `history` that has one. Endings of
/// `prompt_lookup_max` down to `prompt_lookup_min` tokens.
fn look_up(config: &SpeculativeConfig, history: &[u32], drafts: &mut Vec<u32>) {
    for len in (config.prompt_lookup_min..=config.prompt_lookup_max).rev() {
        let len = len as usize;
        let Some(start) = history.len().checked_sub(len).filter(|&start| start > 0) else {
            continue;
        };
        let ending = &history[start..];
        // The last token itself has nothing behind it.
        let earlier = history[..history.len() - 1]
            .windows(len)
            .rposition(|window| window == ending);
        if let Some(at) = earlier {
            let behind = &history[at + len..];
            drafts.extend(behind.iter().take(config.num_speculative_tokens as usize));
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafted(history: &[u32]) -> Vec<u32> {
        let config = SpeculativeConfig {
            num_speculative_tokens: 2,
            prompt_lookup_min: 2,
            prompt_lookup_max: 3,
        };
        let mut drafts = Vec::new();
        look_up(&config, history, &mut drafts);
        drafts
    }

    #[test]
    fn what_stood_behind_the_same_tokens_is_drafted() {
        assert_eq!(drafted(&[1, 2, 3, 4, 9, 1, 2, 3]), [4, 9]);
        assert_eq!(drafted(&[1, 2, 3, 7, 2, 3, 8, 9, 2, 3]), [8, 9], "the latest place");
        assert_eq!(drafted(&[1, 2, 3, 4, 2, 3, 8, 1, 2, 3]), [4, 2], "the longest ending");
        assert_eq!(drafted(&[5, 5, 5]), [5], "what stands there ends with the history");
        assert_eq!(drafted(&[1, 2, 3, 4]), [0; 0]);
        assert_eq!(drafted(&[1, 9, 1]), [0; 0], "one token is too short");
        assert_eq!(drafted(&[1]), [0; 0]);
        assert_eq!(drafted(&[]), [0; 0]);
    }
}
