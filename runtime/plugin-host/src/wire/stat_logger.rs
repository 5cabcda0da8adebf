//! Stat loggers over their table. Delivery, with its thread and its quarantine, is the engine's.

use std::sync::Arc;

use halyard_platform_api::abi::Str;
use halyard_platform_api::abi::tables::StatLoggerTable;
use halyard_platform_api::hooks::{FinishedRecord, StatLogger, StatLoggerFactory, StatRecord, StepRecord};
use halyard_platform_api::{Error, Result, Status};

use super::{Handle, call, slot};

struct Shared {
    name: String,
    table: StatLoggerTable,
    instance: Handle,
}

/// A stat-logger plugin.
pub struct HostStatLoggerFactory {
    shared: Arc<Shared>,
}

impl HostStatLoggerFactory {
    pub(crate) fn new(name: String, table: StatLoggerTable, instance: *mut std::ffi::c_void) -> HostStatLoggerFactory {
        HostStatLoggerFactory {
            shared: Arc::new(Shared {
                name,
                table,
                instance: Handle(instance),
            }),
        }
    }
}

impl StatLoggerFactory for HostStatLoggerFactory {
    fn create(&self, config: &str) -> Result<Box<dyn StatLogger>> {
        let shared = &self.shared;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a live instance, a text borrowed for the call, valid output.
        call(&shared.name, |err| unsafe {
            slot(shared.table.create)(shared.instance.0, Str::new(config), &mut handle, err)
        })?;
        if handle.is_null() {
            return Err(Error::new(
                Status::Internal,
                format!("{}: made a logger that is a null handle", shared.name),
            ));
        }
        Ok(Box::new(HostStatLogger {
            shared: shared.clone(),
            handle: Handle(handle),
            steps: Vec::new(),
            finished: Vec::new(),
        }))
    }
}

/// A logger of a plugin.
struct HostStatLogger {
    shared: Arc<Shared>,
    handle: Handle,
    // The run of equal records being gathered; kept for their memory.
    steps: Vec<StepRecord>,
    finished: Vec<FinishedRecord>,
}

impl HostStatLogger {
    fn send_steps(&mut self) -> Result<()> {
        if self.steps.is_empty() {
            return Ok(());
        }
        let Shared { name, table, .. } = &*self.shared;
        // SAFETY: a live logger that `&mut` makes ours alone, and records of the stated number and stride.
        let sent = call(name, |err| unsafe {
            slot(table.steps)(
                self.handle.0,
                self.steps.as_ptr(),
                self.steps.len() as u32,
                size_of::<StepRecord>() as u32,
                err,
            )
        });
        self.steps.clear();
        sent
    }

    fn send_finished(&mut self) -> Result<()> {
        if self.finished.is_empty() {
            return Ok(());
        }
        let Shared { name, table, .. } = &*self.shared;
        // SAFETY: as in `send_steps`.
        let sent = call(name, |err| unsafe {
            slot(table.finished)(
                self.handle.0,
                self.finished.as_ptr(),
                self.finished.len() as u32,
                size_of::<FinishedRecord>() as u32,
                err,
            )
        });
        self.finished.clear();
        sent
    }
}

impl StatLogger for HostStatLogger {
    fn record(&mut self, records: &[StatRecord]) -> Result<()> {
        // Runs of one kind cross together, in order.
        for record in records {
            match record {
                StatRecord::Step(step) => {
                    self.send_finished()?;
                    self.steps.push(*step);
                }
                StatRecord::Finished(finished) => {
                    self.send_steps()?;
                    self.finished.push(*finished);
                }
            }
        }
        self.send_steps()?;
        self.send_finished()
    }

    fn flush(&mut self) -> Result<()> {
        let Shared { name, table, .. } = &*self.shared;
        match table.flush {
            // SAFETY: a live logger that `&mut` makes ours alone.
            Some(flush) => call(name, |err| unsafe { flush(self.handle.0, err) }),
            None => Ok(()),
        }
    }
}

impl Drop for HostStatLogger {
    fn drop(&mut self) {
        // SAFETY: a live logger, used no more.
        unsafe { slot(self.shared.table.drop)(self.handle.0) };
    }
}
