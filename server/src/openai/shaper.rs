//! Shapers: each reads the text of one choice and turns it into deltas. It holds back text that it cannot classify yet.

use halyard_text::CallFault;

/// A new part of a choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Text of the answer, never empty.
    Text(String),
    /// What the model thought, never empty.
    Reasoning(String),
    /// The call of a function begins.
    CallStart {
        /// Calls of the choice before it.
        index: usize,
        /// Its id.
        id: String,
        /// The function, as the model wrote it.
        name: String,
    },
    /// A piece of a call's arguments, never empty.
    Arguments {
        /// Of the call.
        index: usize,
        /// JSON, together with the pieces before and after it.
        text: String,
    },
    /// A call is over.
    CallEnd {
        /// Of the call.
        index: usize,
        /// What is wrong with its arguments, if something is.
        fault: Option<CallFault>,
    },
}

/// Follows the text of one choice.
pub trait Shaper: Send {
    /// Takes `text`, which is new since the last call, and its tokens `token_ids`; returns the deltas that are certain
    /// now. Either may be empty.
    fn push(&mut self, text: String, token_ids: &[u32]) -> Vec<Delta>;

    /// Returns the text that was held back, once the choice has ended.
    fn finish(&mut self) -> Vec<Delta>;

    /// Tokens of reasoning so far, if each token was pushed by itself.
    fn num_reasoning_tokens(&self) -> u64 {
        0
    }
}

/// All text is content.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainText;

impl Shaper for PlainText {
    fn push(&mut self, text: String, _: &[u32]) -> Vec<Delta> {
        if text.is_empty() {
            Vec::new()
        } else {
            vec![Delta::Text(text)]
        }
    }

    fn finish(&mut self) -> Vec<Delta> {
        Vec::new()
    }
}
