//! The prefix cache's index: the chained hash of full blocks, and the map from hash to block. It owns no block, and
//! must never name one whose content is not completely computed.
//!
//! A block's hash covers its parent's hash and its own tokens; the chain's root covers block size, LoRA adapter and
//! cache salt. So equal hashes mean equal content under equal settings: the hash is a keyed 128-bit one.

use crate::ids::BlockId;
use crate::siphash::{SipHasher128, siphash128};

/// A block's content: the keys and values of one group for the tokens that the hash covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheKey {
    pub(crate) group: u32,
    pub(crate) hash: u128,
}

impl CacheKey {
    /// Group and hash in one number: as unlikely to be another content's as the hash itself. The odd factor spreads
    /// groups over all bits (2^128 divided by the golden ratio, as in Fibonacci hashing).
    fn name(self) -> u128 {
        const SPREAD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
        self.hash.wrapping_add(u128::from(self.group).wrapping_mul(SPREAD))
    }
}

/// Hash of an empty prefix.
pub(crate) fn root_hash(key: [u64; 2], block_size: u32, lora: Option<u32>, salt: Option<&[u8]>) -> u128 {
    // Lengths and presence are part of the message, so that no two settings read the same.
    let mut message = Vec::with_capacity(16 + salt.map_or(0, <[u8]>::len));
    message.extend(block_size.to_le_bytes());
    message.push(u8::from(lora.is_some()));
    message.extend(lora.unwrap_or(0).to_le_bytes());
    message.push(u8::from(salt.is_some()));
    message.extend(salt.unwrap_or(&[]));
    siphash128(key, &message)
}

/// Hash of a full block with these tokens behind the prefix `parent`.
pub(crate) fn block_hash(key: [u64; 2], parent: u128, mut tokens: impl Iterator<Item = u32>) -> u128 {
    let mut hasher = SipHasher128::new(key);
    hasher.write_u64(parent as u64);
    hasher.write_u64((parent >> 64) as u64);
    while let Some(low) = tokens.next() {
        match tokens.next() {
            Some(high) => hasher.write_u64(u64::from(low) | u64::from(high) << 32),
            None => return hasher.finish(&low.to_le_bytes()),
        }
    }
    hasher.finish(&[])
}

/// Where content can be found: a hash table with chains, made once for the number of blocks. It never grows and never
/// hashes again, so no step pays for the steps before it. Hashes are keyed and uniform: their low bits choose a chain.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    /// The first block of each chain, plus 1; 0: the chain is empty. A power of two of them.
    chains: Vec<u32>,
    /// Of each block the next one of its chain, plus 1; 0: it is the last.
    next: Vec<u32>,
    /// Of each block in a chain its content's name.
    names: Vec<u128>,
    len: usize,
}

