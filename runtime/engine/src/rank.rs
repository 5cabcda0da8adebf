//! Ranks of tensor parallelism: every device but the first has a thread that submits the same steps as the engine's own thread.
//!
//! Rank 0 is the engine: it plans, sends each step to the others, and alone reads results. The others keep copies of what a step
//! needs to know of its sequences. All ranks sample the same ids from the same logits, so device rows stay equal. A rank that
//! fails says so here, which ends the engine; leaving its communicator makes the other ranks' collectives fail too.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use halyard_platform_api::Status;
use halyard_scheduler::{RequestId, SchedulerOutput};

use crate::error::EngineError;
use crate::runner::{InFlight, Runner};
use crate::sequence::{Sequence, Sequences};

/// How often a rank with work in flight looks whether that work failed, when no step comes.
const LOOK: Duration = Duration::from_millis(50);
/// Longest time that a rank may leave a step untaken, or a vote open.
const PATIENCE: Duration = Duration::from_secs(60);

/// Who hears of a failure.
type Listener = Box<dyn Fn(&str) + Send + Sync>;

/// What the ranks of an engine share: failures, and votes.
pub(crate) struct RankGroup {
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
    pub(crate) fn new(size: u32) -> Arc<RankGroup> {
        Arc::new(RankGroup {
            size,
            has_failed: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
            listener: OnceLock::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, GroupState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who hears of the first failure, besides the engine's thread.
    pub(crate) fn listen(&self, listener: impl Fn(&str) + Send + Sync + 'static) {
        let _ = self.listener.set(Box::new(listener));
    }

    /// A rank has failed, with this error. One that only followed from another rank's failure is not noted.
    pub(crate) fn fail(&self, rank: u32, error: &EngineError) {
        let follows = match error {
            EngineError::Device(error) => error.status == Status::Timeout,
            EngineError::Ranks(_) => true,
            _ => false,
        };
        if !(follows && self.has_failed()) {
            self.note(rank, &error.to_string());
        }
    }

    fn note(&self, rank: u32, error: &str) {
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

    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// What failed, all ranks' words.
    pub(crate) fn failure(&self) -> Option<String> {
        let state = self.lock();
        let words = |(rank, error): &(u32, String)| format!("rank {rank} of {}: {error}", self.size);
        let all: Vec<String> = state.failures.iter().map(words).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    fn failed(&self) -> EngineError {
        EngineError::Ranks(self.failure().unwrap_or_else(|| "a rank failed".to_string()))
    }

    /// Whether all ranks are for something; each rank asks the same questions in the same order. Blocks until all have answered.
    ///
    /// # Errors
    /// A rank that failed or does not answer.
    pub(crate) fn agree(&self, is_for: bool) -> Result<bool, EngineError> {
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
                return Err(EngineError::Ranks(message));
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(state.carried)
    }
}

/// A step for a rank: the plan, and how the sequences it knows have changed since the last one.
struct RankStep {
    plan: Arc<SchedulerOutput>,
    admitted: Vec<(RequestId, Sequence)>,
    ended: Arc<[RequestId]>,
}

struct Follower {
    rank: u32,
    steps: Option<SyncSender<RankStep>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// The ranks beside the engine's own. Dropping it ends and joins their threads.
pub(crate) struct Ranks {
    group: Arc<RankGroup>,
    followers: Vec<Follower>,
    /// Sequences that ended since the last step.
    ended: Vec<RequestId>,
}

impl Ranks {
    /// Starts a thread for each of the runners, ranks 1 and up of `group`.
    ///
    /// # Errors
    /// A thread that does not start.
    pub(crate) fn start(runners: Vec<Runner>, group: Arc<RankGroup>, max_in_flight: u32) -> Result<Ranks, EngineError> {
        let mut ranks = Ranks {
            group,
            followers: Vec::new(),
            ended: Vec::new(),
        };
        for (runner, rank) in runners.into_iter().zip(1..) {
            // A step is complete on rank 0 only when this rank has taken it, so more are never under way.
            let (steps, receiver) = sync_channel(max_in_flight as usize + 1);
            let group = ranks.group.clone();
            let thread = std::thread::Builder::new()
                .name(format!("halyard-rank-{rank}"))
                .spawn(move || follow(rank, runner, &receiver, &group))
                .map_err(|e| EngineError::Thread(e.to_string()))?;
            ranks.followers.push(Follower {
                rank,
                steps: Some(steps),
                thread: Some(thread),
            });
        }
        Ok(ranks)
    }

    pub(crate) fn group(&self) -> &RankGroup {
        &self.group
    }

    /// A sequence is gone: the ranks forget it with the next step.
    pub(crate) fn end(&mut self, id: RequestId) {
        self.ended.push(id);
    }

    /// Hands a step to every rank. Before rank 0 submits it, which may block until all ranks have.
    ///
    /// # Errors
    /// A rank that failed or takes no steps.
    pub(crate) fn submit(&mut self, plan: &SchedulerOutput, sequences: &Sequences) -> Result<(), EngineError> {
        let plan = Arc::new(plan.clone());
        let ended: Arc<[RequestId]> = self.ended.drain(..).collect();
        for follower in &self.followers {
            let admitted = plan.admitted.iter();
            let admitted = admitted.filter_map(|a| Some((a.id, sequences.get(&a.id)?.replica())));
            let step = RankStep {
                plan: plan.clone(),
                admitted: admitted.collect(),
                ended: ended.clone(),
            };
            self.send(follower, step)?;
        }
        Ok(())
    }

    fn send(&self, follower: &Follower, mut step: RankStep) -> Result<(), EngineError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let Some(steps) = &follower.steps else {
                return Err(self.group.failed());
            };
            match steps.try_send(step) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(_)) => return Err(self.group.failed()),
                Err(TrySendError::Full(_)) if self.group.has_failed() => return Err(self.group.failed()),
                Err(TrySendError::Full(_)) if Instant::now() >= deadline => {
                    let (rank, size) = (follower.rank, self.group.size);
                    let message = format!("rank {rank} of {size} has taken no step for {PATIENCE:?}");
                    return Err(EngineError::Ranks(message));
                }
                Err(TrySendError::Full(back)) => {
                    step = back;
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        }
    }
}

impl Ranks {
    /// Tells the others when this thread, rank 0's, unwinds.
    pub(crate) fn panic_guard(&self) -> PanicGuard {
        PanicGuard(0, self.group.clone())
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for follower in &mut self.followers {
            follower.steps = None;
        }
        for follower in &mut self.followers {
            if let Some(thread) = follower.thread.take()
                && thread.join().is_err()
            {
                tracing::error!("the thread of rank {} panicked", follower.rank);
            }
        }
    }
}

/// Tells the group when a rank's thread ends by a panic.
pub(crate) struct PanicGuard(u32, Arc<RankGroup>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.1.note(self.0, "its thread panicked; see the log");
        }
    }
}

/// A rank's thread: until the engine ends or something fails.
fn follow(rank: u32, mut runner: Runner, steps: &Receiver<RankStep>, group: &Arc<RankGroup>) {
    let _guard = PanicGuard(rank, group.clone());
    if let Err(error) = run_steps(&mut runner, steps, group) {
        tracing::error!("rank {rank} failed: {error}");
        // Before the runner goes, and its communicator with it: the others' collectives fail in consequence.
        group.fail(rank, &error);
    }
}

fn run_steps(runner: &mut Runner, steps: &Receiver<RankStep>, group: &RankGroup) -> Result<(), EngineError> {
    let mut sequences = Sequences::default();
    let mut in_flight: VecDeque<InFlight> = VecDeque::new();
    loop {
        while in_flight.front().is_some_and(|flight| runner.is_done(flight)) {
            if let Some(flight) = in_flight.pop_front() {
                runner.check_done(&flight)?;
                runner.recycle(flight);
            }
        }
        let next = if in_flight.is_empty() {
            steps.recv().map_err(RecvTimeoutError::from)
        } else {
            steps.recv_timeout(LOOK)
        };
        if group.has_failed() {
            return Ok(());
        }
        match next {
            Ok(step) => {
                for id in &*step.ended {
                    sequences.remove(id);
                }
                sequences.extend(step.admitted);
                in_flight.push_back(runner.submit(&step.plan, &sequences)?);
            }
            // Nobody waits here, so a device that failed must be asked.
            Err(RecvTimeoutError::Timeout) => {
                if let Some(flight) = in_flight.front() {
                    runner.check_alive(flight)?;
                }
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
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
            group.fail(2, &EngineError::Thread("out of luck".to_string()));
            let words = voter.join().expect("no panic");
            assert!(words.contains("rank 2 of 3: engine thread: out of luck"), "{words}");
        });
        group.fail(0, &EngineError::Ranks("a vote ended".to_string()));
        group.fail(1, &EngineError::Thread("bad luck".to_string()));
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
