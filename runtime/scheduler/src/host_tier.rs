//! The second tier of the prefix cache: blocks in host memory, filled with what the device's pool takes away, in order
//! of last use. It decides which block of host memory holds what, and which copies the next step makes. It must never
//! give a block of host memory a new content in the plan that reads or writes it.

use crate::block_pool::BlockPool;
use crate::config::KvGroup;
use crate::error::IntegrityError;
use crate::ids::{BlockId, HostBlockId};
use crate::kv_events::{KvBlockHash, KvEventLog, KvMedium};
use crate::output::HostCopy;
use crate::prefix_cache::{CacheKey, PrefixCache};

/// Blocks of host memory, what they hold, and the copies of the plan in the making.
#[derive(Debug)]
pub(crate) struct HostTier {
    /// Nobody owns a block for longer than a call: its free list is the order of last use.
    pool: BlockPool,
    cache: PrefixCache,
    /// The plan that last named each block. Blocks of the current plan are at the free list's end.
    named_in: Vec<u64>,
    plan: u64,
    /// Names of what the blocks hold, where somebody listens to events.
    names: Vec<KvBlockHash>,
    /// Device to host, before the copies of `loads`.
    pub(crate) stores: Vec<HostCopy>,
    /// Host to device.
    pub(crate) loads: Vec<HostCopy>,
    pub(crate) num_stored: u64,
    pub(crate) num_loaded: u64,
    pub(crate) num_evicted: u64,
}

impl HostTier {
    /// An empty tier of `num_blocks` blocks.
    pub(crate) fn new(num_blocks: u32, has_events: bool) -> Self {
        Self {
            pool: BlockPool::new(num_blocks),
            cache: PrefixCache::new(num_blocks),
            named_in: vec![0; num_blocks as usize],
            plan: 1,
            names: vec![[0; 32]; if has_events { num_blocks as usize } else { 0 }],
            stores: Vec::new(),
            loads: Vec::new(),
            num_stored: 0,
            num_loaded: 0,
            num_evicted: 0,
        }
    }

    pub(crate) fn total(&self) -> u32 {
        self.pool.total()
    }

    /// Blocks that hold something.
    pub(crate) fn len(&self) -> usize {
        self.cache.len()
    }

    pub(crate) fn find(&self, key: CacheKey) -> Option<HostBlockId> {
        self.cache.find(key).map(|block| HostBlockId(block.0))
    }

    /// Keeps the content of a device block that is about to get another one. Content that is here already, or for which
    /// this plan leaves no block, is not copied.
    pub(crate) fn store(&mut self, key: CacheKey, block: BlockId, events: Option<(&mut KvEventLog, &KvGroup)>) {
        if let Some(held) = self.find(key) {
            self.touch(held);
            return;
        }
        let next = self.pool.next_free();
        if next.is_none_or(|next| self.named_in[next.0 as usize] == self.plan) {
            return;
        }
        let Some((slot, forgotten)) = self.pool.take() else {
            return;
        };
        let index = slot.0 as usize;
        if let Some(forgotten) = forgotten {
            self.cache.remove(forgotten);
            self.num_evicted += 1;
        }
        if let Some((events, spec)) = events {
            if let Some(forgotten) = forgotten {
                events.removed_name(forgotten.group, self.names[index], KvMedium::Host);
            }
            self.names[index] = events.name(block);
            events.stored_in_host(key.group, spec, self.names[index]);
        }
        self.cache.insert(key, slot);
        self.pool.set_cache_key(slot, Some(key));
        self.pool.release(slot);
        self.named_in[index] = self.plan;
        self.num_stored += 1;
        self.stores.push(HostCopy {
            block,
            host: HostBlockId(slot.0),
        });
    }

    /// Marks a block as used by this plan: it keeps its content until the plan is done, and is forgotten last.
    pub(crate) fn touch(&mut self, host: HostBlockId) {
        let slot = BlockId(host.0);
        self.pool.add_ref(slot);
        self.pool.release(slot);
        self.named_in[host.0 as usize] = self.plan;
    }

    /// Copies a block that was touched in this plan into a device block.
    pub(crate) fn load(&mut self, host: HostBlockId, block: BlockId) {
        debug_assert_eq!(self.named_in[host.0 as usize], self.plan);
        self.num_loaded += 1;
        self.loads.push(HostCopy { block, host });
    }

