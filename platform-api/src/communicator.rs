//! Collectives between the ranks of a group, prepared and encoded like ops.

use std::sync::Arc;
use std::time::Duration;

use crate::abi::limits::MAX_COMMUNICATOR_ID_BYTES;
use crate::abi::wire_enum;
use crate::dtype::DType;
use crate::prepared::PreparedOp;
use crate::status::{Error, Result};

/// Shared by the ranks of one communicator: opaque bytes, as many as the platform wants (NCCL 128, oneCCL 256, HCCL
/// 4108).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CommunicatorId(Vec<u8>);

impl CommunicatorId {
    /// Most bytes of an id.
    pub const MAX_BYTES: usize = MAX_COMMUNICATOR_ID_BYTES as usize;

    /// An id of `bytes`.
    ///
    /// # Errors
    /// `InvalidArgument` for none, or for more than [`CommunicatorId::MAX_BYTES`].
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<CommunicatorId> {
        let bytes = bytes.into();
        match bytes.len() {
            1..=CommunicatorId::MAX_BYTES => Ok(CommunicatorId(bytes)),
            len => Err(Error::invalid(format!(
                "a communicator's id of {len} bytes; 1 to {} are taken",
                CommunicatorId::MAX_BYTES
            ))),
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl CommunicatorDesc {
    /// Rank `rank` of `size` of the group `id`, which waits as long as the platform thinks right.
    pub fn new(id: &CommunicatorId, rank: u32, size: u32) -> CommunicatorDesc {
        CommunicatorDesc {
            id: id.clone(),
            rank,
            size,
            timeout_ns: 0,
        }
    }

    /// How long to wait for the other ranks, where the platform's own time is `usual`.
    pub fn timeout_or(&self, usual: Duration) -> Duration {
        match self.timeout_ns {
            0 => usual,
            ns => Duration::from_nanos(ns),
        }
    }
}

/// What a rank joins a communicator with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommunicatorDesc {
    /// The same for all ranks.
    pub id: CommunicatorId,
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub size: u32,
    /// How long to wait for the other ranks, in nanoseconds; 0: as long as the platform thinks right.
    pub timeout_ns: u64,
}

wire_enum! {
    /// The collectives. Operands: input (read; absent for recv) and out (written; absent for send), contiguous; those
    /// of all_reduce may be the same tensor.
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

    /// The number on its device by which an op names this communicator ([`ops::Collective`](crate::ops::Collective)),
    /// while it lives; 0: ops of this platform name none.
    fn number(&self) -> u64 {
        0
    }

    /// Prepares a collective. Every rank prepares and encodes the same ones in the same order.
    ///
    /// # Errors
    /// `Unsupported` with the reason; `InvalidArgument` for a peer past the end.
    fn prepare(&self, spec: &Collective) -> Result<Arc<dyn PreparedOp>>;
}
