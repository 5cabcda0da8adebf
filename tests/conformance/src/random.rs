//! Inputs: a counter-based generator (the catalogue's own Philox), so that a case's data depends on its seed alone.

use halyard_reference::philox::philox4x32;

/// A stream of random numbers.
pub(crate) struct Random {
    key: [u32; 2],
    counter: u32,
    words: [u32; 4],
}

impl Random {
    /// The stream of `name` under `seed`: adding a case changes no other.
    pub(crate) fn of(seed: u64, name: &str) -> Self {
        // FNV-1a (Fowler, Noll, Vo).
        let hash = name
            .bytes()
            .fold(0x811C_9DC5u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
        Random {
            key: [seed as u32 ^ hash, (seed >> 32) as u32 ^ hash.rotate_left(16)],
            counter: 0,
            words: [0; 4],
        }
    }

    pub(crate) fn word(&mut self) -> u32 {
        if self.counter.is_multiple_of(4) {
            self.words = philox4x32([self.counter / 4, 0, 0, 0], self.key);
        }
        let word = self.words[(self.counter % 4) as usize];
        self.counter += 1;
        word
    }

    /// Uniform in [−1, 1).
    pub(crate) fn unit(&mut self) -> f32 {
        (self.word() >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Uniform in 0 .. bound.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.word() % bound
    }

    pub(crate) fn units(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit()).collect()
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.word() as u8).collect()
    }

    /// 0 .. count in random order (Fisher, Yates).
    pub(crate) fn permutation(&mut self, count: usize) -> Vec<i32> {
        let mut order: Vec<i32> = (0..count as i32).collect();
        for i in (1..count).rev() {
            order.swap(i, self.below(i as u32 + 1) as usize);
        }
        order
    }
}