    /// Makes a content unfindable.
    pub(crate) fn forget(&mut self, key: CacheKey, events: Option<&mut KvEventLog>) {
        let Some(slot) = self.cache.find(key) else { return };
        self.cache.remove(key);
        // In front of the free list, as it holds nothing now.
        self.pool.add_ref(slot);
        self.pool.set_cache_key(slot, None);
        self.pool.release(slot);
        if let Some(events) = events {
            events.removed_name(key.group, self.names[slot.0 as usize], KvMedium::Host);
        }
    }

    /// Forgets everything; returns how many blocks held something. The caller tells listeners.
    pub(crate) fn clear(&mut self) -> usize {
        let forgotten = self.cache.len();
        self.cache.clear(|block| self.pool.set_cache_key(block, None));
        forgotten
    }

    /// Ends a plan: its copies go to `stores` and `loads`, and its blocks may get other contents.
    pub(crate) fn end_plan(&mut self, stores: &mut Vec<HostCopy>, loads: &mut Vec<HostCopy>) {
        self.plan += 1;
        stores.append(&mut self.stores);
        loads.append(&mut self.loads);
    }

    /// Checks the order of use and the index.
    pub(crate) fn check(&self) -> Result<(), IntegrityError> {
        self.pool.check(&vec![0; self.pool.total() as usize])?;
        let entries = self.cache.len();
        let all = (0..self.pool.total()).map(BlockId);
        let named: Vec<_> = all
            .filter_map(|block| Some((block, self.pool.cache_key(block)?)))
            .collect();
        let blocks = named.len();
        let found = |(block, key): &(BlockId, CacheKey)| self.cache.find(*key) == Some(*block);
        match entries == blocks && named.iter().all(found) && self.stores.is_empty() && self.loads.is_empty() {
            true => Ok(()),
            false => Err(IntegrityError::HostTier { entries, blocks }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(hash: u128) -> CacheKey {
        CacheKey { group: 0, hash }
    }

    fn stored(tier: &mut HostTier, hash: u128, block: u32) -> Option<u32> {
        let before = tier.stores.len();
        tier.store(key(hash), BlockId(block), None);
        tier.stores.get(before).map(|copy| copy.host.0)
    }

    fn end_plan(tier: &mut HostTier) {
        tier.end_plan(&mut Vec::new(), &mut Vec::new());
        tier.check().expect("sound");
    }

    #[test]
    fn the_least_recently_used_content_goes_first() {
        let mut tier = HostTier::new(2, false);
        let (one, two) = (stored(&mut tier, 1, 7), stored(&mut tier, 2, 8));
        assert!(one.is_some() && two.is_some() && one != two);
        end_plan(&mut tier);
        tier.touch(tier.find(key(1)).expect("kept"));
        end_plan(&mut tier);
        assert_eq!(stored(&mut tier, 3, 9), two, "it was not used since");
        assert_eq!((tier.find(key(2)), tier.num_evicted), (None, 1));
        assert!(tier.find(key(1)).is_some());
    }

    #[test]
    fn what_a_plan_reads_or_writes_keeps_its_content_until_its_end() {
        let mut tier = HostTier::new(2, false);
        stored(&mut tier, 1, 7);
        end_plan(&mut tier);
        let host = tier.find(key(1)).expect("kept");
        tier.touch(host);
        tier.load(host, BlockId(3));
        assert!(stored(&mut tier, 2, 8).is_some());
        assert_eq!(stored(&mut tier, 3, 9), None, "one is read, the other written");
        let (mut stores, mut loads) = (Vec::new(), Vec::new());
        tier.end_plan(&mut stores, &mut loads);
        assert_eq!((stores.len(), loads.len()), (1, 1));
        assert_eq!(stored(&mut tier, 3, 9), Some(host.0));
    }

    #[test]
    fn content_that_is_held_is_not_copied_again() {
        let mut tier = HostTier::new(2, false);
        stored(&mut tier, 1, 7);
        end_plan(&mut tier);
        assert_eq!(stored(&mut tier, 1, 4), None);
        assert_eq!(tier.num_stored, 1);
    }

    #[test]
    fn forgotten_content_leaves_its_block_for_the_next_one() {
        let mut tier = HostTier::new(2, false);
        let one = stored(&mut tier, 1, 7);
        stored(&mut tier, 2, 8);
        end_plan(&mut tier);
        tier.touch(tier.find(key(1)).expect("kept"));
        end_plan(&mut tier);
        tier.forget(key(1), None);
        assert_eq!(tier.find(key(1)), None);
        assert_eq!(stored(&mut tier, 3, 9), one);
        assert_eq!((tier.num_evicted, tier.len()), (0, 2));
        end_plan(&mut tier);
        assert_eq!((tier.clear(), tier.len()), (2, 0));
    }
}
