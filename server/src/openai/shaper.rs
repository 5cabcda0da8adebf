//! Shapers: each reads the text of one choice and turns it into deltas. It holds back text that it cannot classify yet.
//! A parser of tool calls or of reasoning will be another implementation, with more kinds of [`Delta`].

/// A new part of a choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Text of the answer, never empty.
    Text(String),
}

/// Follows the text of one choice.
pub trait Shaper: Send {
    /// Takes `text`, which is new since the last call, and its tokens `token_ids`; returns the deltas that are certain
    /// now. Either may be empty.
    fn push(&mut self, text: String, token_ids: &[u32]) -> Vec<Delta>;

    /// Returns the text that was held back, once the choice has ended.
    fn finish(&mut self) -> Vec<Delta>;
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
