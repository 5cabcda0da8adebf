//! Finds the first of several patterns in text that is still being written: at each byte it knows which matches are
//! certain and which text may still become one. A thread of an automaton stands for each way that a pattern may go on,
//! in the order of preference, so that every cut of the text finds what the whole text has.

use std::sync::Arc;

use regex_automata::nfa::thompson::State;
use regex_automata::util::primitives::StateID;

use super::pattern::{Pattern, is_start};

/// A match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Which pattern.
    pub(super) which: usize,
    /// Where it begins and ends, from the start of the message.
    pub(super) start: usize,
    pub(super) end: usize,
    /// Where its groups are.
    pub(super) places: Vec<usize>,
}

/// What is known of the text so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// The first match.
    Found(Found),
    /// Text before this place is in no match.
    None(usize),
}

/// Looks for several patterns. A pattern that comes first wins; of those at one place the longest match; of those the
/// first pattern.
#[derive(Clone, Debug)]
pub(super) struct Scanner {
    runs: Vec<Run>,
    /// The place up to which was read.
    at: usize,
    /// The longest text that may become a match.
    longest: usize,
    /// Empty matches at this place count for nothing.
    not_empty_at: Option<usize>,
    /// Bytes that were read, one for each thread.
    pub(super) looked_at: usize,
}

#[derive(Clone, Debug)]
struct Run {
    pattern: Arc<Pattern>,
    /// In order of preference, which is the order of their starts.
    threads: Threads,
    next: Threads,
    /// The match so far; threads before it may still find a better one.
    found: Option<(usize, usize, Vec<usize>)>,
}

#[derive(Clone, Debug)]
struct Threads {
    list: Vec<Thread>,
    /// For each state the generation in which it was last added.
    seen: Vec<u32>,
    generation: u32,
}

#[derive(Clone, Debug)]
struct Thread {
    state: StateID,
    start: usize,
    places: Box<[usize]>,
}

impl Threads {
    fn clear(&mut self) {
        self.list.clear();
        self.generation = self.generation.wrapping_add(1);
        if self.generation == 0 {
            self.seen.fill(0);
            self.generation = 1;
        }
    }
}

impl Scanner {
    /// Looks for `patterns` from a place on.
    pub(super) fn new<'a>(patterns: impl IntoIterator<Item = &'a Arc<Pattern>>, at: usize, longest: usize) -> Self {
        let run = |pattern: &Arc<Pattern>| {
            let threads = Threads {
                list: Vec::new(),
                seen: vec![0; pattern.nfa.states().len()],
                generation: 1,
            };
            Run {
                pattern: Arc::clone(pattern),
                next: threads.clone(),
                threads,
                found: None,
            }
        };
        Self {
            runs: patterns.into_iter().map(run).collect(),
            at,
            longest,
            not_empty_at: None,
            looked_at: 0,
        }
    }

    /// The same, where an empty match at its first place counts for nothing.
    pub(super) fn not_empty_at_first(mut self) -> Self {
        self.not_empty_at = Some(self.at);
        self
    }

    /// Reads on. `text` begins `base` bytes from the start of the message and holds all that was not yet read;
    /// `last` says that no more comes.
    pub(super) fn scan(&mut self, text: &str, base: usize, last: bool) -> Scan {
        let bytes = text.as_bytes();
        loop {
            if let Some(found) = self.decided() {
                return Scan::Found(found);
            }
            let Some(&byte) = bytes.get(self.at - base) else {
                break;
            };
            let idle = self
                .runs
                .iter()
                .all(|run| run.threads.list.is_empty() && run.found.is_none());
            self.looked_at += 1;
            if idle && !self.runs.iter().any(|run| run.pattern.first[byte as usize]) {
                self.at += 1;
                continue;
            }
            // A character is never cut.
            let begins = !(0x80..0xc0).contains(&byte);
            for run in &mut self.runs {
                if begins && run.found.is_none() && run.pattern.first[byte as usize] {
                    run.seed(self.at, false, self.not_empty_at);
                }
            }
            for run in &mut self.runs {
                self.looked_at += run.threads.list.len();
                run.step(byte, self.at, self.longest, self.not_empty_at);
            }
            self.at += 1;
        }
        if last {
            for run in &mut self.runs {
                if run.found.is_none() {
                    run.seed(self.at, true, self.not_empty_at);
                }
                run.end(self.at, self.not_empty_at);
            }
            if let Some(found) = self.decided() {
                return Scan::Found(found);
            }
        }
        let holds = |run: &Run| {
            let thread = run.threads.list.first().map(|thread| thread.start);
            thread.into_iter().chain(run.found.as_ref().map(|found| found.0)).min()
        };
        let hold = self.runs.iter().filter_map(holds).min();
        Scan::None(hold.unwrap_or(self.at))
    }

    /// The first match, when nothing that comes can change it.
    fn decided(&self) -> Option<Found> {
        let certain = self
            .runs
            .iter()
            .enumerate()
            .filter(|(_, run)| run.threads.list.is_empty());
        let (which, run, found) = certain
            .filter_map(|(which, run)| Some((which, run, run.found.as_ref()?)))
            .map(|(which, run, found)| {
                let end = run.pattern.end(&found.2, found.1);
                (which, run, (found.0, end, &found.2))
            })
            .min_by_key(|(which, _, (start, end, _))| (*start, std::cmp::Reverse(end - start), *which))?;
        let _ = run;
        let (start, end, places) = found;
        let may_be_first = |run: &Run| run.threads.list.first().is_some_and(|thread| thread.start <= start);
        if self.runs.iter().any(may_be_first) {
            return None;
        }
        Some(Found {
            which,
            start,
            end,
            places: places.clone(),
        })
    }
}

