//! Token masks and biases of guided sequences: requested after each token, and awaited while the device computes the
//! forward pass.

use std::time::{Duration, Instant};

use halyard_runner::Flight;
use halyard_scheduler::RequestId;

use crate::config::GuideConfig;
use crate::error::EngineError;
use crate::guide::Changes;
use crate::guide_workers::GuideWorkers;
use crate::output::FinishReason;
use crate::sequence::{Sequence, Sequences};

/// Longest wait for masks where no row of a step can go on without.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often it is looked whether the device has done the first half of a step.
const LOOK: Duration = Duration::from_micros(50);

/// The threads that run guides, once a request has one.
pub(crate) struct Masks {
    config: GuideConfig,
    workers: Option<GuideWorkers>,
}

/// What a step's device half says while its masks are waited for.
pub(crate) struct FirstHalf<'a> {
    pub flight: &'a Flight,
    /// The device has done it.
    pub is_done: &'a dyn Fn() -> bool,
    /// It will never be done: waiting for the step's results gives the reason.
    pub is_lost: &'a dyn Fn() -> bool,
}

impl Masks {
    pub(crate) fn new(config: GuideConfig) -> Masks {
        Masks { config, workers: None }
    }

    /// Asks a new sequence's guide for its first mask.
    ///
    /// # Errors
    /// A thread that does not start; too many that are stuck.
    pub(crate) fn ask_first(&mut self, id: RequestId, sequence: &mut Sequence, vocab: u32) -> Result<(), EngineError> {
        if sequence.guide.is_some() {
            match &mut self.workers {
                Some(workers) => workers.admit()?,
                None => self.workers = Some(GuideWorkers::start(self.config, vocab)?),
            }
        }
        self.ask(id, sequence, &[]);
        Ok(())
    }

    /// Asks a sequence's guide, where it has one, for the mask behind `tokens`.
    pub(crate) fn ask(&self, id: RequestId, sequence: &mut Sequence, tokens: &[u32]) {
        if let (Some(guide), Some(workers)) = (&mut sequence.guide, &self.workers) {
            guide.ask(workers, id, tokens.to_vec());
        }
    }

    /// Waits for a step's masks while the device works on its first half; longer only where no row could go on without.
    /// Gives the sequences whose guides have failed or take too long, with the end that they must have: they have no
    /// guide any more.
    pub(crate) fn wait(&mut self, half: &FirstHalf<'_>, sequences: &mut Sequences) -> Vec<(RequestId, FinishReason)> {
        let mut failed = Vec::new();
        let patience = Instant::now() + PATIENCE;
        let mut wait = Duration::ZERO;
        loop {
            while let Some(answer) = self.workers.as_ref().and_then(|workers| workers.answer(wait)) {
                wait = Duration::ZERO;
                let Some(sequence) = sequences.get_mut(&answer.id) else {
                    continue;
                };
                match (answer.result, &mut sequence.guide) {
                    (Ok(answered), Some(guide)) => guide.take(answered),
                    (Ok(_), None) => {}
                    (Err(reason), _) => {
                        let guide = sequence.guide.take();
                        let finish = match guide.is_some_and(|guide| guide.watch().is_of_request()) {
                            true => FinishReason::NoTokenAllowed(reason),
                            false => FinishReason::Error(reason),
                        };
                        failed.push((answer.id, finish));
                    }
                }
            }
            let is_missing = |id: RequestId| {
                let guide = sequences.get(&id).and_then(|sequence| sequence.guide.as_ref());
                guide.is_some_and(|guide| guide.changes().is_none())
            };
            let waits = half.flight.masked().any(is_missing);
            let goes_on = (half.is_done)() && (half.flight.has_unmasked() || Instant::now() >= patience);
            if !waits || goes_on || (half.is_lost)() {
                self.give_up_late(sequences, &mut failed);
                return failed;
            }
            wait = LOOK;
        }
    }

    /// Takes their guides from sequences that wait longer than they may, or for a thread where none is left.
    fn give_up_late(&mut self, sequences: &mut Sequences, failed: &mut Vec<(RequestId, FinishReason)>) {
        let Some(workers) = &mut self.workers else { return };
        for id in workers.give_up_late() {
            if let Some(guide) = sequences.get_mut(&id).and_then(|sequence| sequence.guide.take()) {
                let reason = guide.watch().give_up(workers.limit(guide.watch()));
                failed.push((id, FinishReason::Error(reason)));
            }
        }
        if workers.are_all_stuck() {
            for (&id, sequence) in sequences.iter_mut() {
                if sequence.guide.take_if(|guide| guide.is_away()).is_some() {
                    failed.push((id, FinishReason::Error(workers.all_stuck())));
                }
            }
        }
    }

    /// The changes of a step's rows that are there, in the order of [`Flight::masked`].
    pub(crate) fn of(flight: &Flight, sequences: &Sequences) -> Vec<Option<Changes>> {
        let changes_of = |id: RequestId| sequences.get(&id)?.guide.as_ref()?.changes().cloned();
        flight.masked().map(changes_of).collect()
    }
}
