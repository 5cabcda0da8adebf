//! The contract's traits over a plugin's tables: what the engine holds when a platform is loaded.
//!
//! Each object keeps its device open; the device is closed after the last of them. Sizes and ranges are checked here
//! once, so that backends may trust them. Every error starts with the plugin's name. Nothing here knows how a plugin
//! was found.

mod attention;
mod communicator;
mod device;
mod encoder;
mod hook;
mod io_processor;
mod logits_processor;
mod lora_resolver;
mod memory;
mod ops;
mod platform;
mod queue;
mod stat_logger;

use std::ffi::c_void;
use std::mem::MaybeUninit;

use halyard_platform_api::abi::tables::{AttentionTable, CommunicatorTable, DeviceTable, OpsTable, PlatformTable};
use halyard_platform_api::abi::{ErrorOut, limits};
use halyard_platform_api::{Error, Result};

pub use io_processor::HostIoProcessorFactory;
pub use logits_processor::HostLogitsProcessorFactory;
pub use lora_resolver::HostLoraResolverFactory;
pub use platform::HostPlatform;
pub use stat_logger::HostStatLoggerFactory;

/// Attention backends give all their reasons at once, one a line.
const ERROR_TEXT_BYTES: usize = limits::ERROR_TEXT_BYTES as usize;

/// A platform plugin's tables, copied in full size and checked.
#[derive(Clone, Copy)]
pub(crate) struct PlatformTables {
    pub(crate) platform: PlatformTable,
    pub(crate) device: DeviceTable,
    pub(crate) ops: OpsTable,
    pub(crate) attention: Option<AttentionTable>,
    pub(crate) communicator: Option<CommunicatorTable>,
}

/// An object of the plugin.
#[derive(Clone, Copy)]
struct Handle(*mut c_void);

// SAFETY: the contract lets any thread use a handle, unless the function says otherwise; those that do (encoders,
// loggers) are behind `&mut`.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// A required slot. Tables with a missing one are refused at load.
fn slot<F>(slot: Option<F>) -> F {
    slot.expect("required slots were checked when the table was loaded")
}

/// Runs a function of the plugin and reads its error.
fn call(plugin: &str, function: impl FnOnce(*mut ErrorOut) -> u32) -> Result<()> {
    // Not cleared: a step makes some of these calls.
    let mut text = [MaybeUninit::uninit(); ERROR_TEXT_BYTES];
    let mut err = ErrorOut::into_room(&mut text);
    match function(&mut err) {
        0 => Ok(()),
        code => Err(read_error(plugin, &err, code)),
    }
}

/// The error of a call that returned `code`, with the plugin's name in front.
#[cold]
fn read_error(plugin: &str, err: &ErrorOut, code: u32) -> Error {
    // SAFETY: the text is the buffer that the caller of the plugin made.
    let mut error = unsafe { err.load(code) };
    if err.text_len >= err.text_capacity {
        error.message.push_str(" … (cut)");
    }
    named(plugin, error)
}

/// The error with the plugin's name in front.
fn named(plugin: &str, error: Error) -> Error {
    Error {
        message: format!("{plugin}: {}", error.message),
        ..error
    }
}

/// Whether `len` bytes at `offset` lie within `bytes`.
fn check_range(plugin: &str, operation: &str, offset: u64, len: usize, bytes: u64) -> Result<()> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= bytes => Ok(()),
        _ => Err(Error::invalid(format!(
            "{plugin}: {operation} of {len} bytes at {offset} in a buffer of {bytes}"
        ))),
    }
}
