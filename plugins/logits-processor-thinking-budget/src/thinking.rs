//! Where a text stands: outside of thinking, inside with so many tokens, or where its end is forced.

use std::sync::Arc;

/// The tokens of the markers. None is empty.
#[derive(Debug)]
pub struct Markers {
    /// Begins thinking.
    pub start: Vec<u32>,
    /// Ends it.
    pub end: Vec<u32>,
    /// What is forced to end it; its text ends with that of `end`.
    pub forced: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Outside,
    /// After so many tokens behind the start.
    Inside(u64),
    /// So many tokens of the forced end have come.
    Forcing(usize),
    /// The same of the end, which the model began itself.
    Ending(usize),
}

/// The state of one text. Each stretch of thinking has the whole budget.
#[derive(Clone, Debug)]
pub struct Thinking {
    markers: Arc<Markers>,
    budget: u64,
    state: State,
    /// The last tokens since the last marker, at most as many as the longer marker has.
    tail: Vec<u32>,
}

impl Thinking {
    /// Behind a prompt.
    pub fn begin(markers: Arc<Markers>, budget: u64, prompt: &[u32]) -> Thinking {
        let mut thinking = Thinking {
            markers,
            budget,
            state: State::Outside,
            tail: Vec::new(),
        };
        prompt.iter().for_each(|&token| thinking.read(token));
        thinking.spend();
        thinking
    }

    /// A token came behind the prompt.
    pub fn push(&mut self, token: u32) {
        match self.state {
            State::Forcing(at) => self.step(at + 1, self.markers.forced.len(), State::Forcing),
            State::Ending(at) => self.step(at + 1, self.markers.end.len(), State::Ending),
            State::Outside | State::Inside(_) => self.read(token),
        }
        self.spend();
    }

    /// The token that must come next, if it is given.
    pub fn forced(&self) -> Option<u32> {
        match self.state {
            State::Forcing(at) => self.markers.forced.get(at).copied(),
            State::Ending(at) => self.markers.end.get(at).copied(),
            State::Outside | State::Inside(_) => None,
        }
    }

    fn step(&mut self, at: usize, len: usize, state: fn(usize) -> State) {
        self.state = if at < len { state(at) } else { State::Outside };
    }

    /// Reads a token that was not forced.
    fn read(&mut self, token: u32) {
        let markers = Arc::clone(&self.markers);
        if self.tail.len() == markers.start.len().max(markers.end.len()) {
            self.tail.remove(0);
        }
        self.tail.push(token);
        let next = match self.state {
            State::Inside(_) if self.tail.ends_with(&markers.end) => State::Outside,
            State::Inside(count) => State::Inside(count + 1),
            _ if self.tail.ends_with(&markers.start) => State::Inside(0),
            state => {
                self.state = state;
                return;
            }
        };
        if !matches!((self.state, next), (State::Inside(_), State::Inside(_))) {
            self.tail.clear();
        }
        self.state = next;
    }

    /// Begins the end, where the budget is used up.
    fn spend(&mut self) {
        let State::Inside(count) = self.state else { return };
        if count < self.budget {
            return;
        }
        let end = &self.markers.end;
        let begun = (1..end.len()).rev().find(|&len| self.tail.ends_with(&end[..len]));
        self.state = begun.map_or(State::Forcing(0), State::Ending);
        self.tail.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets a text of `tokens` come, the forced ones in between. Gives the whole.
    fn text(budget: u64, markers: [&[u32]; 3], prompt: &[u32], tokens: &[u32]) -> Vec<u32> {
        let markers = Markers {
            start: markers[0].to_vec(),
            end: markers[1].to_vec(),
            forced: markers[2].to_vec(),
        };
        let mut thinking = Thinking::begin(Arc::new(markers), budget, prompt);
        let (mut text, mut tokens) = (Vec::new(), tokens.iter());
        while let Some(token) = thinking.forced().or_else(|| tokens.next().copied()) {
            thinking.push(token);
            text.push(token);
        }
        text
    }

    const PLAIN: [&[u32]; 3] = [&[1], &[2], &[2]];
    const LONG: [&[u32]; 3] = [&[1, 1], &[2, 3, 4], &[9, 2, 3, 4]];

    #[test]
    fn thinking_ends_at_its_budget() {
        assert_eq!(text(3, PLAIN, &[], &[1, 5, 6, 7, 8, 8]), [1, 5, 6, 7, 2, 8, 8]);
        assert_eq!(
            text(3, PLAIN, &[], &[1, 5, 2, 7, 8, 8, 8]),
            [1, 5, 2, 7, 8, 8, 8],
            "ended before"
        );
        assert_eq!(text(3, PLAIN, &[], &[5, 6, 7, 8]), [5, 6, 7, 8], "there is none");
        assert_eq!(text(0, PLAIN, &[], &[1, 5]), [1, 2, 5], "a budget of 0");
        assert_eq!(
            text(2, PLAIN, &[], &[1, 5, 6, 7, 1, 5, 6, 7]),
            [1, 5, 6, 2, 7, 1, 5, 6, 2, 7],
            "each has its own"
        );
        assert_eq!(text(2, PLAIN, &[], &[1, 5, 2]), [1, 5, 2], "an end at the last moment");
    }

    #[test]
    fn a_prompt_may_end_inside() {
        assert_eq!(text(3, PLAIN, &[8, 1], &[5, 6, 7, 8]), [5, 6, 7, 2, 8]);
        assert_eq!(text(3, PLAIN, &[8, 1, 5, 5], &[5, 6]), [5, 2, 6], "its tokens count");
        assert_eq!(text(3, PLAIN, &[1, 5, 5, 5, 5], &[6]), [2, 6], "used up in it");
        assert_eq!(text(0, PLAIN, &[1], &[6]), [2, 6]);
        assert_eq!(text(0, PLAIN, &[1, 2, 8], &[6, 6]), [6, 6], "ended in it");
        assert_eq!(
            text(1, PLAIN, &[1, 5, 5, 2, 1], &[5, 6]),
            [5, 2, 6],
            "the last one counts"
        );
    }

    #[test]
    fn markers_may_have_several_tokens() {
        assert_eq!(
            text(2, LONG, &[], &[1, 5, 1, 1, 5, 6, 7]),
            [1, 5, 1, 1, 5, 6, 9, 2, 3, 4, 7]
        );
        assert_eq!(
            text(9, LONG, &[1], &[1, 5, 2, 3, 4, 8]),
            [1, 5, 2, 3, 4, 8],
            "half a start is in the prompt"
        );
        // An end that the model has begun is finished, not begun again.
        assert_eq!(text(3, LONG, &[1, 1], &[5, 2, 3, 7]), [5, 2, 3, 4, 7]);
        assert_eq!(text(2, LONG, &[1, 1], &[5, 2, 7]), [5, 2, 3, 4, 7]);
    }
}
