//! The state that the ranks of tensor parallelism share: failures, and votes. A rank that fails records it here; when
//! it leaves its communicator, the other ranks' collectives fail too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use halyard_platform_api::Status;

use crate::error::RunnerError;

/// Longest time that a rank may leave a step untaken, or a vote open.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A callback for a failure.
type Listener = Box<dyn Fn(&str) + Send + Sync>;

/// State that the ranks of an engine share: failures, and votes.
pub struct RankGroup {
    size: u32,
    has_failed: AtomicBool,
    state: Mutex<GroupState>,
    changed: Condvar,
    listener: OnceLock<Listener>,
}

#[derive(Default)]
struct GroupState {
    /// By rank.
    failures: Vec<(u32, String)>,
    votes: u32,
    all_for: bool,
    rounds: u64,
    /// Result of the last complete vote.
    carried: bool,
}

impl RankGroup {
    /// A group of `size` ranks.
    pub fn new(size: u32) -> Arc<RankGroup> {
        Arc::new(RankGroup {
            size,
            has_failed: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
            listener: OnceLock::new(),
        })
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    fn lock(&self) -> MutexGuard<'_, GroupState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the callback for the first failure, which the engine's thread gets too.
    pub fn listen(&self, listener: impl Fn(&str) + Send + Sync + 'static) {
        let _ = self.listener.set(Box::new(listener));
    }

    /// A rank has failed, with this error. One that only followed from another rank's failure is not noted.
    pub fn fail(&self, rank: u32, error: &RunnerError) {
        let follows = match error {
            RunnerError::Device(error) => error.status == Status::Timeout,
            RunnerError::Ranks(_) => true,
            _ => false,
        };
        if !(follows && self.has_failed()) {
            self.note(rank, &error.to_string());
        }
    }

    /// A rank has failed, in words.
    pub fn note(&self, rank: u32, error: &str) {
        let mut state = self.lock();
        state.failures.push((rank, error.to_string()));
        state.failures.sort();
        drop(state);
        self.changed.notify_all();
        if !self.has_failed.swap(true, Ordering::AcqRel)
            && let (Some(listener), Some(failure)) = (self.listener.get(), self.failure())
        {
            listener(&failure);
        }
    }

    /// Whether a rank has failed.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// The failures of all ranks, in words.
    pub fn failure(&self) -> Option<String> {
        let state = self.lock();
        let words = |(rank, error): &(u32, String)| format!("rank {rank} of {}: {error}", self.size);
        let all: Vec<String> = state.failures.iter().map(words).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    pub(crate) fn failed(&self) -> RunnerError {
        RunnerError::Ranks(self.failure().unwrap_or_else(|| "a rank failed".to_string()))
    }

    /// Whether all ranks are for something; each rank asks the same questions in the same order. Blocks until all have
    /// answered.
    ///
    /// # Errors
    /// A rank that failed or does not answer.
    pub(crate) fn agree(&self, is_for: bool) -> Result<bool, RunnerError> {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.lock();
        state.all_for = is_for && (state.votes == 0 || state.all_for);
        state.votes += 1;
        if state.votes == self.size {
            (state.votes, state.carried) = (0, state.all_for);
            state.rounds += 1;
            self.changed.notify_all();
            return Ok(state.carried);
        }
        let round = state.rounds;
        while state.rounds == round {
            let left = deadline.saturating_duration_since(Instant::now());
            if !state.failures.is_empty() {
                drop(state);
                return Err(self.failed());
            }
            if left.is_zero() {
                let message = format!("{} of {} ranks answered within {PATIENCE:?}", state.votes, self.size);
                return Err(RunnerError::Ranks(message));
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(state.carried)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vote_carries_when_all_ranks_are_for_it() {
        let group = RankGroup::new(2);
        for (a, b) in [(true, true), (true, false), (false, true), (false, false), (true, true)] {
            std::thread::scope(|scope| {
                let other = scope.spawn(|| group.agree(b).expect("a result"));
                assert_eq!(group.agree(a).expect("a result"), a && b);
                assert_eq!(other.join().expect("no panic"), a && b);
            });
        }
    }

    #[test]
    fn a_failed_rank_ends_a_vote_and_is_heard_once() {
        let group = RankGroup::new(3);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let by = heard.clone();
        group.listen(move |words| by.lock().expect("no panic").push(words.to_string()));
        std::thread::scope(|scope| {
            let voter = scope.spawn(|| group.agree(true).expect_err("no result").to_string());
            group.fail(2, &RunnerError::Thread("out of luck".to_string()));
            let words = voter.join().expect("no panic");
            assert!(words.contains("rank 2 of 3: engine thread: out of luck"), "{words}");
        });
        group.fail(0, &RunnerError::Ranks("a vote ended".to_string()));
        group.fail(1, &RunnerError::Thread("bad luck".to_string()));
        assert_eq!(
            *heard.lock().expect("no panic"),
            ["rank 2 of 3: engine thread: out of luck"]
        );
        let all = group.failure().expect("words");
        assert_eq!(
            all,
            "rank 1 of 3: engine thread: bad luck; rank 2 of 3: engine thread: out of luck"
        );
    }
}
