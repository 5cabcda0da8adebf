//! Collectives as ops: a prepared one appends a command that the vendor's library enqueues on the queue's stream, so it is ordered and
//! recorded like any launch.

use std::sync::Arc;

use halyard_platform_api::communicator::{Collective, CollectiveKind};
use halyard_platform_api::{Communicator, DType, Error, PreparedOp, Result};

use crate::device::{Inner, register};
use crate::driver::{CollectiveCall, Group};
use crate::encoding::Encoding;
use crate::kernel::{Kernel, Preparation};
use crate::view::View;

/// This rank's end of a group.
pub(crate) struct GpuCommunicator {
    inner: Arc<Inner>,
    group: Arc<dyn Group>,
}

impl GpuCommunicator {
    pub(crate) fn new(inner: Arc<Inner>, group: Arc<dyn Group>) -> GpuCommunicator {
        GpuCommunicator { inner, group }
    }
}

impl Communicator for GpuCommunicator {
    fn rank(&self) -> u32 {
        self.group.rank()
    }

    fn size(&self) -> u32 {
        self.group.size()
    }

    fn prepare(&self, spec: &Collective) -> Result<Arc<dyn PreparedOp>> {
        let sums = matches!(spec.kind, CollectiveKind::AllReduce | CollectiveKind::ReduceScatter);
        let floats = [DType::F32, DType::F16, DType::BF16];
        if sums && !floats.contains(&spec.dtype) {
            return Err(Error::unsupported(format!(
                "{:?} of {:?}: sums run in F32, F16 and BF16",
                spec.kind, spec.dtype
            )));
        }
        let named = matches!(
            spec.kind,
            CollectiveKind::Broadcast | CollectiveKind::Send | CollectiveKind::Recv
        );
        if named && spec.peer >= self.group.size() {
            return Err(Error::invalid(format!(
                "{:?} with rank {}: the group has {}",
                spec.kind,
                spec.peer,
                self.group.size()
            )));
        }
        let kernel = CollectiveKernel {
            group: self.group.clone(),
            spec: *spec,
        };
        register(&self.inner, Box::new(kernel))
    }
}

impl Drop for GpuCommunicator {
    fn drop(&mut self) {
        self.group.leave();
    }
}

struct CollectiveKernel {
    group: Arc<dyn Group>,
    spec: Collective,
}

impl CollectiveKernel {
    /// Elements of an operand, which must be one piece of memory.
    fn elements(&self, name: &str, view: &View) -> Result<u64> {
        if view.dtype != self.spec.dtype {
            return Err(Error::invalid(format!(
                "{:?}: {name} is {:?}, the collective was prepared for {:?}",
                self.spec.kind, view.dtype, self.spec.dtype
            )));
        }
        let mut expected = 1u64;
        for axis in (0..view.rank as usize).rev() {
            let (extent, stride) = (u64::from(view.shape[axis]), u64::from(view.strides[axis]));
            if extent > 1 && stride != expected {
                return Err(Error::unsupported(format!(
                    "{:?}: {name} is strided ({:?} by {:?}); copy it to contiguous memory first",
                    self.spec.kind,
                    &view.shape[..view.rank as usize],
                    &view.strides[..view.rank as usize]
                )));
            }
            expected *= extent;
        }
        Ok(expected)
    }
}

impl Kernel for CollectiveKernel {
    fn prepare(&mut self, _cx: &Preparation<'_>) -> Result<()> {
        Ok(())
    }

    fn implementation(&self) -> String {
        "the vendor's collectives".to_string()
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let [input, out] = operands else {
            return Err(Error::invalid(format!(
                "{:?} takes an input and an output, not {} operands",
                self.spec.kind,
                operands.len()
            )));
        };
        use CollectiveKind::*;
        let (kind, size) = (self.spec.kind, u64::from(self.group.size()));
        let absent = |name: &str, view: &View| match view.is_none() {
            true => Err(Error::invalid(format!("{kind:?}: {name} is absent"))),
            false => self.elements(name, view),
        };
        let given = if kind == Recv { 0 } else { absent("the input", input)? };
        let taken = if kind == Send { 0 } else { absent("the output", out)? };
        let fits = match kind {
            AllReduce | Broadcast => given == taken,
            AllGather => given.checked_mul(size) == Some(taken),
            ReduceScatter => taken.checked_mul(size) == Some(given),
            AllToAll => given == taken && given.is_multiple_of(size),
            Send | Recv => true,
        };
        if !fits {
            return Err(Error::invalid(format!(
                "{kind:?} over {size} ranks: {given} elements in, {taken} out"
            )));
        }
        if given.max(taken) > 0 {
            encoding.collective(
                &self.group,
                CollectiveCall {
                    spec: self.spec,
                    input: input.ptr,
                    given,
                    out: out.ptr,
                    taken,
                },
            );
        }
        Ok(())
    }
}
