//! A request's output in Python. Dropping it cancels the request.

use std::sync::Arc;
use std::time::Duration;

use halyard_engine::{EngineHandle, FinishReason, Logprob, OutputStream, TokenLogprobs};
use halyard_text::Tokenizer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tokio::task::AbortHandle;

use crate::inbox::{Inbox, Part};
use crate::process::{self, Here};

/// A token's id, log-probability, rank and text.
type TokenScore = (u32, f32, u32, String);
/// Of one position: the token there, then the likeliest ones.
type PositionScores = Vec<TokenScore>;
/// A sample's index, new text, new token ids, their scores when asked, OpenAI's finish reason, and what stopped it: a
/// token id, a string, or the words of an error.
type PartOfSample = (
    u32,
    String,
    Vec<u32>,
    Option<Vec<PositionScores>>,
    Option<&'static str>,
    Option<StopReason>,
);
/// Parts; scores of the prompt when asked, once; prompt tokens from the prefix cache; whether this was the last.
type TakenParts = (Vec<PartOfSample>, Option<Vec<Option<PositionScores>>>, u32, bool);

/// vLLM's `stop_reason`.
#[derive(IntoPyObject)]
pub enum StopReason {
    /// A token of `stop_token_ids`.
    Token(u32),
    /// A stop string, or the words of an error.
    Text(String),
}

/// The output of one request.
#[pyclass(frozen, module = "halyard._halyard")]
pub struct Stream {
    number: u64,
    owner: u32,
    engine: Here<EngineHandle>,
    inbox: Arc<Inbox>,
    task: AbortHandle,
    scored: bool,
}

impl Stream {
    /// Reads `output` in a task of `runtime`, so that its text is made there.
    pub fn start(
        runtime: &tokio::runtime::Handle,
        owner: u32,
        engine: EngineHandle,
        mut output: OutputStream,
        (number, scored): (u64, bool),
        inbox: Arc<Inbox>,
    ) -> Stream {
        let filled = Arc::clone(&inbox);
        let task = runtime.spawn(async move {
            // Also when the task is aborted or panics: nobody waits for a reader that is gone.
            let _end = EndOnDrop(Arc::clone(&filled));
            while let Some(chunk) = output.next().await {
                filled.push(chunk);
            }
        });
        Stream {
            number,
            owner,
            engine: Here::new(owner, engine),
            inbox,
            task: task.abort_handle(),
            scored,
        }
    }
}

fn token_score(tokenizer: &Tokenizer, scored: &Logprob, rank: u32) -> TokenScore {
    // A token that is a part of a character has no text of its own.
    let text = tokenizer.decode(&[scored.token], false);
    (scored.token, scored.logprob, rank, text.unwrap_or_default())
}

fn scores(tokenizer: &Tokenizer, position: &TokenLogprobs) -> PositionScores {
    let top = position.top.iter().zip(1..);
    std::iter::once((&position.chosen, position.rank))
        .chain(top)
        .map(|(scored, rank)| token_score(tokenizer, scored, rank))
        .collect()
}

fn part_of_sample(tokenizer: &Tokenizer, scored: bool, index: u32, part: Part) -> PartOfSample {
    let (reason, stop) = match part.finish {
        None => (None, None),
        Some(finish) => (Some(finish.as_openai()), stop_reason(finish)),
    };
    let positions = part.logprobs.iter().map(|position| scores(tokenizer, position));
    let scores = scored.then(|| positions.collect());
    (index, part.text, part.token_ids, scores, reason, stop)
}

fn stop_reason(finish: FinishReason) -> Option<StopReason> {
    match finish {
        FinishReason::Eos | FinishReason::Length | FinishReason::Paused => None,
        FinishReason::StopToken(id) => Some(StopReason::Token(id)),
        FinishReason::StopString(text)
        | FinishReason::Abort(text)
        | FinishReason::Error(text)
        | FinishReason::NotFinite(text)
        | FinishReason::NoTokenAllowed(text) => Some(StopReason::Text(text)),
    }
}

struct EndOnDrop(Arc<Inbox>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[pymethods]
impl Stream {
    /// Its number at the waker.
    #[getter]
    fn number(&self) -> u64 {
        self.number
    }

    /// Waits for the end without the interpreter's lock, at most `seconds`; whether it has come.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        process::check(self.owner)?;
        let limit = Duration::try_from_secs_f64(seconds)
            .ok()
            .filter(|limit| limit.as_secs() <= 3600)
            .ok_or_else(|| PyValueError::new_err(format!("seconds is {seconds}; it must be between 0 and 3600")))?;
        Ok(py.detach(|| self.inbox.wait(limit)))
    }

    /// What came since the last call.
    fn take(&self, py: Python<'_>) -> PyResult<TakenParts> {
        let tokenizer = self.engine.of()?.tokenizer();
        Ok(py.detach(|| {
            let taken = self.inbox.take();
            let parts = taken.parts.into_iter();
            let parts = parts.map(|(index, part)| part_of_sample(tokenizer, self.scored, index, part));
            let prompt = taken.prompt_logprobs.map(|positions| {
                let positions = positions.iter();
                positions
                    .map(|position| position.as_ref().map(|p| scores(tokenizer, p)))
                    .collect()
            });
            (parts.collect(), prompt, taken.num_cached_tokens, taken.finished)
        }))
    }

    /// Cancels the request.
    fn abort(&self) {
        if process::is_here(self.owner) {
            self.task.abort();
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.abort();
    }
}
