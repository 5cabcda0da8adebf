//! The facts about a sequence that its device row holds: the prompt, the sampling, and what is scored.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use halyard_platform_api::ops::SamplingRow;

/// Most alternatives that log-probabilities are given for.
pub const MAX_LOGPROBS: u32 = 20;
/// Most entries of `logit_bias`.
pub const MAX_LOGIT_BIAS: usize = 1024;
/// Most biases of one token of a row ([`LogitChanges`]), besides its `logit_bias`.
pub const MAX_STEP_BIASES: usize = 1024;
/// Most stop token ids, end-of-sequence ids included.
pub const MAX_STOP_TOKENS: usize = 64;
/// Most words of all bad-word sequences, each counted with its length word.
pub const MAX_BAD_WORD_TOKENS: usize = 512;

/// Which sampler a row needs. A step takes the greatest of its rows'.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sampler {
    /// Argmax of the logits.
    Greedy,
    /// A draw from the logits.
    Random,
    /// Logits are processed first.
    Full,
}

/// Lists that change or forbid logits. The samples of a request share them.
#[derive(Clone, Debug, Default)]
pub struct Constraints {
    /// Added to logits, by token id.
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens that may not come before `min_tokens`.
    pub stops: Vec<u32>,
    /// Token sequences that may not come.
    pub bad_words: Vec<Vec<u32>>,
    /// Only these tokens may come.
    pub allowed: Option<Vec<u32>>,
}

/// What is done to a row's logits for one token of it, besides its [`Constraints`].
#[derive(Clone, Debug)]
pub struct LogitChanges {
    /// Which tokens may come: bit v mod 32 of word v/32 is set where token v may. ⌈V/32⌉ words.
    pub mask: Vec<u32>,
    /// Added to logits, by token id; those of one token add up. At most [`MAX_STEP_BIASES`].
    pub biases: Vec<(u32, f32)>,
}

impl LogitChanges {
    /// None: every token of a vocabulary may come.
    pub fn none(vocab: u32) -> LogitChanges {
        LogitChanges {
            mask: vec![u32::MAX; vocab.div_ceil(32) as usize],
            biases: Vec::new(),
        }
    }
}

/// What the last token of a row's prompt, or of what is known of it, gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOutput {
    /// The next token.
    Token,
    /// The next token, chosen under a mask and biases of its own that [`crate::Runner::sample`] is given.
    MaskedToken,
    /// Its hidden state behind the last layer and the final norm \[hidden\]. The row samples nothing.
    HiddenState,
}

impl RowOutput {
    /// Whether it is no token.
    pub fn is_hidden_state(self) -> bool {
        self == RowOutput::HiddenState
    }
}

/// A sequence as its device row sees it.
#[derive(Clone, Debug)]
pub struct RowSpec {
    /// Token ids of the prompt.
    pub prompt: Arc<[u32]>,
    /// Numbers of the sampler; the counts of the lists and `prompt_len` are filled in from the other fields.
    pub sampling: SamplingRow,
    /// Which sampler these numbers and lists need.
    pub sampler: Sampler,
    /// Lists of the sampler.
    pub constraints: Arc<Constraints>,
    /// What it gives.
    pub output: RowOutput,
    /// Log-probabilities of each sampled token and of this many alternatives.
    pub logprobs: Option<u32>,
    /// The same for each prompt token after the first.
    pub prompt_logprobs: Option<u32>,
}

impl RowSpec {
    /// The sampler that it needs; under a mask logits are processed first.
    pub(crate) fn sampler(&self) -> Sampler {
        match self.output {
            RowOutput::MaskedToken => Sampler::Full,
            RowOutput::Token | RowOutput::HiddenState => self.sampler,
        }
    }

    /// Its `logit_bias` and `biases`, summed by token.
    pub(crate) fn with_biases(&self, biases: &[(u32, f32)]) -> Vec<(u32, f32)> {
        let mut all = self.constraints.logit_bias.clone();
        let mut places: HashMap<u32, usize> = all.iter().enumerate().map(|(at, (token, _))| (*token, at)).collect();
        for &(token, bias) in biases {
            match places.entry(token) {
                Entry::Occupied(at) => all[*at.get()].1 += bias,
                Entry::Vacant(free) => {
                    free.insert(all.len());
                    all.push((token, bias));
                }
            }
        }
        all
    }

    /// The sampler's numbers as the device reads them.
    pub(crate) fn sampling_row(&self) -> SamplingRow {
        let lists = &*self.constraints;
        SamplingRow {
            prompt_len: self.prompt.len() as u32,
            num_bias: lists.logit_bias.len() as u32,
            num_stop: lists.stops.len() as u32,
            num_bad_words: lists.bad_words.len() as u32,
            use_mask: u32::from(lists.allowed.is_some()),
            ..self.sampling
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases_of_a_token_add_up_and_stand_once() {
        let spec = RowSpec {
            prompt: Arc::new([1]),
            sampling: SamplingRow::PLAIN,
            sampler: Sampler::Full,
            constraints: Arc::new(Constraints {
                logit_bias: vec![(5, 1.0), (7, -2.0)],
                ..Constraints::default()
            }),
            output: RowOutput::MaskedToken,
            logprobs: None,
            prompt_logprobs: None,
        };
        let all = spec.with_biases(&[(7, 0.5), (9, 4.0), (9, 4.0)]);
        assert_eq!(all, [(5, 1.0), (7, -1.5), (9, 8.0)]);
        assert_eq!(spec.with_biases(&[]), [(5, 1.0), (7, -2.0)]);
    }
}
