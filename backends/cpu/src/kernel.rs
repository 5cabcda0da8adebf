//! A prepared op as the thread pool runs it: a list of phases; every thread runs its share of each.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use halyard_kernels_cpu::Kernels;
use halyard_platform_api::{Error, Result, Tensor, WeightRows};

use crate::objects::Objects;
use crate::view::View;

/// Tokens of a thread from which on a step goes by rows: products are bound by arithmetic then, and weights may be read
/// by every thread.
const ROWS_OF_A_THREAD: usize = 64;

/// Tokens of a step from which on threads take work piece by piece.
const MANY_TOKENS: usize = 16;

/// Whether a step of so many tokens goes by rows on so many threads.
pub(crate) fn goes_by_rows(tokens: usize, threads: usize) -> bool {
    threads > 1 && tokens >= threads * ROWS_OF_A_THREAD
}

/// Tokens of the narrowest tile of products that is as fast as a whole one.
const NARROW_TILE: usize = 4;

/// The tokens of a thread in a step that goes by rows: equal parts, but for what would leave a thread with single
/// tokens behind its tiles.
pub(crate) fn rows_of(tokens: usize, threads: usize, rank: usize) -> Range<usize> {
    let edge = |rank: usize| (tokens * rank / threads).next_multiple_of(NARROW_TILE).min(tokens);
    edge(rank)..edge(rank + 1)
}

/// A thread's place in a parallel region.
pub(crate) struct Worker<'a> {
    pub rank: usize,
    pub size: usize,
    pub kernels: &'static Kernels,
    /// Scratch of the op, shared by all threads.
    pub shared: *mut u8,
    /// Scratch of this thread in phases that go by rows: `Kernel::rows_scratch_bytes` of its rows.
    pub own: *mut u8,
    /// f32 scratch of this thread.
    pub local: &'a mut [f32],
    /// Pieces of this phase's work that some thread has taken.
    pub taken: &'a AtomicUsize,
}

impl<'a> Worker<'a> {
    /// This thread's part of `count` equal pieces of work.
    pub(crate) fn share(&self, count: usize) -> Range<usize> {
        count * self.rank / self.size..count * (self.rank + 1) / self.size
    }

    /// This thread's part of `tokens` times `pieces` equal pieces of work, for kernels that have [`Kernel::rows`].
    pub(crate) fn share_rows(&self, tokens: usize, pieces: usize) -> Range<usize> {
        if !goes_by_rows(tokens, self.size) {
            return self.share(tokens * pieces);
        }
        let rows = rows_of(tokens, self.size, self.rank);
        rows.start * pieces..rows.end * pieces
    }

    /// This thread's parts of `count` pieces of work on `tokens` tokens. Few tokens: one of equal parts. Many: `grain`
    /// pieces at a time, first come first served, so that a thread that loses its core for a while leaves more of them
    /// to the others and is not waited for.
    pub(crate) fn pieces(
        &self,
        tokens: usize,
        count: usize,
        grain: usize,
    ) -> impl Iterator<Item = Range<usize>> + use<'a> {
        let taken = self.taken;
        let mut own = (tokens < MANY_TOKENS).then(|| self.share(count));
        let few = own.is_some();
        std::iter::from_fn(move || {
            if few {
                return own.take().filter(|own| !own.is_empty());
            }
            let first = taken.fetch_add(grain, Ordering::Relaxed);
            (first < count).then(|| first..(first + grain).min(count))
        })
    }

    /// As [`Worker::pieces`], for pieces that all cost alike and are better done in one go: a thread takes half of its
    /// equal part of what is left, in multiples of `least`. So threads take pieces seldom, and the last thread ends at
    /// most one smallest piece after the others.
    pub(crate) fn shrinking_pieces(
        &self,
        tokens: usize,
        count: usize,
        least: usize,
    ) -> impl Iterator<Item = Range<usize>> + use<'a> {
        let (taken, size) = (self.taken, self.size);
        let mut own = (tokens < MANY_TOKENS).then(|| self.share(count));
        let few = own.is_some();
        std::iter::from_fn(move || {
            if few {
                return own.take().filter(|own| !own.is_empty());
            }
            let end = |first: usize| {
                let left = count.saturating_sub(first);
                let part = (left / (2 * size)).next_multiple_of(least).max(least);
                (left > 0).then(|| first + part.min(left))
            };
            let first = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, end).ok()?;
            end(first).map(|end| first..end)
        })
    }
}

/// A prepared op. Phases run in order on all threads; between two phases every thread has finished the first.
pub(crate) trait Kernel: Send + Sync {
    /// Number of phases.
    fn phases(&self) -> usize {
        1
    }

