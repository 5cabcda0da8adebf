//! Token guides: code that says, after each token of a sequence, which tokens may come next and what is added to their
//! logits (a grammar, logits processors). Guides run on threads of their own (`guide_workers`), so that a slow one
//! holds up its own sequence only.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use halyard_grammar::{Grammar, Matcher};
pub use halyard_runner::LogitChanges;
use halyard_runner::row::MAX_STEP_BIASES;

/// Guides the tokens of one sequence.
pub trait TokenGuide: Send {
    /// Takes the tokens that came since the last call, and changes the logits of the next one. `changes` come as the
    /// guides before have left them, first with every token allowed. A guide clears bits and adds biases; it sets no
    /// bit and takes no bias away. An end-of-sequence token that is to end the sequence must be allowed like any other.
    /// A call that takes longer than [`GuideWatch::limit`] ends the sequence.
    ///
    /// # Errors
    /// Why the sequence cannot go on; it ends with this reason.
    fn next(&mut self, tokens: &[u32], changes: &mut LogitChanges) -> Result<(), String>;

    /// What is asked about the guide while it works.
    fn watch(&self) -> Arc<dyn GuideWatch> {
        Arc::new(NamedGuide("the guide of the request's tokens"))
    }
}

/// Tells of a guide on another thread than that which runs it.
pub trait GuideWatch: Send + Sync {
    /// What forbids tokens, for a sequence that has none left: "the grammar of the structured output".
    fn constraint(&self) -> String;

    /// Whether a guide that cannot go on is a constraint that the request brought: then the request is at fault, not
    /// the engine.
    fn is_of_request(&self) -> bool {
        false
    }

    /// The longest call; `None`: [`GuideConfig::max_mask_time`].
    ///
    /// [`GuideConfig::max_mask_time`]: crate::GuideConfig::max_mask_time
    fn limit(&self) -> Option<Duration> {
        None
    }

    /// A call has taken longer than `limit` and is given up: the reason with which the sequence ends.
    fn give_up(&self, limit: Duration) -> String {
        format!(
            "{} took longer than {limit:?} (max_mask_time) for the next mask",
            self.constraint()
        )
    }
}

/// Makes a guide for each sample of a request.
#[derive(Clone)]
pub struct GuideFactory(Arc<dyn Fn(u32) -> Box<dyn TokenGuide> + Send + Sync>);

impl GuideFactory {
    /// Guides made by `make`, which is called once a sample with its number. It must not block.
    pub fn new(make: impl Fn(u32) -> Box<dyn TokenGuide> + Send + Sync + 'static) -> GuideFactory {
        GuideFactory(Arc::new(make))
    }

    /// Guides of a grammar.
    pub fn of_grammar(grammar: Grammar) -> GuideFactory {
        GuideFactory::new(move |_| Box::new(grammar.matcher()))
    }

    /// The guide of one sample.
    pub fn make(&self, sample: u32) -> Box<dyn TokenGuide> {
        (self.0)(sample)
    }
}

impl TokenGuide for Matcher {
    fn next(&mut self, tokens: &[u32], changes: &mut LogitChanges) -> Result<(), String> {
        let mut mask = vec![0; changes.mask.len()];
        self.next_mask(tokens, &mut mask)?;
        changes.mask.iter_mut().zip(mask).for_each(|(word, own)| *word &= own);
        Ok(())
    }

    fn watch(&self) -> Arc<dyn GuideWatch> {
        Arc::new(GrammarWatch)
    }
}

/// Tells of a grammar.
struct GrammarWatch;

impl GuideWatch for GrammarWatch {
    fn constraint(&self) -> String {
        "the grammar of the structured output".to_string()
    }

    fn is_of_request(&self) -> bool {
        true
    }
}

/// A guide of which nothing but this is known.
struct NamedGuide(&'static str);

impl GuideWatch for NamedGuide {
    fn constraint(&self) -> String {
        self.0.to_string()
    }
}

impl fmt::Debug for GuideFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GuideFactory")
    }
}

/// Checks what a guide has done to logits of a vocabulary, before a device sees it.
///
/// # Errors
/// What cannot be, in words.
pub(crate) fn check(changes: &LogitChanges, vocab: u32) -> Result<(), String> {
    let wrong = |words: String| Err(format!("the guide of the request's tokens gave {words}"));
    if changes.mask.len() != vocab.div_ceil(32) as usize {
        return wrong(format!("a mask of {} words for {vocab} tokens", changes.mask.len()));
    }
    if changes.biases.len() > MAX_STEP_BIASES {
        return wrong(format!(
            "{} biases; at most {MAX_STEP_BIASES} are taken",
            changes.biases.len()
        ));
    }
    match changes
        .biases
        .iter()
        .find(|(token, bias)| *token >= vocab || !bias.is_finite())
    {
        None => Ok(()),
        Some((token, bias)) => wrong(format!("the bias {bias} of token {token}; there are {vocab} tokens")),
    }
}

/// The changes of the next token.
pub(crate) type Changes = Arc<LogitChanges>;
