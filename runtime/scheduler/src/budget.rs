//! The token budget of one step, and how decodes, short prompts and long prompts share it. Counts only; it knows no
//! request.

use crate::config::SchedulerConfig;
use crate::queue::size_class;

/// The remaining tokens of a step while it is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StepBudget {
    /// Tokens of any kind.
    pub(crate) tokens_left: u32,
    /// Of these, tokens of prompts.
    prompt_left: u32,
    /// Of these, tokens of long prompts.
    long_left: u32,
    /// A prompt whose tokens to compute are of a greater size class than this is long.
    long_class: u8,
}

impl StepBudget {
    /// The budget of a step in which `num_decodes` requests want one token each. `max_prompt_tokens` bounds prompt
    /// tokens (0: no bound). Long prompts share half of them at first.
    pub(crate) fn new(config: &SchedulerConfig, max_prompt_tokens: u32, num_decodes: u32) -> Self {
        let tokens = config.max_num_batched_tokens;
        let bound = match max_prompt_tokens {
            0 => tokens,
            bound => bound,
        };
        let prompt_left = bound.min(tokens.saturating_sub(num_decodes)).max(1);
        let long_threshold = match config.long_prefill_token_threshold {
            0 => prompt_left / 2,
            threshold => threshold,
        };
        StepBudget {
            tokens_left: tokens,
            prompt_left,
            long_left: prompt_left.div_ceil(2),
            long_class: size_class(long_threshold),
        }
    }

    /// Prompt tokens that are left.
    pub(crate) fn prompt_left(&self) -> u32 {
        self.prompt_left.min(self.tokens_left)
    }

    /// Tokens that a prompt with `wanted` tokens to compute may have now.
    pub(crate) fn for_prompt(&self, wanted: u32) -> u32 {
        match self.is_long(wanted) {
            true => self.long_left.min(self.prompt_left()),
            false => self.prompt_left(),
        }
    }

    fn is_long(&self, wanted: u32) -> bool {
        size_class(wanted) > self.long_class
    }

    /// Whether a prompt of this size class may have a token now.
    pub(crate) fn takes(&self, class: u8) -> bool {
        self.prompt_left() > 0 && (self.long_left > 0 || class <= self.long_class)
    }

    /// Takes the tokens of a decode, drafts included.
    pub(crate) fn spend_decode(&mut self, tokens: u32) {
        self.tokens_left -= tokens;
    }

    /// Takes `tokens` of a prompt that had `wanted` to compute.
    pub(crate) fn spend_prompt(&mut self, wanted: u32, tokens: u32) {
        self.tokens_left -= tokens;
        self.prompt_left -= tokens;
        if self.is_long(wanted) {
            self.long_left -= tokens;
        }
        self.long_left = self.long_left.min(self.prompt_left);
    }

    /// Gives what short prompts have left to long ones.
    pub(crate) fn open(&mut self) {
        self.long_left = self.prompt_left;
    }
}
