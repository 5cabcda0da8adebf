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
    /// [`crate::EngineConfig::sleep_mode`] is off.
    #[error("this engine was not started for sleeping; start it with --enable-sleep-mode")]
    SleepModeOff,
    /// A resume of an engine that sleeps.
    #[error("the engine sleeps; wake it up instead of resuming it")]
    Asleep,
    /// The KV cache alone cannot come back.
    #[error("the weights are not on the device; wake up the tag weights first, or both")]
    WeightsFirst,
    /// Loading failed. The engine sleeps on.
    #[error("waking up failed, and the engine sleeps on: {reason}; when that is mended, wake it up again")]
    WakeFailed {
        /// The fault.
        reason: String,
    },
    /// The folder's files cannot be read.
    #[error("weights of {path} were not loaded, and nothing changed: {reason}")]
    CannotOpen {
        /// The folder.
        path: String,
        /// The fault.
        reason: String,
    },
    /// The folder holds another model.
    #[error("weights of {path} cannot take the place of those that are served, and nothing changed: {what}")]
    OtherModel {
        /// The folder.
        path: String,
        /// What differs.
        what: String,
    },
    /// Loading other weights failed after the present ones had left the device.
    #[error("the other weights were not loaded: {reason}; {}", former_weights(.lost.as_deref()))]
    ReloadFailed {
        /// The fault.
        reason: String,
        /// Why the former weights did not come back; `None`: they did.
        lost: Option<String>,
    },
    /// The engine has ended.
    #[error("the engine has stopped: {reason}")]
    Dead {
        /// Why.
        reason: String,
    },
}

fn former_weights(lost: Option<&str>) -> String {
    match lost {
        None => "the former ones serve on".to_owned(),
        Some(why) => format!(
            "the former ones did not come back either ({why}), and the engine sleeps; when that is mended, wake it up"
        ),
    }
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

    /// One that is there already.
    pub(crate) fn refused(error: ControlError, shared: &Arc<Shared>) -> Reply<T> {
        let (sender, answer) = oneshot::channel();
        let _ = sender.send(Err(error));
        Reply::new(answer, shared)
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
