//! The one pool of KV blocks: reference counts and the free list in order of last use. It knows no request and no
//! token; it must never hand out a block that has a reference.

use crate::error::IntegrityError;
use crate::ids::BlockId;
use crate::prefix_cache::CacheKey;

/// Stands for "no block" in the free list's links.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone)]
struct Block {
    ref_count: u32,
    /// Set while the prefix cache can find the block, even when no request owns it.
    cache_key: Option<CacheKey>,
    prev: u32,
    next: u32,
}

/// All blocks. The free list runs from the next to be taken to the last: blocks with nothing to find first, then
/// cached ones, least recently used first.
#[derive(Debug)]
pub(crate) struct BlockPool {
    blocks: Vec<Block>,
    head: u32,
    tail: u32,
    num_free: u32,
    num_releases: u64,
}

impl BlockPool {
    pub(crate) fn new(num_blocks: u32) -> Self {
        let link = |index: u32| Block {
            ref_count: 0,
            cache_key: None,
            prev: index.checked_sub(1).unwrap_or(NONE),
            next: if index + 1 < num_blocks { index + 1 } else { NONE },
        };
        Self {
            blocks: (0..num_blocks).map(link).collect(),
            head: 0,
            tail: num_blocks - 1,
            num_free: num_blocks,
            num_releases: 0,
        }
    }

    pub(crate) fn total(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Blocks that can be taken: those without a reference, cached or not.
    pub(crate) fn num_free(&self) -> u32 {
        self.num_free
    }

    /// Grows whenever a block becomes free; equal values mean that nothing was freed in between.
    pub(crate) fn num_releases(&self) -> u64 {
        self.num_releases
    }

    pub(crate) fn ref_count(&self, id: BlockId) -> u32 {
        self.blocks[id.0 as usize].ref_count
    }

    /// The block that [`Self::take`] would give.
    pub(crate) fn next_free(&self) -> Option<BlockId> {
        (self.head != NONE).then_some(BlockId(self.head))
    }

    /// Takes the next free block with one reference. Its former content's cache key comes back, to be forgotten.
    pub(crate) fn take(&mut self) -> Option<(BlockId, Option<CacheKey>)> {
        if self.head == NONE {
            return None;
        }
        let id = BlockId(self.head);
        self.unlink(id.0);
        let block = &mut self.blocks[id.0 as usize];
        block.ref_count = 1;
        Some((id, block.cache_key.take()))
    }

    /// One more owner; a free (cached) block leaves the free list.
    pub(crate) fn add_ref(&mut self, id: BlockId) {
        if self.blocks[id.0 as usize].ref_count == 0 {
            self.unlink(id.0);
        }
        self.blocks[id.0 as usize].ref_count += 1;
    }

    /// One owner less; with the last one the block is free. A cached block goes to the list's end, so that it stays
    /// findable for long, any other to its front.
    pub(crate) fn release(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        debug_assert!(block.ref_count > 0, "{id:?} is released without an owner");
        block.ref_count -= 1;
        if block.ref_count == 0 {
            let cached = block.cache_key.is_some();
            self.link(id.0, cached);
            self.num_releases += 1;
        }
    }

    pub(crate) fn cache_key(&self, id: BlockId) -> Option<CacheKey> {
        self.blocks[id.0 as usize].cache_key
    }

    pub(crate) fn set_cache_key(&mut self, id: BlockId, key: Option<CacheKey>) {
        self.blocks[id.0 as usize].cache_key = key;
    }

    fn link(&mut self, index: u32, at_end: bool) {
        let (prev, next) = if at_end { (self.tail, NONE) } else { (NONE, self.head) };
        self.blocks[index as usize].prev = prev;
        self.blocks[index as usize].next = next;
        self.join(prev, index);
        self.join(index, next);
        self.num_free += 1;
    }

    fn unlink(&mut self, index: u32) {
        let Block { prev, next, .. } = self.blocks[index as usize];
        self.join(prev, next);
        self.num_free -= 1;
    }

    /// Makes `next` follow `prev`, where either may be an end of the list.
    fn join(&mut self, prev: u32, next: u32) {
        match prev {
            NONE => self.head = next,
            prev => self.blocks[prev as usize].next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => self.blocks[next as usize].prev = prev,
        }
    }

    /// Checks the free list and the reference counts; `owners[b]` is the number of owners found outside.
    pub(crate) fn check(&self, owners: &[u32]) -> Result<(), IntegrityError> {
        let total = self.total();
        let mut free = 0;
        let (mut at, mut prev) = (self.head, NONE);
        while at != NONE {
            let block = &self.blocks[at as usize];
            // More steps than blocks mean a loop.
            if block.ref_count != 0 || block.prev != prev || free >= total {
                return Err(IntegrityError::FreeList { block: BlockId(at) });
            }
            free += 1;
            (prev, at) = (at, block.next);
        }
        let used = self.blocks.iter().filter(|block| block.ref_count > 0).count() as u32;
        if free + used != total || free != self.num_free || prev != self.tail {
            return Err(IntegrityError::BlocksLost {
                free: self.num_free,
                used,
                total,
            });
        }
        for (index, (block, &owners)) in self.blocks.iter().zip(owners).enumerate() {
            if block.ref_count != owners {
                let block_id = BlockId(index as u32);
                return Err(IntegrityError::ReferenceCount {
                    block: block_id,
                    counted: block.ref_count,
                    owners,
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(pool: &mut BlockPool) -> u32 {
        pool.take().expect("a free block").0.0
    }

    #[test]
    fn takes_every_block_once_then_none() {
        let mut pool = BlockPool::new(3);
        assert_eq!([take(&mut pool), take(&mut pool), take(&mut pool)], [0, 1, 2]);
        assert!(pool.take().is_none());
        assert_eq!(pool.check(&[1, 1, 1]), Ok(()));
    }

    #[test]
    fn reuses_uncached_blocks_first_and_cached_ones_by_last_use() {
        let mut pool = BlockPool::new(3);
        for _ in 0..3 {
            take(&mut pool);
        }
        let key = |hash| Some(CacheKey { group: 0, hash });
        pool.set_cache_key(BlockId(0), key(10));
        pool.set_cache_key(BlockId(2), key(12));
        for id in [2, 0, 1] {
            pool.release(BlockId(id));
        }
        assert_eq!(pool.take(), Some((BlockId(1), None)), "nothing can be found in it");
        assert_eq!(pool.take(), Some((BlockId(2), key(12))), "freed before block 0");
        assert_eq!(pool.take(), Some((BlockId(0), key(10))));
    }

    #[test]
    fn shared_block_is_free_only_after_its_last_owner() {
        let mut pool = BlockPool::new(2);
        let id = BlockId(take(&mut pool));
        pool.add_ref(id);
        pool.release(id);
        assert_eq!(pool.num_free(), 1);
        pool.release(id);
        assert_eq!(pool.num_free(), 2);
        assert_eq!(pool.check(&[0, 0]), Ok(()));
    }

    #[test]
    fn check_reports_wrong_owners() {
        let mut pool = BlockPool::new(2);
        take(&mut pool);
        let wrong = IntegrityError::ReferenceCount {
            block: BlockId(0),
            counted: 1,
            owners: 2,
        };
        assert_eq!(pool.check(&[2, 0]), Err(wrong));
        pool.num_free = 2;
        assert_eq!(
            pool.check(&[1, 0]),
            Err(IntegrityError::BlocksLost {
                free: 2,
                used: 1,
                total: 2
            })
        );
    }
}
