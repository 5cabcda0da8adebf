//! Prepares each op once for all programs of a model, several at once, as platforms compile and tune them. Collects the
//! ops that the platform lacks, so that one error names them all.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::available_parallelism;

use halyard_platform_api::{Communicator, Device, OpSpec, PreparedOp, Program, Status};

use crate::error::RunnerError;

/// Most ops that are prepared at once: a compiler takes some hundred MB for each.
const MAX_THREADS: usize = 16;

/// What tells specs apart.
type Key = (String, u32, Vec<u8>);

fn key(spec: &OpSpec) -> Key {
    (spec.name().to_string(), spec.version(), spec.wire_bytes())
}

/// Something to prepare ahead of its turn.
enum Work<'p> {
    Op(Key, &'p OpSpec),
    Region(&'p Program),
}

/// Prepares ops, each equal spec once.
pub(crate) struct Preparer<'a> {
    device: &'a dyn Device,
    /// This rank's, where there are several.
    communicator: Option<&'a dyn Communicator>,
    prepared: HashMap<Key, Arc<dyn PreparedOp>>,
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

    /// Prepares ops and regions on several threads. [`Preparer::op`] and [`Preparer::region`] then find them;
    /// they try again what failed, and tell why. Collectives are left to them: ranks prepare those in one order.
    pub(crate) fn ahead<'p>(
        &mut self,
        specs: impl Iterator<Item = &'p OpSpec>,
        regions: impl Iterator<Item = &'p Program>,
    ) {
        let is_collective = |spec: &OpSpec| matches!(spec, OpSpec::Collective(_));
        let mut work: Vec<Work<'_>> = Vec::new();
        // First, as they are longest.
        for region in regions {
            let is_known = self.programs.iter().any(|(known, _)| known == region)
                || work
                    .iter()
                    .any(|other| matches!(other, Work::Region(other) if *other == region));
            if !is_known && !region.nodes.iter().any(|node| is_collective(&node.spec)) {
                work.push(Work::Region(region));
            }
        }
        let mut seen = HashSet::new();
        for spec in specs.filter(|spec| !is_collective(spec)) {
            let key = key(spec);
            if !self.prepared.contains_key(&key) && seen.insert(key.clone()) {
                work.push(Work::Op(key, spec));
            }
        }
        let threads = available_parallelism()
            .map_or(1, |n| n.get().min(MAX_THREADS))
            .min(work.len());
        if threads < 2 {
            return;
        }
        let ops = self.device.ops();
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some(work) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let prepared = match work {
                            Work::Op(_, spec) => ops.support(spec).and_then(|_| ops.prepare(spec)),
                            Work::Region(region) => ops.prepare_program(region),
                        };
                        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                        done.extend(prepared.ok().map(|op| (work, op)));
                    }
                });
            }
        });
        for (work, op) in done.into_inner().unwrap_or_else(PoisonError::into_inner) {
            match work {
                Work::Op(key, _) => drop(self.prepared.insert(key.clone(), op)),
                Work::Region(region) => self.programs.push(((*region).clone(), op)),
            }
        }
    }

    /// The prepared op of a spec; `None` when the platform lacks it, which is noted.
    pub(crate) fn op(&mut self, spec: &OpSpec) -> Result<Option<Arc<dyn PreparedOp>>, RunnerError> {
        let key = key(spec);
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
    pub(crate) fn region(&mut self, region: &Program) -> Result<Arc<dyn PreparedOp>, RunnerError> {
        if let Some((_, op)) = self.programs.iter().find(|(known, _)| known == region) {
            return Ok(op.clone());
        }
        let op = self.device.ops().prepare_program(region)?;
        self.programs.push((region.clone(), op.clone()));
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
