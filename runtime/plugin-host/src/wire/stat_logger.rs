//! Stat loggers over their table. Delivery, with its threads and its quarantine, is runtime/hooks'.

use std::sync::Arc;
use std::time::Duration;

use halyard_platform_api::Result;
use halyard_platform_api::abi::limits::MAX_METRICS_BYTES;
use halyard_platform_api::abi::tables::StatLoggerTable;
use halyard_platform_api::hooks::{Batch, RecordBatch, StatLogger, StatLoggerFactory};

use super::hook::Hook;
use super::{Handle, slot};

/// First size of the buffer for a sink's text; a sink that needs more is asked again.
const FIRST_TEXT_BYTES: usize = 64 << 10;

/// A stat-logger plugin.
pub struct HostStatLoggerFactory {
    shared: Arc<Hook<StatLoggerTable>>,
}

impl HostStatLoggerFactory {
    pub(crate) fn new(name: String, table: StatLoggerTable, instance: *mut std::ffi::c_void) -> HostStatLoggerFactory {
        HostStatLoggerFactory {
            shared: Hook::new(name, table, instance),
        }
    }
}

impl StatLoggerFactory for HostStatLoggerFactory {
    fn create(&self, config: &str) -> Result<Box<dyn StatLogger>> {
        let shared = self.shared.clone();
        let handle = shared.create("a logger", shared.table.create, config)?;
        Ok(Box::new(HostStatLogger {
            shared,
            handle,
            text: Vec::new(),
        }))
    }
}

/// A logger of a plugin.
struct HostStatLogger {
    shared: Arc<Hook<StatLoggerTable>>,
    handle: Handle,
    // Kept for its memory.
    text: Vec<u8>,
}

impl StatLogger for HostStatLogger {
    fn log_batch(&mut self, batch: &Batch<'_>) -> Result<()> {
        let laid_out = RecordBatch::new(batch);
        let wire = laid_out.wire();
        // SAFETY: a live logger that `&mut` makes ours alone, and a batch whose parts live until the end of this
        // function.
        self.shared
            .call(|err| unsafe { slot(self.shared.table.log_batch)(self.handle.0, &wire, err) })
    }

    fn flush(&mut self, deadline: Duration) -> Result<()> {
        let deadline_ns = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        match self.shared.table.flush {
            // SAFETY: a live logger that `&mut` makes ours alone.
            Some(flush) => self
                .shared
                .call(|err| unsafe { flush(self.handle.0, deadline_ns, err) }),
            None => Ok(()),
        }
    }

    fn expose(&mut self) -> Result<Option<String>> {
        let Some(expose) = self.shared.table.expose else {
            return Ok(None);
        };
        if self.text.is_empty() {
            self.text.resize(FIRST_TEXT_BYTES, 0);
        }
        // A text may grow between two calls; one that keeps growing past its own answer is broken.
        for _ in 0..3 {
            let capacity = self.text.len() as u64;
            let mut len = 0;
            let buffer = self.text.as_mut_ptr();
            self.shared.call(|err| {
                // SAFETY: a live logger that `&mut` makes ours alone; a buffer of that capacity; valid output.
                unsafe { expose(self.handle.0, buffer, capacity, &mut len, err) }
            })?;
            if len == 0 {
                return Ok(None);
            }
            if len > u64::from(MAX_METRICS_BYTES) {
                return Err(self.shared.defect(format!(
                    "shows {len} bytes at /metrics; at most {MAX_METRICS_BYTES} are taken"
                )));
            }
            if len <= capacity {
                let text = std::str::from_utf8(&self.text[..len as usize]);
                let text = text.map_err(|e| {
                    self.shared
                        .defect(format!("shows a text at /metrics that is not UTF-8: {e}"))
                })?;
                return Ok(Some(text.to_owned()));
            }
            self.text.resize(len as usize + len as usize / 4, 0);
        }
        Err(self
            .shared
            .defect("asks for a larger buffer each time it is asked for its text".to_string()))
    }
}

impl Drop for HostStatLogger {
    fn drop(&mut self) {
        // SAFETY: a live logger, used no more.
        unsafe { slot(self.shared.table.drop)(self.handle.0) };
    }
}
