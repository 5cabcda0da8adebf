//! LoRA resolvers: hook plugins that tell where the adapter of a name is, when a request names a model that is not
//! served yet.
//!
//! The host asks off its own threads with a deadline, once for all requests that wait for the same name, and remembers
//! for a while that a name has no adapter. It loads the files itself; a resolver only makes them available in a folder
//! of this machine.

use std::path::PathBuf;
use std::sync::Arc;

use crate::status::Result;

/// A question.
#[derive(Clone, Copy, Debug)]
pub struct LoraQuery<'a> {
    /// The adapter's name, as the client sent it: anything may stand in it.
    pub name: &'a str,
    /// Name of the base model as it is served.
    pub base_model: &'a str,
    /// Milliseconds after which nobody waits for the answer.
    pub timeout_ms: u32,
}

/// Finds adapters. Any thread, several at once.
pub trait LoraResolver: Send + Sync {
    /// The adapter's folder, absolute, with its files in place; `None`: not one of this resolver's. May block.
    ///
    /// # Errors
    /// `InvalidArgument` or `Denied` for a name that is not allowed (the client's mistake); anything else says that the
    /// question could not be answered now. After either the next resolver is asked.
    fn resolve(&self, query: &LoraQuery<'_>) -> Result<Option<PathBuf>>;
}

/// Makes resolvers of one plugin.
pub trait LoraResolverFactory: Send + Sync {
    /// A resolver configured by `config`, a JSON object (`{}` when the operator gave none). May block.
    ///
    /// # Errors
    /// `InvalidArgument` naming the key.
    fn create(&self, config: &str) -> Result<Arc<dyn LoraResolver>>;
}
