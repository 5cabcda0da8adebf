//! A plugin's way to the host's log. Outside a plugin, or with a host that takes no logs, nothing is written.
//!
//! Each library that links this crate has its own host pointer, set when the host enters it.

use std::ffi::c_void;
use std::sync::OnceLock;

use crate::abi::Str;
use crate::abi::tables::{Host, LogFn};

struct Sink {
    context: *mut c_void,
    log: LogFn,
}

// SAFETY: the contract lets any thread call the host's log function with its context.
unsafe impl Send for Sink {}
// SAFETY: as above.
unsafe impl Sync for Sink {}

static SINK: OnceLock<Sink> = OnceLock::new();

/// Remembers where logs go. The first host stays: there is one a process.
pub(crate) fn set_host(host: &Host) {
    if let Some(log) = host.log {
        SINK.get_or_init(|| Sink {
            context: host.context,
            log,
        });
    }
}

/// Something failed.
pub(crate) const ERROR: u32 = 1;
/// Something is wrong, and the work goes on.
pub(crate) const WARN: u32 = 2;
/// Something that an operator wants to know once.
pub(crate) const INFO: u32 = 3;
/// Something for a developer.
pub(crate) const DEBUG: u32 = 4;
/// Every step of something.
pub(crate) const TRACE: u32 = 5;

fn write(level: u32, target: &str, text: &str) {
    if let Some(sink) = SINK.get() {
        // SAFETY: the host's function and context are valid for the process's life; both texts live through the call.
        unsafe { (sink.log)(sink.context, level, Str::new(target), Str::new(text)) };
    }
}

/// Something failed.
pub fn error(target: &str, text: &str) {
    write(ERROR, target, text);
}

/// Something is wrong, and the work goes on.
pub fn warn(target: &str, text: &str) {
    write(WARN, target, text);
}

/// Something that an operator wants to know once.
pub fn info(target: &str, text: &str) {
    write(INFO, target, text);
}

/// Something for a developer.
pub fn debug(target: &str, text: &str) {
    write(DEBUG, target, text);
}
