//! The stat-logger table.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use super::{Handle, put};
use crate::abi::Str;
use crate::abi::tables::{BatchWire, StatLoggerTable};
use crate::abi::types::{ErrorOut, read_known};
use crate::hooks::{Batch, StatLogger, StatLoggerFactory, read_batch};
use crate::status::Error;

/// The plugin's root.
pub(super) type FactoryState = Arc<dyn StatLoggerFactory>;

type LoggerHandle = Handle<Box<dyn StatLogger>>;

/// The table over any [`StatLoggerFactory`].
pub(super) static TABLE: StatLoggerTable = StatLoggerTable {
    struct_size: size_of::<StatLoggerTable>() as u32,
    minor: StatLoggerTable::VERSION.1,
    create: Some(create),
    drop: Some(LoggerHandle::release_c),
    log_batch: Some(log_batch),
    flush: Some(flush),
    expose: Some(expose),
};

unsafe extern "C" fn create(instance: *mut c_void, config: Str, out: *mut *mut c_void, err: *mut ErrorOut) -> u32 {
    // SAFETY: the wire promises a live instance, a valid text and valid outputs.
    unsafe {
        Handle::<FactoryState>::with(instance, err, |factory| {
            let logger = factory.create(&config.to_text())?;
            put(out, LoggerHandle::into_raw(logger))
        })
    }
}

unsafe extern "C" fn log_batch(logger: *mut c_void, batch: *const BatchWire, err: *mut ErrorOut) -> u32 {
    // SAFETY: the wire promises a live logger that this thread alone uses, and a sized batch of sized records.
    unsafe {
        LoggerHandle::with_mut(logger, err, |logger| {
            let wire = read_known(batch)?;
            let records = read_batch(&wire)?;
            logger.log_batch(&Batch {
                records: &records,
                deadline: Duration::from_nanos(wire.deadline_ns),
                num_dropped: wire.num_dropped,
            })
        })
    }
}

unsafe extern "C" fn flush(logger: *mut c_void, deadline_ns: u64, err: *mut ErrorOut) -> u32 {
    // SAFETY: the wire promises a live logger that this thread alone uses.
    unsafe { LoggerHandle::with_mut(logger, err, |logger| logger.flush(Duration::from_nanos(deadline_ns))) }
}

unsafe extern "C" fn expose(
    logger: *mut c_void,
    buffer: *mut u8,
    capacity: u64,
    len: *mut u64,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: the wire promises a live logger that this thread alone uses, and a buffer of that capacity.
    unsafe {
        LoggerHandle::with_mut(logger, err, |logger| {
            let text = logger.expose()?.unwrap_or_default();
            if text.len() as u64 <= capacity && !text.is_empty() {
                if buffer.is_null() {
                    return Err(Error::invalid("a null buffer"));
                }
                std::ptr::copy_nonoverlapping(text.as_ptr(), buffer, text.len());
            }
            put(len, text.len() as u64)
        })
    }
}
