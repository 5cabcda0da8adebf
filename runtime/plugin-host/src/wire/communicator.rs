//! `Communicator` over the communicator table. A platform without the interface has one rank and no communicator.

use std::sync::Arc;

use halyard_platform_api::abi::AbiLayout;
use halyard_platform_api::abi::tables::{CollectiveWire, CommunicatorDescWire, CommunicatorTable};
use halyard_platform_api::{
    Collective, CollectiveKind, Communicator, CommunicatorDesc, CommunicatorId, Error, PreparedOp, Result, Status,
};

use super::device::OpenDevice;
use super::{Handle, call, named, ops, slot};

fn table(open: &OpenDevice) -> Result<&CommunicatorTable> {
    open.tables
        .communicator
        .as_ref()
        .ok_or_else(|| Error::unsupported(format!("{}: this platform has no communicator interface", open.name)))
}

/// A fresh group id.
pub(super) fn unique_id(open: &OpenDevice) -> Result<CommunicatorId> {
    let table = table(open)?;
    let mut id = vec![0; CommunicatorId::MAX_BYTES];
    let mut len = 0;
    // SAFETY: a live device, as many writable bytes as stated, valid output.
    call(&open.name, |err| unsafe {
        slot(table.unique_id)(open.handle.0, id.as_mut_ptr(), id.len() as u32, &mut len, err)
    })?;
    if len as usize > id.len() {
        return Err(Error::new(
            Status::Internal,
            format!(
                "{}: a communicator's id of {len} bytes; at most {} are taken",
                open.name,
                id.len()
            ),
        ));
    }
    id.truncate(len as usize);
    CommunicatorId::new(id).map_err(|e| named(&open.name, e))
}

/// Joins a group.
pub(super) fn join(open: Arc<OpenDevice>, group: &CommunicatorDesc) -> Result<Arc<dyn Communicator>> {
    let table = *table(&open)?;
    let (rank, size) = (group.rank, group.size);
    if rank >= size {
        return Err(Error::invalid(format!(
            "{}: rank {rank} of a group of {size}",
            open.name
        )));
    }
    let mut wire = CommunicatorDescWire::zeroed();
    wire.rank = rank;
    wire.size = size;
    wire.id = group.id.bytes().as_ptr();
    wire.id_len = group.id.bytes().len() as u32;
    wire.timeout_ns = group.timeout_ns;
    wire.for_minor(table.minor);
    let (mut handle, mut number) = (std::ptr::null_mut(), 0);
    // SAFETY: a live device, a sized descriptor whose id is borrowed for the call, valid outputs.
    call(&open.name, |err| unsafe {
        slot(table.create)(open.handle.0, &wire, &mut handle, &mut number, err)
    })?;
    Ok(Arc::new(HostCommunicator {
        number,
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
    number: u64,
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

    fn number(&self) -> u64 {
        self.number
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
        let mut wire = CollectiveWire::new(spec);
        wire.for_minor(self.table.minor);
        // SAFETY: a live communicator, a sized spec and output.
        ops::prepare_collective(&self.open, |out, err| unsafe {
            slot(self.table.prepare)(self.handle.0, &wire, out, err)
        })
    }
}
