//! `Communicator` over the communicator table. A platform without the interface has one rank and no communicator.

use std::sync::Arc;

use halyard_platform_api::abi::tables::{CollectiveWire, CommunicatorTable};
use halyard_platform_api::{Collective, CollectiveKind, Communicator, CommunicatorId, Error, PreparedOp, Result};

use super::device::OpenDevice;
use super::{Handle, call, ops, slot};

fn table(open: &OpenDevice) -> Result<&CommunicatorTable> {
    open.tables
        .communicator
        .as_ref()
        .ok_or_else(|| Error::unsupported(format!("{}: this platform has no communicator interface", open.name)))
}

/// A fresh group id.
pub(super) fn unique_id(open: &OpenDevice) -> Result<CommunicatorId> {
    let table = table(open)?;
    let mut id = CommunicatorId([0; 128]);
    // SAFETY: a live device, 128 writable bytes.
    call(&open.name, |err| unsafe {
        slot(table.unique_id)(open.handle.0, id.0.as_mut_ptr(), err)
    })?;
    Ok(id)
}

/// Joins a group.
pub(super) fn join(open: Arc<OpenDevice>, id: &CommunicatorId, rank: u32, size: u32) -> Result<Arc<dyn Communicator>> {
    let table = *table(&open)?;
    if rank >= size {
        return Err(Error::invalid(format!(
            "{}: rank {rank} of a group of {size}",
            open.name
        )));
    }
    let mut handle = std::ptr::null_mut();
    // SAFETY: a live device, 128 readable bytes, valid output.
    call(&open.name, |err| unsafe {
        slot(table.create)(open.handle.0, id.0.as_ptr(), rank, size, &mut handle, err)
    })?;
    Ok(Arc::new(HostCommunicator {
        open,
        table,
        handle: Handle(handle),
        rank,
        size,
    }))
}

/// A communicator of a plugin.
struct HostCommunicator {
    open: Arc<OpenDevice>,
    table: CommunicatorTable,
    handle: Handle,
    rank: u32,
    size: u32,
}

impl Drop for HostCommunicator {
    fn drop(&mut self) {
        // SAFETY: a live communicator, used no more.
        unsafe { slot(self.table.drop)(self.handle.0) };
    }
}

impl Communicator for HostCommunicator {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn prepare(&self, spec: &Collective) -> Result<Arc<dyn PreparedOp>> {
        let names_peer = matches!(
            spec.kind,
            CollectiveKind::Broadcast | CollectiveKind::Send | CollectiveKind::Recv
        );
        if names_peer && spec.peer >= self.size {
            return Err(Error::invalid(format!(
                "{}: {:?} with rank {} of a group of {}",
                self.open.name, spec.kind, spec.peer, self.size
            )));
        }
        let wire = CollectiveWire::new(spec);
        // SAFETY: a live communicator, a sized spec and output.
        ops::prepare_collective(&self.open, |out, err| unsafe {
            slot(self.table.prepare)(self.handle.0, &wire, out, err)
        })
    }
}
