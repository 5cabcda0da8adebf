//! What changed in the prefix cache, for listeners outside: which full blocks can be found now, and which no longer. It
//! is kept only where [`crate::SchedulerConfig::enable_kv_cache_events`] says so. It must never change a plan.
//!
//! A block has a second name here, which holds beyond this process: a SHA-256 of its tokens and of all before them.
//! The prefix cache's own hash is keyed with a random number and would not do.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::config::{KvGroup, KvKind};
use crate::ids::BlockId;

/// The name of a block's content, equal on every server for equal content under equal settings.
///
/// The block's SHA-256 covers the 32 bytes of the block before it and then its token ids, 4 little-endian bytes each.
/// In front of the first block stands the SHA-256 of: the text `halyard-kv-1`, the block size (4 little-endian bytes),
/// and of the adapter's name and then the cache salt each a byte 0 (none), or a byte 1, its length in bytes (8
/// little-endian bytes) and its bytes.
pub type KvBlockHash = [u8; 32];

/// Where a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KvMedium {
    /// The device's memory: vLLM's `GPU`, on every platform.
    Device,
    /// Host memory, the second tier: vLLM's `CPU`.
    Host,
}

/// A change of the prefix cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvEvent {
    /// Blocks can be found from now on.
    Stored(KvStored),
    /// A block can no longer be found.
    Removed {
        /// KV group, an index into [`crate::SchedulerConfig::groups`].
        group: u32,
        /// The block.
        hash: KvBlockHash,
        /// Where it was; it may still be found elsewhere.
        medium: KvMedium,
    },
    /// Nothing can be found any more, wherever it was.
    Cleared,
}

/// Blocks that follow each other in a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvStored {
    /// Where they are.
    pub medium: KvMedium,
    /// KV group, an index into [`crate::SchedulerConfig::groups`].
    pub group: u32,
    /// The blocks, at least one.
    pub hashes: Vec<KvBlockHash>,
    /// The block in front of them; `None`: they begin a sequence, or lie in host memory, where only the name is known.
    pub parent: Option<KvBlockHash>,
    /// Their token ids, `[hashes.len() * block_size]`; empty of blocks in host memory.
    pub tokens: Vec<u32>,
    /// Tokens of a block.
    pub block_size: u32,
    /// Tokens that a query of the group sees; `None`: all.
    pub window: Option<u32>,
    /// The LoRA adapter: its number and its name.
    pub lora: Option<(u32, Arc<str>)>,
    /// The request's cache salt.
    pub salt: Option<Arc<[u8]>>,
}

/// The changes since the last look, and the names of the blocks that can be found.
#[derive(Debug)]
pub(crate) struct KvEventLog {
    pending: Vec<KvEvent>,
    /// Of each block that can be found; others hold what they had.
    names: Vec<KvBlockHash>,
}

impl KvEventLog {
    pub(crate) fn new(num_blocks: u32) -> Self {
        Self {
            pending: Vec::new(),
            names: vec![[0; 32]; num_blocks as usize],
        }
    }

    /// The name of a block that can be found.
    pub(crate) fn name(&self, block: BlockId) -> KvBlockHash {
        self.names[block.0 as usize]
    }

    pub(crate) fn set_name(&mut self, block: BlockId, name: KvBlockHash) {
        self.names[block.0 as usize] = name;
    }

    pub(crate) fn stored(&mut self, stored: KvStored) {
        self.pending.push(KvEvent::Stored(stored));
    }

    pub(crate) fn removed(&mut self, group: u32, block: BlockId) {
        self.removed_name(group, self.name(block), KvMedium::Device);
    }

    /// A block's content is in host memory, too.
    pub(crate) fn stored_in_host(&mut self, group: u32, spec: &KvGroup, hash: KvBlockHash) {
        self.stored(KvStored {
            medium: KvMedium::Host,
            group,
            hashes: vec![hash],
            parent: None,
            tokens: Vec::new(),
            block_size: spec.block_size,
            window: window_of(spec),
            lora: None,
            salt: None,
        });
    }

    pub(crate) fn removed_name(&mut self, group: u32, hash: KvBlockHash, medium: KvMedium) {
        self.pending.push(KvEvent::Removed { group, hash, medium });
    }

    pub(crate) fn cleared(&mut self) {
        self.pending.push(KvEvent::Cleared);
    }

    pub(crate) fn take(&mut self) -> Vec<KvEvent> {
        std::mem::take(&mut self.pending)
    }
}

/// Tokens that a query of the group sees; `None`: all.
pub(crate) fn window_of(spec: &KvGroup) -> Option<u32> {
    match spec.kind {
        KvKind::Full => None,
        KvKind::Window { tokens } => Some(tokens),
    }
}

/// What stands in front of a sequence's first block.
pub(crate) fn root(block_size: u32, lora: Option<&str>, salt: Option<&[u8]>) -> KvBlockHash {
    let mut hasher = Sha256::new_with_prefix(b"halyard-kv-1");
    hasher.update(block_size.to_le_bytes());
    for key in [lora.map(str::as_bytes), salt] {
        hasher.update([u8::from(key.is_some())]);
        if let Some(key) = key {
            hasher.update((key.len() as u64).to_le_bytes());
            hasher.update(key);
        }
    }
    hasher.finalize().into()
}

/// The name of a full block behind `parent`.
pub(crate) fn child(parent: &KvBlockHash, tokens: &[u32]) -> KvBlockHash {
    let mut hasher = Sha256::new_with_prefix(parent);
    for token in tokens {
        hasher.update(token.to_le_bytes());
    }
    hasher.finalize().into()
}
