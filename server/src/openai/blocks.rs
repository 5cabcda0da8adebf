//! An answer as blocks: text, reasoning and calls, one behind the other as the model wrote them. For APIs whose answers
//! are lists. A block ends where another one begins.

use std::mem;

use halyard_text::CallFault;

use super::shaper::Delta;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// Text of the answer.
    Text(String),
    /// What the model thought.
    Reasoning(String),
    /// The call of a function.
    Call {
        /// Its id.
        id: String,
        /// The function.
        name: String,
        /// JSON, unless the model wrote it badly or was cut off.
        arguments: String,
    },
}

impl Block {
    /// What grows.
    fn text_mut(&mut self) -> &mut String {
        match self {
            Block::Text(text) | Block::Reasoning(text) => text,
            Block::Call { arguments, .. } => arguments,
        }
    }
}

/// What happens to the last block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// It begins, empty.
    Start(&'a Block),
    /// It has a new part at its end.
    Grow(&'a Block, &'a str),
    /// It ends; false: it was cut off.
    Stop(&'a Block, bool),
}

/// Who is told of steps: the number of a block, and what happens to it.
pub type OnStep<'a> = &'a mut dyn FnMut(usize, Step<'_>);

/// Puts deltas together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    open: Option<Block>,
    num_stopped: usize,
    /// Whether the last call has all of its arguments; `None`: there was no call.
    last_call_is_whole: Option<bool>,
}

impl Blocks {
    /// The blocks of a whole answer.
    pub fn collect(&mut self, deltas: Vec<Delta>) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut keep = |_, step: Step<'_>| {
            if let Step::Stop(block, _) = step {
                blocks.push(block.clone());
            }
        };
        for delta in deltas {
            self.push(delta, &mut keep);
        }
        self.end(true, &mut keep);
        blocks
    }

    /// Takes a delta.
    pub fn push(&mut self, delta: Delta, on_step: OnStep<'_>) {
        match delta {
            Delta::Text(text) => self.grow(Block::Text(String::new()), &text, on_step),
            Delta::Reasoning(text) => self.grow(Block::Reasoning(String::new()), &text, on_step),
            Delta::CallStart { id, name, .. } => {
                self.last_call_is_whole = Some(false);
                let arguments = String::new();
                self.start(Block::Call { id, name, arguments }, on_step);
            }
            Delta::Arguments { text, .. } => {
                if let Some(block @ Block::Call { .. }) = &mut self.open {
                    block.text_mut().push_str(&text);
                    on_step(self.num_stopped, Step::Grow(block, &text));
                }
            }
            Delta::CallEnd { fault, .. } => {
                let is_whole = fault != Some(CallFault::CutOff);
                self.last_call_is_whole = Some(is_whole);
                self.end(is_whole, on_step);
            }
        }
    }

    /// Ends the last block, if it has not ended; `is_whole`: it was not cut off.
    pub fn end(&mut self, is_whole: bool, on_step: OnStep<'_>) {
        if let Some(block) = self.open.take() {
            on_step(self.num_stopped, Step::Stop(&block, is_whole));
            self.num_stopped += 1;
        }
    }

    /// An empty text, where there is no block at all.
    pub fn fill(&mut self, on_step: OnStep<'_>) {
        if self.open.is_none() && self.num_stopped == 0 {
            self.start(Block::Text(String::new()), on_step);
        }
    }

    /// Whether the last call has all of its arguments; `None`: there was no call.
    pub fn last_call_is_whole(&self) -> Option<bool> {
        self.last_call_is_whole
    }

    fn start(&mut self, block: Block, on_step: OnStep<'_>) {
        self.end(true, on_step);
        on_step(self.num_stopped, Step::Start(self.open.insert(block)));
    }

    /// Adds to a block of the kind of `empty`, which begins if the last one is of another.
    fn grow(&mut self, empty: Block, text: &str, on_step: OnStep<'_>) {
        let is_same = |open: &Block| mem::discriminant(open) == mem::discriminant(&empty);
        if !self.open.as_ref().is_some_and(is_same) {
            self.start(empty, on_step);
        }
        if let Some(block) = &mut self.open {
            block.text_mut().push_str(text);
            on_step(self.num_stopped, Step::Grow(block, text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deltas(fault: Option<CallFault>) -> Vec<Delta> {
        let text = |text: &str| Delta::Text(text.to_owned());
        let (index, id, name) = (0, "1".to_owned(), "f".to_owned());
        vec![
            Delta::Reasoning("r".to_owned()),
            text("a"),
            text("b"),
            Delta::CallStart { index, id, name },
            Delta::Arguments {
                index,
                text: "{".to_owned(),
            },
            Delta::Arguments {
                index,
                text: "}".to_owned(),
            },
            Delta::CallEnd { index, fault },
            text("c"),
        ]
    }

    #[test]
    fn a_block_ends_where_another_begins() {
        let mut told = Vec::new();
        let mut blocks = Blocks::default();
        let mut tell = |index: usize, step: Step<'_>| {
            told.push(match step {
                Step::Start(_) => format!("+{index}"),
                Step::Grow(_, text) => text.to_owned(),
                Step::Stop(..) => format!("-{index}"),
            });
        };
        for delta in deltas(None) {
            blocks.push(delta, &mut tell);
        }
        blocks.end(true, &mut tell);
        blocks.fill(&mut tell);
        assert_eq!(told.join(" "), "+0 r -0 +1 a b -1 +2 { } -2 +3 c -3");
        let whole = Blocks::default().collect(deltas(None));
        let call = Block::Call {
            id: "1".to_owned(),
            name: "f".to_owned(),
            arguments: "{}".to_owned(),
        };
        let text = |text: &str| Block::Text(text.to_owned());
        assert_eq!(whole, [Block::Reasoning("r".to_owned()), text("ab"), call, text("c")]);
    }

    #[test]
    fn a_call_without_its_end_is_not_whole() {
        for (deltas, expected) in [
            (deltas(None), Some(true)),
            (deltas(Some(CallFault::CutOff)), Some(false)),
            (deltas(None).into_iter().take(5).collect(), Some(false)),
            (deltas(None).into_iter().take(3).collect(), None),
        ] {
            let mut blocks = Blocks::default();
            blocks.collect(deltas);
            assert_eq!(blocks.last_call_is_whole(), expected);
        }
        let mut told = 0;
        Blocks::default().fill(&mut |_, _| told += 1);
        assert_eq!(told, 1, "an empty text");
    }
}
