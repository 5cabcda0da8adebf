//! Seeded random numbers: a case is a function of its target, the seed and its number, so that any case can be made
//! again.

use halyard_models::SplitMix64;

/// A generator, and what cases ask of it.
#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

impl Random {
    /// The generator of one case.
    pub fn of_case(target: &str, seed: u64, case: u64) -> Random {
        let name = target.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        let mut random = Random(SplitMix64(name ^ seed.rotate_left(32)));
        random.0.0 ^= random.next() ^ case.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        random
    }

    pub fn next(&mut self) -> u64 {
        self.0.word()
    }

    /// A number below `limit`, 0 for a limit of 0.
    pub fn below(&mut self, limit: usize) -> usize {
        if limit == 0 {
            0
        } else {
            (self.next() % limit as u64) as usize
        }
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of a list that is not empty.
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}
