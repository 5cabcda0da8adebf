//! The prefix cache's index: the chained hash of full blocks, and the map from hash to block. It owns no block, and
//! must never name one whose content is not completely computed.
//!
//! A block's hash covers its parent's hash and its own tokens; the chain's root covers block size, LoRA adapter and
//! cache salt. So equal hashes mean equal content under equal settings: the hash is a keyed 128-bit one.

use std::collections::HashMap;

use crate::ids::BlockId;
use crate::siphash::{SipHasher128, siphash128};

/// Name of a block's content: the keys and values of one group for the tokens that the hash covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CacheKey {
    pub(crate) group: u32,
    pub(crate) hash: u128,
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

/// Where content can be found. The map is only asked by key: its order never reaches a plan.
#[derive(Debug, Default)]
pub(crate) struct PrefixCache {
    blocks: HashMap<CacheKey, BlockId>,
}

impl PrefixCache {
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn find(&self, key: CacheKey) -> Option<BlockId> {
        self.blocks.get(&key).copied()
    }

    /// Whether the block is now the one found under `key`; the first one stays.
    pub(crate) fn insert(&mut self, key: CacheKey, block: BlockId) -> bool {
        *self.blocks.entry(key).or_insert(block) == block
    }

    pub(crate) fn remove(&mut self, key: CacheKey) {
        self.blocks.remove(&key);
    }

    /// Forgets everything; the blocks that were named come back, in no order.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = BlockId> + '_ {
        self.blocks.drain().map(|(_, block)| block)
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
        let mut cache = PrefixCache::default();
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
}
