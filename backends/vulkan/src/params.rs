//! Kernel parameters as the block that shaders declare: in order, each at a multiple of its own size (addresses and
//! longs 8, words 4), as the `scalar` layout of GLSL places them.

use halyard_gpu::Param;
use halyard_platform_api::{Error, Result};

/// Blocks up to this size are push constants, which every device has; of a larger block the push constant is its
/// address. Kernel files have the same number.
pub(crate) const MAX_PUSH_BYTES: usize = 128;
/// Bytes of the largest block: the most parameters, all of them addresses.
const CAPACITY: usize = 8 * halyard_gpu::MAX_ARGS;

/// The bytes of a block.
pub(crate) struct Block {
    bytes: [u8; CAPACITY],
    length: usize,
}

impl Block {
    /// Lays out `params`.
    ///
    /// # Errors
    /// `Unsupported` for structs by value, `InvalidArgument` for too many parameters.
    pub(crate) fn of(params: &[Param<'_>]) -> Result<Block> {
        let mut block = Block {
            bytes: [0; CAPACITY],
            length: 0,
        };
        if params.len() > halyard_gpu::MAX_ARGS {
            return Err(Error::invalid(format!(
                "a kernel of {} parameters; at most {} fit",
                params.len(),
                halyard_gpu::MAX_ARGS
            )));
        }
        for param in params {
            match *param {
                Param::Ptr(value) | Param::Long(value) => block.push(&value.to_le_bytes()),
                Param::Word(value) => block.push(&value.to_le_bytes()),
                Param::Bytes(bytes) => {
                    return Err(Error::unsupported(format!(
                        "a kernel parameter of {} bytes: shaders take no structs by value",
                        bytes.len()
                    )));
                }
            }
        }
        Ok(block)
    }

    fn push(&mut self, value: &[u8]) {
        let at = self.length.next_multiple_of(value.len());
        self.bytes[at..at + value.len()].copy_from_slice(value);
        self.length = at + value.len();
    }

    /// The block.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Whether it is passed itself.
    pub(crate) fn fits_push(&self) -> bool {
        self.length <= MAX_PUSH_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_lie_at_multiples_of_their_size() {
        let block = Block::of(&[
            Param::Word(1),
            Param::Ptr(2),
            Param::Word(3),
            Param::Word(4),
            Param::Long(5),
        ]);
        let block = block.expect("all kinds that there are");
        let words: Vec<u32> = block
            .bytes()
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        assert_eq!(words, [1, 0, 2, 0, 3, 4, 5, 0]);
        assert!(block.fits_push());
    }

    #[test]
    fn a_block_of_more_than_128_bytes_goes_by_address() {
        assert!(Block::of(&[Param::Ptr(1); 16]).expect("few").fits_push());
        let large = Block::of(&[Param::Ptr(1); 17]).expect("few");
        assert!(!large.fits_push());
        assert_eq!(large.bytes().len(), 17 * 8);
        assert!(Block::of(&[Param::Word(0); halyard_gpu::MAX_ARGS + 1]).is_err());
        assert!(Block::of(&[Param::Bytes(&[0; 16])]).is_err());
    }
}
