//! The dataset `prefix_repetition`: random prompts of which several begin alike, for prefix caches and for routers that
//! know them.

use clap::Args;

use crate::cli::bench::workload::Prompts;
use crate::error::ServerError;

/// Lengths and counts, with vLLM's defaults.
#[derive(Args, Debug)]
pub struct PrefixRepetitionArgs {
    /// Tokens that prompts of prefix_repetition have in common
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    prefix_repetition_prefix_len: u32,
    /// Tokens of each prompt behind them
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    prefix_repetition_suffix_len: u32,
    /// Different beginnings; each has as many prompts
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    prefix_repetition_num_prefixes: u32,
    /// Tokens to generate for each prompt of prefix_repetition
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    pub(super) prefix_repetition_output_len: u32,
}

impl PrefixRepetitionArgs {
    /// Refuses what gives no prompt.
    pub(super) fn check(&self, num_prompts: u32) -> Result<(), ServerError> {
        let prefixes = self.prefix_repetition_num_prefixes;
        let refuse = |option, message| Err(ServerError::Option { option, message });
        if num_prompts < prefixes {
            let message =
                format!("{prefixes} beginnings for {num_prompts} prompts (--num-prompts); give at most as many");
            return refuse("--prefix-repetition-num-prefixes", message);
        }
        if self.prompt_len() == 0 {
            let message = "no token in a prompt; give it or --prefix-repetition-prefix-len one".to_owned();
            return refuse("--prefix-repetition-suffix-len", message);
        }
        Ok(())
    }

    /// Tokens of a prompt.
    pub(super) fn prompt_len(&self) -> u32 {
        self.prefix_repetition_prefix_len + self.prefix_repetition_suffix_len
    }

    /// Beginnings and ends of all prompts, in groups of one beginning. As in vLLM each beginning has the same number of
    /// prompts, so what is left of a division is not sent.
    pub(super) fn prompts(&self, num_prompts: u32, prompts: &mut Prompts) -> Vec<Vec<u32>> {
        let each = num_prompts / self.prefix_repetition_num_prefixes;
        let mut all = Vec::new();
        for _ in 0..self.prefix_repetition_num_prefixes {
            let prefix = prompts.next(self.prefix_repetition_prefix_len);
            for _ in 0..each {
                all.push([&prefix[..], &prompts.next(self.prefix_repetition_suffix_len)].concat());
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_beginning_has_as_many_prompts_and_no_two_are_alike() {
        let args = PrefixRepetitionArgs {
            prefix_repetition_prefix_len: 8,
            prefix_repetition_suffix_len: 4,
            prefix_repetition_num_prefixes: 3,
            prefix_repetition_output_len: 1,
        };
        let prompts = args.prompts(11, &mut Prompts::new(7, 1000));
        assert_eq!(prompts.len(), 9, "three each, and two that would not divide");
        for (at, prompt) in prompts.iter().enumerate() {
            assert_eq!(prompt.len(), 12);
            assert_eq!(prompt[..8], prompts[at / 3 * 3][..8]);
        }
        assert_eq!(
            prompts.iter().map(|prompt| &prompt[..8]).collect::<BTreeSet<_>>().len(),
            3
        );
        assert_eq!(prompts.iter().collect::<BTreeSet<_>>().len(), 9);
        assert!(args.check(2).is_err() && args.check(3).is_ok());
    }
}
