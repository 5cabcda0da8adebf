//! Shapers: each follows the text of one choice and splits it into content. Text that it cannot place yet is held back.
//! A parser of tool calls or of reasoning is one more implementation; what it finds are more kinds of [`Delta`].

/// A new part of a choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Text of the answer, never empty.
    Text(String),
}

/// Follows the text of one choice.
pub trait Shaper: Send {
    /// What is known after `text`, new since the last call and made of the tokens `token_ids`. Either may be empty.
    fn push(&mut self, text: String, token_ids: &[u32]) -> Vec<Delta>;

    /// What was held back, once the choice has ended.
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
