//! `collective`: a collective of a communicator as an op, so that a platform may claim it with the ops around it.

use crate::communicator::{self, CollectiveKind};
use crate::dtype::DType;

op! {
    /// What the kind says (HALYARD_COLLECTIVE_KIND_), between the ranks of a communicator. All ranks have the same ones
    /// in the same order, of equal sizes, whatever stands between them; whether a rank's is part of a region does not
    /// change what it sends.
    pub struct Collective = 35 "collective", wire CollectiveDesc = "halyard_collective_desc" {
        /// Which.
        kind: CollectiveKind,
        /// Element type.
        dtype: DType,
        /// The other rank, where the kind names one.
        peer: u32,
        /// The number that the device gave the communicator. 0: it gave none; such a node is prepared by the
        /// communicator interface, and no region holds it.
        communicator: u64,
    }
    operands {
        /// Contiguous `dtype`; absent for recv.
        input: Read?y,
        /// Contiguous `dtype`; absent for send. Of all_reduce it may be the input.
        out: Write?y,
    }
}

impl Collective {
    /// What of it a communicator is asked for.
    pub fn of_communicator(&self) -> communicator::Collective {
        communicator::Collective {
            kind: self.kind,
            dtype: self.dtype,
            peer: self.peer,
        }
    }
}
