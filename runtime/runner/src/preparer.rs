//! Prepares each op once for all programs of a model. Collects the ops that the platform lacks, so that one error names
//! them all.

use std::collections::HashMap;
use std::sync::Arc;

use halyard_platform_api::{Communicator, Device, OpSpec, PreparedOp, Program, Status};

use crate::error::RunnerError;

/// Prepares ops, each equal spec once.
pub(crate) struct Preparer<'a> {
    device: &'a dyn Device,
    /// This rank's, where there are several.
    communicator: Option<&'a dyn Communicator>,
    prepared: HashMap<(String, u32, Vec<u8>), Arc<dyn PreparedOp>>,
    programs: Vec<(Program, Arc<dyn PreparedOp>)>,
    missing: Vec<String>,
}

impl<'a> Preparer<'a> {
    pub(crate) fn new(device: &'a dyn Device, communicator: Option<&'a dyn Communicator>) -> Self {
        Preparer {
            device,
            communicator,
            prepared: HashMap::new(),
            programs: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// The prepared op of a spec; `None` when the platform lacks it, which is noted.
    pub(crate) fn op(&mut self, spec: &OpSpec) -> Result<Option<Arc<dyn PreparedOp>>, RunnerError> {
        let key = (spec.name().to_string(), spec.version(), spec.wire_bytes());
        if let Some(op) = self.prepared.get(&key) {
            return Ok(Some(op.clone()));
        }
        let op = match (spec, self.communicator) {
            // The platform's ops name no communicators: it prepares its collectives itself.
            (OpSpec::Collective(op), Some(communicator)) if op.communicator == 0 => {
                match communicator.prepare(&op.of_communicator()) {
                    Err(why) if why.status == Status::Unsupported => {
                        let (kind, dtype) = (op.kind, op.dtype);
                        self.note_missing(format!("{kind:?} of {dtype:?} between devices: {}", why.message));
                        return Ok(None);
                    }
                    prepared => prepared?,
                }
            }
            _ => {
                if let Err(why) = self.device.ops().support(spec) {
                    self.note_missing(format!("{}: {}", spec.name(), why.message));
                    return Ok(None);
                }
                self.device.ops().prepare(spec)?
            }
        };
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
}
