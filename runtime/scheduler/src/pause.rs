//! Pausing: plans without new requests, or no plans at all, until it is over; and forgetting the prefix cache where
//! nothing owns a block.

use crate::output::PauseState;
use crate::scheduler::Scheduler;

impl Scheduler {
    /// What the next plans may hold. Steps in flight are not touched.
    pub fn set_pause_state(&mut self, state: PauseState) {
        self.pause = state;
    }

    /// What plans may hold now.
    pub fn pause_state(&self) -> PauseState {
        self.pause
    }

    /// Whether nothing will be planned before the pause is over, whatever is added.
    pub fn is_held(&self) -> bool {
        match self.pause {
            PauseState::Unpaused => false,
            PauseState::PausedNew => self.running.is_empty(),
            PauseState::PausedAll => true,
        }
    }

    /// Sends every request with a row back to the waiting queue. What they generated stays known; their tokens are
    /// computed again. Blocks that steps in flight name return when the last of these was updated.
    pub fn preempt_all(&mut self) {
        while let Some(last) = self.running.pop() {
            self.preempt(last);
        }
    }

    /// [`Scheduler::reset_prefix_cache`], but only if no block has an owner. False: a request, a step in flight or a
    /// hold uses some; then nothing is forgotten.
    pub fn reset_unused_prefix_cache(&mut self) -> bool {
        let is_unused = self.kv.pool.num_free() == self.kv.pool.total();
        if is_unused {
            self.reset_prefix_cache();
        }
        is_unused
    }
}
