//! The stat-logger table.

use std::ffi::c_void;
use std::sync::Arc;

use super::{Handle, put};
use crate::abi::Str;
use crate::abi::layout::AbiLayout;
use crate::abi::tables::StatLoggerTable;
use crate::abi::types::{ErrorOut, read_known_element};
use crate::hooks::{FinishedRecord, StatLogger, StatLoggerFactory, StatRecord, StepRecord};

/// The plugin's root.
pub(super) type FactoryState = Arc<dyn StatLoggerFactory>;

type LoggerHandle = Handle<Box<dyn StatLogger>>;

/// The table over any [`StatLoggerFactory`].
pub(super) static TABLE: StatLoggerTable = StatLoggerTable {
    struct_size: size_of::<StatLoggerTable>() as u32,
    minor: StatLoggerTable::VERSION.1,
    create: Some(create),
    drop: Some(LoggerHandle::release_c),
    steps: Some(steps),
    finished: Some(finished),
    flush: Some(flush),
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

/// # Safety
/// A live logger that this thread alone uses; `num` records, `stride` bytes apart.
unsafe fn take<T: AbiLayout>(
    logger: *mut c_void,
    records: *const T,
    (num, stride): (u32, u32),
    err: *mut ErrorOut,
    record: impl Fn(T) -> StatRecord,
) -> u32 {
    // SAFETY: as the caller promises.
    unsafe {
        LoggerHandle::with_mut(logger, err, |logger| {
            let batch = (0..num as usize)
                .map(|i| read_known_element(records, i, stride).map(&record))
                .collect::<crate::Result<Vec<_>>>()?;
            logger.record(&batch)
        })
    }
}

unsafe extern "C" fn steps(
    logger: *mut c_void,
    records: *const StepRecord,
    num: u32,
    stride: u32,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: as the wire promises.
    unsafe { take(logger, records, (num, stride), err, StatRecord::Step) }
}

unsafe extern "C" fn finished(
    logger: *mut c_void,
    records: *const FinishedRecord,
    num: u32,
    stride: u32,
    err: *mut ErrorOut,
) -> u32 {
    // SAFETY: as the wire promises.
    unsafe { take(logger, records, (num, stride), err, StatRecord::Finished) }
}

unsafe extern "C" fn flush(logger: *mut c_void, err: *mut ErrorOut) -> u32 {
    // SAFETY: the wire promises a live logger that this thread alone uses.
    unsafe { LoggerHandle::with_mut(logger, err, |logger| logger.flush()) }
}
