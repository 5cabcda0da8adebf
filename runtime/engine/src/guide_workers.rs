//! The threads that run guides. A guide is foreign code, and a call of it cannot be stopped. A call that takes too long
//! is given up: its thread is stuck until the call returns. Another thread takes its place, up to a bound.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use halyard_grammar::mask_threads;
use halyard_scheduler::RequestId;

use crate::config::GuideConfig;
use crate::error::EngineError;
use crate::guide::{self, Changes, GuideWatch, LogitChanges, TokenGuide};

/// A sequence's guide, as the engine's thread has it.
pub(crate) struct SequenceGuide {
    /// Away while it works.
    guide: Option<Box<dyn TokenGuide>>,
    watch: Arc<dyn GuideWatch>,
    /// For the next token, once it is there.
    changes: Option<Changes>,
}

impl SequenceGuide {
    pub(crate) fn new(guide: Box<dyn TokenGuide>) -> SequenceGuide {
        SequenceGuide {
            watch: guide.watch(),
            guide: Some(guide),
            changes: None,
        }
    }

    /// A mask was asked for and is not there.
    pub(crate) fn is_away(&self) -> bool {
        self.guide.is_none()
    }

    /// The changes of the next token.
    pub(crate) fn changes(&self) -> Option<&Changes> {
        self.changes.as_ref()
    }

    /// What is asked about it.
    pub(crate) fn watch(&self) -> &dyn GuideWatch {
        &*self.watch
    }

    /// Its guide has answered.
    pub(crate) fn take(&mut self, answer: (Box<dyn TokenGuide>, Changes)) {
        (self.guide, self.changes) = (Some(answer.0), Some(answer.1));
    }

    /// Asks for the mask behind `tokens`. A guide that is away was not asked for the token before: there is none to
    /// come.
    pub(crate) fn ask(&mut self, workers: &GuideWorkers, id: RequestId, tokens: Vec<u32>) {
        self.changes = None;
        if let Some(guide) = self.guide.take() {
            let limit = workers.limit(&*self.watch);
            workers.ask(Question {
                id,
                guide,
                tokens,
                limit,
            });
        }
    }
}

/// Changes that a guide is asked for.
struct Question {
    id: RequestId,
    guide: Box<dyn TokenGuide>,
    tokens: Vec<u32>,
    limit: Duration,
}

/// The answer of a guide.
pub(crate) struct GuideAnswer {
    pub id: RequestId,
    pub result: Result<(Box<dyn TokenGuide>, Changes), String>,
}

/// The state of a thread.
enum Call {
    /// It waits for a question.
    Idle,
    /// It is in the guide of this sequence since then, and may be so long.
    Running(RequestId, Instant, Duration),
    /// Its call was given up. The thread ends when the call returns.
    GivenUp,
}

/// A thread's call, shared by the thread and the engine's.
struct Worker(Arc<Mutex<Call>>);

impl Worker {
    fn call(&self) -> MutexGuard<'_, Call> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stuck(&self) -> bool {
        matches!(*self.call(), Call::GivenUp)
    }

    /// The thread has let go of its half.
    fn has_ended(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// The thread: one guide's mask after another.
    fn run(&self, asked: &Mutex<Receiver<Question>>, answer: &Sender<GuideAnswer>, vocab: u32) {
        loop {
            let next = asked.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(question) = next else { return };
            *self.call() = Call::Running(question.id, Instant::now(), question.limit);
            let answered = question.answer(vocab);
            let mut call = self.call();
            if matches!(*call, Call::GivenUp) {
                return;
            }
            *call = Call::Idle;
            // The receiver is gone: the engine ends.
            if answer.send(answered).is_err() {
                return;
            }
        }
    }
}

/// The threads that run guides. They end when this is dropped, each after the guide that it runs.
pub(crate) struct GuideWorkers {
    config: GuideConfig,
    vocab: u32,
    workers: Vec<Worker>,
    questions: Sender<Question>,
    asked: Arc<Mutex<Receiver<Question>>>,
    answer: Sender<GuideAnswer>,
    answers: Receiver<GuideAnswer>,
}

