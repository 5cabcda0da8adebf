//! The masks of one text under a constraint.

use std::fmt::Display;
use std::sync::Arc;

use crate::compile::{Compiled, User};
use crate::error::shortened;

/// Follows one text and says after each token which may come next.
pub struct Matcher {
    compiled: Arc<Compiled>,
    /// Made at the first call, on the thread that makes masks.
    state: Option<(llguidance::Matcher, User)>,
    /// Tokens that end the text, allowed where it may end.
    ends: Arc<[u32]>,
}

impl Matcher {
    pub(crate) fn new(compiled: Arc<Compiled>, ends: Arc<[u32]>) -> Matcher {
        Matcher {
            compiled,
            state: None,
            ends,
        }
    }

    /// Takes the tokens that came since the last call, and sets the bits of those that may come next: bit v mod 32 of
    /// word v/32. `mask` is 0 before. Behind the end of the text only tokens that end it may come.
    ///
    /// # Errors
    /// Why the text cannot go on.
    pub fn next_mask(&mut self, tokens: &[u32], mask: &mut [u32]) -> Result<(), String> {
        self.advance(tokens, mask).inspect_err(|_| self.compiled.note_failure())
    }

    fn advance(&mut self, tokens: &[u32], mask: &mut [u32]) -> Result<(), String> {
        if self.state.is_none() {
            self.state = self.compiled.matcher();
        }
        let Some((matcher, _)) = &mut self.state else {
            return Err("the request's grammar is gone".to_string());
        };
        // An end behind the end comes where ends do not stop the text (ignore_eos).
        if !tokens.is_empty() && !matcher.is_stopped() {
            matcher.consume_tokens(tokens).map_err(cannot_go_on)?;
        }
        let allowed = matcher.compute_mask_or_eos().map_err(cannot_go_on)?;
        for (word, bits) in mask.iter_mut().zip(allowed.as_slice()) {
            *word |= bits;
        }
        if matcher.is_stopped() || matcher.is_accepting().map_err(cannot_go_on)? {
            for &end in self.ends.iter() {
                if let Some(word) = mask.get_mut(end as usize / 32) {
                    *word |= 1 << (end % 32);
                }
            }
        }
        Ok(())
    }
}

fn cannot_go_on(error: impl Display) -> String {
    let reason = shortened(&error.to_string());
    format!("the grammar of the request's structured output cannot go on: {reason}")
}
