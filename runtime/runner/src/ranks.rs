//! Ranks of tensor parallelism: every device but the first has a thread that submits the same steps as the engine's own
//! thread.
//!
//! Rank 0 is the engine's: it plans, sends each step to the others, and alone reads results. All ranks sample the same
//! ids from the same logits, so device rows stay equal.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use halyard_scheduler::SchedulerOutput;

use crate::error::RunnerError;
use crate::flight::Flight;
use crate::group::{PATIENCE, RankGroup};
use crate::row::{LogitChanges, RowSpec};
use crate::runner::{Runner, StepInput};

/// How often a rank with work in flight checks for its failure, when no step comes.
const LOOK: Duration = Duration::from_millis(50);

/// A message to a rank's thread.
#[derive(Clone)]
enum RankStep {
    /// A step: the parts of its [`StepInput`].
    Submit(Arc<SchedulerOutput>, Arc<[Arc<RowSpec>]>, Arc<[u32]>),
    /// The changes of logits of the step that was submitted last.
    Sample(Arc<[Option<Arc<LogitChanges>>]>),
}

struct Follower {
    rank: u32,
    steps: Option<SyncSender<RankStep>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// The ranks other than the engine's own. Dropping it ends and joins their threads.
pub struct Ranks {
    group: Arc<RankGroup>,
    followers: Vec<Follower>,
}

impl Ranks {
    /// Starts a thread for each of the runners, ranks 1 and up of `group`.
    ///
    /// # Errors
    /// A thread that does not start.
    pub fn start(runners: Vec<Runner>, group: Arc<RankGroup>, max_in_flight: u32) -> Result<Ranks, RunnerError> {
        let mut ranks = Ranks {
            group,
            followers: Vec::new(),
        };
        for (runner, rank) in runners.into_iter().zip(1..) {
            // A step is complete on rank 0 only when this rank has taken it, so more are never under way.
            let (steps, receiver) = sync_channel(max_in_flight as usize + 1);
            let group = ranks.group.clone();
            let thread = std::thread::Builder::new()
                .name(format!("halyard-rank-{rank}"))
                .spawn(move || follow(rank, runner, &receiver, &group))
                .map_err(|e| RunnerError::Thread(e.to_string()))?;
            ranks.followers.push(Follower {
                rank,
                steps: Some(steps),
                thread: Some(thread),
            });
        }
        Ok(ranks)
    }

    /// State that the ranks share.
    pub fn group(&self) -> &RankGroup {
        &self.group
    }

    /// Hands a step to every rank. Before rank 0 submits it, which may block until all ranks have.
    ///
    /// # Errors
    /// A rank that failed or takes no steps.
    pub fn submit(&self, input: StepInput<'_>) -> Result<(), RunnerError> {
        let plan = Arc::new(input.plan.clone());
        self.tell(&RankStep::Submit(plan, input.admitted.into(), input.drafts.into()))
    }

    /// Hands the changes of logits of the step that was submitted last to every rank. Before rank 0 samples it.
    ///
    /// # Errors
    /// As [`Ranks::submit`].
    pub fn sample(&self, changes: &[Option<Arc<LogitChanges>>]) -> Result<(), RunnerError> {
        self.tell(&RankStep::Sample(changes.into()))
    }

    fn tell(&self, step: &RankStep) -> Result<(), RunnerError> {
        self.followers
            .iter()
            .try_for_each(|follower| self.send(follower, step.clone()))
    }

    fn send(&self, follower: &Follower, mut step: RankStep) -> Result<(), RunnerError> {
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
                    let (rank, size) = (follower.rank, self.group.size());
                    let message = format!("rank {rank} of {size} has taken no step for {PATIENCE:?}");
                    return Err(RunnerError::Ranks(message));
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
    /// Notifies the other ranks when this thread, rank 0's, unwinds.
    pub fn panic_guard(&self) -> PanicGuard {
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

/// Notifies the group when a rank's thread ends by a panic.
pub struct PanicGuard(u32, Arc<RankGroup>);

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

fn run_steps(runner: &mut Runner, steps: &Receiver<RankStep>, group: &RankGroup) -> Result<(), RunnerError> {
    let mut in_flight: VecDeque<Flight> = VecDeque::new();
    loop {
        while in_flight
            .front()
            .is_some_and(|flight| !flight.is_unsampled() && runner.is_done(flight))
        {
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
            Ok(RankStep::Submit(plan, admitted, drafts)) => {
                let input = StepInput {
                    plan: &plan,
                    admitted: &admitted,
                    drafts: &drafts,
                };
                in_flight.push_back(runner.submit(input)?);
            }
            Ok(RankStep::Sample(changes)) => {
                if let Some(flight) = in_flight.back_mut() {
                    runner.sample(flight, &changes)?;
                }
            }
            // No call waits for the device here, so ask it whether it failed.
            Err(RecvTimeoutError::Timeout) => {
                if let Some(flight) = in_flight.front() {
                    runner.check_alive(flight)?;
                }
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}
