//! The engine's handle as its operator has it: pausing, going on, forgetting the prefix cache.

use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use crate::command::Command;
use crate::handle::EngineHandle;
use crate::pause::{Answer, PauseMode, Reply};

impl EngineHandle {
    /// Pauses generation until [`EngineHandle::resume`]. The answer comes when no step is in flight any more; with
    /// [`PauseMode::Wait`], when what ran has ended. With `clear_cache` the prefix cache is empty then, and what
    /// [`PauseMode::Keep`] stopped computes all its tokens again. A second pause changes the first one's mode.
    pub fn pause(&self, mode: PauseMode, clear_cache: bool) -> Reply<()> {
        self.ask(|answer| Command::Pause {
            mode,
            clear_cache,
            answer,
        })
    }

    /// Ends a pause. Without one, nothing happens.
    pub fn resume(&self) -> Reply<()> {
        self.ask(Command::Resume)
    }

    /// Whether a pause holds, from the moment at which the engine's thread begins it.
    pub fn is_paused(&self) -> bool {
        self.control().1.paused.load(Ordering::Relaxed)
    }

    /// Forgets all cached prefixes. False: requests that run use blocks, and nothing was forgotten. With
    /// `reset_running_requests` they lose their blocks first and compute all their tokens again.
    pub fn reset_prefix_cache(&self, reset_running_requests: bool) -> Reply<bool> {
        self.ask(|answer| Command::ResetPrefixCache {
            reset_running_requests,
            answer,
        })
    }

    fn ask<T>(&self, command: impl FnOnce(Answer<T>) -> Command) -> Reply<T> {
        let (commands, shared) = self.control();
        let (sender, answer) = oneshot::channel();
        // Where the thread is gone, the sender is too, and the reply says so.
        let _ = commands.send(command(sender));
        Reply::new(answer, shared)
    }
}
