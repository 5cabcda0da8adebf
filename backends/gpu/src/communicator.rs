//! This rank's end of a group: its collectives are ops ([`CollectiveKernel`]), prepared here or named by the
//! communicator's number.

use std::sync::Arc;

use halyard_platform_api::communicator::Collective;
use halyard_platform_api::{Communicator, PreparedOp, Result};

use crate::device::{Inner, register};
use crate::driver::Group;
use crate::objects::write;
use crate::ops::CollectiveKernel;

/// This rank's end of a group.
pub(crate) struct GpuCommunicator {
    inner: Arc<Inner>,
    group: Arc<dyn Group>,
    number: u64,
}

impl GpuCommunicator {
    pub(crate) fn new(inner: Arc<Inner>, group: Arc<dyn Group>) -> GpuCommunicator {
        let number = write(&inner.objects).groups.insert(group.clone());
        GpuCommunicator { inner, group, number }
    }
}

impl Communicator for GpuCommunicator {
    fn rank(&self) -> u32 {
        self.group.rank()
    }

    fn size(&self) -> u32 {
        self.group.size()
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn prepare(&self, spec: &Collective) -> Result<Arc<dyn PreparedOp>> {
        let kernel = CollectiveKernel::new(&self.group, *spec)?;
        register(&self.inner, Box::new(kernel), Vec::new())
    }
}

impl Drop for GpuCommunicator {
    fn drop(&mut self) {
        let group = write(&self.inner.objects).groups.remove(self.number);
        drop(group);
        self.group.leave();
    }
}
