//! How checkpoints pack the codes of a matrix `[rows, columns]`: words of 32 bits or bytes, along rows or columns. Owns
//! the order of bits; what codes mean is [`super::grouped`]'s.

/// Numbers of a few bits, one behind the other in little-endian words of 32 bits: a stream of bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Words<'w> {
    pub bytes: &'w [u8],
    pub bits: usize,
    /// Words between two of a stream.
    pub step: usize,
    /// Words between the beginnings of two streams.
    pub stride: usize,
    /// Eight numbers of four bits stand in AutoAWQ's order.
    pub is_awq: bool,
}

/// Where AutoAWQ puts each of eight numbers in a word.
const AWQ_PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

impl Words<'_> {
    /// Number `index` of a stream.
    pub(super) fn at(&self, stream: usize, index: usize) -> u8 {
        let index = match self.is_awq {
            true => index / 8 * 8 + AWQ_PLACES[index % 8],
            false => index,
        };
        let bit = index * self.bits;
        let (word, shift) = (bit / 32, bit % 32);
        let mut number = self.word(stream, word) >> shift;
        if shift + self.bits > 32 {
            number |= self.word(stream, word + 1) << (32 - shift);
        }
        (number & ((1 << self.bits) - 1)) as u8
    }

    fn word(&self, stream: usize, word: usize) -> u32 {
        let at = (stream * self.stride + word * self.step) * 4;
        let bytes = &self.bytes[at..at + 4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

/// The values of a matrix, row by row, in as many equal parts as a word has codes: word i has code i of each part, the
/// first part's in the highest bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Parts<'w> {
    pub bytes: &'w [u8],
    pub bits: usize,
    /// Codes of a word.
    pub codes: usize,
    /// 1 or 4.
    pub word_bytes: usize,
    /// Values of a part; the last one may be longer than what is left of the matrix.
    pub num_words: usize,
}

impl Parts<'_> {
    /// The codes from value `first` on.
    fn put(&self, first: usize, codes: &mut [u8]) {
        let mask = ((1u32 << self.bits) - 1) as u8;
        let mut done = 0;
        while done < codes.len() {
            let (part, word) = ((first + done) / self.num_words, (first + done) % self.num_words);
            let shift = (self.codes - 1 - part) * self.bits;
            let run = (codes.len() - done).min(self.num_words - word);
            let words = &self.bytes[word * self.word_bytes..][..run * self.word_bytes];
            for (code, word) in codes[done..done + run]
                .iter_mut()
                .zip(words.chunks_exact(self.word_bytes))
            {
                let word = match *word {
                    [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
                    _ => u32::from(word[0]),
                };
                *code = (word >> shift) as u8 & mask;
            }
            done += run;
        }
    }
}

/// A matrix of codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum PackedCodes<'w> {
    /// A stream a row.
    ByRow(Words<'w>),
    /// A stream a column.
    ByColumn(Words<'w>),
    /// A byte a code, row by row.
    Bytes(&'w [u8]),
    /// Codes of parts of the matrix in one word.
    Parts(Parts<'w>),
    /// Two codes a byte, row by row.
    Nibbles {
        bytes: &'w [u8],
        /// The first of the two is the byte's high half.
        high_first: bool,
    },
}

impl<'w> PackedCodes<'w> {
    /// All of them.
    pub(super) fn bytes(&self) -> &'w [u8] {
        match self {
            PackedCodes::ByRow(words) | PackedCodes::ByColumn(words) => words.bytes,
            PackedCodes::Parts(parts) => parts.bytes,
            PackedCodes::Bytes(bytes) | PackedCodes::Nibbles { bytes, .. } => bytes,
        }
    }

    /// The codes of some rows of `columns` values, row by row.
    pub(super) fn rows(&self, rows: &[usize], columns: usize, out: &mut [u8]) {
        let targets = rows.iter().zip(out.chunks_exact_mut(columns.max(1)));
        match *self {
            PackedCodes::ByRow(words) if 32 % words.bits == 0 && !words.is_awq => {
                // Whole words: a loop over them, not over bits.
                let (each, mask) = (32 / words.bits, (1u32 << words.bits) - 1);
                for (&row, codes) in targets {
                    for (word, codes) in codes.chunks_mut(each).enumerate() {
                        let word = words.word(row, word);
                        for (i, code) in codes.iter_mut().enumerate() {
                            *code = (word >> (i * words.bits) & mask) as u8;
                        }
                    }
                }
            }
            PackedCodes::ByRow(words) => {
                for (&row, codes) in targets {
                    for (column, code) in codes.iter_mut().enumerate() {
                        *code = words.at(row, column);
                    }
                }
            }
            // Columns outside: the words of neighbouring rows are neighbours.
            PackedCodes::ByColumn(words) => {
                for column in 0..columns {
                    for (i, &row) in rows.iter().enumerate() {
                        out[i * columns + column] = words.at(column, row);
                    }
                }
            }
            PackedCodes::Bytes(bytes) => {
                for (&row, codes) in targets {
                    codes.copy_from_slice(&bytes[row * columns..][..columns]);
                }
            }
            PackedCodes::Parts(parts) => {
                for (&row, codes) in targets {
                    parts.put(row * columns, codes);
                }
            }
            PackedCodes::Nibbles { bytes, high_first } => {
                let first = if high_first { 4 } else { 0 };
                for (&row, codes) in targets {
                    for (i, code) in codes.iter_mut().enumerate() {
                        let at = row * columns + i;
                        let shift = if at.is_multiple_of(2) { first } else { 4 - first };
                        *code = bytes[at / 2] >> shift & 15;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits in order, as GPTQ packs them: the eleventh number of three bits lies in two words.
    #[test]
    fn numbers_of_three_bits_run_over_the_ends_of_words() {
        let numbers: Vec<u8> = (0..32).map(|i| ((i + 1) * 5 % 8) as u8).collect();
        let mut stream = 0u128;
        for (i, &number) in numbers.iter().enumerate() {
            stream |= u128::from(number) << (3 * i);
        }
        let bytes = &stream.to_le_bytes()[..12];
        let words = Words {
            bytes,
            bits: 3,
            step: 1,
            stride: 3,
            is_awq: false,
        };
        assert_eq!((0..32).map(|i| words.at(0, i)).collect::<Vec<_>>(), numbers);
        let mut row = vec![0; 32];
        PackedCodes::ByRow(words).rows(&[0], 32, &mut row);
        assert_eq!(row, numbers);
    }

    #[test]
    fn autoawq_has_even_numbers_before_odd_ones() {
        // Nibble p of the word holds number [0, 2, 4, 6, 1, 3, 5, 7][p].
        let word = [0u32, 2, 4, 6, 1, 3, 5, 7]
            .iter()
            .enumerate()
            .fold(0, |word, (p, n)| word | n << (4 * p));
        let words = Words {
            bytes: &word.to_le_bytes(),
            bits: 4,
            step: 1,
            stride: 1,
            is_awq: true,
        };
        assert_eq!(
            (0..8).map(|i| words.at(0, i)).collect::<Vec<_>>(),
            [0, 1, 2, 3, 4, 5, 6, 7]
        );
    }
}
