//! A request's block table in one KV group, as the scheduler keeps it. `kv_groups` decides what it holds.

use crate::ids::BlockId;
use crate::kv_events::KvBlockHash;

/// One request's blocks in one group: entries `first..first + blocks.len()` of its device table.
#[derive(Debug, Clone, Default)]
pub(crate) struct BlockTable {
    /// First entry that is still owned; above 0 only behind a window.
    pub(crate) first: u32,
    pub(crate) blocks: Vec<BlockId>,
    /// First entry that was not offered to the prefix cache.
    pub(crate) num_published: u32,
    /// Where events are kept, the name of the block in front of `num_published`; `None` at the sequence's beginning.
    pub(crate) published: Option<KvBlockHash>,
}

impl BlockTable {
    pub(crate) fn end(&self) -> u32 {
        self.first + self.blocks.len() as u32
    }
}
