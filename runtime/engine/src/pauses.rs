//! Pauses and resets of the prefix cache on the engine's thread: what was asked, when it is done, and the answers. The
//! scheduler keeps the state; nothing here touches the device.

use std::sync::atomic::Ordering;

use halyard_scheduler::{PauseState, RequestId};

use crate::live::Live;
use crate::output::FinishReason;
use crate::pause::{Answer, ControlError, PauseMode};

/// What was asked of the engine's thread and is not answered yet.
#[derive(Default)]
pub(crate) struct Pauses {
    /// Pauses that are not complete: whether they clear the cache, and who waits.
    pending: Vec<(bool, Answer<()>)>,
    /// Resets: whether requests that run lose their blocks, and who waits.
    resets: Vec<(bool, Answer<bool>)>,
}

impl Pauses {
    pub(crate) fn begin(&mut self, live: &mut Live, mode: PauseMode, clear_cache: bool, answer: Answer<()>) {
        hold(live, mode);
        tracing::info!(?mode, clear_cache, "generation is paused");
        self.pending.push((clear_cache, answer));
    }

    /// Ends the pause, and gives up those that are not complete.
    pub(crate) fn end(&mut self, live: &mut Live) {
        live.scheduler.set_pause_state(PauseState::Unpaused);
        if live.shared.paused.swap(false, Ordering::Relaxed) {
            tracing::info!("generation goes on");
        }
        for (_, pending) in self.pending.drain(..) {
            let _ = pending.send(Err(ControlError::Resumed));
        }
    }

    pub(crate) fn reset(&mut self, reset_running_requests: bool, answer: Answer<bool>) {
        self.resets.push((reset_running_requests, answer));
    }

    /// Whether [`Pauses::settle`] has something to do, once no step is in flight.
    pub(crate) fn is_due(&self, live: &Live) -> bool {
        !self.resets.is_empty() || (!self.pending.is_empty() && live.scheduler.is_held())
    }

    /// Does what was asked and answers. No step is in flight.
    pub(crate) fn settle(&mut self, live: &mut Live) {
        for (reset_running_requests, answer) in self.resets.drain(..) {
            let _ = answer.send(Ok(reset_cache(live, reset_running_requests)));
        }
        if !live.scheduler.is_held() {
            return;
        }
        for (clear_cache, answer) in self.pending.drain(..) {
            let done = match !clear_cache || reset_cache(live, true) {
                true => Ok(()),
                false => Err(ControlError::CacheInUse),
            };
            // Whoever asks for the counters now gets those of the pause.
            live.publish();
            let _ = answer.send(done);
        }
    }
}

/// Begins a pause: what plans may hold from now on, and what ends.
pub(crate) fn hold(live: &mut Live, mode: PauseMode) {
    let state = match mode {
        PauseMode::Keep => PauseState::PausedAll,
        PauseMode::Abort | PauseMode::Wait => PauseState::PausedNew,
    };
    live.scheduler.set_pause_state(state);
    live.shared.paused.store(true, Ordering::Relaxed);
    if mode == PauseMode::Abort {
        let ids: Vec<RequestId> = live.sequences.keys().copied().collect();
        for id in ids {
            live.scheduler.abort(id);
            live.end(id, FinishReason::Paused);
        }
    }
}

/// Forgets the prefix cache, if no block is in use.
pub(crate) fn reset_cache(live: &mut Live, reset_running_requests: bool) -> bool {
    if reset_running_requests {
        live.scheduler.preempt_all();
    }
    let was_reset = live.scheduler.reset_unused_prefix_cache();
    match was_reset {
        true => tracing::info!("the prefix cache was reset"),
        false => tracing::warn!("the prefix cache was not reset: some of its blocks are in use"),
    }
    live.publish();
    was_reset
}
