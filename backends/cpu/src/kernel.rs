//! What an op is to the pool: phases that every thread runs its share of.

use std::ops::Range;

use halyard_kernels_cpu::Kernels;
use halyard_platform_api::{Error, Result, Tensor, WeightRows};

use crate::objects::Objects;
use crate::view::View;

/// A thread's place in a parallel region.
pub(crate) struct Worker<'a> {
    pub rank: usize,
    pub size: usize,
    pub kernels: &'static Kernels,
    /// Scratch of the op, shared by all threads.
    pub shared: *mut u8,
    /// f32 scratch of this thread.
    pub local: &'a mut [f32],
}

impl Worker<'_> {
    /// This thread's part of `count` equal pieces of work.
    pub(crate) fn share(&self, count: usize) -> Range<usize> {
        count * self.rank / self.size..count * (self.rank + 1) / self.size
    }
}

/// A prepared op. Phases run in order on all threads; between two phases every thread has finished the first.
pub(crate) trait Kernel: Send + Sync {
    /// Number of phases.
    fn phases(&self) -> usize {
        1
    }

    /// Shared scratch in bytes.
    fn scratch_bytes(&self) -> usize {
        0
    }

    /// This thread's share of a phase.
    ///
    /// # Safety
    /// The operands are the op's, resolved and alive; all threads of the region call it with the same ones, and nothing else
    /// touches what they write. `shared` holds `scratch_bytes`.
    unsafe fn run(&self, phase: usize, worker: &mut Worker<'_>, operands: &[View]);

    /// Bytes of the packed weight.
    fn packed_weight_bytes(&self) -> Result<u64> {
        Err(Error::invalid("this op has no weight"))
    }

    /// Packs rows of the weight.
    fn pack_weight(&self, rows: &WeightRows<'_>, dst: &Tensor, objects: &Objects) -> Result<()> {
        let _ = (rows, dst, objects);
        Err(Error::invalid("this op has no weight"))
    }
}
