//! Which copy of a model takes a request: the one where the least work stands before and in it. Pure: no engine, no
//! clock.
//!
//! The cost of a copy is counted in tokens:
//!
//! `cost = queued + held + new`
//!
//! - `queued`: prompt tokens of its requests that have no token yet, without those that were likely in its prefix
//!   cache,
//! - `held`: tokens that its requests hold in the KV cache, and [`SEQUENCE_TOKENS`] for each of their sequences,
//! - `new`: prompt tokens of the new request that are likely not in its prefix cache.
//!
//! So a cached prefix draws a request to a copy, until that copy has as many tokens more to do than the prefix saves.
//! The engines' caches are on their own threads; what lies in them is estimated by the prompts that went there lately.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a sequence costs besides its tokens: a step reads the weights for all of its sequences together, and does some
/// work for each.
const SEQUENCE_TOKENS: u64 = 256;

/// Prompts are compared in pieces of this many tokens at least.
const MIN_PIECE: u32 = 64;

/// The work of a copy, in tokens.
#[derive(Debug, Default)]
struct Load {
    queued: AtomicU64,
    held: AtomicU64,
}

/// The part of a request in the load of its copy, until it is dropped.
#[derive(Debug)]
pub(crate) struct LoadShare {
    load: Arc<Load>,
    queued: u64,
    held: u64,
}

