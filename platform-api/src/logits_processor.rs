//! Logits processors: hook plugins that change which token comes next. A processor looks at each request once and may
//! take part in it; then it is asked before each token of each of its samples, with the tokens that came since, and may
//! forbid tokens and add biases to logits.
//!
//! The host calls it off its own threads, each call with a deadline, while the device computes the layers; a call that
//! fails, hangs or gives what cannot be, ends its own request. Rows of requests in which no processor takes part are
//! never held up.

use std::sync::Arc;

pub use crate::abi::limits::MAX_LOGIT_BIASES;
pub use crate::abi::logits_tables::LogitBias;
use crate::status::{Error, Result};

/// Largest size of a bias.
pub const MAX_BIAS: f32 = 1e9;

/// The model, as a processor may ask for it. Any thread; valid as long as the processor.
pub trait LogitsModel: Send + Sync {
    /// Tokens of the vocabulary: ids are below. It may be larger than the tokenizer's.
    fn vocab_size(&self) -> u32;

    /// The tokens that end a text.
    fn end_tokens(&self) -> &[u32];

    /// The ids of a text, special tokens that stand in it included, without tokens that the tokenizer would put before
    /// or behind it.
    ///
    /// # Errors
    /// `InvalidArgument` for a text that the tokenizer refuses.
    fn encode(&self, text: &str) -> Result<Vec<u32>>;

    /// The bytes that a token stands for in a text, of a special token its name; none of an id that stands for nothing.
    ///
    /// # Errors
    /// As [`LogitsModel::encode`].
    fn token_bytes(&self, token: u32) -> Result<Vec<u8>>;
}

/// A request as a processor sees it.
#[derive(Clone, Copy, Debug)]
pub struct LogitsRequest<'a> {
    /// The request's id, for logs.
    pub id: &'a str,
    /// Its prompt.
    pub prompt: &'a [u32],
    /// Most tokens of each of its samples.
    pub max_tokens: u32,
    /// Arguments for processors: one JSON object with the entries of the body's `vllm_xargs`, and the fields of
    /// [`LogitsProcessor::reads`].
    pub args: &'a str,
}

/// A row of logits before a token is chosen: which tokens may come, and what is added to logits. It starts as the
/// request's grammar and the processors before have left it.
#[derive(Debug)]
pub struct LogitsRow<'a> {
    vocab_size: u32,
    mask: &'a mut [u32],
    room: &'a mut [LogitBias],
    num_biases: usize,
}

impl<'a> LogitsRow<'a> {
    /// A row of `vocab_size` logits. `mask`: bit v mod 32 of word v/32 is set where token v may come, ⌈V/32⌉ words.
    /// `room`: for as many biases as may be given.
    ///
    /// # Errors
    /// `InvalidArgument` for a mask of another length.
    pub fn new(vocab_size: u32, mask: &'a mut [u32], room: &'a mut [LogitBias]) -> Result<LogitsRow<'a>> {
        if mask.len() != vocab_size.div_ceil(32) as usize {
            let words = mask.len();
            return Err(Error::invalid(format!(
                "{words} words are no mask of {vocab_size} tokens"
            )));
        }
        Ok(LogitsRow {
            vocab_size,
            mask,
            room,
            num_biases: 0,
        })
    }

    /// Tokens of the vocabulary.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// Whether a token may come.
    pub fn allows(&self, token: u32) -> bool {
        token < self.vocab_size && self.mask[token as usize / 32] & (1 << (token % 32)) != 0
    }

    /// Whether some token may come.
    pub fn allows_some(&self) -> bool {
        let (Some((last, whole)), rest) = (self.mask.split_last(), self.vocab_size % 32) else {
            return false;
        };
        let used = if rest == 0 { u32::MAX } else { (1 << rest) - 1 };
        last & used != 0 || whole.iter().any(|&word| word != 0)
    }

    /// Forbids a token.
    ///
    /// # Errors
    /// `InvalidArgument` for a token outside the vocabulary.
    pub fn forbid(&mut self, token: u32) -> Result<()> {
        self.check(token)?;
        self.mask[token as usize / 32] &= !(1 << (token % 32));
        Ok(())
    }

    /// Forbids every token but these; of these, those that were forbidden stay so.
    ///
    /// # Errors
    /// As [`LogitsRow::forbid`].
    pub fn allow_only(&mut self, tokens: &[u32]) -> Result<()> {
        tokens.iter().try_for_each(|&token| self.check(token))?;
        let allowed: Vec<u32> = tokens.iter().copied().filter(|&token| self.allows(token)).collect();
        self.mask.fill(0);
        for token in allowed {
            self.mask[token as usize / 32] |= 1 << (token % 32);
        }
        Ok(())
    }

    /// Which tokens may come: bit v mod 32 of word v/32. A bit that is cleared at the call stays so, whatever is
    /// written.
    pub fn mask_mut(&mut self) -> &mut [u32] {
        self.mask
    }

    /// Adds to a token's logit. Biases of one token add up.
    ///
    /// # Errors
    /// `InvalidArgument` for a token outside the vocabulary, a bias that is no number or larger than [`MAX_BIAS`], and
    /// more biases than there is room for.
    pub fn add_bias(&mut self, token: u32, bias: f32) -> Result<()> {
        self.check(token)?;
        check_bias(token, bias)?;
        let most = self.room.len();
        let Some(free) = self.room.get_mut(self.num_biases) else {
            return Err(Error::invalid(format!(
                "more than {most} biases; that is all there is room for"
            )));
        };
        *free = LogitBias { token, bias };
        self.num_biases += 1;
        Ok(())
    }

    /// The biases that were added.
    pub fn biases(&self) -> &[LogitBias] {
        &self.room[..self.num_biases]
    }

    /// How many biases there is room for.
    pub fn room(&self) -> usize {
        self.room.len()
    }

    fn check(&self, token: u32) -> Result<()> {
        match token < self.vocab_size {
            true => Ok(()),
            false => {
                let size = self.vocab_size;
                Err(Error::invalid(format!(
                    "token {token} is outside the vocabulary of {size}"
                )))
            }
        }
    }
}

