//! `AttentionRegistry` over the attention table. A platform without the interface has no backends.

use halyard_platform_api::abi::SpecBytes;
use halyard_platform_api::abi::limits::MAX_ATTENTION_BACKENDS;
use halyard_platform_api::abi::tables::{AttentionBackendWire, AttentionPlanWire, AttentionTable};
use halyard_platform_api::ops::{Attention, LatentAttention};
use halyard_platform_api::{AttentionBackendInfo, AttentionPlan, AttentionRegistry, Error, OpSpec, Result, Status};

use super::device::{HostDevice, OpenDevice};
use super::{call, named, slot};

/// Asks a freshly opened device for its backends.
pub(super) fn backends(open: &OpenDevice) -> Result<Vec<AttentionBackendInfo>> {
    let Some(table) = &open.tables.attention else {
        return Ok(Vec::new());
    };
    let mut num = 0;
    // SAFETY: a live device, valid output.
    call(&open.name, |err| unsafe {
        slot(table.num_backends)(open.handle.0, &mut num, err)
    })?;
    if num > MAX_ATTENTION_BACKENDS {
        return Err(Error::new(
            Status::Internal,
            format!(
                "{}: has {num} attention backends; at most {MAX_ATTENTION_BACKENDS} are taken",
                open.name
            ),
        ));
    }
    (0..num)
        .map(|index| {
            let mut wire = AttentionBackendWire::zeroed();
            // SAFETY: a live device, sized output.
            call(&open.name, |err| unsafe {
                slot(table.backend_info)(open.handle.0, index, &mut wire, err)
            })?;
            // SAFETY: the plugin keeps name and list valid while the device lives.
            unsafe { wire.to_info() }.map_err(|e| named(&open.name, e))
        })
        .collect()
}

impl HostDevice {
    fn attention_table(&self) -> Result<&AttentionTable> {
        self.open
            .tables
            .attention
            .as_ref()
            .ok_or_else(|| Error::unsupported(format!("{}: this platform has no attention interface", self.open.name)))
    }

    fn check_backend(&self, backend: u32) -> Result<()> {
        if (backend as usize) < self.attention_backends.len() {
            return Ok(());
        }
        Err(Error::new(
            Status::NotFound,
            format!(
                "{}: attention backend {backend} of {}",
                self.open.name,
                self.attention_backends.len()
            ),
        ))
    }

    /// Asks whether `backend` runs an op that the registry plans.
    fn ask(&self, backend: u32, spec: OpSpec) -> Result<()> {
        let table = self.attention_table()?;
        self.check_backend(backend)?;
        let bytes = SpecBytes::new(&spec, table.minor);
        let wire = bytes.wire();
        // SAFETY: a live device, a spec that `bytes` keeps.
        call(&self.open.name, |err| unsafe {
            slot(table.support)(self.open.handle.0, &wire, err)
        })
    }

    fn ask_plan(&self, backend: u32, spec: OpSpec) -> Result<AttentionPlan> {
        let table = self.attention_table()?;
        self.check_backend(backend)?;
        let bytes = SpecBytes::new(&spec, table.minor);
        let wire = bytes.wire();
        let mut out = AttentionPlanWire::zeroed();
        // SAFETY: a live device, a spec that `bytes` keeps, sized output.
        call(&self.open.name, |err| unsafe {
            slot(table.plan)(self.open.handle.0, &wire, &mut out, err)
        })?;
        out.to_plan().map_err(|e| named(&self.open.name, e))
    }
}

impl AttentionRegistry for HostDevice {
    fn backends(&self) -> Vec<AttentionBackendInfo> {
        self.attention_backends.clone()
    }

    fn support(&self, spec: &Attention) -> Result<()> {
        self.ask(spec.backend, spec.clone().into())
    }

    fn plan(&self, spec: &Attention) -> Result<AttentionPlan> {
        self.ask_plan(spec.backend, spec.clone().into())
    }

    fn support_latent(&self, spec: &LatentAttention) -> Result<()> {
        self.ask(spec.backend, spec.clone().into())
    }

    fn plan_latent(&self, spec: &LatentAttention) -> Result<AttentionPlan> {
        self.ask_plan(spec.backend, spec.clone().into())
    }
}