    /// The number of tokens where every thread reads and writes their rows by [`Worker::share_rows`], and constants: in
    /// a step that goes by rows, such kernels do not wait for each other. Their phases but the first are empty then.
    fn rows(&self, _operands: &[View]) -> Option<usize> {
        None
    }

    /// Scratch in bytes that so many rows take in [`Worker::own`].
    fn rows_scratch_bytes(&self, _rows: usize) -> usize {
        0
    }

    /// Shared scratch in bytes.
    fn scratch_bytes(&self) -> usize {
        0
    }

    /// This thread's share of a phase.
    ///
    /// # Safety
    /// The operands are the op's, resolved and alive; all threads of the region call it with the same ones, and nothing
    /// else touches what they write. `shared` holds `scratch_bytes`.
    unsafe fn run(&self, phase: usize, worker: &mut Worker<'_>, operands: &[View]);

    /// Bytes of the packed weight.
    fn packed_weight_bytes(&self) -> Result<u64> {
        Err(Error::invalid("this op has no weight"))
    }

    /// Packs rows of the weight.
    fn pack_weight(&self, rows: &WeightRows<'_>, dst: &Tensor, objects: &Objects) -> Result<()> {
        let _ = (rows, dst, objects);
        Err(Error::invalid("this op has no weight"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_all_rows_between_them_in_narrow_tiles() {
        for (tokens, threads) in [(128, 2), (512, 2), (513, 3), (1000, 7), (64, 1)] {
            let mut next = 0;
            for rank in 0..threads {
                let rows = rows_of(tokens, threads, rank);
                assert_eq!(rows.start, next, "{tokens} tokens on {threads} threads");
                assert!(rows.start.is_multiple_of(NARROW_TILE), "{rows:?}");
                assert!(rows.len().abs_diff(tokens / threads) <= NARROW_TILE, "{rows:?}");
                next = rows.end;
            }
            assert_eq!(next, tokens);
        }
    }

    #[test]
    fn many_tokens_are_taken_piece_by_piece_and_few_in_equal_parts() {
        let taken = AtomicUsize::new(0);
        let worker = |rank| Worker {
            rank,
            size: 2,
            kernels: Kernels::best(),
            shared: std::ptr::null_mut(),
            own: std::ptr::null_mut(),
            local: &mut [],
            taken: &taken,
        };
        let few = [0, 1].map(|rank| worker(rank).pieces(MANY_TOKENS - 1, 7, 2).flatten().collect::<Vec<_>>());
        assert_eq!(few, [vec![0, 1, 2], vec![3, 4, 5, 6]]);
        let (first, second) = (worker(0), worker(1));
        let (mut a, mut b) = (first.pieces(MANY_TOKENS, 7, 2), second.pieces(MANY_TOKENS, 7, 2));
        let order = [a.next(), b.next(), a.next(), a.next(), b.next(), a.next()];
        assert_eq!(order, [Some(0..2), Some(2..4), Some(4..6), Some(6..7), None, None]);
    }

    #[test]
    fn shrinking_pieces_cover_all_and_end_with_the_least() {
        for (size, count, least) in [(2, 100, 4), (1, 36, 2), (3, 7, 2), (2, 1, 2), (4, 0, 2)] {
            let taken = AtomicUsize::new(0);
            let worker = |rank| Worker {
                rank,
                size,
                kernels: Kernels::best(),
                shared: std::ptr::null_mut(),
                own: std::ptr::null_mut(),
                local: &mut [],
                taken: &taken,
            };
            let mut next = 0;
            for piece in (0..size).flat_map(|rank| worker(rank).shrinking_pieces(MANY_TOKENS - 1, count, least)) {
                assert_eq!(piece.start, next, "few tokens: equal parts");
                next = piece.end;
            }
            assert_eq!(next, count, "few tokens: equal parts");
            let mut threads: Vec<_> = (0..size)
                .map(|rank| worker(rank).shrinking_pieces(MANY_TOKENS, count, least))
                .collect();
            let (mut next, mut last) = (0, usize::MAX);
            for turn in 0.. {
                let Some(piece) = threads[turn % size].next() else {
                    break;
                };
                assert_eq!(piece.start, next, "{count} on {size} threads");
                let most = ((count - next) / (2 * size)).next_multiple_of(least).max(least);
                assert!(!piece.is_empty() && piece.len() <= most.min(last), "{piece:?}");
                (next, last) = (piece.end, piece.len());
            }
            assert_eq!(next, count, "{count} on {size} threads");
            assert!(
                last <= least || count == 0,
                "{count} on {size} threads: the last has {last}"
            );
        }
    }
}