/// Whether a bias is one.
fn check_bias(token: u32, bias: f32) -> Result<()> {
    match bias.abs() <= MAX_BIAS {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "the bias {bias} of token {token} is not from -{MAX_BIAS:e} to {MAX_BIAS:e}"
        ))),
    }
}

/// Changes the logits of one sample of a request. One thread at a time uses it; dropping it ends the sample.
pub trait SequenceLogits: Send {
    /// Takes the tokens that came since the last call, none at the first, and changes the row of the next one. May
    /// block; the sample waits.
    ///
    /// # Errors
    /// Any: the request ends with it.
    fn process(&mut self, tokens: &[u32], row: &mut LogitsRow<'_>) -> Result<()>;
}

/// A request that a processor takes part in. Any thread, several at once.
pub trait RequestLogits: Send + Sync {
    /// Sample number `sample` begins. May block.
    ///
    /// # Errors
    /// Any: the request ends with it.
    fn start(&self, sample: u32) -> Result<Box<dyn SequenceLogits>>;
}

/// A processor with its configuration. Any thread, several at once.
pub trait LogitsProcessor: Send + Sync {
    /// Looks at a request; `None`: it takes no part in it, at no cost. May block.
    ///
    /// # Errors
    /// `InvalidArgument` or `Denied` refuses the request with the reason, as the client's mistake; anything else is the
    /// processor's failure, which ends the request too.
    fn open(&self, request: &LogitsRequest<'_>) -> Result<Option<Box<dyn RequestLogits>>>;

    /// Whether it reads a field of a request's body that is refused where no processor does: `thinking_token_budget` is
    /// the only one.
    fn reads(&self, field: &str) -> bool {
        let _ = field;
        false
    }
}

/// Makes processors of one plugin.
pub trait LogitsProcessorFactory: Send + Sync {
    /// A processor configured by `config`, a JSON object (`{}` when the operator gave none), for `model`. May block.
    ///
    /// # Errors
    /// `InvalidArgument` naming the key.
    fn create(&self, config: &str, model: Arc<dyn LogitsModel>) -> Result<Arc<dyn LogitsProcessor>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_takes_what_can_be_and_names_what_cannot() {
        let (mut mask, mut room) = ([u32::MAX, 0b101], [LogitBias::default(); 2]);
        let mut row = LogitsRow::new(34, &mut mask, &mut room).expect("two words");
        assert!(
            row.allows(31) && row.allows(32) && !row.allows(33) && !row.allows(34),
            "{row:?}"
        );
        assert_eq!((row.forbid(0), row.allow_only(&[0, 5, 33])), (Ok(()), Ok(())));
        assert_eq!(row.mask, [1 << 5, 0], "what was forbidden stays so");
        assert!(row.allows_some());
        assert_eq!((row.add_bias(33, -1e9), row.add_bias(33, 0.5)), (Ok(()), Ok(())));
        let (first, second) = (row.biases()[0], row.biases()[1]);
        assert_eq!(
            (first.token, first.bias, second.token, second.bias),
            (33, -1e9, 33, 0.5)
        );
        let words = |result: Result<()>| result.expect_err("refused").message;
        assert!(words(row.add_bias(1, 0.0)).contains("more than 2 biases"));
        assert!(words(row.forbid(34)).contains("outside the vocabulary of 34"));
        assert!(words(row.allow_only(&[34])).contains("token 34"));
        row.num_biases = 0;
        for bias in [f32::NAN, f32::INFINITY, -1.1e9] {
            assert!(words(row.add_bias(1, bias)).contains("-1e9 to 1e9"));
        }
        // A bit past the vocabulary is no token.
        row.mask_mut().copy_from_slice(&[0, 0b100]);
        assert!(!row.allows_some());
        assert!(LogitsRow::new(65, &mut [0; 2], &mut []).is_err());
    }
}