impl PrefixCache {
    /// An empty table that can name each of `num_blocks` blocks once.
    pub(crate) fn new(num_blocks: u32) -> Self {
        let num_blocks = num_blocks as usize;
        Self {
            chains: vec![0; num_blocks.next_power_of_two()],
            next: vec![0; num_blocks],
            names: vec![0; num_blocks],
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn find(&self, key: CacheKey) -> Option<BlockId> {
        let name = key.name();
        let mut at = self.chains[self.chain_of(name)];
        while at != 0 {
            let block = at - 1;
            if self.names[block as usize] == name {
                return Some(BlockId(block));
            }
            at = self.next[block as usize];
        }
        None
    }

    /// Whether the block is now the one found under `key`; the first one stays. A block has one name at a time.
    pub(crate) fn insert(&mut self, key: CacheKey, block: BlockId) -> bool {
        if let Some(first) = self.find(key) {
            return first == block;
        }
        let name = key.name();
        let chain = self.chain_of(name);
        let at = block.0 as usize;
        self.names[at] = name;
        self.next[at] = std::mem::replace(&mut self.chains[chain], block.0 + 1);
        self.len += 1;
        true
    }

    pub(crate) fn remove(&mut self, key: CacheKey) {
        let name = key.name();
        let chain = self.chain_of(name);
        let mut before = None;
        let mut at = self.chains[chain];
        while at != 0 {
            let block = at as usize - 1;
            let next = self.next[block];
            if self.names[block] == name {
                match before {
                    Some(before) => self.next[before] = next,
                    None => self.chains[chain] = next,
                }
                self.len -= 1;
                return;
            }
            (before, at) = (Some(block), next);
        }
    }

    /// Forgets everything; calls `forgotten` with each block that was named.
    pub(crate) fn clear(&mut self, mut forgotten: impl FnMut(BlockId)) {
        for first in &mut self.chains {
            let mut at = std::mem::take(first);
            while at != 0 {
                forgotten(BlockId(at - 1));
                at = self.next[at as usize - 1];
            }
        }
        self.len = 0;
    }

    fn chain_of(&self, name: u128) -> usize {
        name as usize & (self.chains.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u64; 2] = [7, 9];

    #[test]
    fn hash_depends_on_parent_tokens_and_their_number() {
        let hash = |parent, tokens: &[u32]| block_hash(KEY, parent, tokens.iter().copied());
        assert_eq!(hash(1, &[2, 3]), hash(1, &[2, 3]));
        let different = [
            hash(1, &[2, 3]),
            hash(2, &[2, 3]),
            hash(1, &[3, 2]),
            hash(1, &[2]),
            hash(1, &[2, 3, 0]),
        ];
        for (index, one) in different.iter().enumerate() {
            assert!(!different[..index].contains(one), "hash {index} repeats");
        }
    }

    #[test]
    fn root_depends_on_block_size_lora_and_salt() {
        let roots = [
            root_hash(KEY, 16, None, None),
            root_hash(KEY, 32, None, None),
            root_hash(KEY, 16, Some(0), None),
            root_hash(KEY, 16, Some(1), None),
            root_hash(KEY, 16, None, Some(b"")),
            root_hash(KEY, 16, None, Some(b"a")),
            root_hash([7, 8], 16, None, None),
        ];
        for (index, one) in roots.iter().enumerate() {
            assert!(!roots[..index].contains(one), "root {index} repeats");
        }
    }

    #[test]
    fn first_block_with_a_content_stays() {
        let mut cache = PrefixCache::new(3);
        let key = CacheKey { group: 0, hash: 5 };
        assert!(cache.insert(key, BlockId(1)));
        assert!(!cache.insert(key, BlockId(2)));
        assert_eq!(cache.find(key), Some(BlockId(1)));
        assert_eq!(
            cache.find(CacheKey { group: 1, hash: 5 }),
            None,
            "groups keep different content"
        );
    }

    /// Random inserts, finds and removals beside a map, with chains that hold several blocks.
    #[test]
    fn it_finds_what_a_map_finds() {
        let num_blocks = 64u32;
        let mut cache = PrefixCache::new(num_blocks);
        let mut names: Vec<Option<CacheKey>> = vec![None; num_blocks as usize];
        let mut state = 5u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 33
        };
        for _ in 0..20_000 {
            // Few low bits: many contents share a chain.
            let key = CacheKey {
                group: (random() % 2) as u32,
                hash: u128::from(random() % 40) << 4,
            };
            let block = (random() % u64::from(num_blocks)) as usize;
            let holder = names.iter().position(|name| *name == Some(key));
            assert_eq!(cache.find(key), holder.map(|at| BlockId(at as u32)));
            if let Some(old) = names[block].take() {
                cache.remove(old);
            } else if cache.insert(key, BlockId(block as u32)) {
                names[block] = Some(key);
            } else {
                assert!(holder.is_some(), "only a content that is there is refused");
            }
            assert_eq!(cache.len(), names.iter().flatten().count());
        }
        let mut forgotten = Vec::new();
        cache.clear(|block| forgotten.push(block.0 as usize));
        forgotten.sort_unstable();
        let named = (0..num_blocks as usize).filter(|at| names[*at].is_some());
        assert_eq!(forgotten, named.collect::<Vec<_>>());
        assert_eq!(cache.len(), 0);
        assert!(names.iter().flatten().all(|key| cache.find(*key).is_none()));
    }
}
