//! What handles ask of the engine's thread to pause it, and its answers.

use std::sync::Arc;

use thiserror::Error;
use tokio::sync::oneshot;

use crate::shared::Shared;

/// What becomes of the requests that are there when a pause begins. Those that come later wait for its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseMode {
    /// They end as they are, with [`crate::FinishReason::Paused`].
    Abort,
    /// Those that run go on to their ends, which the pause waits for; the others wait for its end.
    Wait,
    /// They stop where they are and go on after the pause.
    Keep,
}

/// Why a pause did not come about, or nothing could be asked.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ControlError {
    /// [`crate::EngineHandle::resume`] came before the requests that it waited for had ended.
    #[error("the pause was ended by a resume before it was complete; ask for it again")]
    Resumed,
    /// Blocks are in use that no request owns.
    #[error("the pause holds, but the prefix cache is as it was: some of its blocks are in use from outside")]
    CacheInUse,
    /// The engine has ended.
    #[error("the engine has stopped: {reason}")]
    Dead {
        /// Why.
        reason: String,
    },
}

/// The answer of the engine's thread, once it is there. It does what was asked also when this is dropped.
pub struct Reply<T> {
    answer: oneshot::Receiver<Result<T, ControlError>>,
    shared: Arc<Shared>,
}

/// Where an answer goes.
pub(crate) type Answer<T> = oneshot::Sender<Result<T, ControlError>>;

impl<T> Reply<T> {
    /// Of the thread that `answer`'s sender is given to.
    pub(crate) fn new(answer: oneshot::Receiver<Result<T, ControlError>>, shared: &Arc<Shared>) -> Reply<T> {
        Reply {
            answer,
            shared: Arc::clone(shared),
        }
    }

    /// Waits for it.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn wait(self) -> Result<T, ControlError> {
        let Reply { answer, shared } = self;
        answer.await.unwrap_or_else(|_| Err(dead(&shared)))
    }

    /// The same, blocking the thread. Not for async code.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn blocking_wait(self) -> Result<T, ControlError> {
        let Reply { answer, shared } = self;
        answer.blocking_recv().unwrap_or_else(|_| Err(dead(&shared)))
    }
}

fn dead(shared: &Shared) -> ControlError {
    let reason = shared.stopped();
    ControlError::Dead {
        reason: reason.unwrap_or_else(|| "the engine thread is gone".to_owned()),
    }
}
