//! What a stream has brought and Python has not taken yet: a sample's chunks become one.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use halyard_engine::{FinishReason, OutputChunk, TokenLogprobs};

use crate::waker::Bell;

/// A sample's part since the last call of [`Inbox::take`].
#[derive(Debug, Default)]
pub struct Part {
    /// Text.
    pub text: String,
    /// Token ids.
    pub token_ids: Vec<u32>,
    /// One entry a token when asked.
    pub logprobs: Vec<TokenLogprobs>,
    /// Set with the sample's last part.
    pub finish: Option<FinishReason>,
    /// There is something to take.
    is_new: bool,
}

/// Everything since the last call of [`Inbox::take`].
#[derive(Debug, Default)]
pub struct Taken {
    /// Parts by sample index, those with something new.
    pub parts: Vec<(u32, Part)>,
    /// Log-probabilities of the prompt, once.
    pub prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    /// Prompt tokens taken from the prefix cache.
    pub num_cached_tokens: u32,
    /// Nothing follows.
    pub finished: bool,
}

#[derive(Debug)]
struct State {
    parts: Vec<Part>,
    prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    num_cached_tokens: u32,
    finished: bool,
    /// The bell was rung and nothing was taken since.
    rung: bool,
}

/// Filled by a task of the runtime, emptied by Python.
#[derive(Debug)]
pub struct Inbox {
    number: u64,
    state: Mutex<State>,
    ended: Condvar,
    bell: Option<Arc<Bell>>,
}

impl Inbox {
    /// For a request of `num_samples`, which `bell` knows by `number`.
    pub fn new(number: u64, num_samples: u32, bell: Option<Arc<Bell>>) -> Inbox {
        let state = State {
            parts: (0..num_samples).map(|_| Part::default()).collect(),
            prompt_logprobs: None,
            num_cached_tokens: 0,
            finished: false,
            rung: false,
        };
        Inbox {
            number,
            state: Mutex::new(state),
            ended: Condvar::new(),
            bell,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a chunk.
    pub fn push(&self, chunk: OutputChunk) {
        let mut state = self.lock();
        state.num_cached_tokens = state.num_cached_tokens.max(chunk.num_cached_tokens);
        if chunk.prompt_logprobs.is_some() {
            state.prompt_logprobs = chunk.prompt_logprobs;
        }
        if let Some(part) = state.parts.get_mut(chunk.index as usize) {
            part.text.push_str(&chunk.text);
            part.token_ids.extend(chunk.token_ids);
            part.logprobs.extend(chunk.logprobs.into_iter().flatten());
            part.finish = chunk.finish.or(part.finish.take());
            part.is_new = true;
        }
        self.ring(&mut state);
    }

    /// The last chunk was pushed.
    pub fn end(&self) {
        let mut state = self.lock();
        state.finished = true;
        self.ring(&mut state);
        self.ended.notify_all();
    }

    fn ring(&self, state: &mut State) {
        if let Some(bell) = self.bell.as_ref().filter(|_| !state.rung) {
            state.rung = true;
            bell.ring(self.number);
        }
    }

    /// What came since the last call.
    pub fn take(&self) -> Taken {
        let mut state = self.lock();
        state.rung = false;
        let new = state.parts.iter_mut().enumerate().filter(|(_, part)| part.is_new);
        let parts = new.map(|(index, part)| (index as u32, std::mem::take(part))).collect();
        Taken {
            parts,
            prompt_logprobs: state.prompt_logprobs.take(),
            num_cached_tokens: state.num_cached_tokens,
            finished: state.finished,
        }
    }

    /// Waits for the end, at most `limit`; whether it has come.
    pub fn wait(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let mut state = self.lock();
        while !state.finished {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.ended.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}
