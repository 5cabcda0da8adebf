//! An op made ready on a device.

use crate::status::{Error, Result};
use crate::tensor::Tensor;

/// A prepared op's number on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct OpId(pub u64);

/// What a prepared op needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PreparedInfo {
    /// Scratch bytes while it runs, taken from the queue's arena.
    pub scratch_bytes: u64,
    /// May be encoded into a reusable command buffer.
    pub recordable: bool,
}

/// Rows of a weight matrix in its canonical format, contiguous.
#[derive(Clone, Copy, Debug)]
pub struct WeightRows<'a> {
    /// First output row that these bytes are.
    pub first_row: u32,
    /// Number of rows.
    pub num_rows: u32,
    /// `num_rows` × [`crate::WeightFormat::row_bytes`] bytes.
    pub bytes: &'a [u8],
}

/// An op made ready at load: algorithm chosen, pipelines built. Holds no weights.
pub trait PreparedOp: Send + Sync {
    /// The id to encode.
    fn id(&self) -> OpId;

    /// What it needs.
    fn info(&self) -> PreparedInfo;

    /// Bytes of the packed weight of node `node` (0 for a single op).
    ///
    /// # Errors
    /// `InvalidArgument` for a node without a weight.
    fn packed_weight_bytes(&self, node: u32) -> Result<u64>;

    /// Packs some rows of node `node`'s weight into `dst`, a U8 tensor of `packed_weight_bytes`. Rows may come in
    /// several calls (q, k and v of one merged matrix); they may come again, while nothing that runs reads `dst`. For
    /// load time; blocks.
    ///
    /// # Errors
    /// `InvalidArgument` when rows or bytes do not fit the spec.
    fn pack_weight(&self, node: u32, rows: WeightRows<'_>, dst: &Tensor) -> Result<()>;

    /// [`PreparedOp::pack_weight`] of rows that lie in device memory: `src` is a U8 tensor of one axis that holds
    /// `num_rows` × [`crate::WeightFormat::row_bytes`] bytes, aligned as `offset_alignment` says, which completed
    /// submits wrote. Blocks until they may be overwritten.
    ///
    /// # Errors
    /// As [`PreparedOp::pack_weight`]; `Unsupported` where rows are packed from host memory only: the host then reads
    /// them back.
    fn pack_weight_from(&self, node: u32, first_row: u32, num_rows: u32, src: &Tensor, dst: &Tensor) -> Result<()> {
        let _ = (node, first_row, num_rows, src, dst);
        Err(Error::unsupported("this platform packs weights from host memory only"))
    }
}
