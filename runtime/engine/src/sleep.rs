//! Sleep: how deep it is, which state an engine is in, and what a wake brings back.

use std::sync::atomic::{AtomicU8, Ordering};

/// How much of a sleeping model stays at hand (vLLM's levels).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SleepLevel {
    /// Level 1: its files stay mapped, and the wake brings the same weights back, from the host's page cache as far as
    /// that holds them.
    One,
    /// Level 2: nothing stays. The wake opens the model's folder and loads what is there then.
    Two,
}

/// Where an engine's weights are, with vLLM's names for its gauge `vllm:engine_sleep_state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SleepState {
    /// On the device.
    #[default]
    Awake,
    /// Asleep at level 1.
    WeightsOffloaded,
    /// Asleep at level 2, or without a model since a load failed.
    DiscardAll,
}

impl SleepState {
    /// All states.
    pub const ALL: [SleepState; 3] = [SleepState::Awake, SleepState::WeightsOffloaded, SleepState::DiscardAll];

    /// vLLM's name.
    pub fn name(self) -> &'static str {
        match self {
            SleepState::Awake => "awake",
            SleepState::WeightsOffloaded => "weights_offloaded",
            SleepState::DiscardAll => "discard_all",
        }
    }
}

impl From<SleepLevel> for SleepState {
    fn from(level: SleepLevel) -> SleepState {
        match level {
            SleepLevel::One => SleepState::WeightsOffloaded,
            SleepLevel::Two => SleepState::DiscardAll,
        }
    }
}

/// What a wake brings back (vLLM's tags `weights` and `kv_cache`). Requests go on when both are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakeTags {
    /// The weights, with the memory of steps.
    pub weights: bool,
    /// The KV cache.
    pub kv_cache: bool,
}

impl WakeTags {
    /// Everything.
    pub const ALL: WakeTags = WakeTags {
        weights: true,
        kv_cache: true,
    };
}

/// A [`SleepState`] that the engine's thread sets and others read.
#[derive(Debug, Default)]
pub(crate) struct SharedSleepState(AtomicU8);

impl SharedSleepState {
    pub(crate) fn set(&self, state: SleepState) {
        self.0.store(state as u8, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> SleepState {
        let state = self.0.load(Ordering::Relaxed);
        let found = SleepState::ALL.into_iter().find(|known| *known as u8 == state);
        found.unwrap_or_default()
    }
}