impl LoadShare {
    /// A token has come: the prompt is computed, and one token more is held.
    pub(crate) fn token(&mut self) {
        let queued = std::mem::take(&mut self.queued);
        if queued > 0 {
            self.load.queued.fetch_sub(queued, Ordering::Relaxed);
        }
        self.held += 1;
        self.load.held.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for LoadShare {
    fn drop(&mut self) {
        self.load.queued.fetch_sub(self.queued, Ordering::Relaxed);
        self.load.held.fetch_sub(self.held, Ordering::Relaxed);
    }
}

/// Hashes of the pieces of lately placed prompts: two generations, of which the older one goes when the younger one is
/// full.
#[derive(Default)]
struct Pieces {
    young: HashSet<u64>,
    old: HashSet<u64>,
}

impl Pieces {
    fn contains(&self, hash: u64) -> bool {
        self.young.contains(&hash) || self.old.contains(&hash)
    }

    fn insert(&mut self, hash: u64, limit: usize) {
        if self.young.len() >= limit {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(hash);
    }
}

/// What is known of one copy.
#[derive(Default)]
struct Replica {
    load: Arc<Load>,
    pieces: Pieces,
}

/// Where requests go. For any thread; a prompt is hashed before the others are held up.
pub(crate) struct Placement {
    copies: Mutex<Copies>,
    hasher: RandomState,
    /// Tokens of a piece.
    piece: usize,
    /// Pieces of a generation: half of what a copy's KV cache holds.
    limit: usize,
}

/// All copies.
struct Copies {
    copies: Vec<Replica>,
    /// Where the search begins, so that copies of equal cost take turns.
    first: usize,
}

/// A request as far as its place depends on it.
pub(crate) struct Placed<'a> {
    /// Prompt token ids.
    pub prompt: &'a [u32],
    /// What else must be equal for prefixes to be shared: adapter and salt.
    pub shared_within: (Option<&'a str>, Option<&'a str>),
    /// Its sequences.
    pub num_sequences: u32,
}

impl Placement {
    /// For `count` copies, each with a KV cache of `kv_tokens` in blocks of `block_size`; `prefix_caching`: whether
    /// they keep prefixes.
    pub(crate) fn new(count: usize, block_size: u32, kv_tokens: u64, prefix_caching: bool) -> Placement {
        let block_size = block_size.max(1);
        let piece = MIN_PIECE.next_multiple_of(block_size);
        let pieces = if prefix_caching {
            kv_tokens / u64::from(piece)
        } else {
            0
        };
        Placement {
            copies: Mutex::new(Copies {
                copies: (0..count).map(|_| Replica::default()).collect(),
                first: 0,
            }),
            hasher: RandomState::new(),
            piece: piece as usize,
            limit: (pieces / 2) as usize,
        }
    }

    /// The copy for a request, of those that `takes` allows, and the request's share in its load. `None`: it allows
    /// none.
    pub(crate) fn choose(&self, request: &Placed<'_>, takes: impl Fn(usize) -> bool) -> Option<(usize, LoadShare)> {
        let hashes = self.hashes(request);
        let Copies { copies, first } = &mut *self.copies();
        let count = copies.len();
        let tokens = request.prompt.len() as u64;
        let candidates = (0..count).map(|step| (*first + step) % count).filter(|&at| takes(at));
        let costs = candidates.map(|at| {
            let copy = &copies[at];
            let found = hashes.iter().take_while(|hash| copy.pieces.contains(**hash)).count();
            let new = tokens - (found * self.piece) as u64;
            let load = copy.load.queued.load(Ordering::Relaxed) + copy.load.held.load(Ordering::Relaxed);
            (load + new, at, new)
        });
        // The first of equal ones.
        let (_, at, new) = costs.min_by_key(|(cost, ..)| *cost)?;
        *first = (at + 1) % count;
        let copy = &mut copies[at];
        for hash in hashes {
            copy.pieces.insert(hash, self.limit);
        }
        let share = LoadShare {
            load: Arc::clone(&copy.load),
            queued: new,
            held: tokens + u64::from(request.num_sequences) * SEQUENCE_TOKENS,
        };
        copy.load.queued.fetch_add(share.queued, Ordering::Relaxed);
        copy.load.held.fetch_add(share.held, Ordering::Relaxed);
        Some((at, share))
    }

    /// Forgets what lies in the copies' caches.
    pub(crate) fn forget_prefixes(&self) {
        self.copies()
            .copies
            .iter_mut()
            .for_each(|copy| copy.pieces = Pieces::default());
    }

    fn copies(&self) -> MutexGuard<'_, Copies> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A hash for each whole piece that a cache can give: of the piece and everything before it. The last token of a
    /// prompt is always computed.
    fn hashes(&self, request: &Placed<'_>) -> Vec<u64> {
        if self.limit == 0 {
            return Vec::new();
        }
        let usable = request.prompt.len().saturating_sub(1);
        let mut before = self.hasher.hash_one(request.shared_within);
        let pieces = request.prompt[..usable].chunks_exact(self.piece);
        pieces
            .map(|piece| {
                before = self.hasher.hash_one((before, piece));
                before
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(prompt: &[u32]) -> Placed<'_> {
        Placed {
            prompt,
            shared_within: (None, None),
            num_sequences: 1,
        }
    }

    fn prompt(kind: u32, tokens: u32) -> Vec<u32> {
        (0..tokens).map(|at| kind * 100_000 + at).collect()
    }

    fn placement(count: usize) -> Placement {
        Placement::new(count, 16, 100_000, true)
    }

    #[test]
    fn equal_requests_take_turns() {
        let placement = placement(3);
        let short = prompt(1, 10);
        let shares: Vec<_> = (0..6)
            .map(|_| placement.choose(&request(&short), |_| true).expect("all take"))
            .collect();
        let order: Vec<usize> = shares.iter().map(|(at, _)| *at).collect();
        assert_eq!(order, [0, 1, 2, 0, 1, 2]);
        drop(shares);
        let load = |copy: &Replica| copy.load.queued.load(Ordering::Relaxed) + copy.load.held.load(Ordering::Relaxed);
        assert!(
            placement.copies().copies.iter().all(|copy| load(copy) == 0),
            "what ended costs nothing"
        );
    }

    #[test]
    fn a_prefix_draws_requests_until_its_copy_has_more_to_do_than_it_saves() {
        let placement = placement(2);
        let long = prompt(1, 1025);
        let (home, mut first) = placement.choose(&request(&long), |_| true).expect("all take");
        first.token();
        drop(first);
        let same = placement.choose(&request(&long), |_| true).expect("all take");
        assert_eq!(same.0, home, "the other copy would compute 1,024 tokens again");
        // A running request of 1,025 tokens costs more than the 1,024 that are saved.
        let third = placement.choose(&request(&long), |_| true).expect("all take");
        assert_ne!(third.0, home);
        let fourth = placement.choose(&request(&long), |_| true).expect("all take");
        assert!(fourth.1.queued < 64, "both copies have the prefix now");
    }

    #[test]
    fn prefixes_are_shared_within_an_adapter_and_a_salt_only() {
        let long = prompt(1, 300);
        for shared_within in [(Some("adapter"), None), (None, Some("salt"))] {
            let placement = placement(1);
            drop(placement.choose(&request(&long), |_| true));
            let other = Placed {
                shared_within,
                ..request(&long)
            };
            let (_, share) = placement.choose(&other, |_| true).expect("it takes");
            assert_eq!(share.queued, 300);
            drop(share);
            let (_, share) = placement.choose(&other, |_| true).expect("it takes");
            assert_eq!(share.queued, 300 - 256, "four pieces of 64");
        }
    }

    #[test]
    fn a_copy_that_takes_nothing_is_passed_over() {
        let placement = placement(2);
        let short = prompt(1, 10);
        for _ in 0..3 {
            let (at, _) = placement.choose(&request(&short), |at| at == 1).expect("one takes");
            assert_eq!(at, 1);
        }
        assert!(placement.choose(&request(&short), |_| false).is_none());
    }

    #[test]
    fn the_first_token_ends_the_queue_and_each_one_is_held() {
        let placement = placement(1);
        let (_, mut share) = placement.choose(&request(&prompt(1, 100)), |_| true).expect("it takes");
        share.token();
        share.token();
        let load = &placement.copies().copies[0].load;
        assert_eq!(load.queued.load(Ordering::Relaxed), 0);
        assert_eq!(load.held.load(Ordering::Relaxed), 100 + SEQUENCE_TOKENS + 2);
    }

    #[test]
    fn what_is_remembered_is_bounded_by_the_cache() {
        let placement = Placement::new(1, 16, 64 * 100, true);
        for kind in 0..1000 {
            drop(placement.choose(&request(&prompt(kind, 1000)), |_| true));
            let pieces = &placement.copies().copies[0].pieces;
            assert!(pieces.young.len() + pieces.old.len() <= 100);
        }
        let newest = prompt(999, 1000);
        let (_, share) = placement.choose(&request(&newest), |_| true).expect("it takes");
        assert_eq!(share.queued, 1000 - 15 * 64, "the newest is known");
        drop(share);
        placement.forget_prefixes();
        let (_, share) = placement.choose(&request(&newest), |_| true).expect("it takes");
        assert_eq!(share.queued, 1000);
    }

    #[test]
    fn without_prefix_caching_nothing_is_remembered() {
        let placement = Placement::new(2, 16, 100_000, false);
        let long = prompt(1, 1000);
        let order: Vec<usize> = (0..4)
            .filter_map(|_| Some(placement.choose(&request(&long), |_| true)?.0))
            .collect();
        assert_eq!(order, [0, 1, 0, 1]);
    }
}