impl Run {
    /// A match may begin here.
    fn seed(&mut self, at: usize, at_end: bool, not_empty_at: Option<usize>) {
        let thread = Thread {
            state: self.pattern.nfa.start_anchored(),
            start: at,
            places: vec![usize::MAX; self.pattern.num_places].into_boxed_slice(),
        };
        if let Some(found) = add(&self.pattern, &mut self.threads, thread, at, at_end, not_empty_at) {
            self.found = Some(found);
        }
    }

    /// Takes one byte; `at` is its place.
    fn step(&mut self, byte: u8, at: usize, longest: usize, not_empty_at: Option<usize>) {
        if self.threads.list.is_empty() {
            self.threads.clear();
            return;
        }
        self.next.clear();
        for thread in self.threads.list.drain(..) {
            if at + 1 - thread.start > longest {
                continue;
            }
            let to = match self.pattern.nfa.state(thread.state) {
                State::ByteRange { trans } => trans.matches_byte(byte).then_some(trans.next),
                State::Sparse(sparse) => sparse.matches_byte(byte),
                State::Dense(dense) => dense.matches_byte(byte),
                // It asked for the end of the text.
                _ => None,
            };
            let Some(state) = to else { continue };
            let thread = Thread { state, ..thread };
            if let Some(found) = add(&self.pattern, &mut self.next, thread, at + 1, false, not_empty_at) {
                self.found = Some(found);
                break;
            }
        }
        self.threads.list.clear();
        std::mem::swap(&mut self.threads, &mut self.next);
    }

    /// The text is over: only what asked for its end can still match.
    fn end(&mut self, at: usize, not_empty_at: Option<usize>) {
        self.next.clear();
        for thread in self.threads.list.drain(..) {
            if !matches!(self.pattern.nfa.state(thread.state), State::Look { .. }) {
                continue;
            }
            if let Some(found) = add(&self.pattern, &mut self.next, thread, at, true, not_empty_at) {
                self.found = Some(found);
                break;
            }
        }
        self.threads.clear();
    }
}

/// Adds a thread and what follows it without a byte, in order of preference; the match, if it comes to one: threads
/// that would come after it are left out.
fn add(
    pattern: &Pattern,
    threads: &mut Threads,
    thread: Thread,
    at: usize,
    at_end: bool,
    not_empty_at: Option<usize>,
) -> Option<(usize, usize, Vec<usize>)> {
    let mut todo = vec![thread];
    while let Some(mut thread) = todo.pop() {
        let seen = &mut threads.seen[thread.state.as_usize()];
        if *seen == threads.generation {
            continue;
        }
        *seen = threads.generation;
        match pattern.nfa.state(thread.state) {
            State::ByteRange { .. } | State::Sparse(_) | State::Dense(_) => threads.list.push(thread),
            State::Look { look, next } => {
                if is_start(*look) {
                    if at == 0 {
                        todo.push(Thread { state: *next, ..thread });
                    }
                } else if at_end {
                    todo.push(Thread { state: *next, ..thread });
                } else {
                    threads.list.push(thread);
                }
            }
            State::Union { alternates } => {
                for &state in alternates.iter().rev() {
                    todo.push(Thread {
                        state,
                        ..thread.clone()
                    });
                }
            }
            State::BinaryUnion { alt1, alt2 } => {
                todo.push(Thread {
                    state: *alt2,
                    ..thread.clone()
                });
                todo.push(Thread { state: *alt1, ..thread });
            }
            State::Capture { next, slot, .. } => {
                if let Some(place) = pattern.slots.get(slot.as_usize()).copied().flatten() {
                    thread.places[place] = at;
                }
                todo.push(Thread { state: *next, ..thread });
            }
            State::Fail => {}
            State::Match { .. } => {
                let end = pattern.end(&thread.places, at);
                if not_empty_at == Some(thread.start) && end == thread.start {
                    continue;
                }
                return Some((thread.start, at, thread.places.into_vec()));
            }
        }
    }
    None
}
