//! The plugin's side of the wire: `extern "C"` functions that fill the tables from any implementation of the traits.
//!
//! Every function catches panics: the panic becomes a status with words, and the handle it happened on is poisoned,
//! unless it is a platform's or a device's.
//! Nothing here may let a panic, an allocator or a Rust type cross. `encode` is the hot path and must not allocate.

mod attention;
mod communicator;
mod device;
mod encoder;
mod entry;
mod io_processor;
mod logits_processor;
mod lora_resolver;
mod ops;
mod platform;
mod stat_logger;

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use entry::{
    IoProcessorMaker, LogitsProcessorMaker, LoraResolverMaker, PlatformMaker, Seed, StatLoggerMaker,
    enter_io_processor, enter_logits_processor, enter_lora_resolver, enter_platform, enter_stat_logger,
};

use super::layout::AbiLayout;
use super::types::ErrorOut;
use crate::device::{CommandBuffer, Queue};
use crate::status::{Error, Result, Status};

/// What a handle points to: the object and whether a panic has left it unusable.
struct Handle<T> {
    poisoned: AtomicBool,
    value: T,
}

impl<T> Handle<T> {
    /// Moves `value` behind a new handle, to be released with [`Handle::release`].
    fn into_raw(value: T) -> *mut c_void {
        let handle = Handle {
            poisoned: AtomicBool::new(false),
            value,
        };
        Box::into_raw(Box::new(handle)).cast()
    }

    /// Runs `f` on the object, guarded; returns the status code and fills `err`.
    ///
    /// # Safety
    /// `ptr` is null or a live handle of this type; `err` is null or a sized [`ErrorOut`].
    unsafe fn with(ptr: *mut c_void, err: *mut ErrorOut, f: impl FnOnce(&T) -> Result<()>) -> u32 {
        if ptr.is_null() {
            // SAFETY: as the caller promises.
            return unsafe { report(err, &Error::invalid("null handle")) };
        }
        // SAFETY: as the caller promises.
        let handle = unsafe { &*ptr.cast::<Handle<T>>() };
        // SAFETY: as the caller promises.
        unsafe { guarded(Some(&handle.poisoned), err, || f(&handle.value)) }
    }

    /// As [`Handle::with`], for objects that serve many calls which have nothing to do with each other (a platform, a
    /// device): a panic ends its own call only.
    ///
    /// # Safety
    /// As [`Handle::with`].
    unsafe fn with_shared(ptr: *mut c_void, err: *mut ErrorOut, f: impl FnOnce(&T) -> Result<()>) -> u32 {
        if ptr.is_null() {
            // SAFETY: as the caller promises.
            return unsafe { report(err, &Error::invalid("null handle")) };
        }
        // SAFETY: as the caller promises.
        let handle = unsafe { &*ptr.cast::<Handle<T>>() };
        // SAFETY: as the caller promises.
        unsafe { guarded(None, err, || f(&handle.value)) }
    }

    /// As [`Handle::with`], for objects that one thread at a time uses.
    ///
    /// # Safety
    /// As [`Handle::with`], and no other call uses the handle at the same time.
    unsafe fn with_mut(ptr: *mut c_void, err: *mut ErrorOut, f: impl FnOnce(&mut T) -> Result<()>) -> u32 {
        if ptr.is_null() {
            // SAFETY: as the caller promises.
            return unsafe { report(err, &Error::invalid("null handle")) };
        }
        // SAFETY: as the caller promises, nobody else uses it now.
        let Handle { poisoned, value } = unsafe { &mut *ptr.cast::<Handle<T>>() };
        // SAFETY: as the caller promises.
        unsafe { guarded(Some(poisoned), err, || f(value)) }
    }

    /// [`Handle::release`] as a table's function.
    ///
    /// # Safety
    /// As [`Handle::release`].
    unsafe extern "C" fn release_c(ptr: *mut c_void) {
        // SAFETY: as the caller promises.
        unsafe { Self::release(ptr) };
    }

