//! Prepares each op once for all programs of a model. Collects the ops that the platform lacks, so that one error names
//! them all.

use std::collections::HashMap;
use std::sync::Arc;

use halyard_platform_api::{Collective, CollectiveKind, Communicator, DType, Device, OpSpec, PreparedOp, Program};

use crate::error::RunnerError;

/// Prepares ops, each equal spec once.
pub(crate) struct Preparer<'a> {
    device: &'a dyn Device,
    prepared: HashMap<(String, u32, Vec<u8>), Arc<dyn PreparedOp>>,
    programs: Vec<(Program, Arc<dyn PreparedOp>)>,
    collectives: Vec<(Collective, Arc<dyn PreparedOp>)>,
    missing: Vec<String>,
}

impl<'a> Preparer<'a> {
    pub(crate) fn new(device: &'a dyn Device) -> Self {
        Preparer {
            device,
            prepared: HashMap::new(),
            programs: Vec::new(),
            collectives: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// The prepared op of a spec; `None` when the platform lacks it, which is noted.
    pub(crate) fn op(&mut self, spec: &OpSpec) -> Result<Option<Arc<dyn PreparedOp>>, RunnerError> {
        let key = (spec.name().to_string(), spec.version(), spec.wire_bytes());
        if let Some(op) = self.prepared.get(&key) {
            return Ok(Some(op.clone()));
        }
        if let Err(why) = self.device.ops().support(spec) {
            self.note_missing(format!("{}: {}", spec.name(), why.message));
            return Ok(None);
        }
        let op = self.device.ops().prepare(spec)?;
        self.prepared.insert(key, op.clone());
        Ok(Some(op))
    }

    /// Remembers a line for the error of [`Preparer::finish`].
    fn note_missing(&mut self, line: String) {
        if !self.missing.contains(&line) {
            self.missing.push(line);
        }
    }

    /// The prepared op of a region.
    pub(crate) fn region(&mut self, region: Program) -> Result<Arc<dyn PreparedOp>, RunnerError> {
        if let Some((_, op)) = self.programs.iter().find(|(known, _)| *known == region) {
            return Ok(op.clone());
        }
        let op = self.device.ops().prepare_program(&region)?;
        self.programs.push((region, op.clone()));
        Ok(op)
    }

    /// An error that lists everything that was missing.
    pub(crate) fn finish(self) -> Result<(), RunnerError> {
        if self.missing.is_empty() {
            Ok(())
        } else {
            Err(RunnerError::MissingOps { missing: self.missing })
        }
    }

    /// A collective, prepared once; `None` when the platform lacks it, which is noted.
    pub(crate) fn collective(
        &mut self,
        communicator: &dyn Communicator,
        kind: CollectiveKind,
        dtype: DType,
    ) -> Result<Option<Arc<dyn PreparedOp>>, RunnerError> {
        let spec = Collective { kind, dtype, peer: 0 };
        if let Some((_, op)) = self.collectives.iter().find(|(known, _)| *known == spec) {
            return Ok(Some(op.clone()));
        }
        match communicator.prepare(&spec) {
            Ok(op) => {
                self.collectives.push((spec, op.clone()));
                Ok(Some(op))
            }
            Err(why) if why.status == halyard_platform_api::Status::Unsupported => {
                self.note_missing(format!("{kind:?} of {dtype:?} between devices: {}", why.message));
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}
