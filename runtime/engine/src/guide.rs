//! Token guides: code that says, after each token of a sequence, which tokens may come next (a grammar, a schema).
//! Guides run on threads of their own (`guide_workers`), so that a slow one holds up its own sequence only.

use std::fmt;
use std::sync::Arc;

use halyard_grammar::{Grammar, Matcher};

/// Says which tokens of one sequence may come next.
pub trait TokenGuide: Send {
    /// Takes the tokens that came since the last call, and writes which tokens may come next: bit v mod 32 of word v/32
    /// is set where token v may. `mask` has ⌈V/32⌉ words, all 0. An end-of-sequence token that is to end the sequence
    /// must be allowed like any other. A call that takes longer than [`GuideConfig::max_mask_time`] ends the sequence.
    ///
    /// [`GuideConfig::max_mask_time`]: crate::GuideConfig::max_mask_time
    ///
    /// # Errors
    /// Why the sequence cannot go on; it ends with this reason.
    fn next_mask(&mut self, tokens: &[u32], mask: &mut [u32]) -> Result<(), String>;
}

/// Makes a guide for each sample of a request.
#[derive(Clone)]
pub struct GuideFactory(Arc<dyn Fn() -> Box<dyn TokenGuide> + Send + Sync>);

impl GuideFactory {
    /// Guides made by `make`, which is called once a sample.
    pub fn new(make: impl Fn() -> Box<dyn TokenGuide> + Send + Sync + 'static) -> GuideFactory {
        GuideFactory(Arc::new(make))
    }

    /// Guides of a grammar.
    pub fn of_grammar(grammar: Grammar) -> GuideFactory {
        GuideFactory::new(move || Box::new(grammar.matcher()))
    }

    /// A guide for one sample.
    pub fn make(&self) -> Box<dyn TokenGuide> {
        (self.0)()
    }
}

impl TokenGuide for Matcher {
    fn next_mask(&mut self, tokens: &[u32], mask: &mut [u32]) -> Result<(), String> {
        Matcher::next_mask(self, tokens, mask)
    }
}

impl fmt::Debug for GuideFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GuideFactory")
    }
}

/// Which tokens may come next.
pub(crate) type Mask = Arc<[u32]>;