    /// Drops the object. A panic in its destructor ends here.
    ///
    /// # Safety
    /// `ptr` is null or a live handle of this type, which nobody uses again.
    unsafe fn release(ptr: *mut c_void) {
        if ptr.is_null() {
            return;
        }
        // SAFETY: as the caller promises; made by `into_raw`.
        let handle = unsafe { Box::from_raw(ptr.cast::<Handle<T>>()) };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(handle))) {
            crate::log::error(
                "halyard_platform_api",
                &format!("panicked while an object was released: {}", words(&*panic)),
            );
            // The payload's own destructor could panic again.
            std::mem::forget(panic);
        }
    }
}

type QueueHandle = Handle<Arc<dyn Queue>>;
type CommandHandle = Handle<Arc<dyn CommandBuffer>>;

/// Runs `f` unless an earlier panic poisoned its object, and turns its outcome into a status code.
///
/// # Safety
/// `err` is null or a sized [`ErrorOut`].
#[inline]
unsafe fn guarded(poisoned: Option<&AtomicBool>, err: *mut ErrorOut, f: impl FnOnce() -> Result<()>) -> u32 {
    if poisoned.is_some_and(|poisoned| poisoned.load(Ordering::Relaxed)) {
        let error = Error::new(
            Status::Poisoned,
            "an earlier call panicked and left this object unusable",
        );
        // SAFETY: as the caller promises.
        return unsafe { report(err, &error) };
    }
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(())) => Status::Ok as u32,
        // SAFETY: as the caller promises.
        Ok(Err(error)) => unsafe { report(err, &error) },
        Err(panic) => {
            if let Some(poisoned) = poisoned {
                poisoned.store(true, Ordering::Relaxed);
            }
            let error = Error::new(Status::Panicked, format!("panicked: {}", words(&*panic)));
            // The payload's own destructor could panic again.
            std::mem::forget(panic);
            // SAFETY: as the caller promises.
            unsafe { report(err, &error) }
        }
    }
}

/// Stores `error` and returns its code.
///
/// # Safety
/// `err` is null or a sized [`ErrorOut`] whose text is null or valid for its capacity.
#[cold]
unsafe fn report(err: *mut ErrorOut, error: &Error) -> u32 {
    // SAFETY: as the caller promises.
    if !err.is_null() && unsafe { (*err).struct_size } as usize >= ErrorOut::MIN_SIZE {
        // SAFETY: as the caller promises; fields that were appended later are not written.
        unsafe { ErrorOut::store(err, error) };
    }
    error.status as u32
}

/// The words of a panic.
fn words(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// No flag is defined: one that is set asks for something that this side does not know.
fn no_flags(what: &str, flags: u64) -> Result<()> {
    match flags {
        0 => Ok(()),
        flags => Err(Error::unsupported(format!(
            "{what} with the flags {flags:#x}; none is known here"
        ))),
    }
}

/// Writes an output.
///
/// # Safety
/// `out` is null or valid for a write.
unsafe fn put<T>(out: *mut T, value: T) -> Result<()> {
    if out.is_null() || !out.is_aligned() {
        return Err(Error::invalid(format!(
            "an output pointer is null or unaligned ({out:p})"
        )));
    }
    // SAFETY: as the caller promises.
    unsafe { out.write(value) };
    Ok(())
}

/// Borrows an input array; null is fine for no entries.
///
/// # Safety
/// `ptr` is null or valid for `len` entries during the call.
unsafe fn slice<'a, T>(ptr: *const T, len: u64) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    let most = isize::MAX as u64 / size_of::<T>() as u64;
    if ptr.is_null() || !ptr.is_aligned() || len > most {
        return Err(bad_array(ptr.cast(), len));
    }
    // SAFETY: as the caller promises; not null, aligned, of a possible size.
    Ok(unsafe { std::slice::from_raw_parts(ptr, len as usize) })
}

#[cold]
fn bad_array(ptr: *const u8, len: u64) -> Error {
    Error::invalid(format!(
        "an array of {len} entries at {ptr:p} is null, unaligned or impossibly large"
    ))
}
