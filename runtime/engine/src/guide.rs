//! Token guides: code that says, after each token of a sequence, which tokens may come next (a grammar, a schema).
//! Guides run on threads of their own beside the device, so that a slow one holds up its own sequence only.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use halyard_scheduler::RequestId;

use crate::error::EngineError;

/// Threads that run guides, at most.
const MAX_THREADS: usize = 4;

/// Says which tokens of one sequence may come next.
pub trait TokenGuide: Send {
    /// Takes the tokens that came since the last call, and writes which tokens may come next: bit v mod 32 of word v/32
    /// is set where token v may. `mask` has ⌈V/32⌉ words, all 0. An end-of-sequence token that is to end the sequence
    /// must be allowed like any other.
    ///
    /// # Errors
    /// Why the sequence cannot go on; it ends with this reason.
    fn next_mask(&mut self, tokens: &[u32], mask: &mut [u32]) -> Result<(), String>;
}

/// Makes a guide for each sample of a request.
#[derive(Clone)]
pub struct GuideFactory(Arc<dyn Fn() -> Box<dyn TokenGuide> + Send + Sync>);

impl GuideFactory {
    /// Guides made by `make`, which is called once a sample.
    pub fn new(make: impl Fn() -> Box<dyn TokenGuide> + Send + Sync + 'static) -> GuideFactory {
        GuideFactory(Arc::new(make))
    }

    pub(crate) fn make(&self) -> Box<dyn TokenGuide> {
        (self.0)()
    }
}

impl fmt::Debug for GuideFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GuideFactory")
    }
}

/// Which tokens may come next.
pub(crate) type Mask = Arc<[u32]>;

/// A sequence's guide, as the engine's thread has it.
#[derive(Default)]
pub(crate) struct SequenceGuide {
    /// Away while it works.
    guide: Option<Box<dyn TokenGuide>>,
    /// For the next token, once it is there.
    mask: Option<Mask>,
}

impl SequenceGuide {
    pub(crate) fn new(guide: Box<dyn TokenGuide>) -> SequenceGuide {
        SequenceGuide {
            guide: Some(guide),
            mask: None,
        }
    }

    /// The mask of the next token.
    pub(crate) fn mask(&self) -> Option<&Mask> {
        self.mask.as_ref()
    }

    /// Its guide has answered.
    pub(crate) fn take(&mut self, answer: (Box<dyn TokenGuide>, Mask)) {
        (self.guide, self.mask) = (Some(answer.0), Some(answer.1));
    }

    /// Asks for the mask behind `tokens`. A guide that is away was not asked for the token before: there is none to
    /// come.
    pub(crate) fn ask(&mut self, workers: &GuideWorkers, id: RequestId, tokens: Vec<u32>) {
        self.mask = None;
        if let Some(guide) = self.guide.take() {
            workers.ask(Question { id, guide, tokens });
        }
    }
}

struct Question {
    id: RequestId,
    guide: Box<dyn TokenGuide>,
    tokens: Vec<u32>,
}

/// What a guide said.
pub(crate) struct GuideAnswer {
    pub id: RequestId,
    pub result: Result<(Box<dyn TokenGuide>, Mask), String>,
}

/// The threads that run guides. They end when this is dropped, each after the guide that it runs.
pub(crate) struct GuideWorkers {
    questions: Sender<Question>,
    answers: Receiver<GuideAnswer>,
}

impl GuideWorkers {
    /// Starts threads for masks of a vocabulary of `vocab` tokens.
    ///
    /// # Errors
    /// A thread that does not start.
    pub(crate) fn start(vocab: u32) -> Result<GuideWorkers, EngineError> {
        let (questions, asked) = channel::<Question>();
        let (answer, answers) = channel();
        let asked = Arc::new(Mutex::new(asked));
        let threads = std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(MAX_THREADS);
        for _ in 0..threads {
            let (asked, answer) = (Arc::clone(&asked), answer.clone());
            let work = move || {
                loop {
                    let next = asked.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(question) = next else { return };
                    // Nobody listens any more: the engine ends.
                    if answer.send(question.answer(vocab)).is_err() {
                        return;
                    }
                }
            };
            std::thread::Builder::new()
                .name("halyard-guide".into())
                .spawn(work)
                .map_err(|error| EngineError::Thread(error.to_string()))?;
        }
        Ok(GuideWorkers { questions, answers })
    }

    fn ask(&self, question: Question) {
        // Fails only when every thread has gone; the sequence then waits for its deadline.
        let _ = self.questions.send(question);
    }

    /// The next answer, waited for at most this long.
    pub(crate) fn answer(&self, wait: Duration) -> Option<GuideAnswer> {
        self.answers.recv_timeout(wait).ok()
    }
}

impl Question {
    fn answer(mut self, vocab: u32) -> GuideAnswer {
        let mut mask = vec![0; vocab.div_ceil(32) as usize];
        let (guide, tokens) = (&mut self.guide, &self.tokens);
        let answered = catch_unwind(AssertUnwindSafe(|| guide.next_mask(tokens, &mut mask)));
        let result = match answered {
            Ok(Ok(())) => Ok((self.guide, mask.into())),
            Ok(Err(reason)) => Err(reason),
            Err(_) => Err("the guide of the request's tokens panicked".to_string()),
        };
        GuideAnswer { id: self.id, result }
    }
}
