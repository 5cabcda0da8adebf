//! Collectives between the ranks of a group, prepared and encoded like ops.

use std::sync::Arc;

use crate::abi::wire_enum;
use crate::dtype::DType;
use crate::prepared::PreparedOp;
use crate::status::Result;

/// Shared by the ranks of one communicator; opaque.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommunicatorId(pub [u8; 128]);

wire_enum! {
    /// The collectives.
    pub enum CollectiveKind {
        /// out\[i\] = Σ over ranks of input\[i\], in rank order, in f32.
        AllReduce = 0,
        /// out = inputs of all ranks, one after the other in rank order.
        AllGather = 1,
        /// out = this rank's part of the sum: elements rank·n .. (rank+1)·n of Σ inputs, n = elements of out.
        ReduceScatter = 2,
        /// Part r of the input goes to rank r; out holds the parts received, in rank order.
        AllToAll = 3,
        /// out = the input of rank `peer`.
        Broadcast = 4,
        /// Sends the input to rank `peer`, which receives it.
        Send = 5,
        /// Receives out from rank `peer`, which sends it.
        Recv = 6,
    }
}

/// A collective. Operands: input (read; absent for `Recv`), out (write; absent for `Send`), contiguous; they may be the
/// same tensor for `AllReduce`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collective {
    /// Which.
    pub kind: CollectiveKind,
    /// Element type.
    pub dtype: DType,
    /// The other rank, where one is named.
    pub peer: u32,
}

/// One rank's end of a group.
///
/// Dropping it leaves the group, even while prepared ops of it live: this rank's unfinished collectives are given up,
/// and those of the other ranks fail instead of waiting, where the platform can tell. So a rank that has failed
/// releases the others; a group whose work is done is left in any order.
pub trait Communicator: Send + Sync {
    /// This rank.
    fn rank(&self) -> u32;

    /// Number of ranks.
    fn size(&self) -> u32;

    /// Prepares a collective. Every rank prepares and encodes the same ones in the same order.
    ///
    /// # Errors
    /// `Unsupported` with the reason; `InvalidArgument` for a peer past the end.
    fn prepare(&self, spec: &Collective) -> Result<Arc<dyn PreparedOp>>;
}
