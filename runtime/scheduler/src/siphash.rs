//! SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012, and the
//! reference implementation's 128-bit variant). A keyed hash: without the key a collision cannot be constructed.

/// A hash under way, fed whole little-endian words.
#[derive(Debug, Clone)]
pub(crate) struct SipHasher128 {
    v: [u64; 4],
    num_bytes: u64,
}

impl SipHasher128 {
    pub(crate) fn new(key: [u64; 2]) -> Self {
        Self {
            v: [
                key[0] ^ 0x736f_6d65_7073_6575,
                key[1] ^ 0x646f_7261_6e64_6f6d ^ 0xee,
                key[0] ^ 0x6c79_6765_6e65_7261,
                key[1] ^ 0x7465_6462_7974_6573,
            ],
            num_bytes: 0,
        }
    }

    pub(crate) fn write_u64(&mut self, word: u64) {
        self.num_bytes += 8;
        self.compress(word);
    }

    /// Adds the last 0 to 7 bytes and ends the hash.
    pub(crate) fn finish(mut self, tail: &[u8]) -> u128 {
        debug_assert!(tail.len() < 8);
        self.num_bytes += tail.len() as u64;
        let mut word = self.num_bytes << 56;
        for (index, byte) in tail.iter().enumerate() {
            word |= u64::from(*byte) << (8 * index);
        }
        self.compress(word);
        self.v[2] ^= 0xee;
        self.rounds(4);
        let low = self.v[0] ^ self.v[1] ^ self.v[2] ^ self.v[3];
        self.v[1] ^= 0xdd;
        self.rounds(4);
        let high = self.v[0] ^ self.v[1] ^ self.v[2] ^ self.v[3];
        u128::from(low) | u128::from(high) << 64
    }

    fn compress(&mut self, word: u64) {
        self.v[3] ^= word;
        self.rounds(2);
        self.v[0] ^= word;
    }

    fn rounds(&mut self, count: u32) {
        let [mut a, mut b, mut c, mut d] = self.v;
        for _ in 0..count {
            a = a.wrapping_add(b);
            b = b.rotate_left(13) ^ a;
            a = a.rotate_left(32);
            c = c.wrapping_add(d);
            d = d.rotate_left(16) ^ c;
            a = a.wrapping_add(d);
            d = d.rotate_left(21) ^ a;
            c = c.wrapping_add(b);
            b = b.rotate_left(17) ^ c;
            c = c.rotate_left(32);
        }
        self.v = [a, b, c, d];
    }
}

/// The hash of `bytes`.
pub(crate) fn siphash128(key: [u64; 2], bytes: &[u8]) -> u128 {
    let mut hasher = SipHasher128::new(key);
    let (words, tail) = bytes.as_chunks::<8>();
    for word in words {
        hasher.write_u64(u64::from_le_bytes(*word));
    }
    hasher.finish(tail)
}

#[cfg(test)]
mod tests {
    use super::siphash128;

    /// The reference's test: key 00 01 .. 0f, message 00 01 .. (n-1); vectors of its `vectors_sip128`.
    #[test]
    fn matches_the_reference_vectors() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let expected: [(usize, [u8; 16]); 3] = [
            (
                0,
                [
                    0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93,
                ],
            ),
            (
                1,
                [
                    0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc, 0x45,
                ],
            ),
            (
                15,
                [
                    0x54, 0x93, 0xe9, 0x99, 0x33, 0xb0, 0xa8, 0x11, 0x7e, 0x08, 0xec, 0x0f, 0x97, 0xcf, 0xc3, 0xd9,
                ],
            ),
        ];
        for (len, bytes) in expected {
            let message: Vec<u8> = (0..len as u8).collect();
            assert_eq!(siphash128(key, &message).to_le_bytes(), bytes, "message of {len} bytes");
        }
    }

    #[test]
    fn depends_on_key_and_length() {
        assert_ne!(siphash128([1, 2], b"abcdefgh"), siphash128([1, 3], b"abcdefgh"));
        assert_ne!(siphash128([1, 2], b"a"), siphash128([1, 2], b"a\0"));
    }
}
