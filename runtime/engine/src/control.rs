//! The engine's handle as its operator has it: pausing, going on, forgetting the prefix cache, sleeping, other weights.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use crate::command::Command;
use crate::handle::EngineHandle;
use crate::model_source::OpenedWeights;
use crate::pause::{Answer, ControlError, PauseMode, Reply};
use crate::sleep::{SleepLevel, SleepState, WakeTags};

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

    /// Pauses generation as `mode` says, with the prefix cache forgotten, and gives the device's memory back. The
    /// answer comes when it has left. Requests that come meanwhile, and those that [`PauseMode::Keep`] stopped, go on
    /// after [`EngineHandle::wake_up`]. An engine that sleeps already sleeps deeper where that is asked.
    pub fn sleep(&self, level: SleepLevel, mode: PauseMode) -> Reply<()> {
        match self.source().sleep_mode {
            true => self.ask(|answer| Command::Sleep { level, mode, answer }),
            false => Reply::refused(ControlError::SleepModeOff, self.control().1),
        }
    }

    /// Brings the model back, and with all of it goes on as [`EngineHandle::resume`] does. When it fails, the engine
    /// sleeps on. Of an engine that is awake a sleep that is not there yet is given up.
    pub fn wake_up(&self, tags: WakeTags) -> Reply<()> {
        self.ask(|answer| Command::Wake { tags, answer })
    }

    /// Where the weights are.
    pub fn sleep_state(&self) -> SleepState {
        self.control().1.sleep.read()
    }

    /// Loads the weights in `path`, of the same architecture and types, in place of the present ones. Requests that run
    /// stop for it and compute all their tokens again; the prefix cache is forgotten. Of an engine that sleeps, the
    /// wake loads them. Blocks. The former folder.
    ///
    /// # Errors
    /// [`ControlError::CannotOpen`] and [`ControlError::OtherModel`], after which nothing has changed;
    /// [`ControlError::ReloadFailed`].
    pub fn reload_weights(&self, path: &Path) -> Result<PathBuf, ControlError> {
        let opened = self.open_weights(path)?;
        self.load_weights(opened).blocking_wait()
    }

    /// The first half of [`EngineHandle::reload_weights`]: everything that can refuse a folder. Blocks for its files.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn open_weights(&self, path: &Path) -> Result<OpenedWeights, ControlError> {
        self.source().open(path)
    }

    /// The second half.
    pub(crate) fn load_weights(&self, opened: OpenedWeights) -> Reply<PathBuf> {
        let opened = Box::new(opened);
        self.ask(|answer| Command::Reload { opened, answer })
    }

    fn ask<T>(&self, command: impl FnOnce(Answer<T>) -> Command) -> Reply<T> {
        let (commands, shared) = self.control();
        let (sender, answer) = oneshot::channel();
        // Where the thread is gone, the sender is too, and the reply says so.
        let _ = commands.send(command(sender));
        Reply::new(answer, shared)
    }
}
