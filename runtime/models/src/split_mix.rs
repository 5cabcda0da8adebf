//! SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"): numbers that follow from a
//! seed alone, the same on every machine. For dummy adapters, prompts of benches, seeds of requests, and tests.

/// A generator; its state is the seed.
#[derive(Clone, Copy, Debug)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// The next number. That of a new generator spreads its seed over all bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.word() % limit
    }

    /// An index into `len` items, of which there is one.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True once in `n` times, `n` not 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::SplitMix64;

    #[test]
    fn gives_the_known_answers() {
        // Vigna's splitmix64.c with the seed 1234567.
        let mut random = SplitMix64(1_234_567);
        assert_eq!(random.word(), 6_457_827_717_110_365_317);
        assert_eq!(random.word(), 3_203_168_211_198_807_973);
        assert_eq!(random.word(), 9_817_491_932_198_370_423);
    }
}
