//! Events of the prefix cache: what the scheduler kept of a step goes to a listener that the caller brings. Never waits
//! for it.

use std::fmt::Debug;

pub use halyard_scheduler::{KvBlockHash, KvEvent, KvMedium, KvStored};

/// Takes the changes of the prefix cache.
pub trait KvEventSink: Debug + Send + Sync {
    /// The changes of a step in their order, at least one. The engine's thread calls it after each step that changed
    /// something, and before it sleeps: it must return at once, and lose events rather than wait.
    fn publish(&self, events: Vec<KvEvent>);
}