impl GuideWorkers {
    /// Starts threads for masks of a vocabulary of `vocab` tokens.
    ///
    /// # Errors
    /// A thread that does not start.
    pub(crate) fn start(config: GuideConfig, vocab: u32) -> Result<GuideWorkers, EngineError> {
        let (questions, asked) = channel();
        let (answer, answers) = channel();
        let mut workers = GuideWorkers {
            config,
            vocab,
            workers: Vec::new(),
            questions,
            asked: Arc::new(Mutex::new(asked)),
            answer,
            answers,
        };
        workers.replace()?;
        Ok(workers)
    }

    /// Whether a new guide is taken: not while as many threads are stuck as may be.
    ///
    /// # Errors
    /// The number of stuck threads; a thread that does not start.
    pub(crate) fn admit(&mut self) -> Result<(), EngineError> {
        self.replace()?;
        let stuck = self.num_stuck();
        match stuck < self.config.max_stuck_threads as usize {
            true => Ok(()),
            false => Err(EngineError::GuidesStuck { stuck }),
        }
    }

    fn ask(&self, question: Question) {
        // Cannot fail: this holds the receiver too.
        let _ = self.questions.send(question);
    }

    /// The next answer, waited for at most this long.
    pub(crate) fn answer(&self, wait: Duration) -> Option<GuideAnswer> {
        self.answers.recv_timeout(wait).ok()
    }

    /// Gives up calls that take too long, and replaces their threads. Gives the sequences of those calls.
    pub(crate) fn give_up_late(&mut self) -> Vec<RequestId> {
        let late = self.workers.iter().filter_map(|worker| {
            let mut call = worker.call();
            match *call {
                Call::Running(id, since, limit) if since.elapsed() >= limit => {
                    *call = Call::GivenUp;
                    Some(id)
                }
                _ => None,
            }
        });
        let late: Vec<RequestId> = late.collect();
        if late.is_empty() {
            return late;
        }
        let (stuck, most) = (self.num_stuck(), self.config.max_stuck_threads);
        tracing::warn!(
            late = late.len(),
            stuck,
            most,
            "calls of token guides took too long and were given up"
        );
        if let Err(error) = self.replace() {
            tracing::error!("{error}");
        }
        late
    }

    /// The longest call of a guide.
    pub(crate) fn limit(&self, watch: &dyn GuideWatch) -> Duration {
        watch.limit().unwrap_or(self.config.max_mask_time)
    }

    /// No thread is left, as all are stuck: what was asked will not be answered.
    pub(crate) fn are_all_stuck(&self) -> bool {
        self.workers.iter().all(Worker::is_stuck)
    }

    /// Why a sequence ends whose guide no thread can run.
    pub(crate) fn all_stuck(&self) -> String {
        let stuck = self.num_stuck();
        EngineError::GuidesStuck { stuck }.to_string()
    }

    fn num_stuck(&self) -> usize {
        self.workers.iter().filter(|worker| worker.is_stuck()).count()
    }

    /// Starts threads until there are enough that are not stuck, while fewer are stuck than may be.
    fn replace(&mut self) -> Result<(), EngineError> {
        self.workers.retain(|worker| !worker.has_ended());
        let stuck = self.num_stuck();
        if stuck >= self.config.max_stuck_threads as usize {
            return Ok(());
        }
        while self.workers.len() - stuck < mask_threads() {
            let call = Arc::new(Mutex::new(Call::Idle));
            let (worker, own) = (Worker(Arc::clone(&call)), Worker(call));
            let (asked, answer, vocab) = (Arc::clone(&self.asked), self.answer.clone(), self.vocab);
            std::thread::Builder::new()
                .name("halyard-guide".into())
                .spawn(move || own.run(&asked, &answer, vocab))
                .map_err(|error| EngineError::Thread(error.to_string()))?;
            self.workers.push(worker);
        }
        Ok(())
    }
}

impl Question {
    fn answer(mut self, vocab: u32) -> GuideAnswer {
        let mut changes = LogitChanges::none(vocab);
        let (guide, tokens) = (&mut self.guide, &self.tokens);
        let answered = catch_unwind(AssertUnwindSafe(|| guide.next(tokens, &mut changes)));
        let result = match answered {
            Ok(Ok(())) => guide::check(&changes, vocab).map(|()| (self.guide, Arc::new(changes))),
            Ok(Err(reason)) => Err(reason),
            Err(_) => Err("the guide of the request's tokens panicked".to_string()),
        };
        GuideAnswer { id: self.id, result }
    }
}
